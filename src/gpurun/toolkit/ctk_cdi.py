"""``nvidia-ctk cdi``: gpurun's own ``cdi``, with the other names of its options and the variables of NVIDIA's program.

What stands on the command line counts before a variable.  A list in a variable has commas between its items.
"""

from __future__ import annotations

import os

#: Other names of options.
ALIASES = {
    "discovery-mode": "mode",
    "nvidia-ctk-path": "nvidia-cdi-hook-path",
    "cdi-vendor": "vendor",
    "cdi-class": "class",
    "disable-hooks": "disable-hook",
    "enable-hooks": "enable-hook",
    "feature-flags": "feature-flag",
    "device-ids": "device-id",
    "device": "device-id",
    "devices": "device-id",
}
_GENERATE = "NVIDIA_CTK_CDI_GENERATE_"
#: Command → option → its variable.
VARIABLES = {
    "generate": {
        "output": "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH",
        "format": f"{_GENERATE}OUTPUT_FORMAT",
        "mode": f"{_GENERATE}MODE",
        "device-name-strategy": f"{_GENERATE}DEVICE_NAME_STRATEGIES",
        "driver-root": "NVIDIA_CTK_DRIVER_ROOT",
        "dev-root": "NVIDIA_CTK_DEV_ROOT",
        "library-search-path": f"{_GENERATE}LIBRARY_SEARCH_PATHS",
        "config-search-path": f"{_GENERATE}CONFIG_SEARCH_PATHS",
        "nvidia-cdi-hook-path": "NVIDIA_CTK_CDI_HOOK_PATH",
        "ldconfig-path": f"{_GENERATE}LDCONFIG_PATH",
        "vendor": f"{_GENERATE}VENDOR",
        "class": f"{_GENERATE}CLASS",
        "csv.file": f"{_GENERATE}CSV_FILES",
        "csv.ignore-pattern": f"{_GENERATE}CSV_IGNORE_PATTERNS",
        "csv.compat-container-root": f"{_GENERATE}CSV_CONTAINER_COMPAT_ROOT",
        "disable-hook": f"{_GENERATE}DISABLED_HOOKS",
        "enable-hook": f"{_GENERATE}ENABLED_HOOKS",
        "feature-flag": f"{_GENERATE}FEATURE_FLAGS",
        "no-all-device": f"{_GENERATE}NO_ALL_DEVICE",
        "device-id": f"{_GENERATE}DEVICE_IDS",
    },
    "list": {"spec-dir": "NVIDIA_CTK_CDI_SPEC_DIRS"},
}


def main(words: list[str]) -> int:
    """*words* come after ``cdi``; returns the exit code.  Raises :class:`GpurunError`."""
    from gpurun.cli.parse import parse_command, parse_globals
    from gpurun.commands.cdi import cdi

    words, config = without_globals(words)
    if config:
        os.environ["NVIDIA_CTK_CONFIG_FILE_PATH"] = config
    words = translate_options(words, dict(os.environ))
    invocation = parse_command(parse_globals(["cdi"])[0], ["cdi", *words])
    if invocation.command == "help":
        from gpurun.cli.human import show_help

        return show_help(invocation, "nvidia-ctk")
    return cdi(invocation)


def without_globals(words: list[str]) -> tuple[list[str], str]:
    """*words* without the options that all commands of nvidia-ctk have; the file that ``--config`` names, or empty.

    Returns (words, file).
    """
    kept: list[str] = []
    config = ""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-") and name in ("debug", "d", "quiet", "q"):
            continue
        if word.startswith("-") and name == "config":
            config = value if equals else rest.pop(0) if rest else ""
            continue
        kept.append(word)
        if word.startswith("-") and not equals and _takes_value(name):
            kept += rest[:1]
            del rest[:1]
    return kept, config


def translate_options(words: list[str], env: dict[str, str]) -> list[str]:
    """*words* with gpurun's names of the options, and with what *env* says of those that are not among them."""
    made = [_translate_option(word) for word in words]
    given = {_name(word) for word in made}
    for option, variable in VARIABLES.get(made[0] if made else "", {}).items():
        value = env.get(variable, "")
        if not value or option in given:
            continue
        items = value.split(",") if _is_list(option) else [value]
        made += [f"--{option}={item.strip()}" for item in items if item.strip()]
    return made


def _translate_option(word: str) -> str:
    name = _name(word)
    return f"--{ALIASES[name]}{word.lstrip('-')[len(name) :]}" if name in ALIASES else word


def _name(word: str) -> str:
    """The name of the option *word*, empty if it is not an option."""
    return word.lstrip("-").partition("=")[0] if word.startswith("-") and len(word) > 2 else ""


def _is_list(option: str) -> bool:
    return _kind(option) == "texts"


def _takes_value(option: str) -> bool:
    return _kind(ALIASES.get(option, option)) not in ("", "switch")


def _kind(option: str) -> str:
    """What the option of ``cdi`` takes, as the table of commands says it; empty for one that is not there."""
    from gpurun.cli.rows import command

    return next((row.kind for row in command("cdi").options if option and option in (row.name, row.short)), "")
