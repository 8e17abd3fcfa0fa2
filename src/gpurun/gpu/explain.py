"""Edits as a list of things with their reasons, and what of a request's capabilities this driver does not have.  Pure."""

from __future__ import annotations

from gpurun.gpu.nvidia.host.file_names import BINARIES, CONFIGS, UNVERSIONED, VERSIONED
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.cdi.edits import ContainerEdits, MemoryLimit
    from gpurun.gpu.nvidia.host.driver import Driver
    from gpurun.gpu.request.injected import Injected


class Question(Record):
    """What a container's config.json says that can ask for GPUs, as :func:`gpurun.gpu.resolve.gpu_edits` takes it."""

    env: tuple[str, ...]
    annotations: Mapping[str, str] = {}
    privileged: bool = False
    mounts: tuple[tuple[str, str], ...] = ()
    injected: Injected | None = None


class Item(Record):
    """One thing: *path* in the container, *source* on the host (or what a link says), and the *reason* for it.

    *kind* is ``environment``, ``group``, ``node``, ``class``, ``file``, ``link``, ``cache``, ``image file`` (there while
    the container lives), ``compat``, ``mode``, ``private``, ``limit``, ``hook`` or ``warning``.
    """

    kind: str
    path: str
    source: str = ""
    reason: str = ""


def edit_items(edits: ContainerEdits) -> tuple[Item, ...]:
    """All of *edits*, in the order in which they are applied."""
    items = [Item("environment", variable) for variable in edits.env]
    items += [
        Item("group", str(gid), "", "group of a device node that others may not open") for gid in edits.additional_gids
    ]
    for node in edits.device_nodes:
        access = f"may {node.permissions}" if node.permissions else "may not be used"
        made = f"{node.type} {node.major}:{node.minor} {access}: {node.reason}"
        items.append(Item("node", node.path, node.host_path, made))
    for group in edits.device_classes:
        items.append(Item("class", f"{group.type} {group.major}:*", "", f"may {group.permissions}: {group.reason}"))
    items += [Item("file", mount.container_path, mount.host_path, mount.reason) for mount in edits.mounts]
    items += [Item("link", link.path, link.target, link.reason) for link in edits.links]
    items += [Item("cache", entry.soname, entry.path) for entry in edits.ldcache]
    items += [Item("image file", file.path, "", file.reason) for file in edits.image_files]
    if edits.forward_compat is not None:
        items.append(Item("compat", edits.forward_compat.directory, "", edits.forward_compat.reason))
    items += [Item("mode", chmod.path, f"{chmod.mode:04o}", chmod.reason) for chmod in edits.chmods]
    for tree in edits.proc_trees:
        items.append(Item("private", tree.path, "", tree.reason))
        items += [Item("private", file.path, "", file.reason) for file in tree.files]
        items += [Item("private", bind.container_path, bind.host_path, bind.reason) for bind in tree.binds]
    items += [Item("limit", one.gpu, "", limit_text(one)) for one in edits.memory_limits]
    items += [Item("hook", f"{hook.stage}: {' '.join(hook.args or (hook.path,))}", hook.path) for hook in edits.hooks]
    items += [Item("warning", warning) for warning in edits.warnings]
    return tuple(items)


def limit_text(limit: MemoryLimit) -> str:
    """What the limit is, who keeps it, and who asked for it."""
    by = "the driver (NVML)" if limit.library else "the kernel (dmem.max)"
    soft = f", {limit.soft >> 20} MiB of it kept for it" if limit.soft else ""
    most = "no limit" if limit.hard >> 63 else f"at most {limit.hard >> 20} MiB of its memory"
    return f"{most}{soft}, by {by}: {limit.where}"


def missing_items(driver: Driver, capabilities: tuple[str, ...], compat32: bool) -> tuple[Item, ...]:
    """What the table of *capabilities* lists and *driver* (read for them) does not have: old and new drivers differ."""
    found = {library.name for library in driver.libraries if not library.compat32}
    stems = {library.soname for library in driver.libraries}
    items = []
    for capability in capabilities:
        for name in VERSIONED.get(capability, ()):
            if f"{name}.so.{driver.version}" not in found:
                items.append(Item("library", f"{name}.so.{driver.version}", "", f"library of capability {capability}"))
        for name in UNVERSIONED.get(capability, ()):
            if name not in found and name not in stems:
                items.append(Item("library", name, "", f"library of capability {capability}"))
        present = {file.path.rpartition("/")[2] for file in driver.files}
        for name in BINARIES.get(capability, ()):
            if name not in present:
                items.append(Item("binary", name, "", f"program of capability {capability}"))
        for owner, directory, _, names in CONFIGS:
            if owner == capability:
                known = [n.replace("VERSION", driver.version) for n in names]
                lacking = [n for n in known if n not in present]
                items += [Item("config", f"{directory}/{n}", "", f"configuration of capability {owner}") for n in lacking]
    if compat32 and not any(library.compat32 for library in driver.libraries):
        items.append(
            Item("library", "all 32-bit libraries", "", "capability compat32: the driver was installed without them")
        )
    unique = {item.path: item for item in reversed(items)}
    return tuple(reversed(unique.values()))
