"""``nvidia-cdi-hook``: the hooks that our CDI files name, for containers that another runtime makes.

Under gpurun itself this program never runs (see :mod:`gpurun.hook.cdi_known`).  Elsewhere it is an OCI createContainer
hook: the container's state comes on stdin, the process is in the container's mount namespace, and the same edits are made
by the same code: which libraries there are is read from the bundle's config.json and the host, and no file of the
image is executed, trusted or reached by a path that could lead out of it.

Exit codes: 0 done or nothing to do, also for a command that is not known (a newer file must not break older programs),
1 failed, with the reason on stderr.
"""

from __future__ import annotations

import posix
import sys

from gpurun import __version__
from gpurun.errors import ConfigError, GpurunError, StepError, oserror_text
from gpurun.hook.apply import apply_edits
from gpurun.hook.cdi_hooks import COMMANDS, parse_call
from gpurun.hook.cdi_known import hook_work
from gpurun.hook.edits import ContainerEdits
from gpurun.hook.target import Target
from gpurun.launcher.child import end_imports
from gpurun.linux.files import O_CLOEXEC, read_fd, read_file
from gpurun.linux.fs import O_DIRECTORY, O_PATH
from gpurun.linux.process import PR_SET_DUMPABLE, prctl
from gpurun.ns.journal import Journal
from gpurun.oci.config import Mount, OciHook
from gpurun.oci.reader import as_object, get_array, get_bool, get_object, get_string, get_strings, parse_json, require
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpurun.hook.cdi_hooks import HookCall

_LIMIT = 64 << 20
_INITIAL_MAP = ["0", "0", "4294967295"]


class Container(Record):
    """What the hooks need to know of a container: its *rootfs* on the host, createContainer hooks, mounts, paths of devices.

    *readonly*: the rootfs is going to be read-only.
    """

    rootfs: str
    hooks: tuple[OciHook, ...]
    mounts: tuple[Mount, ...]
    devices: tuple[str, ...]
    readonly: bool = False


def main(argv: list[str]) -> int:
    """The program with NVIDIA's command line (*argv* without the program name); returns the exit code."""
    words = tuple(argv)
    while words and words[0] in ("-d", "--debug", "-q", "--quiet"):
        words = words[1:]
    if words and words[0] in ("-v", "--version"):
        posix.write(1, f"NVIDIA CDI Hook CLI version {__version__} (gpurun)\n".encode())
        return 0
    if not words or words[0] in ("-h", "--help", "help"):
        posix.write(1, f"Usage: nvidia-cdi-hook COMMAND [OPTIONS]; commands: {', '.join(COMMANDS)}\n".encode())
        return 0
    try:
        call = parse_call(words)
        if call is None:
            posix.write(2, f"nvidia-cdi-hook: the hook {words[0]!r} is not known and left out\n".encode("utf-8", "replace"))
            return 0
        if call.command != "noop":
            _run(call)
    except (GpurunError, OSError) as e:
        text = oserror_text(e) if isinstance(e, OSError) else str(e)
        posix.write(2, f"nvidia-cdi-hook: {text}\n".encode("utf-8", "surrogateescape"))
        return 1
    return 0


def _run(call: HookCall) -> None:
    container = read_container(call.value("container-spec"))
    env = {k.decode("utf-8", "surrogateescape"): v.decode("utf-8", "surrogateescape") for k, v in posix.environ.items()}
    edits = hook_work(call, container.hooks, container.mounts, container.devices, env)
    if edits == ContainerEdits():
        return
    user_namespace = read_file("/proc/self/uid_map").decode().split() != _INITIAL_MAP
    # From here on there is only the container: nothing may be imported from a tree that an image may have a hand in.
    end_imports()
    prctl(PR_SET_DUMPABLE, 0)
    try:
        root_fd = posix.open(container.rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC)
    except OSError as e:
        raise StepError("open the rootfs", container.rootfs, e.errno) from None
    if posix.fstat(root_fd)[1:3] == posix.stat("/")[1:3]:
        raise GpurunError(
            f"the rootfs {container.rootfs} is the root of this very process: call this as a createContainer hook"
        )
    apply_edits(edits, Target(root_fd, Journal(root_fd), user_namespace, container.readonly))


def read_container(spec: str) -> Container:
    """The container whose state is in the file *spec*, or on stdin (empty or ``-``).  Raises :class:`GpurunError`."""
    source = spec if spec not in ("", "-") else "the container's state on stdin"
    data = read_fd(0, _LIMIT) if spec in ("", "-") else read_file(spec, _LIMIT)
    state = as_object(parse_json(data, source), "state")
    bundle = get_string(state, "bundle", "state") or get_string(state, "bundlePath", "state")
    if not bundle:
        raise ConfigError("state.bundle", "is missing")
    path = f"{bundle}/config.json"
    try:
        config = as_object(parse_json(read_file(path, _LIMIT), path), "")
    except OSError as e:
        raise StepError("read", path, e.errno) from None
    # crun names the rootfs in the state, as it is; the config's may be relative to the bundle.
    root = require(get_object(config, "root", ""), "", "root")
    rootfs = get_string(state, "root", "state")
    if not rootfs:
        rootfs = require(get_string(root, "path", "root") or None, "root", "path")
    linux = get_object(config, "linux", "") or {}
    return Container(
        rootfs if rootfs.startswith("/") else f"{bundle}/{rootfs}",
        get_array(get_object(config, "hooks", "") or {}, "createContainer", "hooks", _hook),
        get_array(config, "mounts", "", _mount),
        get_array(linux, "devices", "linux", _device_path),
        get_bool(root, "readonly", "root"),
    )


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


def _device_path(value: Any, where: str) -> str:
    return get_string(as_object(value, where), "path", where)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
