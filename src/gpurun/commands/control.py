"""ps, pause, resume, update: what can be done to a container while it runs."""

from __future__ import annotations

import posix

from gpurun import log
from gpurun.cgroup import control
from gpurun.decimals import decimal
from gpurun.engine import state as store
from gpurun.errors import GpurunError, NotRunning, strerror_lower
from gpurun.linux.files import Fd
from gpurun.output import write_stdout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.invocation import Invocation

_MAX_LIST = 64 << 20  # bytes of what ps(1) says


def pause(invocation: Invocation) -> int:
    """``pause ID``: returns when all its processes have stopped.  Raises :class:`NotRunning`."""
    root = invocation.globals.root
    state = store.load(root, invocation.args[0])
    if store.status(root, state) not in ("created", "running"):
        raise NotRunning
    control.freeze(state.cgroup)
    return 0


def resume(invocation: Invocation) -> int:
    """``resume ID``.  Raises :class:`GpurunError` for a container that is not paused."""
    root = invocation.globals.root
    state = store.load(root, invocation.args[0])
    if store.status(root, state) != "paused":
        raise GpurunError("container not paused")
    control.thaw(state.cgroup)
    return 0


def ps(invocation: Invocation) -> int:
    """``ps ID [ARGS]``: the pids as JSON, or the lines that ps(1) of the host has for them.

    What follows the ID is for ps(1), but for a lone ``--json``, which ps(1) does not know.
    Raises :class:`GpurunError` for another ``--format``, and when ps(1) fails.
    """
    state = store.load(invocation.globals.root, invocation.args[0])
    form = "json" if invocation.args[1:] == ("--json",) else invocation.form()
    pids = [pid for pid in control.processes(state.cgroup) if pid and pid != state.keeper]
    if form == "json":
        write_stdout(f"[{','.join([str(pid) for pid in sorted(pids)])}]\n")
        return 0
    write_stdout(ps_lines(_run_ps(invocation.args[1:] or ("-ef",)), frozenset(pids)))
    return 0


def ps_lines(output: str, pids: frozenset[int]) -> str:
    """The header and the lines of ps(1)'s *output* whose column PID is one of *pids*.

    Raises :class:`GpurunError` when there is no such column.
    """
    header, *lines = output.rstrip("\n").split("\n")  # a name in it may have what else ends lines for Python
    names = header.split()
    if "PID" not in names:
        raise GpurunError("couldn't find PID field in ps output")
    column = names.index("PID")
    kept = [header]
    for line in lines:
        fields = line.split(None, column + 1)
        if len(fields) > column and fields[column].isdigit() and int(fields[column]) in pids:
            kept.append(line)
    return "\n".join(kept) + "\n"


def _run_ps(args: tuple[str, ...]) -> str:
    read, write = posix.pipe2(posix.O_CLOEXEC)
    env = {k: v for k, v in posix.environ.items() if k in (b"PATH", b"TERM", b"LANG", b"LC_ALL", b"COLUMNS")}
    with Fd(write):
        try:
            pid = posix.posix_spawn(_find_ps(), ["ps", *args], env, file_actions=[(posix.POSIX_SPAWN_DUP2, write, 1)])
        except OSError as e:
            posix.close(read)
            raise GpurunError(f"cannot run ps: {strerror_lower(e.errno)}") from None
    from gpurun.linux.files import read_fd

    output = read_fd(read, _MAX_LIST)
    posix.close(read)
    code = posix.waitstatus_to_exitcode(posix.waitpid(pid, 0)[1])
    if code:
        raise GpurunError(f"ps {' '.join(args)} failed with status {code}")
    return output.decode("utf-8", "surrogateescape")


def _find_ps() -> str:
    for directory in ("/bin", "/usr/bin", "/usr/local/bin"):
        if posix.access(f"{directory}/ps", posix.X_OK):
            return f"{directory}/ps"
    raise GpurunError("ps is not installed on this host (package procps): install it, or use --format json")


#: ``update``'s options and what each sets in a resources object: (option, object, member, kind).
_UPDATE_OPTIONS = (
    ("memory", "memory", "limit", "bytes"),
    ("memory-reservation", "memory", "reservation", "bytes"),
    ("memory-swap", "memory", "swap", "bytes"),
    ("cpu-share", "cpu", "shares", "number"),
    ("cpu-quota", "cpu", "quota", "number"),
    ("cpu-period", "cpu", "period", "number"),
    ("cpu-burst", "cpu", "burst", "number"),
    ("cpu-idle", "cpu", "idle", "number"),
    ("cpuset-cpus", "cpu", "cpus", "text"),
    ("cpuset-mems", "cpu", "mems", "text"),
    ("pids-limit", "pids", "limit", "number"),
    ("blkio-weight", "blockIO", "weight", "number"),
)


_SCHEMATA = (("l3-cache-schema", "l3CacheSchema"), ("mem-bw-schema", "memBwSchema"))


def update(invocation: Invocation) -> int:
    """``update ID``: new limits from a file, from stdin, or from options (which then do not count beside a file)."""
    from gpurun.engine.caller.update import parse_bytes, read_update, update_container
    from gpurun.linux.files import read_fd, read_file
    from gpurun.oci.reader import MAX_DOCUMENT

    schemata = {key: text for option, key in _SCHEMATA if (text := invocation.option(option))}
    path = invocation.option("resources")
    if path:
        data = read_fd(0, MAX_DOCUMENT) if path == "-" else read_file(path, MAX_DOCUMENT)
        resources = read_update(data, "stdin" if path == "-" else path)
    else:
        document: dict[str, dict[str, int | str]] = {}
        for option, group, member, kind in _UPDATE_OPTIONS:
            text = invocation.option(option)
            if not text:
                continue
            value = text if kind == "text" else parse_bytes(text, option) if kind == "bytes" else _number(text, option)
            document.setdefault(group, {})[member] = value
        resources = read_update(document, "")
    update_container(invocation.globals.root, invocation.args[0], resources, schemata)
    gpus = invocation.option("gpus")
    if gpus:
        from gpurun.engine.gpus.attach import set_gpus

        log.warnings(set_gpus(invocation.globals.root, invocation.args[0], gpus))
    return 0


def _number(text: str, option: str) -> int:
    digits = text[1:] if text[:1] in "+-" else text
    if decimal(digits) is None:
        raise GpurunError(f'invalid value for {option}: "{text}" is not a number')
    return int(text)
