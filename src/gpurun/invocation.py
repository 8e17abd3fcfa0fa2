"""A parsed command line: what every command's handler is given."""

from __future__ import annotations

from gpurun.errors import GpurunError
from gpurun.record import Record


class Globals(Record):
    """The options before the command.  *root* is absolute and lexically clean; *root_given* tells it from the default."""

    root: str
    root_given: bool = False
    log: str = ""  # "" is stderr
    log_format: str = "text"  # or "json"
    debug: bool = False
    systemd_cgroup: bool = False
    cgroup_manager: str = ""  # "cgroupfs", "systemd", "disabled"; "" when not given
    rootless: str = "auto"  # as given: "true", "false" or "auto"
    gpu_map: tuple[str, ...] = ()  # restore's

    @property
    def driver(self) -> str:
        """Who makes cgroups: ``cgroupfs``, ``systemd``, or ``disabled`` for none."""
        return "systemd" if self.systemd_cgroup else self.cgroup_manager or "cgroupfs"


class Invocation(Record):
    """One command.  *options* holds only what was given, under the long name without dashes."""

    command: str
    args: tuple[str, ...]
    options: dict[str, str | int | bool | tuple[str, ...]]
    globals: Globals

    def flag(self, name: str) -> bool:
        """Whether the switch *name* was given (and not as ``--name=false``)."""
        return bool(self.options.get(name))

    def option(self, name: str, default: str = "") -> str:
        """The text given for option *name*."""
        return str(self.options.get(name, default))

    def form(self, default: str = "table") -> str:
        """How the answer is to be printed, by --format and --json: ``table``, for people, or ``json``, for programs.

        Raises :class:`GpurunError` for another word.
        """
        given = "json" if self.flag("json") else self.option("format", default)
        if given not in ("table", "json"):
            raise GpurunError(f'invalid format option "{given}", use table or json')
        return given

    def number(self, name: str, default: int = 0) -> int:
        """The number given for option *name*."""
        value = self.options.get(name, default)
        return value if isinstance(value, int) else default

    def texts(self, name: str) -> tuple[str, ...]:
        """All that was given for option *name*, which may be given again and again."""
        value = self.options.get(name, ())
        return value if isinstance(value, tuple) else ()
