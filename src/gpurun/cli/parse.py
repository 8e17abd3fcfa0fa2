"""The machine parser: a command line → an :class:`Invocation`, as strictly and with the same words as runc.

``--flag value``, ``--flag=value``, one dash or two (go-runc sends ``-no-subreaper``), short names, ``--switch=false``;
an option that is given twice counts once, with its last value, unless it is of the kind ``texts``; ``--`` ends the
options.  Global options come before the command; a command's own may stand before and after its arguments, unless its row
says after how many arguments they end.
"""

from __future__ import annotations

import posix

from gpurun.cli.table import COMMANDS, GLOBALS, GROUPS
from gpurun.decimals import decimal
from gpurun.errors import GpurunError, UsageError
from gpurun.invocation import Globals, Invocation
from gpurun.linux.procfs import in_user_namespace
from gpurun.paths import absolute_path, runtime_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from gpurun.cli.container_commands import OptionRow

    Values = dict[str, str | int | bool | tuple[str, ...]]

# What Go's strconv.ParseBool takes.
_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_FALSE = ("0", "f", "F", "false", "FALSE", "False")


class UnknownCommand(UsageError):
    """No such command; the exit code is the one of runc's command line library."""

    exit_code = 3

    def __init__(self, name: str) -> None:
        super().__init__(f"No help topic for '{name}'")
        self.name = name


class CommandUsageError(UsageError):
    """The options or arguments of *command* are wrong, or the global options (*command* is empty)."""

    def __init__(self, command: str, message: str) -> None:
        super().__init__(message)
        self.command = command


def parse(args: Sequence[str]) -> Invocation:
    """The command line *args* (without the program's name): :func:`parse_globals`, then :func:`parse_command`."""
    options, rest = parse_globals(args)
    return parse_command(options, rest)


def parse_globals(args: Sequence[str]) -> tuple[Globals, list[str]]:
    """The options before the command, and the words from the command on.

    ``--version`` and ``--help`` stand for the commands ``version`` and ``help``, and so does an empty command line.
    Raises :class:`UsageError` on what the table does not know, :class:`GpurunError` on a value that cannot be.  Returns
    (options, words).
    """
    values, rest = _options("", GLOBALS, args, stop=1)
    manager, maps = str(values.get("cgroup-manager", "")), values.get("gpu-map", ())
    if manager not in ("", "cgroupfs", "systemd", "disabled"):
        raise GpurunError(f"invalid cgroup-manager: {manager} (cgroupfs, systemd or disabled)")
    options = Globals(
        root=_root(values),
        root_given="root" in values,
        log=str(values.get("log", "")),
        log_format=_log_format(values),
        debug=bool(values.get("debug")),
        systemd_cgroup=bool(values.get("systemd-cgroup")) or manager == "systemd",
        cgroup_manager=manager,
        rootless=str(values.get("rootless", "auto")),
        gpu_map=maps if isinstance(maps, tuple) else (),
    )
    if values.get("version"):
        return options, ["version"]
    if values.get("help") or not rest:
        return options, ["help"]
    return options, rest


def parse_command(options: Globals, words: Sequence[str]) -> Invocation:
    """The command *words*; asking for its help is the command ``help`` with the topic as its argument.

    Raises :class:`UnknownCommand`, :class:`CommandUsageError`.
    """
    name = words[0]
    if name == "version":
        return Invocation(name, (), {}, options)
    if name in ("help", "h"):
        return Invocation("help", tuple(words[1 : 3 if words[1:2] and words[1] in GROUPS else 2]), {}, options)
    row = COMMANDS.get(name)
    if row is None:
        raise UnknownCommand(name)
    rows = row.get("options", ())
    if name in GROUPS:
        rows = _own_first(rows, next((word for word in words[1:] if word in GROUPS[name]), ""))
    values, arguments = _options(name, rows, words[1:], row.get("stop", 0))
    if values.pop("help", False):
        return Invocation("help", (name, *arguments[:1]) if name in GROUPS else (name,), {}, options)
    _check_count(name, len(arguments), *row["count"])
    return Invocation(name, tuple(arguments), values, options)


def _own_first(rows: tuple[OptionRow, ...], below: str) -> tuple[OptionRow, ...]:
    """*rows* with those first that are for the command *below* a group: a short name may mean another option there."""
    own = [row for row in rows if below in row[3].partition(": ")[0].split(", ")]
    return (*own, *[row for row in rows if row not in own])


def _options(command: str, rows: tuple[OptionRow, ...], args: Sequence[str], stop: int) -> tuple[Values, list[str]]:
    """The options of *args* by their long names, and the arguments; behind *stop* of these (0: any number) options end."""
    values: Values = {}
    rest: list[str] = []
    i, count = 0, len(args)
    while i < count:
        arg = args[i]
        i += 1
        if len(arg) < 2 or arg[0] != "-":
            rest.append(arg)
            if stop and len(rest) == stop:
                break
            continue
        if arg == "--":
            break
        given, equals, value = arg[2 if arg[1] == "-" else 1 :].partition("=")
        if not given or given[0] == "-":
            raise CommandUsageError(command, f"bad flag syntax: {arg}")
        for name, short, kind, _ in rows:  # noqa: B007 - they are those of the option afterwards
            if given in (name, short):
                break
        else:
            if given in ("help", "h"):
                values["help"] = True
                continue
            raise CommandUsageError(command, f"flag provided but not defined: -{given}")
        if kind == "switch":
            values[name] = _boolean(command, given, value) if equals else True
            continue
        if not equals:
            if i == count:
                raise CommandUsageError(command, f"flag needs an argument: -{given}")
            value = args[i]
            i += 1
        if kind == "texts":
            before = values.get(name, ())
            values[name] = (*before, value) if isinstance(before, tuple) else (value,)
        else:
            values[name] = _number(command, given, value) if kind == "number" else value
    rest.extend(args[i:])
    return values, rest


def _boolean(command: str, name: str, value: str) -> bool:
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise CommandUsageError(command, f'invalid boolean value "{value}" for -{name}: parse error')


def _number(command: str, name: str, value: str) -> int:
    digits = value[1:] if value[:1] in ("-", "+") else value
    if decimal(digits) is None:
        raise CommandUsageError(command, f'invalid value "{value}" for flag -{name}: parse error')
    return int(value)


def _check_count(command: str, count: int, least: int, most: int) -> None:
    if least == most and count != least:
        raise CommandUsageError(command, f'gpurun: "{command}" requires exactly {least} argument(s)')
    if count < least:
        raise CommandUsageError(command, f'gpurun: "{command}" requires a minimum of {least} argument(s)')
    if count > most >= 0:
        raise CommandUsageError(command, f'gpurun: "{command}" requires a maximum of {most} argument(s)')


def _log_format(values: Values) -> str:
    given = str(values.get("log-format", "")) or "text"
    if given not in ("text", "json"):
        raise GpurunError(f"invalid log-format: {given}")
    return given


def _root(values: Values) -> str:
    """``--root`` made absolute, else the default of :func:`default_root`."""
    given = str(values.get("root", ""))
    if not given:
        return default_root(posix.environ, posix.geteuid(), _in_user_namespace)
    root = absolute_path(given)
    if root == "/":
        raise GpurunError("Option --root argument should not be set to /")
    return root


def default_root(environ: dict[bytes, bytes], euid: int, in_user_namespace: Any) -> str:
    """``/run/gpurun``, or ``$XDG_RUNTIME_DIR/gpurun`` for whoever is not the host's root; for users without that variable
    (after su, in a cron job) ``/run/user/UID/gpurun``.

    Root of a user namespace keeps /run when ``$USER`` says root (that is how a nested container's root looks);
    *in_user_namespace* is asked only when it matters, for it reads a file.
    """
    runtime_dir = runtime_directory(environ.get(b"XDG_RUNTIME_DIR", b"").decode("utf-8", "surrogateescape"), euid)
    if not runtime_dir:
        return "/run/gpurun"
    if euid == 0 and (environ.get(b"USER") == b"root" or not in_user_namespace()):
        return "/run/gpurun"
    return absolute_path(f"{runtime_dir}/gpurun")


def _in_user_namespace() -> bool:
    try:
        return in_user_namespace()
    except OSError:  # no procfs, or a kernel without user namespaces: then there is no other one to be in
        return False
