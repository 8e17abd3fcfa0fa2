"""NVIDIA's CDI hooks as data: gpurun does their work itself and runs no program for them.

``nvidia-cdi-hook COMMAND``, ``nvidia-ctk hook COMMAND`` and ``gpurun hook COMMAND`` are known at the stage
createContainer, and what :data:`LIMITS` names at createRuntime.  A command or an argument that is not known makes the hook a
foreign one, which is run like any OCI hook: a newer specification may mean something by it.
"""

from __future__ import annotations

import posix

from gpurun.cdi.edits import Hook
from gpurun.decimals import decimal
from gpurun.errors import ConfigError
from gpurun.gpu.vendors import find_vendor
from gpurun.oci.reader import INT64_MAX
from gpurun.record import Record

#: The version of NVIDIA's toolkit whose command lines gpurun has under NVIDIA's names, and which docs/nvidia.md compares
#: them with; scripts compare it with what they need.
INTERFACE_VERSION = "1.20.0"

#: Command → its options; those that may be given again are in _LISTS.
COMMANDS: dict[str, tuple[str, ...]] = {
    "create-symlinks": ("link", "container-spec"),
    "update-ldcache": ("folder", "ldconfig-path", "container-spec"),
    "enable-cuda-compat": ("host-driver-version", "host-cuda-version", "cuda-compat-container-root", "container-spec"),
    "disable-device-node-modification": ("container-spec",),
    "update-application-profile": ("container-spec",),
    "chmod": ("mode", "path", "container-spec"),
    "apply-cuda-memory-limits": ("driver-root", "gpu-id", "container-spec", "limit"),
    "noop": (),
}
_LISTS = ("link", "folder", "path", "gpu-id")
#: The only one of the stage createRuntime.  gpurun does what it does for the container's variables, with the hook or without
#: (:mod:`gpurun.gpu.nvidia.memory_limits`).  With ``--limit``, which is gpurun's own and says how many bytes, whatever the
#: variables say, it is run like any hook.
LIMITS = "apply-cuda-memory-limits"


class HookCall(Record):
    """One call of a known hook: its *command* and its options, each with all its values."""

    command: str
    options: dict[str, tuple[str, ...]]

    def values(self, name: str) -> tuple[str, ...]:
        """All values that the option *name* was given, in their order."""
        return self.options.get(name, ())

    def value(self, name: str, default: str = "") -> str:
        """The last value that the option *name* was given, or *default*."""
        return self.options.get(name, (default,))[-1]


def as_known_call(hook: Hook) -> HookCall | None:
    """*hook* as a call that gpurun does itself, ``None`` for any other program, stage, command or argument."""
    program = hook.path.rpartition("/")[2]
    if hook.stage not in ("createContainer", "createRuntime") or program not in find_vendor("nvidia").cdi_programs:
        return None
    words = hook.args[1:]
    if program != "nvidia-cdi-hook":
        if words[:1] != ("hook",):
            return None
        words = words[1:]
    try:
        call = parse_call(words)
    except ConfigError:
        return None
    if call is None or (call.command == LIMITS) != (hook.stage == "createRuntime") or call.values("limit"):
        return None
    # The container's specification given by name: meant for tests of the hook, and not this container.
    return None if call.values("container-spec") else call


def parse_call(words: tuple[str, ...]) -> HookCall | None:
    """The command line of a hook (without the program); ``None`` for a command that is not known.

    Raises :class:`ConfigError` for arguments that the command does not have.
    """
    words = tuple([word for word in words if word not in ("--debug", "--quiet", "-d", "-q")])
    if not words or words[0] not in COMMANDS:
        return None
    command, known = words[0], COMMANDS[words[0]]
    options: dict[str, tuple[str, ...]] = {}
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or name not in known:
            raise ConfigError(command, f'"{word}" is not one of its options')
        if not equals:
            if not rest:
                raise ConfigError(command, f'"{word}" needs a value')
            value = rest.pop(0)
        # Lists are also taken comma-separated, as the original's option parser does.
        values = tuple(value.split(",")) if name in _LISTS else (value,)
        options[name] = options.get(name, ()) + values if name in _LISTS else values
    call = HookCall(command, options)
    _check(call)
    return call


def _check(call: HookCall) -> None:
    for text in call.values("link"):
        target, colons, path = text.partition("::")
        if not (target and colons and path):
            raise ConfigError(call.command, f'--link "{text}" is not of the form TARGET::PATH')
    for name in ("folder", "path"):
        for text in call.values(name):
            if not text.startswith("/"):
                raise ConfigError(call.command, f'--{name} "{text}" is not an absolute path')
    if any(decimal(text, INT64_MAX) is None for text in call.values("limit")):
        raise ConfigError(call.command, f'--limit "{call.value("limit")}" is not a number of bytes')
    if call.command == "chmod":
        mode = call.value("mode")
        if not mode or len(mode) > 5 or set(mode) - set("01234567"):
            raise ConfigError(call.command, f'--mode "{mode}" is not an octal number')


def links_of(call: HookCall) -> tuple[tuple[str, str], ...]:
    """(path in the container, text of the link) of a create-symlinks call."""
    pairs = [text.partition("::") for text in call.values("link")]
    return tuple([("/" + path.lstrip("/"), target) for target, _, path in pairs])


def library_names(directory_fd: int) -> list[str]:
    """The names in a directory that may be shared libraries, sorted."""
    return sorted([name for name in posix.listdir(directory_fd) if name.startswith("lib") and ".so" in name])
