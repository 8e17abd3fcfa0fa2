"""What is to be installed on a node, and what has been: one record, of the pod's options and in the node's note."""

from __future__ import annotations

import errno
import json
import os
import stat

from gpurun.clients import files
from gpurun.clients.install import DROP_INS, FILES, Setup
from gpurun.clients.toml_files import RuntimeEntry
from gpurun.errors import GpurunError, strerror_lower
from gpurun.record import Record

#: ``none``: only the program is put on the node; another program registers it with the engine (k3s and RKE2 write its files
#: themselves).
NO_ENGINE = "none"
ENGINES = ("containerd", "crio", NO_ENGINE)
RESTART_MODES = ("signal", "systemd", "none")
SOCKETS = {"containerd": "/run/containerd/containerd.sock", "crio": "/run/crio/crio.sock"}
#: As NVIDIA's toolkit container does: containerd ends at SIGHUP and systemd starts it again; CRI-O is restarted.
RESTARTS = {"containerd": "signal", "crio": "systemd"}
#: The program on the node, below the directory of the installation, and the node's own note of what is installed.
PROGRAM = "bin/gpurun"
RECORD = "/var/lib/gpurun/node-install.json"
_LARGEST = 65536
#: Where no installer puts anything.
_NO_PLACES = ("/proc/", "/sys/", "/dev/")


class NodeSetup(Record):
    """What a node is to have.  Paths are the node's own, without the root under which a pod sees it.

    *engine* is one of :data:`ENGINES`, *config* its main file, *drop_in* the file of our own that it imports, *restart* one
    of :data:`RESTART_MODES`; *name* is the runtime's name there.  *cdi* has containerd take CDI devices.
    """

    engine: str
    directory: str = "/opt/gpurun"
    name: str = "gpurun"
    config: str = ""
    drop_in: str = ""
    socket: str = ""
    restart: str = ""
    default: bool = False
    cdi: bool = True

    @property
    def program(self) -> str:
        """The path of the program on the node."""
        return f"{self.directory}/{PROGRAM}"

    def client(self) -> Setup:
        """The same as the engine's configuration knows it."""
        entry = RuntimeEntry(self.name, self.program, self.default, self.cdi)
        return Setup(self.engine, entry, self.config, self.drop_in if self.engine == "containerd" else "")


class Installed(Record):
    """What has been begun on a node: *restart* while the engine is to be restarted for it, *removing* while it goes.

    *engine_as_before*: its removal has given the engine's configuration back, in which nothing is gpurun's from then on.
    """

    setup: NodeSetup
    restart: bool = False
    removing: bool = False
    engine_as_before: bool = False


def with_defaults(setup: NodeSetup) -> NodeSetup:
    """*setup*, with the usual places of its engine where it names none."""
    if setup.engine == NO_ENGINE:
        return NodeSetup(NO_ENGINE, setup.directory.rstrip("/"), setup.name, restart="none", cdi=False)
    config = setup.config or FILES[setup.engine]
    return NodeSetup(
        setup.engine, setup.directory.rstrip("/"), setup.name, config,
        setup.drop_in or f"{os.path.dirname(config)}/{DROP_INS[setup.engine]}",
        setup.socket or SOCKETS[setup.engine], setup.restart or RESTARTS[setup.engine], setup.default, setup.cdi,
    )  # fmt: skip


def read_installed(path: str = RECORD) -> Installed | None:
    """What the node's note says, None where there is none.

    Files are removed by it, as root: one that another user can write, or that says what no installer has written, is not
    obeyed.  Raises :class:`GpurunError`.
    """
    try:
        data, found = read_own(path, _LARGEST)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise GpurunError(f"{path}: {strerror_lower(e.errno or 0)}") from None
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise GpurunError(f"{path} can be written by others than root, and is not obeyed: look at it, and remove it")
    try:
        document = json.loads(data)
        flags = document["restart"], document["removing"], document.get("engine_as_before", False)
        noted = Installed(NodeSetup(**document["setup"]), *flags)
        problem = _problem(noted)
    except (ValueError, KeyError, TypeError, RecursionError):
        problem = "cannot be read"
    if problem:
        raise GpurunError(f"{path} {problem}: look what gpurun has in the engine's configuration, and remove this file")
    return noted


def read_own(path: str, limit: int) -> tuple[bytes, os.stat_result]:
    """(content, what it is) of the regular file *path*, at most *limit* bytes.  Raises OSError: EINVAL for anything else.

    As :func:`gpurun.linux.files.read_regular`, but without /proc, which a node's root seen from a pod need not have.
    """
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return file.read(limit), found


def is_plain_path(path: object) -> bool:
    """Whether *path* is absolute, has no ``..`` or the like in it, and can be printed."""
    return isinstance(path, str) and path.startswith("/") and os.path.normpath(path) == path and path.isprintable()


def _problem(noted: Installed) -> str:
    """Why no installer has written that; empty: one may have."""
    setup = noted.setup
    default = NodeSetup("")
    for name in NodeSetup._fields:
        if type(getattr(setup, name)) is not type(getattr(default, name)):
            return f"has a value of the wrong type for {name}"
    if {type(flag) for flag in (noted.restart, noted.removing, noted.engine_as_before)} != {bool}:
        return "cannot be read"
    if setup.engine not in ENGINES or setup.restart not in RESTART_MODES:
        return f"names the engine {setup.engine!r} and its restart {setup.restart!r}, which are not known"
    paths = [setup.directory, *([] if setup.engine == NO_ENGINE else [setup.config, setup.drop_in, setup.socket])]
    wrong = next((path for path in paths if not is_plain_path(path) or path.startswith(_NO_PLACES)), "")
    return f"names {wrong!r}, where nothing is installed" if wrong else ""


def write_installed(installed: Installed, path: str = RECORD) -> None:
    """Write the note; when this returns it is on the disk.  Raises :class:`GpurunError`, PermissionError."""
    setup = {name: getattr(installed.setup, name) for name in NodeSetup._fields}
    document = {"setup": setup} | {name: getattr(installed, name) for name in Installed._fields if name != "setup"}
    files.write(path, json.dumps(document, indent=1) + "\n")
