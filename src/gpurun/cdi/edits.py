"""ContainerEdits: the one vocabulary for what a device brings into a container, and it is CDI's.

The NVIDIA discovery yields edits, a CDI file yields edits; the engine merges their device rules, environment and groups
into the plan, and :mod:`gpurun.hook.apply` puts the rest into the container at the prestart point.  Every edit says in
*reason* what asked for it, which is what ``gpurun explain`` shows.

Specification: CDI 1.1.0, ``containerEdits``.  Links and the library cache are hooks in a CDI file
(``create-symlinks``, ``update-ldcache``); here they are data, because gpurun does them itself and runs no program.
"""

from __future__ import annotations

from gpurun.oci.config import Mount
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: As *uid* or *gid* of a device node: that of the container's process (CDI's default).
PROCESS_ID = -1


class DeviceNode(Record):
    """A device node: *path* in the container, *host_path* on the host (the same when empty).

    *gpu* says which GPU or part of one it opens, as MAKER:KEY (:mod:`gpurun.gpu.device`); empty for every other device, and
    where whoever brought the node did not say.
    """

    path: str
    host_path: str
    type: str  # "c", "b" or "p"
    major: int
    minor: int
    file_mode: int = 0o666
    uid: int = 0
    gid: int = 0
    permissions: str = "rw"  # subset of rwm: what the device cgroup is to allow; "" for nothing
    reason: str = ""
    gpu: str = ""


class DeviceClass(Record):
    """All devices of one *major*, to which the device cgroup is to allow access: no node is made for it."""

    type: str
    major: int
    permissions: str = "rw"
    reason: str = ""


class EditMount(Record):
    """A bind mount of *host_path* (already resolved on the host, never from the image) at *container_path*.

    *options* are OCI mount options; *kind* is what the target must be: ``file`` or ``dir``.
    """

    host_path: str
    container_path: str
    options: tuple[str, ...]
    kind: str = "file"
    reason: str = ""


class Link(Record):
    """A symbolic link at *path* in the container with the text *target*.

    *optional*: where the image has something else of that name, that stays and the container is made all the same.
    """

    path: str
    target: str
    reason: str = ""
    optional: bool = False


class CacheEntry(Record):
    """A library for the container's ld.so.cache: its SONAME, its path in the container, the cache's flags word."""

    soname: str
    path: str
    flags: int


class FileEdit(Record):
    """A small file gpurun itself writes at *path*: on a private tmpfs, or (``image_files``) into the image for a while."""

    path: str
    content: bytes
    mode: int = 0o444
    reason: str = ""


class ProcTree(Record):
    """A tmpfs at *path* that hides a host tree, holding *files* and read-only binds of the host's *binds*, at any depth."""

    path: str
    files: tuple[FileEdit, ...]
    binds: tuple[EditMount, ...]
    reason: str = ""


class Chmod(Record):
    """The permissions of a directory of the container's own /dev; *mode* as in chmod(2)."""

    path: str
    mode: int
    reason: str = ""


class ForwardCompat(Record):
    """Whether newer CUDA libraries of the image in *directory* may stand in for the driver's: decided when it is seen.

    *driver_version* is the host's (``550.163.01``); where that is not known, *cuda_version* is what its driver has
    (``12.4``).
    """

    directory: str
    driver_version: str
    reason: str = ""
    cuda_version: str = ""


class Hook(Record):
    """An OCI hook of a CDI file: *stage* is the OCI name (``createContainer``); *timeout* in seconds, ``None`` for none."""

    stage: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None
    reason: str = ""


class MemoryLimit(Record):
    """How much of a GPU's memory the processes in the container's cgroup may hold together, bytes.

    An allocation beyond *hard* fails; *soft* is kept for the container.  NVML sets both for the GPU with the UUID *gpu*
    where *library* is the host path of one; else *gpu* is a region of cgroup v2's dmem controller.  *where* asked for it.
    """

    gpu: str
    hard: int
    soft: int = 0
    library: str = ""
    where: str = ""


class ContainerEdits(Record):
    """All that a request for devices adds to one container, in the order in which it is to be applied."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    device_classes: tuple[DeviceClass, ...] = ()
    mounts: tuple[EditMount, ...] = ()
    links: tuple[Link, ...] = ()
    ldcache: tuple[CacheEntry, ...] = ()
    image_files: tuple[FileEdit, ...] = ()  # where their directory is there and can be written; delete takes them away
    forward_compat: ForwardCompat | None = None
    chmods: tuple[Chmod, ...] = ()
    proc_trees: tuple[ProcTree, ...] = ()
    additional_gids: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    memory_limits: tuple[MemoryLimit, ...] = ()
    numa_nodes: tuple[int, ...] = ()  # of each device that has one, for placement near to it; -1 where the host does not say
    # What goes into the config itself before it is planned (gpurun.engine.plan.merged_edits), and is empty afterwards:
    hooks: tuple[Hook, ...] = ()
    replaced_hooks: tuple[Hook, ...] = ()  # of the config: these edits do their work
    config_mounts: tuple[Mount, ...] = ()
    net_devices: tuple[tuple[str, str], ...] = ()  # (name on the host, name in the container)
    intel_rdt: dict[str, Any] | None = None  # as linux.intelRdt


def directories(entries: tuple[CacheEntry, ...]) -> tuple[str, ...]:
    """The directories of *entries*, each once, in their order."""
    return tuple(dict.fromkeys([entry.path.rpartition("/")[0] for entry in entries]))


def conf_files(entries: tuple[CacheEntry, ...]) -> tuple[FileEdit, ...]:
    """The files for /etc/ld.so.conf.d that make an ldconfig in the container find *entries* again."""
    from gpurun.formats.ldconf import conf_texts

    reason = "an ldconfig in the container must find the driver's libraries again"
    return tuple([FileEdit(path, content, 0o644, reason) for path, content in conf_texts(directories(entries))])


def combine(first: ContainerEdits, second: ContainerEdits) -> ContainerEdits:
    """Both, *first* before *second*; of two things at one path that of *second*, in the place of the first."""
    values: dict[str, Any] = {}
    for name in ContainerEdits._fields:
        one, two = getattr(first, name), getattr(second, name)
        values[name] = _join(one + two) if isinstance(one, tuple) else two or one
    if first.image_files and second.image_files:
        values["image_files"] = conf_files(values["ldcache"])  # each has only files of its own libraries
    return ContainerEdits(**values)


def _join(items: tuple[Any, ...]) -> tuple[Any, ...]:
    found: dict[Any, Any] = {}
    for item in items:
        key = item
        if isinstance(item, (DeviceNode, Link, FileEdit, ProcTree, Chmod)):
            key = (type(item).__name__, item.path)
        elif isinstance(item, EditMount):
            key = item.container_path
        elif isinstance(item, Hook):
            key = replace(item, reason="")
        before = found.get(key)
        if isinstance(item, ProcTree) and before is not None:  # what either lets through is to be seen
            item = replace(item, files=_join(before.files + item.files), binds=_join(before.binds + item.binds))
        found[key] = item
    return tuple(found.values())
