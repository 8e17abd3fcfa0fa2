"""gpurun's entry point: picks the machine or the human path, and turns every error into one sentence and an exit code."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import posix
import sys

from gpurun import log
from gpurun.cli.parse import CommandUsageError, UnknownCommand, parse_command, parse_globals
from gpurun.cli.table import COMMANDS
from gpurun.errors import ContainerNotFound, GpurunError, SignalTooLate, error_text

_SIGINT = 2
#: The commands whose first word is a container that is there; engines name its state directory, and always its id.
_BY_NAME = frozenset(("checkpoint", "delete", "events", "exec", "kill", "pause", "ps", "resume", "start", "state", "update"))

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from gpurun.invocation import Invocation


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (``sys.argv`` by default) and return the exit code; raises nothing but what ends a process."""
    open_standard_descriptors()
    words = list(sys.argv if argv is None else argv)
    stdout = sys.stdout
    interruptible = False
    try:
        interruptible = _raise_interrupts()
        code = _run_reporting_errors(words[0].rpartition("/")[2] if words else "", words[1:])
    except KeyboardInterrupt:
        code = 130
    if interruptible:
        _signal.signal(_SIGINT, _signal.SIG_DFL)
    sys.stdout = stdout
    log.close()
    return code


def _run_reporting_errors(name: str, words: list[str]) -> int:
    """:func:`_run_program`; what it raises is reported.  Raises only KeyboardInterrupt."""
    try:
        return _run_program(name, words)
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        return _report_error(e)


def _raise_interrupts() -> bool:
    """From now on SIGINT raises KeyboardInterrupt, so that what is made is taken back; whether that was not so already.

    The launcher has let it end the process at once, for until here there was nothing to take back.
    """
    if _signal.getsignal(_SIGINT) != _signal.SIG_DFL:
        return False
    try:
        _signal.signal(_SIGINT, _signal.default_int_handler)
    except ValueError:  # a thread of another program
        return False
    return True


def _run_program(name: str, words: list[str]) -> int:
    """Run the command line *words* of the program *name*."""
    site = None
    if name.startswith(("nvidia-", "amd-")):  # a link with the name of a maker's program; each has a command line of its own
        from gpurun.toolkit.names import program, runtime

        found = program(name)
        if found is not None:
            _print_here()
            return found(words)
        site = runtime(name)
    if b"_GPURUN_COMPLETE" in posix.environ:
        from gpurun.cli.human import complete

        _print_here()
        return complete()
    return _run(words, site)


def _print_here() -> None:
    """What libraries print goes the way of all output."""
    from gpurun.output import Stdout

    sys.stdout = Stdout()  # type: ignore[assignment] # they ask for no more


def _run(words: list[str], site: tuple[Any, str] | None) -> int:
    """Run the command line *words*; *site* makes gpurun a maker's runtime (:func:`gpurun.toolkit.names.runtime`)."""
    options, rest = parse_globals(words)
    log.open_log(options)
    if site is not None:
        as_runtime, mode = site
        as_runtime.enter(mode, options.root)
    invocation = parse_command(options, rest)
    if invocation.command == "version":
        from gpurun.commands.version import version

        return version(invocation, as_runtime.first_lines() if site is not None else "")
    if invocation.command == "help":
        from gpurun.cli.human import show_help

        return show_help(invocation)
    if log.debugging():  # words after the first may be secrets
        log.debug(f"{invocation.command} {' '.join(invocation.args[:1])} (state in {invocation.globals.root})")
    if invocation.command in _BY_NAME and (not invocation.globals.root_given or "gpus" in invocation.options):
        invocation = _resolve_name(invocation)
    try:
        return handler(invocation.command)(invocation)
    except ContainerNotFound as e:
        if invocation.globals.root_given:  # an engine, which knows where its containers are
            raise
        try:
            from gpurun.commands.all_containers import where_it_is

            place = where_it_is(e.container_id, invocation.globals.root)
        except (ImportError, OSError):  # a small Python; or a host that does not let us look
            raise e from None
        raise GpurunError(f"{e}{place}") from None


def _resolve_name(invocation: Invocation) -> Invocation:
    """*invocation* with the id in the place of a name that a person has typed: looked up where no container has that id."""
    word, root = invocation.args[0], invocation.globals.root
    if not word or invocation.flag("regex") or ("/" not in word and posix.access(f"{root}/{word}", posix.F_OK)):
        return invocation
    try:
        from gpurun.commands.containers import with_name
    except ImportError:  # a small Python
        return invocation
    return with_name(invocation)


def handler(command: str) -> Callable[[Invocation], int]:
    """The function that does *command*, imported now."""
    module, _, function = COMMANDS[command]["handler"].partition(":")
    __import__(module)
    found: Callable[[Invocation], int] = getattr(sys.modules[module], function)
    return found


def open_standard_descriptors() -> None:
    """Open /dev/null on those of the descriptors 0 to 2 that are closed.

    What is opened next would take their numbers, and an error message or a container's output would end in it.
    """
    for fd in (0, 1, 2):
        try:
            posix.fstat(fd)
        except OSError:
            posix.set_inheritable(posix.open("/dev/null", posix.O_RDWR), True)  # the lowest free number: *fd*


def _report_error(error: BaseException) -> int:
    """Tell *error* to the log and stderr, and return the exit code."""
    if log.debugging() and not isinstance(error, (GpurunError, SystemExit)):
        log.debug(_traceback(error))
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, GpurunError):
        text = _usage(error) if isinstance(error, (CommandUsageError, UnknownCommand)) else str(error)
        text += _why_refused(text)
        log.error(text, bare=isinstance(error, SignalTooLate), kind=type(error).__name__)
        return error.exit_code
    text = error_text(error)
    hint = text.startswith("internal error") and not log.debugging()
    log.error(f"{text}; --debug logs where" if hint else text + _why_refused(text))
    return 1


def _why_refused(text: str) -> str:
    """What is said besides where a seccomp filter has refused a system call; "" for other errors."""
    if "not permitted" not in text and "not implemented" not in text:
        return ""
    from gpurun.linux.refused import why_refused

    return why_refused(text)


def _usage(error: CommandUsageError | UnknownCommand) -> str:
    """The text of a wrong command line; people get the help or the nearest command with it."""
    try:
        from gpurun.cli.human import did_you_mean, option_meant, show_usage

        if isinstance(error, UnknownCommand):
            return f"{error}{did_you_mean(error.name)}"
        show_usage(error)
        return f"{error}{option_meant(error)}"
    except (ImportError, GpurunError):  # no click here, or stdout is gone: the error itself matters more
        pass
    return str(error)


def _traceback(error: BaseException) -> str:
    """Where *error* was raised, outermost call first, on one line: ``traceback`` and what it imports cost 10 ms.

    The launcher's code has no line table: there, the first line of the function and the instruction in it are named.
    """
    places = []
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        line = step.tb_lineno if (step.tb_lineno or -1) > 0 else f"{code.co_firstlineno}+{step.tb_lasti}"
        places.append(f"{code.co_filename}:{line} {code.co_name}")
        step = step.tb_next
    return f"{type(error).__name__}: {error} at " + " > ".join(places)


if __name__ == "__main__":
    sys.exit(main())
