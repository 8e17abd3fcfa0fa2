"""An MPS daemon of a node of a cluster, which belongs to no pod: what is wanted is written down, and a supervisor on the
node (:mod:`gpurun.gpu.nvidia.mps.node_supervisor`) does it for as long as that stands there.

The directory of a daemon has ``service.json`` (what is wanted), ``lock`` (held by the supervisor while it lives), ``ready``
(the digest of what the daemon that answers was started for), ``failed`` (the same digest, and why there is none), and
``pipe``, ``log`` and ``shm``, which the containers have mounted.  They stay where they are when the daemon or its supervisor
is started again, and when what is wanted changes.  Whoever removes ``service.json`` ends the daemon, and all of it goes.

The plugin and the DRA driver run in pods, whose processes end with them.  So the node's own gpurun is asked, with the node's
root, to start the supervisor: ``gpurun kubernetes mps-daemon DIRECTORY`` (:func:`launch`).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time
from hashlib import blake2b

from gpurun import log
from gpurun.errors import ConfigError, GpurunError, oserror_text, program_error_text
from gpurun.gpu.nvidia.mps.detached import start_detached
from gpurun.launcher.fresh_interpreter import MAIN_ENTRY, NODE_MPS_ENTRY, command_line
from gpurun.linux.files import unlink_if_there, write_atomically
from gpurun.oci.reader import as_object, parse_json
from gpurun.record import Record, to_plain

#: Where the daemons of a node are, each in a directory of its own.
MPS_ROOT = "/run/gpurun/mps"
#: Seconds until the daemon answers, or has ended.
WAIT_S = 30.0
_LOOK_S = 0.05
WANTED, LOCK, READY, FAILED = "service.json", "lock", "ready", "failed"


class NodeService(Record):
    """What a daemon is to be: the GPUs *uuids*, *threads* in percent and *memory* as (GPU, bytes) for each client.

    *driver_root* is where the driver is on the node (empty: it is the node's own, and its programs are on *programs*),
    *shm_size* how large the memory may be that clients and daemon share.
    """

    uuids: tuple[str, ...]
    threads: int = 0
    memory: tuple[tuple[str, int], ...] = ()
    driver_root: str = ""
    programs: str = ""
    shm_size: int = 1 << 30


class NodeProgram(Record):
    """The node's gpurun: *words* before its arguments (empty: this program), *root* where the node's root is mounted."""

    words: tuple[str, ...] = ()
    root: str = ""


def wanted_text(service: NodeService) -> bytes:
    """What stands in ``service.json``."""
    return json.dumps(to_plain(service), sort_keys=True).encode() + b"\n"


def read_wanted(directory: str) -> tuple[NodeService, str] | None:
    """(service, digest) of what is wanted in *directory*; None where nothing is.  Raises :class:`GpurunError`."""
    data = _content(f"{directory}/{WANTED}")
    if data is None:
        return None
    try:
        table = as_object(parse_json(data, WANTED), WANTED)
        pairs = tuple([(str(gpu), int(size)) for gpu, size in table["memory"]])
        known = {name: table[name] for name in ("threads", "driver_root", "programs", "shm_size")}
        return NodeService(uuids=tuple(table["uuids"]), memory=pairs, **known), _digest(data)
    except (ConfigError, KeyError, TypeError, ValueError) as e:
        raise GpurunError(f"{directory}/{WANTED} cannot be read: {e}") from None


def is_served(directory: str) -> bool:
    """Whether the daemon that is wanted in *directory* answers: it did, and its supervisor lives."""
    data = _content(f"{directory}/{WANTED}")
    if data is None or _content(f"{directory}/{READY}") != _digest(data).encode():
        return False
    return is_supervised(directory)


def is_supervised(directory: str) -> bool:
    """Whether a supervisor lives.  It holds a lock, which is seen from every pod; PIDs are not."""
    try:
        fd = os.open(f"{directory}/{LOCK}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def ensure(directory: str, service: NodeService, program: NodeProgram) -> None:
    """Have the daemon *service* answer in *directory*, anew where another one does.  Raises :class:`GpurunError`."""
    data = wanted_text(service)
    try:
        if _content(f"{directory}/{WANTED}") != data:
            os.makedirs(directory, 0o755, exist_ok=True)
            write_atomically(f"{directory}/{WANTED}", data, 0o600)
    except OSError as e:
        raise GpurunError(f"MPS: {oserror_text(e)}") from None
    keep(directory, program)


def keep(directory: str, program: NodeProgram) -> None:
    """Have the daemon answer that is wanted in *directory*, if any is.  Raises :class:`GpurunError`."""
    if os.path.exists(f"{directory}/{WANTED}") and not is_served(directory):
        _have(directory, program)


def end(directory: str, program: NodeProgram) -> None:
    """End the daemon of *directory*, and remove it; there need be none.  Raises :class:`GpurunError` while it lives."""
    try:
        unlink_if_there(f"{directory}/{WANTED}")  # an earlier end did so and got no further
    except OSError as e:
        raise GpurunError(f"MPS: {oserror_text(e)}") from None
    if not os.path.isdir(directory):
        return
    try:
        _have(directory, program)
    except GpurunError as e:
        if is_supervised(directory):
            raise
        log.warning(f"{e}; {directory} is removed all the same: its daemon has ended")
        shutil.rmtree(directory, ignore_errors=True)


def end_all(root: str, program: NodeProgram) -> list[str]:
    """End each daemon below *root*, and remove that; what went wrong, in sentences."""
    problems = []
    for name in sorted(os.listdir(root)) if os.path.isdir(root) else ():
        try:
            end(f"{root}/{name}", program)
        except GpurunError as e:
            problems.append(str(e))
    try:
        os.rmdir(root)
    except OSError as e:
        log.debug(oserror_text(e))
    return problems


def _have(directory: str, program: NodeProgram) -> None:
    """Call the node's gpurun, which has what is wanted in *directory* done.  Raises :class:`GpurunError`."""
    own = program.words or command_line(MAIN_ENTRY)
    words = [*(("chroot", program.root) if program.root else ()), *own, "kubernetes", "mps-daemon", directory]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=2 * WAIT_S + 10, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as e:
        raise GpurunError(f"MPS: {' '.join(words)}: {program_error_text(e)}") from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise GpurunError(said if said.startswith("MPS:") else f"MPS: {' '.join(words)}: {said}")


def launch(directory: str) -> None:
    """On the node: start a supervisor where none lives; returns when what is wanted is so.  Raises :class:`GpurunError`."""
    deadline = time.monotonic() + WAIT_S
    data = _content(f"{directory}/{WANTED}")
    digest = _digest(data) if data is not None else ""
    try:
        os.unlink(f"{directory}/{FAILED}")  # of an earlier attempt
    except OSError:
        pass  # there was none
    started = 0.0
    while True:
        if data is None and not os.path.isdir(directory):
            return
        if data is not None and is_served(directory):
            return
        said = (_content(f"{directory}/{FAILED}") or b"").decode("utf-8", "replace").partition("\n")
        if said[0] == digest and said[2] and data is not None:
            raise GpurunError(f"MPS: {said[2].strip()}")
        now = time.monotonic()
        if now > deadline:
            what = "answer" if data is not None else "end"
            raise GpurunError(f"MPS: the daemon does not {what} within {WAIT_S:g} s ({directory})")
        if now - started > 2.0 and not is_supervised(directory):
            started = now
            _start(directory)
        time.sleep(_LOOK_S)


def _start(directory: str) -> None:
    name = os.path.basename(directory)
    words = (*command_line(NODE_MPS_ENTRY), directory)
    unit = f"gpurun-mps-{name}-{os.urandom(4).hex()}.service"
    try:
        start_detached(words, unit, f"MPS daemon {name} of the node's pods", apart=True)
    except OSError as e:
        raise GpurunError(f"MPS: the daemon cannot be started: {oserror_text(e)}") from None


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def _content(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20)
    except OSError:
        return None
