"""docs/nvidia.md: each program, flag, variable and key that there is has its row, and each row says what it must."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import click
import pytest

from gpurun.cli import rows as cli_rows
from gpurun.gpu.nvidia.cdi import known_hooks
from gpurun.gpu.nvidia.cdi.known_hooks import INTERFACE_VERSION
from gpurun.gpu.nvidia.edits.features import FEATURES, HOOKS
from gpurun.gpu.nvidia.request import settings
from gpurun.gpu.nvidia.request.settings import MODES, UNUSED
from gpurun.toolkit import config_file, container_cli, ctk
from gpurun.toolkit.container_list import list_parser
from gpurun.toolkit.ctk_cdi import ALIASES, VARIABLES
from gpurun.toolkit.names import names_of

from .test_ctk_options import CDI, REST
from .test_ctk_options import HOOKS as HOOK_OPTIONS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/nvidia.md").read_text()
VERDICTS = ("same", "differs", "not there", "only here")


def sections() -> dict[str, list[tuple[str, str, str]]]:
    """Heading without its marks → the rows below it."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    heading = ""
    for line in PAGE.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ").strip("`")
            found[heading] = []
        elif line.startswith("|") and not line.startswith(("| what |", "|---")):
            first, second, third = [cell.strip() for cell in line.strip("|").split(" | ")]
            found[heading].append((first, second, third.rstrip("|").strip()))
    return found


SECTIONS = sections()
ROWS = [(heading, *row) for heading, rows in SECTIONS.items() for row in rows]


def named(heading: str) -> set[str]:
    """What stands between backticks in the first column of a section."""
    return {word for first, _, _ in SECTIONS[heading] for word in re.findall(r"`([^`]+)`", first)}


def row_of(heading: str, name: str) -> tuple[str, str]:
    """The verdict and the reason of the row that names *name*."""
    (found,) = [row for row in SECTIONS[heading] if f"`{name}`" in row[0]]
    return found[1], found[2]


@pytest.mark.parametrize(("heading", "what", "verdict", "why"), ROWS, ids=[f"{h[:30]}-{w[:40]}" for h, w, _, _ in ROWS])
def test_a_row_says_what_it_must(heading: str, what: str, verdict: str, why: str) -> None:
    assert what and verdict in VERDICTS
    assert why or verdict == "same", "a difference has a reason"


def test_programs() -> None:
    assert set(names_of(("nvidia",))) <= named("Programs")
    assert {f"mode `{mode}`" for mode in MODES} <= {row[0] for row in SECTIONS["nvidia-container-runtime"]}


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings}


def test_container_cli() -> None:
    """All options, NVIDIA's and ours, long and short."""
    sub = {
        "": container_cli._globals(), "info": container_cli._info_parser(), "list": list_parser(),
        "configure": container_cli._configure_parser(),
    }  # fmt: skip
    for command, parser in sub.items():
        heading = f"nvidia-container-cli {command}".strip()
        wanted = options_of(parser)
        assert (wanted if not command else wanted - {"-?", "-h", "--help", "--usage"}) == named(heading), heading


def test_ctk_cdi() -> None:
    generate = named("nvidia-ctk cdi generate")
    for command, rows in CDI.items():
        wanted = {f"--{name}" for names, _, _ in rows for name in names.split()}
        assert wanted <= named(f"nvidia-ctk cdi {command}"), command
    assert {f"--{name}" for name in ALIASES} <= generate
    of_generate = {f"--{option.name}" for option in cli_rows.command("cdi").options if "generate" in option.takers}
    assert len(of_generate) > 15 and of_generate <= generate


def commands(command: click.Command, path: str = "") -> list[tuple[str, click.Command]]:
    below = command.commands.items() if isinstance(command, click.Group) else ()
    return [(path, command)] + [one for name, sub in below for one in commands(sub, f"{path} {name}".strip())]


def test_ctk() -> None:
    """What NVIDIA's has, and what ours has."""
    for path, rows in REST.items():
        if path.startswith("config ") or path == "info":
            assert f"nvidia-ctk {path}" in named("nvidia-ctk") | named("nvidia-ctk config")
            continue
        heading = f"nvidia-ctk {path}".strip()
        wanted = {f"{'-' if len(n) == 1 else '--'}{n}" for names, _ in rows for n in names.split()}
        assert wanted <= named(heading), heading
    for path, command in commands(ctk.program):
        heading = f"nvidia-ctk {path}".strip()
        shown = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
        options = {name for p in shown for name in (*p.opts, *p.secondary_opts)}
        if heading in SECTIONS:
            assert options - {"--help", "-h"} <= named(heading), heading
        else:
            assert not options - {"--help", "-h"} or path.startswith("config "), f"{heading} has no section"


def test_the_version_that_the_page_compares_with() -> None:
    """Scripts that ask a program which version it is get the one whose behaviour this page speaks of."""
    said = re.search(r"NVIDIA's Container Toolkit ([0-9.]+)", PAGE)
    assert said is not None and INTERFACE_VERSION.startswith(f"{said[1]}.")


def test_hooks() -> None:
    there = named("nvidia-cdi-hook")
    assert set(known_hooks.COMMANDS) <= there
    wanted = {f"--{name}" for options in HOOK_OPTIONS.values() for name in (options or "").split()}
    assert wanted <= there and "`--container-spec`" in PAGE
    assert {*HOOKS, *FEATURES, "all"} <= named("Feature flags and hooks")
    for flag, why in FEATURES.items():
        verdict, reason = row_of("Feature flags and hooks", flag)
        assert (verdict, reason) == (("differs", f"without effect: {why}") if why else ("same", ""))


def test_keys_of_config_toml() -> None:
    keys = {*config_file._BOOLEANS, *config_file._LISTS, *config_file._TEXTS}
    text = Path(settings.__file__).read_text()
    own = {f"gpurun.{name}" for name in re.findall(r'"gpurun\.([a-z-]+)"', text)}
    assert named("config.toml") - {"disabled"} >= keys | own and len(own) == 6
    assert named("config.toml") == keys | own, "a key that nobody reads"
    for key in keys:
        verdict, reason = row_of("config.toml", key)
        assert (verdict == "not there") == (key in UNUSED), key
        if key in UNUSED:
            assert reason == UNUSED[key], key
    assert all(row_of("config.toml", key)[0] == "only here" for key in own)


def test_variables() -> None:
    """Each name in capitals that the code has, and each that NVIDIA's programs have."""
    container, programs = named("Environment of a container"), named("Environment of the programs")
    assert {variable for options in VARIABLES.values() for variable in options.values()} <= programs
    assert {variable for rows in REST.values() for _, variables in rows for variable in variables.split()} <= programs
    files = [path for path in (ROOT / "src/gpurun").rglob("*.py") if path.parent.name not in ("builder", "kubernetes")]
    source = "".join([path.read_text() for path in files])
    found = set(re.findall(r'"((?:NVIDIA|GPURUN|CUDA)_[A-Z_]+)["=]', source))
    assert len(found) > 20
    # a part of names that are put together; the file of placement policies, and what the library tells the command by, which
    # are no part of NVIDIA's
    ours = {"NVIDIA_CTK_CDI_GENERATE_", "GPURUN_CONFIG", "GPURUN_LIBRARY"}
    assert found - container - programs <= ours, found - container - programs
