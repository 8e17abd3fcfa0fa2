"""What is to be installed on a node, and what has been: one record, of the pod's options and in the node's note."""

from __future__ import annotations

import json
import os

from gpurun.clients import files
from gpurun.clients.install import DROP_INS, FILES, Wish
from gpurun.clients.toml_files import RuntimeEntry
from gpurun.errors import GpurunError, strerror_lower
from gpurun.record import Record

#: ``none``: only the program is put on the node; somebody else tells the engine (k3s and RKE2 write its files themselves).
NO_ENGINE = "none"
ENGINES = ("containerd", "crio", NO_ENGINE)
RESTART_MODES = ("signal", "systemd", "none")
SOCKETS = {"containerd": "/run/containerd/containerd.sock", "crio": "/run/crio/crio.sock"}
#: As NVIDIA's toolkit container does: containerd ends at SIGHUP and systemd starts it again; CRI-O is restarted.
RESTARTS = {"containerd": "signal", "crio": "systemd"}
#: The program on the node, below the directory of the installation, and the node's own note of what is installed.
PROGRAM = "bin/gpurun"
RECORD = "/var/lib/gpurun/node-install.json"


class NodeWish(Record):
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

    def client(self) -> Wish:
        """The same as the engine's configuration knows it."""
        entry = RuntimeEntry(self.name, self.program, self.default, self.cdi)
        return Wish(self.engine, entry, self.config, self.drop_in if self.engine == "containerd" else "")


class Installed(Record):
    """What has been begun on a node: *restart* while the engine is to be restarted for it, *removing* while it goes."""

    wish: NodeWish
    restart: bool = False
    removing: bool = False


def with_defaults(wish: NodeWish) -> NodeWish:
    """*wish*, with the usual places of its engine where it names none."""
    if wish.engine == NO_ENGINE:
        return NodeWish(NO_ENGINE, wish.directory.rstrip("/"), wish.name, restart="none", cdi=False)
    config = wish.config or FILES[wish.engine]
    return NodeWish(
        wish.engine, wish.directory.rstrip("/"), wish.name, config,
        wish.drop_in or f"{os.path.dirname(config)}/{DROP_INS[wish.engine]}",
        wish.socket or SOCKETS[wish.engine], wish.restart or RESTARTS[wish.engine], wish.default, wish.cdi,
    )  # fmt: skip


def read_installed(path: str = RECORD) -> Installed | None:
    """What the node's note says, None where there is none.  Raises :class:`GpurunError`."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        return Installed(NodeWish(**document["wish"]), bool(document["restart"]), bool(document["removing"]))
    except FileNotFoundError:
        return None
    except OSError as e:
        raise GpurunError(f"{path}: {strerror_lower(e.errno or 0)}") from None
    except (ValueError, KeyError, TypeError):
        raise GpurunError(
            f"{path} cannot be read: look what gpurun has in the engine's configuration, and remove it"
        ) from None


def write_installed(installed: Installed, path: str = RECORD) -> None:
    """Write the note; when this returns it is on the disk.  Raises :class:`GpurunError`, PermissionError."""
    wish = {name: getattr(installed.wish, name) for name in NodeWish._fields}
    document = {"wish": wish, "restart": installed.restart, "removing": installed.removing}
    files.write(path, json.dumps(document, indent=1) + "\n")
