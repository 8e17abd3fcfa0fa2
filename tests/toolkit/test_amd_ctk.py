"""``amd-ctk``: the cases of AMD's own black-box test of its program, and what it says of GPUs, CDI files and the tracker."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from gpurun.gpu.amd.cdi import amd_ctk_text, generate
from gpurun.toolkit.amd_ctk import program
from gpurun.toolkit.amd_docker import remove_runtime, without_default
from tests.needs_nodes import require_nodes
from tests.simcards import Host, amd

from .conftest import Call

Ctk = Callable[..., tuple[int, str]]


@pytest.fixture
def one(tmp_path: Path) -> Host:
    return amd.mi210(tmp_path / "host", count=1)


@pytest.fixture
def ctk(call: Call, one: Host) -> Ctk:
    """``ctk("gpu", "list")``: exit code and stdout; nothing is on stderr, as AMD's test wants it of errors too."""

    def run(*words: str | Path, host: Host = one) -> tuple[int, str]:
        done = call("amd-ctk", *words, env=host.env)
        assert done.stderr == ""
        return done.returncode, done.stdout

    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "etc/daemon.json"


def configure(ctk: Ctk, file: Path, *options: str) -> dict[str, Any]:
    code, said = ctk("runtime", "configure", "--runtime=docker", f"--config-path={file}", *options)
    assert code == 0, said
    assert "Please restart docker daemon" in said
    document: dict[str, Any] = json.loads(file.read_text())
    return document


ADDED = {"runtimes": {"amd": {"path": "amd-container-runtime"}}, "features": {"cdi": True}}


def test_added_and_removed(ctk: Ctk, file: Path) -> None:
    """TestConfigureRunTimeAddRemove of AMD's."""
    assert configure(ctk, file) == ADDED
    assert configure(ctk, file, "--remove") == {}


@pytest.mark.parametrize(
    ("on", "off"),
    [("--set-as-default", "--unset-as-default"), ("--amd-set-as-default", "--unset-amd-as-default"),
     ("-set-as-default", "--unset-as-default=true")],
)  # fmt: skip
def test_the_default(ctk: Ctk, file: Path, on: str, off: str) -> None:
    """TestConfigureRunTimeDefault of AMD's, in each spelling of the options."""
    assert configure(ctk, file, on) == {**ADDED, "default-runtime": "amd"}
    assert configure(ctk, file, off) == ADDED
    assert configure(ctk, file, on) == {**ADDED, "default-runtime": "amd"}
    assert configure(ctk, file, "--remove") == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--remove", "--set-as-default"), "remove flag cannot be used along with set-as-default flag"),
        (("--remove", "--unset-as-default"), "remove flag cannot be used along with set-as-default flag"),
        (
            ("--unset-as-default", "--set-as-default"),
            "both set and unset as default cannot be used at the same time",
        ),
        (("--runtime=podman",), "unsupported runtime engine: podman"),
        (("--set-as-default=perhaps",), "--set-as-default=perhaps: it must be true or false"),
    ],
)
def test_options_that_exclude_each_other(ctk: Ctk, file: Path, options: tuple[str, ...], said: str) -> None:
    """TestConfigureRuntimeMultiFlags of AMD's: one sentence on stdout, exit code 1, and nothing is written."""
    assert ctk("runtime", "configure", f"--config-path={file}", *options) == (1, f"{said}\n")
    assert not file.parent.exists()


def test_what_others_have_written_stays(ctk: Ctk, file: Path) -> None:
    """AMD's program replaces all features, and removes them, and the default whoever it is."""
    file.parent.mkdir()
    before = {
        "default-runtime": "other",
        "runtimes": {"other": {"path": "/usr/bin/other", "runtimeArgs": ["--x"]}},
        "features": {"containerd-snapshotter": True},
        "log-level": "warn",
    }
    file.write_text(json.dumps(before))
    document = configure(ctk, file)
    assert document["features"] == {"containerd-snapshotter": True, "cdi": True}
    assert document["runtimes"].keys() == {"other", "amd"} and document["default-runtime"] == "other"
    assert configure(ctk, file, "--unset-as-default") == document
    assert configure(ctk, file, "--remove") == {**before, "features": {**document["features"]}}, (
        "another runtime may need CDI"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("{}", "{}"),
        ('{"features": {"cdi": true}}', '{"features": {"cdi": true}}'),
        ('{"runtimes": {"amd": {"path": "x"}}}', "{}\n"),
    ],
)
def test_removing_what_is_not_there_changes_nothing(before: str, after: str) -> None:
    assert remove_runtime(before, "daemon.json") == after


def test_a_default_that_is_somebody_elses() -> None:
    text = '{"default-runtime": "other"}'
    assert without_default(text, "f") == (text, ["The default runtime is other, and stays"])
    assert without_default("{}", "f") == ("{}", ["The default runtime is Docker's own"])


@pytest.mark.parametrize("content", ["{", "[]", '{"runtimes": []}'])
def test_a_configuration_that_docker_could_not_read(ctk: Ctk, file: Path, content: str) -> None:
    file.parent.mkdir()
    file.write_text(content)
    for options in ((), ("--remove",), ("--unset-as-default",)):
        code, said = ctk("runtime", "configure", f"--config-path={file}", *options)
        assert code == 1 and str(file) in said and len(said.splitlines()) == 1
    assert file.read_text() == content


def test_a_configuration_that_is_no_file(ctk: Ctk, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert ctk("runtime", "configure", f"--config-path={fifo}") == (1, f"{fifo}: is not a regular file\n")


def test_to_stdout(ctk: Ctk) -> None:
    code, said = ctk("runtime", "configure", "--config-path=")
    assert code == 0 and json.loads(said) == ADDED


def test_lists(ctk: Ctk, one: Host, tmp_path: Path) -> None:
    unique = f"0x{amd.unique_id(0):X}"
    assert ctk("cdi", "list") == (
        0,
        "Found 1 AMD GPU device\namd.com/gpu=all\namd.com/gpu=0\n  /dev/dri/renderD128\n",
    )
    code, said = ctk("gpu", "list")
    rule = "-" * 75
    assert code == 0 and [line.split() for line in said.splitlines()] == [
        ["Found", "1", "AMD", "GPU", "device"], [rule], ["GPU", "Id", "UUID", "DRM", "Devices"], [rule],
        ["0", unique, "/dev/dri/renderD128"],
    ]  # fmt: skip
    assert said.splitlines()[-1] == f"{'0':<10}{unique:<25}{'/dev/dri/renderD128':<40}"
    cpx = amd.mi300x(tmp_path / "cpx")
    code, said = ctk("cdi", "list", host=cpx)
    assert said.startswith("Found 8 AMD GPU devices\n") and said.count("renderD") == 8
    empty = Host(tmp_path / "empty")
    code, said = ctk("gpu", "list", host=empty)
    assert code == 1 and said.startswith("failed to list AMD devices: amdgpu driver unavailable")


def test_the_cdi_file(ctk: Ctk, one: Host, tmp_path: Path) -> None:
    require_nodes(one.real_nodes)
    made = tmp_path / "cdi/amd.json"
    assert ctk("cdi", "generate", f"--output={made}") == (0, f"Generated CDI spec: {made}\n")
    assert made.read_text() == amd_ctk_text(str(one.path))
    good = (0, f"Validating CDI spec: {made}\nCDI spec is valid\n")
    bad = (0, f"Validating CDI spec: {made}\nCDI spec is invalid\nPlease regenerate CDI spec\n")
    assert ctk("cdi", "validate", f"--path={made}") == good
    made.write_text(made.read_text().replace('"minor": 128', '"minor": 129'))
    assert ctk("cdi", "validate", "--path", made) == bad
    made.unlink()
    code, said = ctk("cdi", "validate", f"--path={made}")
    assert code == 1 and said.endswith(": cannot be read: No such file or directory\n")
    assert generate(str(one.path)).devices


def test_gpuruns_own_cdi_file_is_valid_too(ctk: Ctk, call: Call, one: Host, tmp_path: Path) -> None:
    require_nodes(one.real_nodes)
    made = tmp_path / "amd.json"
    assert call("gpurun", "cdi", "generate", "--mode=amd", f"--output={made}", env=one.env).returncode == 0
    assert ctk("cdi", "validate", f"--path={made}")[1].endswith("CDI spec is valid\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="the tracker is for root")
def test_the_tracker_is_off(ctk: Ctk) -> None:
    """As AMD's answers where nobody has turned it on; hooks of containers that AMD's runtime made are answered as well."""
    for words in (("status",), ("reset",), ("0,1", "exclusive"), ("all", "shared"), ()):
        code, said = ctk("gpu-tracker", *words)
        assert code == 0 and said.startswith("GPU Tracker is disabled\n") and "AMD_VISIBLE_DEVICES=free" in said, words
    assert ctk("gpu-tracker", "disable") == (0, "GPU Tracker is already disabled\n")
    assert ctk("gpu-tracker", "release", "0123abcd") == ctk("gpu-tracker", "init") == (0, "")
    code, said = ctk("gpu-tracker", "enable")
    assert code == 1 and said.startswith("failed to enable GPU Tracker: gpurun uses leases")
    assert ctk("gpu-tracker", "0")[0] == ctk("gpu-tracker", "0", "mine")[0] == 1


@pytest.mark.parametrize("words", [(), ("runtime",), ("cdi",), ("gpu",), ("--help",), ("cdi", "generate", "-h")])
def test_help_is_no_error(ctk: Ctk, words: tuple[str, ...]) -> None:
    code, said = ctk(*words)
    assert code == 0 and said.startswith("Usage: amd-ctk")


@pytest.mark.parametrize("words", [("nonsense",), ("cdi", "nonsense"), ("cdi", "list", "--nonsense")])
def test_words_that_it_does_not_know(ctk: Ctk, words: tuple[str, ...]) -> None:
    code, said = ctk(*words)
    assert code == 1 and "nonsense" in said and len(said.splitlines()) == 1


def test_the_page_has_every_command() -> None:
    """docs/amd.md says of each command of the program how it differs from AMD's."""
    page = (Path(__file__).resolve().parents[2] / "docs/amd.md").read_text()
    told = {line.partition("` | ")[0] for line in page.splitlines() if line.startswith("| `amd-")}
    rows = {word.removeprefix("amd-ctk ") for text in told for word in text.removeprefix("| `").split("`, `")}
    commands = set()
    for name, command in program.commands.items():
        below = command.commands if isinstance(command, click.Group) else {}
        commands |= {f"{name} {word}" for word in below} or {name}
    assert rows == {*commands, "amd-container-runtime"}
