"""Every error a caller can meet, with the text that runc's clients look for.

Callers of a low-level runtime match on words of its messages (containerd's shim looks for ``does not exist`` and
``container not running``, moby for ``executable file not found in $PATH`` and ``permission denied``), so a text here is
a contract: change it only with the list of those callers at hand.
"""

from __future__ import annotations

from errno import EDQUOT, EINVAL, ENOMEM, ENOSPC
from posix import strerror

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


class GpurunError(Exception):
    """Base of all errors that are reported in one sentence.  ``exit_code`` is what the command exits with."""

    exit_code = 1


class UsageError(GpurunError):
    """The command line is wrong: an unknown command or option, a missing argument."""


class ConfigError(GpurunError):
    """A document (config.json, process.json, resources, CDI file) says something that cannot be done.

    *where* is the JSON path of the mistake (``linux.resources.memory.limit``) or the file; *what* says what is wrong and
    what to do about it.
    """

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}" if where else what)
        self.where = where
        self.what = what


class UnsupportedError(ConfigError):
    """The document asks for something of the specification that gpurun does not do; it is never ignored."""


class GpuError(GpurunError):
    """The GPUs or the driver of this host cannot give what a container asks for: which part is missing, and what to do."""


class ContainerNotFound(GpurunError):
    """No container *container_id*; shim, CRI-O and moby look for ``does not exist``."""

    def __init__(self, container_id: str = "") -> None:
        super().__init__("container does not exist")
        self.container_id = container_id


class ContainerExists(GpurunError):
    def __init__(self) -> None:
        super().__init__("container with given ID already exists")


class NotRunning(GpurunError):
    """``kill`` and friends on a dead container; shim and CRI-O look for ``container not running``."""

    def __init__(self) -> None:
        super().__init__("container not running")


class SignalTooLate(NotRunning):
    """``kill`` of a container that has ended.

    Engines send signals that may come too late, and hand on what we say to their users though nothing is wrong (two
    processes of Podman stop a service container): without a log it is only the text, not a record of level ``error``.
    """


class StepError(GpurunError):
    """A step of the apply layer failed: *step* is its name, *target* what it worked on, *errno* the kernel's answer.

    *remedy* says what to do, where that is known; *reason* stands for the kernel's text.
    """

    def __init__(self, step: str, target: str, errno: int | None, remedy: str = "", reason: str = "") -> None:
        reason = reason or strerror_lower(errno)
        text = f"{step} {target}: {reason}" if target else f"{step}: {reason}"
        remedy = remedy or no_room(errno, target, step)
        super().__init__(f"{text}: {remedy}" if remedy else text)
        self.step = step
        self.target = target
        self.errno = errno


class Step:
    """``with Step(step, target):`` makes a :class:`StepError` of any OSError that is raised in the block."""

    __slots__ = ("_step", "_target")

    def __init__(self, step: str, target: str = "") -> None:
        self._step = step
        self._target = target

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, OSError):
            raise StepError(self._step, self._target, error.errno, reason=reason(error)) from None


class NotRegularFile(OSError):
    """EINVAL of what is opened only if it is a regular file: a directory, a FIFO, a device."""

    def __init__(self, path: str) -> None:
        super().__init__(EINVAL, "not a regular file", path)


def reason(error: OSError) -> str:
    """Why the call failed that raised *error*: the kernel's text, or what gpurun has seen before it."""
    return str(error.strerror) if isinstance(error, NotRegularFile) else strerror_lower(error.errno)


def strerror_lower(errno: int | None) -> str:
    """The kernel's text for *errno* as Go programs print it (``no such file or directory``): clients match it that way."""
    text = strerror(errno or 0)
    return text[:1].lower() + text[1:]


def no_room(errno: int | None, target: str, step: str = "") -> str:
    """What is full where the kernel has no space left for *target*, empty for every other *errno*.

    mount(2) and clone(2) say the same of their limits: "ENOSPC" there.
    """
    if errno == EDQUOT:
        return "the quota of this user is used up on that file system (quota)"
    if errno != ENOSPC:
        return ""
    if step.startswith("mount") or "namespace" in step:
        return "a limit of the kernel is reached: see sysctl fs.mount-max and user.max_*_namespaces"
    file_system = f"the file system of {target}" if target.startswith("/") else "a file system"
    return f"{file_system} has no free blocks or no free inodes (df, df -i)"


def error_text(error: BaseException) -> str:
    """*error* in a sentence that says what was being done: the one place where every error of a system call gets its step.

    Where neither a :class:`Step` nor a path says it, the function does that made the call.  Errors of other kinds are the
    program's own mistakes, but for memory and modules: an interpreter that has no descriptor left cannot import.
    """
    if isinstance(error, GpurunError):
        return str(error)
    if isinstance(error, OSError):
        return (
            oserror_text(error) if error.filename or not error.errno else f"{_doing(error)}: {strerror_lower(error.errno)}"
        )
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, MemoryError):
        return f"{_doing(error)}: {strerror_lower(ENOMEM)}"
    if isinstance(error, ImportError):
        why = f" ({error})" if error.path or not isinstance(error, ModuleNotFoundError) else ""
        return _no_module(error.name or "?", why)
    # The directory of a package whose __init__.py cannot be looked at is an empty package for Python.
    module = error.obj if isinstance(error, AttributeError) else None
    if hasattr(module, "__path__") and getattr(module, "__file__", None) is None:
        return _no_module(str(getattr(module, "__name__", "?")), "")
    return f"internal error in gpurun: {type(error).__name__}: {error}"


def _no_module(name: str, why: str) -> str:
    what = f"cannot load the Python module {name}{why}"
    return f"{what}: it is missing, or descriptors (ulimit -n) or memory have run out"


#: Modules that only wrap system calls: what was being done is what their callers do.
_WRAPPERS = ("gpurun.linux.", "gpurun.errors", "gpurun.launcher.")
#: Functions whose names say too little.
_STEPS = {
    "gpurun.engine.messages": "talk to the container's process",
    "gpurun.engine.caller.start_init": "start the container's process",
    "gpurun.ns.spawn": "make the container's process",
    "gpurun.ns.helper_process": "do something in a helper process",
}
#: Functions whose names do not say what they are for, in words.
_SAY_NOTHING = frozenset(
    ("init", "enter", "exit", "call", "called", "told", "run", "run program", "run reporting errors", "main", "inner")
)


def _doing(error: BaseException) -> str:
    """What the innermost function of gpurun's that *error* went through was for, in words."""
    found = "run gpurun"
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        module = str(step.tb_frame.f_globals.get("__name__", ""))
        name = code.co_name.strip("_").replace("_", " ")
        if module.startswith("gpurun.") and not module.startswith(_WRAPPERS) and code.co_name[:1] != "<":
            if module in _STEPS:
                found = _STEPS[module]
            elif name not in _SAY_NOTHING:
                found = name
        step = step.tb_next
    return found


def oserror_text(error: OSError) -> str:
    """``<path>: <reason>`` of an :class:`OSError`, without Python's ``[Errno N]``."""
    # The numbers of getaddrinfo(3) are negative, and no errno.
    known = (error.errno or 0) > 0
    text = reason(error) if known else (error.strerror or str(error))
    more = no_room(error.errno, str(error.filename or ""))
    text = f"{text}: {more}" if more else text
    return f"{error.filename}: {text}" if error.filename else text


def program_error_text(error: Exception) -> str:
    """Why a program that was called has given no answer; *error* is an :class:`OSError`, or one of :mod:`subprocess`'s."""
    if isinstance(error, OSError):
        return oserror_text(error)
    seconds = getattr(error, "timeout", None)
    if seconds is not None:
        return f"it has not ended within {seconds:g} s"
    code = getattr(error, "returncode", None)
    if code is not None:
        said = getattr(error, "stderr", None) or getattr(error, "stdout", None)
        return (" ".join(said.split()) if isinstance(said, str) else "") or f"exit code {code}"
    return str(error)


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escape(text: str, keep: str = "") -> str:
    """*text* on one line, without what a terminal or a reader of records would take for its own, or would not show: control
    and format characters (also those that change the direction of a text), other blanks than the space, bytes that are no
    UTF-8, ``"`` and ``\\``.  What is in *keep* stays as it is."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return text
    return "".join([c if c in keep or (c.isprintable() and c not in _ESCAPES) else _escape(c) for c in text])


def _escape(c: str) -> str:
    if c in _ESCAPES:
        return _ESCAPES[c]
    number = ord(c)
    if 0xDC80 <= number <= 0xDCFF:  # a byte of a file name that is no UTF-8
        return f"\\x{number - 0xDC00:02x}"
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def clean(text: str, limit: int = 200) -> str:
    """*text* of an image, clean enough for a message or a log: control characters escaped, cut at *limit* characters."""
    found = escape(text, keep='"')
    return found if len(found) <= limit else found[:limit] + "..."


class Stays(str):
    """A warning of delete that something of the container stays on the host: its exit code says so too."""
