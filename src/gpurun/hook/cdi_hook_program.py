"""``nvidia-cdi-hook``: the hooks that our CDI files name, for containers that another runtime makes.

Under gpurun itself this program never runs (see :mod:`gpurun.gpu.nvidia.cdi.hook_work`).  Elsewhere it is an OCI
createContainer hook: the container's state comes on stdin, the process is in the container's mount namespace, and the same
edits are made by the same code: which libraries there are is read from the bundle's config.json and the host, and no file
of the image is executed, trusted or reached by a path that could lead out of it.

Exit codes: 0 done or nothing to do, also for a command that is not known (a newer file must not break older programs),
1 failed, with the reason on stderr.
"""

from __future__ import annotations

import posix
import sys

from gpurun.cdi.edits import ContainerEdits
from gpurun.errors import ConfigError, GpurunError, Step, StepError, error_text
from gpurun.gpu.nvidia.cdi.hook_work import hook_work
from gpurun.gpu.nvidia.cdi.known_hooks import COMMANDS, INTERFACE_VERSION, LIMITS, parse_call
from gpurun.hook.apply import apply_edits
from gpurun.hook.rootfs_target import Target
from gpurun.launcher.fresh_interpreter import end_imports
from gpurun.linux.files import O_CLOEXEC, read_fd, read_file
from gpurun.linux.fs import O_DIRECTORY, O_PATH
from gpurun.linux.process import PR_SET_DUMPABLE, prctl
from gpurun.linux.procfs import in_user_namespace
from gpurun.ns.journal import Journal
from gpurun.ns.mount import import_stand_ins
from gpurun.ns.path import UNUSABLE
from gpurun.oci.config import Device, Mount, OciHook
from gpurun.oci.reader import (
    as_object,
    get_array,
    get_bool,
    get_int,
    get_object,
    get_string,
    get_strings,
    parse_json,
    require,
)
from gpurun.output import write_stderr, write_stdout
from gpurun.paths import clean_path
from gpurun.record import Record
from gpurun.security.lsm import known_context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpurun.gpu.nvidia.cdi.hook_work import ContainerLibrary
    from gpurun.gpu.nvidia.cdi.known_hooks import HookCall

_HELP = ("-h", "--help", "-help")
_LIMIT = 64 << 20


class Container(Record):
    """What the hooks need to know of a container: its *rootfs* on the host, createContainer hooks, mounts, devices.

    *readonly*: the rootfs is going to be read-only.  *label* is the SELinux context of its mounts.  Of one whose config.json
    is closed to us *libraries* are those that it shows.
    """

    rootfs: str
    hooks: tuple[OciHook, ...]
    mounts: tuple[Mount, ...]
    devices: tuple[Device, ...]
    readonly: bool = False
    label: str = ""
    libraries: tuple[ContainerLibrary, ...] = ()


def main(argv: list[str]) -> int:
    """The program with NVIDIA's command line (*argv* without the program name); returns the exit code."""
    try:
        return _run_hook(tuple(argv))
    except (GpurunError, OSError) as e:
        write_stderr(f"nvidia-cdi-hook: {error_text(e)}")
        return 1


def _run_hook(words: tuple[str, ...]) -> int:
    while words and words[0] in ("-d", "--debug", "-q", "--quiet"):
        words = words[1:]
    if words and words[0] in ("-v", "--version"):
        write_stdout(f"NVIDIA CDI Hook CLI version {INTERFACE_VERSION} (gpurun)\n")
        return 0
    if not words or words[0] in (*_HELP, "help") or (words[0] in COMMANDS and any(word in _HELP for word in words)):
        write_stdout(usage(next((word for word in words if word in COMMANDS), "")))
        return 0
    call = parse_call(words)
    if call is None:
        write_stderr(f"nvidia-cdi-hook: the hook {words[0]!r} is not known and left out")
    elif call.command == LIMITS:
        _limit_memory(call)
    elif call.command != "noop":
        _run(call)
    return 0


def _limit_memory(call: HookCall) -> None:
    """Limit the GPUs' memory for the container's cgroup, as --limit or its variables say: a hook of the host."""
    from gpurun.cdi.edits import MemoryLimit
    from gpurun.cgroup.tree import UNIFIED_MOUNTPOINT, cgroup_of
    from gpurun.gpu.nvidia.host.nvml import find_nvml, set_memory_limits
    from gpurun.gpu.nvidia.host.roots import Roots

    state, bundle = _read_state(call.value("container-spec"))
    hard = call.value("limit")
    asked = (0, int(hard)) if hard else _asked_limits(bundle)
    if asked is None:
        return
    pid = require(get_int(state, "pid", "state"), "state", "pid")
    library = find_nvml(Roots(call.value("driver-root") or "/", posix.environ.get(b"GPURUN_SYSROOT", b"").decode()))
    limits = tuple([MemoryLimit(gpu, asked[1], asked[0], library) for gpu in call.values("gpu-id")])
    set_memory_limits(UNIFIED_MOUNTPOINT, UNIFIED_MOUNTPOINT + cgroup_of(pid), limits)


def _asked_limits(bundle: str) -> tuple[int, int] | None:
    """(soft, hard) limit in bytes that the container's variables ask for; None for none."""
    from gpurun.gpu.nvidia.host.nvml import NO_LIMIT
    from gpurun.gpu.nvidia.request.memory_limits import read_memory_limits

    try:
        config = as_object(parse_json(read_file(f"{bundle}/config.json", _LIMIT), bundle), "")
    except OSError as e:
        write_stderr(f"nvidia-cdi-hook: no limit of GPU memory is set: {bundle}/config.json: {e.strerror}")
        return None  # as NVIDIA's hook: in a user namespace without its owner the bundle is closed to it
    asked = read_memory_limits(get_strings(get_object(config, "process", "") or {}, "env", "process"), NO_LIMIT)
    return asked[:2] if asked is not None else None


def usage(command: str = "") -> str:
    """How the program, or one *command* of it, is called."""
    if not command:
        return f"Usage: nvidia-cdi-hook COMMAND [OPTIONS]; commands: {', '.join(COMMANDS)}\n"
    options = "".join([f" [--{name} {name.upper().replace('-', '_')}]" for name in COMMANDS[command]])
    return f"Usage: nvidia-cdi-hook {command}{options}\n"


def _run(call: HookCall) -> None:
    container = read_container(call.value("container-spec"), call.values("folder"))
    env = {k.decode("utf-8", "surrogateescape"): v.decode("utf-8", "surrogateescape") for k, v in posix.environ.items()}
    edits = hook_work(call, container.hooks, container.mounts, container.devices, env, container.libraries)
    if edits == ContainerEdits():
        return
    user_namespace = in_user_namespace()
    # From here on there is only the container: nothing may be imported from a tree that an image may have a hand in.
    import_stand_ins()
    end_imports()
    prctl(PR_SET_DUMPABLE, 0)
    with Step("open the rootfs", container.rootfs):
        root_fd = posix.open(container.rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC)
    if posix.fstat(root_fd)[1:3] == posix.stat("/")[1:3]:
        raise GpurunError(
            f"the rootfs {container.rootfs} is the root of this very process: call this as a createContainer hook"
        )
    proc = any(clean_path(mount.destination) == "/proc" for mount in container.mounts)
    journal, label = Journal(root_fd), container.label
    target = Target(root_fd, journal, user_namespace, container.readonly, replaces_links=True, proc=proc, label=label)
    apply_edits(edits, target)


def read_container(spec: str, folders: tuple[str, ...] = ()) -> Container:
    """The container whose state is in the file *spec*, or on stdin (empty or ``-``).

    Where its config.json is closed to us, the rootfs that the state names shows which libraries are in *folders*.  Raises
    :class:`GpurunError`.
    """
    state, bundle = _read_state(spec)
    path, rootfs = f"{bundle}/config.json", get_string(state, "root", "state")
    try:
        data = read_file(path, _LIMIT) if bundle else None
    except OSError as e:
        if not rootfs.startswith("/") or e.errno not in UNUSABLE:
            raise StepError("read", path, e.errno) from None
        data = None
    if data is None:
        from gpurun.hook.closed_bundle import devices_in, libraries_in

        return Container(rootfs, (), (), devices_in(rootfs), libraries=libraries_in(rootfs, folders))
    config = as_object(parse_json(data, path), "")
    # crun names the rootfs in the state, as it is; the config's may be relative to the bundle.
    root = require(get_object(config, "root", ""), "", "root")
    if not rootfs:
        rootfs = require(get_string(root, "path", "root") or None, "root", "path")
    linux = get_object(config, "linux", "") or {}
    return Container(
        rootfs if rootfs.startswith("/") else f"{bundle}/{rootfs}",
        get_array(get_object(config, "hooks", "") or {}, "createContainer", "hooks", _hook),
        get_array(config, "mounts", "", _mount),
        get_array(linux, "devices", "linux", _device),
        get_bool(root, "readonly", "root"),
        known_context(get_string(linux, "mountLabel", "linux")),
    )


def _read_state(spec: str) -> tuple[dict[str, Any], str]:
    """(the container's state, its bundle's directory) from the file *spec*, or stdin."""
    source = spec if spec not in ("", "-") else "the container's state on stdin"
    data = read_fd(0, _LIMIT) if spec in ("", "-") else read_file(spec, _LIMIT)
    state = as_object(parse_json(data, source), "state")
    bundle = get_string(state, "bundle", "state") or get_string(state, "bundlePath", "state")
    if not bundle and not get_string(state, "root", "state"):
        raise ConfigError("state.bundle", "is missing")
    return state, bundle


def _hook(value: Any, where: str) -> OciHook:
    obj = as_object(value, where)
    return OciHook(get_string(obj, "path", where), get_strings(obj, "args", where))


def _mount(value: Any, where: str) -> Mount:
    obj = as_object(value, where)
    return Mount(
        get_string(obj, "destination", where),
        get_string(obj, "type", where),
        get_string(obj, "source", where),
        get_strings(obj, "options", where),
    )


def _device(value: Any, where: str) -> Device:
    obj = as_object(value, where)
    numbers = [get_int(obj, name, where) or 0 for name in ("major", "minor")]
    return Device(get_string(obj, "path", where), get_string(obj, "type", where), *numbers)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
