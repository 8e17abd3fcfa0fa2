"""The stand-alone hook: ``gpurun hook prestart``, also under the name ``nvidia-container-runtime-hook``.

An OCI prestart hook with which runc or crun give a container the same GPUs as gpurun does: the container's state comes on
stdin, the request from the bundle's config.json, and the same edits are applied in the container's mount namespace before
it pivots.  What cannot be done from outside is left out: groups and environment.

Exit codes as of NVIDIA's hook: 0 done or nothing to do, 1 failed (the reason on stderr, which engines show), 2 usage.
"""

from __future__ import annotations

import posix
import sys

from gpurun.cgroup.tree import UNIFIED_MOUNTPOINT, find_tree, join_root, parse_own_cgroup
from gpurun.errors import ConfigError, GpuError, GpurunError, StepError, error_text, oserror_text
from gpurun.gpu.nvidia.request.settings import Settings, read_settings, settings_path
from gpurun.gpu.nvidia.resolve import WRONG_MODE
from gpurun.gpu.resolve import Inquiry, gpu_edits, no_check
from gpurun.hook.apply import apply_edits
from gpurun.hook.device_program import allow_devices
from gpurun.hook.device_steps import node_step
from gpurun.hook.missing_nodes import lend_missing
from gpurun.hook.rootfs_target import Target
from gpurun.launcher.fresh_interpreter import end_imports
from gpurun.linux.files import O_CLOEXEC, Fd, mkdir_p, read_fd, read_file
from gpurun.linux.fs import O_DIRECTORY, O_PATH
from gpurun.linux.process import PR_SET_DUMPABLE, prctl
from gpurun.linux.procfs import in_user_namespace, parse_cgroups
from gpurun.ns.devices import take_nodes
from gpurun.ns.helper_process import join_container, run_in_child
from gpurun.ns.journal import Journal
from gpurun.ns.journal_store import open_journal, undo_earlier_boots, undo_traces
from gpurun.ns.mount import import_stand_ins
from gpurun.ns.outside import is_outside, other_than_the_containers
from gpurun.oci.reader import as_object, get_array, get_object, get_string, get_string_map, get_strings, parse_json, require
from gpurun.output import write_stderr, write_stdout
from gpurun.paths import clean_path
from gpurun.security.lsm import known_context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpurun.cdi.edits import ContainerEdits
    from gpurun.invocation import Invocation
    from gpurun.ns.mount_plan import DeviceStep
    from gpurun.ns.outside import Foreign

_LIMIT = 64 << 20
_JOURNALS = "/run/gpurun-hook"
_USAGE = """Usage: nvidia-container-runtime-hook [-debug] [-version] [-config FILE] COMMAND
  prestart   give the GPUs asked for to the container whose state is on stdin
  poststart  does nothing
  poststop   takes away what prestart has made in the image (if the config has this hook as well)
"""


def hook(invocation: Invocation) -> int:
    """``gpurun hook COMMAND``: the prestart hook, or one of the hooks of CDI files."""
    if invocation.args[0] not in ("prestart", "poststart", "poststop"):
        from gpurun.hook.cdi_hook_program import main as cdi_hook_main

        return cdi_hook_main(list(invocation.args))
    config = invocation.option("config")
    return main([*(["-config", config] if config else []), *invocation.args])


def main(argv: list[str]) -> int:
    """The hook with NVIDIA's own command line (*argv* without the program name); returns the exit code."""
    try:
        return _run(list(argv))
    except (GpurunError, OSError) as e:
        write_stderr(f"gpurun hook: {error_text(e)}")
        return 1


def _run(words: list[str]) -> int:
    config = ""
    while words and words[0].startswith("-"):
        word = words.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if name in ("h", "help"):
            write_stdout(_USAGE)
            return 0
        if name == "version":
            from gpurun.gpu.nvidia.cdi.known_hooks import INTERFACE_VERSION

            write_stdout(f"NVIDIA Container Runtime Hook version {INTERFACE_VERSION} (gpurun)\n")
            return 0
        if name == "config" and (equals or words):
            config = value if equals else words.pop(0)
        elif name != "debug":
            return _usage()
    if words[:1] == ["poststart"]:
        return 0
    if words[:1] not in (["prestart"], ["poststop"]):
        return _usage()
    _prestart(config) if words[0] == "prestart" else _poststop()
    return 0


def _usage() -> int:
    posix.write(2, _USAGE.encode())
    return 2


def _poststop() -> None:
    data = read_fd(0, _LIMIT)
    if not data.strip():
        return  # called by hand
    container_id = get_string(as_object(parse_json(data, "the container's state on stdin"), "state"), "id", "state")
    if _is_name(container_id):
        _undo(container_id)


def _undo(container_id: str) -> None:
    for warning in undo_traces(_JOURNALS, container_id, force=True):
        write_stderr(f"gpurun hook: {warning}")
    try:
        posix.rmdir(f"{_JOURNALS}/{container_id}")
    except OSError:
        pass  # there was no prestart, or it asked for nothing


def _is_name(container_id: str) -> bool:
    return bool(container_id) and not container_id.startswith(".") and "/" not in container_id and "\0" not in container_id


def _open_journal(state: dict[str, Any], rootfs: str) -> int:
    """The journal of the container, for ``poststop`` to undo; -1 when its config does not call that."""
    container_id = get_string(state, "id", "state")
    if not _is_name(container_id) or not rootfs.startswith("/") or posix.geteuid() != 0:
        return -1
    mkdir_p(f"{_JOURNALS}/{container_id}", 0o700)
    undo_earlier_boots(rootfs)
    undo_traces(_JOURNALS, container_id, force=True)  # of a container of that name whose poststop never came
    return open_journal(_JOURNALS, container_id, rootfs)


def _prestart(config: str) -> None:
    state = as_object(parse_json(read_fd(0, _LIMIT), "the container's state on stdin"), "state")
    pid = state.get("pid")
    if type(pid) is not int or pid <= 0:
        raise ConfigError("state.pid", "is missing: the hook needs the process of the container")
    bundle = get_string(state, "bundle", "state") or get_string(state, "bundlePath", "state") or "."
    env = {k.decode("utf-8", "surrogateescape"): v.decode("utf-8", "surrogateescape") for k, v in posix.environ.items()}
    settings = read_settings(config or settings_path(env))
    document = read_bundle_config(bundle)
    asked = (document["env"], document["annotations"], document["privileged"])
    edits = gpu_edits(Inquiry(*asked, env, settings, document["mounts"], files=False, prepare=no_check))
    if edits is None:
        return
    for warning in edits.warnings:
        write_stderr(f"gpurun hook: {warning}")
    if not (edits.device_nodes or edits.mounts):
        return
    _check_mode(settings)
    rootfs = document["rootfs"]
    rootfs = rootfs if rootfs.startswith("/") else f"{bundle}/{rootfs}"
    journal = _open_journal(state, rootfs) if document["poststop"] else -1
    try:
        proc = any(clean_path(destination) == "/proc" for _, destination in document["mounts"])
        apply_in(pid, rootfs, edits, document["readonly"], journal, proc, document["label"])
    except BaseException:
        if journal >= 0:
            try:
                _undo(get_string(state, "id", "state"))
            except (GpurunError, OSError) as e:  # poststop comes all the same, and tries it again
                write_stderr(f"gpurun hook: {error_text(e)}")
        raise
    if not settings.no_cgroups:
        warning = allow_devices(container_cgroup(pid), edits.device_nodes, edits.device_classes)
        if warning:
            write_stderr(f"gpurun hook: {warning}")


def _check_mode(settings: Settings) -> None:
    if settings.mode in ("csv", "cdi") and not settings.skip_mode_detection:
        raise GpuError(WRONG_MODE)


def read_bundle_config(bundle: str) -> dict[str, Any]:
    """What the hook needs of the bundle's config.json, by its names, and whether the container is ``privileged``.

    Read leniently: the document is another runtime's, which has accepted it already.  Raises :class:`StepError` when it
    cannot be read.
    """
    path = f"{bundle}/config.json"
    try:
        config = as_object(parse_json(read_file(path, _LIMIT), path), "")
    except OSError as e:
        raise StepError("read", path, e.errno or 0) from None
    require(config.get("ociVersion"), "", "ociVersion")
    process = require(get_object(config, "process", ""), "", "process")
    root = require(get_object(config, "root", ""), "", "root")
    return {
        "env": get_strings(process, "env", "process"),
        "annotations": get_string_map(config, "annotations", ""),
        "privileged": is_privileged(process),
        "mounts": read_mounts(config),
        "readonly": root.get("readonly") is True,
        "label": known_context(get_string(get_object(config, "linux", "") or {}, "mountLabel", "linux")),
        "poststop": _has_poststop(config),
        "rootfs": require(get_string(root, "path", "root") or None, "root", "path"),
    }


def read_mounts(config: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """(source, destination) of the mounts in *config*."""
    mounts = [m for m in config.get("mounts") or () if isinstance(m, dict)]
    pairs = [(m.get("source", ""), m.get("destination", "")) for m in mounts]
    return tuple([(s, d) for s, d in pairs if isinstance(s, str) and isinstance(d, str)])


def _has_poststop(config: dict[str, Any]) -> bool:
    """Whether the config has this hook (the same program as in prestart) at poststop as well."""
    hooks = get_object(config, "hooks", "") or {}
    paths = [hook.get("path") for hook in hooks.get("prestart") or () if isinstance(hook, dict)]
    late = [hook for hook in hooks.get("poststop") or () if isinstance(hook, dict)]
    return any(hook.get("path") in paths and "poststop" in (hook.get("args") or ()) for hook in late)


def is_privileged(process: dict[str, Any]) -> bool:
    """Whether the bounding set has CAP_SYS_ADMIN; release candidates of the specification had one list for all sets."""
    capabilities = process.get("capabilities")
    if isinstance(capabilities, dict):
        return "CAP_SYS_ADMIN" in get_array(capabilities, "bounding", "process.capabilities", lambda value, _: value)
    return isinstance(capabilities, list) and "CAP_SYS_ADMIN" in capabilities


def apply_in(
    pid: int,
    rootfs: str,
    edits: ContainerEdits,
    readonly: bool = False,
    journal_fd: int = -1,
    proc: bool = False,
    label: str = "",
) -> None:
    """Apply *edits* to *rootfs* in the mount namespace of the process *pid*; raises :class:`GpurunError`.

    *readonly*: the rootfs is going to be read-only.  *journal_fd* is the journal that is to be undone later, if any.
    *proc*: a procfs is mounted on /proc.  *label* is the SELinux context of the file systems that are made.

    A child does it, because joining is for ever.  In a container with a user namespace it becomes that one's root, so that
    what is made belongs to the container.
    """
    user_fd = -1
    if _namespace(pid, "user") != _namespace("self", "user"):
        user_fd = posix.open(f"/proc/{pid}/ns/user", posix.O_RDONLY | O_CLOEXEC)
    mount_fd = posix.open(f"/proc/{pid}/ns/mnt", posix.O_RDONLY | O_CLOEXEC)
    if _namespace(pid, "mnt") == _namespace("self", "mnt"):
        raise GpuError(f"the container's process {pid} is in the mount namespace of the host: call this as a prestart hook")
    nodes_fd = lend_missing(pid, edits.device_nodes, label) if user_fd >= 0 else -1
    with Fd(mount_fd), Fd(user_fd), Fd(nodes_fd):
        fds = (mount_fd, user_fd, nodes_fd, journal_fd)
        is_foreign = other_than_the_containers()
        run_in_child(lambda: _apply_as_child(fds, rootfs, edits, readonly, proc, label, is_foreign))


def apply_here(rootfs: str, edits: ContainerEdits) -> None:
    """Apply *edits* to *rootfs* in this process's own mount namespace, which must not be the host's.

    What container managers that call ``nvidia-container-cli`` from inside the namespaces of the container want.  Raises
    :class:`GpuError`.
    """
    if _namespace("self", "mnt") == _namespace_of_init():
        raise GpuError("this is the mount namespace of the host: call it in the container's, or give --pid")
    with Fd(posix.open(rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC)) as root_fd:
        apply_edits(edits, Target(root_fd, Journal(root_fd), in_user_namespace()))


def _namespace_of_init() -> str:
    try:
        return _namespace(1, "mnt")
    except OSError:
        return ""  # not ours to see: then it is not ours either


def _namespace(pid: int | str, kind: str) -> str:
    return posix.readlink(f"/proc/{pid}/ns/{kind}")


def _apply_as_child(
    fds: tuple[int, int, int, int],
    rootfs: str,
    edits: ContainerEdits,
    readonly: bool,
    proc: bool,
    label: str,
    is_foreign: Foreign,
) -> None:
    """In the container's namespaces from here on: nothing is imported any more, and no program is run."""
    mount_fd, user_fd, nodes_fd, journal_fd = fds
    import_stand_ins()
    end_imports()
    prctl(PR_SET_DUMPABLE, 0)
    try:
        join_container(mount_fd, user_fd)
        root_fd = posix.open(rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC)
        journal = Journal(root_fd, journal_fd)

        def leave_out(step: DeviceStep) -> bool:
            return is_outside(root_fd, step.path, is_foreign)

        try:
            if nodes_fd >= 0:
                take_nodes(root_fd, tuple([node_step(node) for node in edits.device_nodes]), nodes_fd, leave_out)
            how = (user_fd >= 0, readonly, False, proc, -1, label, is_foreign)
            apply_edits(edits, Target(root_fd, journal, *how))
        finally:
            journal.close()
    except OSError as e:
        raise GpuError(f"enter the container: {oserror_text(e)}") from None


def container_cgroup(pid: int) -> str:
    """The directory of the cgroup v2 of *pid*.  Raises :class:`GpurunError` where devices are filtered by cgroup v1."""
    tree = find_tree()
    text = read_file(f"/proc/{pid}/cgroup").decode("utf-8", "surrogateescape")
    filtered = any("devices" in controllers.split(",") and path != "/" for controllers, path in parse_cgroups(text))
    if filtered and tree.root != UNIFIED_MOUNTPOINT:
        raise GpuError(
            "the container's devices are filtered by cgroup v1, which gpurun does not support: boot with "
            "systemd.unified_cgroup_hierarchy=1 (or set no-cgroups = true and allow the devices in the container's config)"
        )
    return join_root(tree.root, parse_own_cgroup(text))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
