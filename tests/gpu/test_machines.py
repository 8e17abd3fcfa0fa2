"""Every command on every machine (machine_table.py), but for real containers, which test_machines_containers.py makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpurun.__main__ import main
from tests.gpu.machine_cells import Case, Said, check_command, check_request, explained, planned, read_table
from tests.gpu.machine_table import SENTENCES
from tests.native.bundle import base_config
from tests.needs_nodes import require_nodes
from tests.simcards import Host
from tests.simcards.machines import MACHINES

CASES = read_table()
REQUESTS = [case for case in CASES if case.command.startswith("ask ")]
COMMANDS = [case for case in CASES if not case.command.startswith(("ask ", "run "))]


def name(case: Case) -> str:
    return f"{case.machine}: {case.command}"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Host]:
    made = {name: machine.build(tmp_path_factory.mktemp("machine") / "host") for name, machine in MACHINES.items()}
    require_nodes(all(host.real_nodes for host in made.values()))
    return made


@pytest.fixture
def call(hosts: dict[str, Host], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):  # type: ignore[no-untyped-def]
    for name in ("XDG_CONFIG_HOME", "NVIDIA_CTK_CONFIG_FILE_PATH", "AMD_VISIBLE_DEVICES", "GPURUN_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def run(machine: str, *words: str) -> Said:
        monkeypatch.setenv("GPURUN_SYSROOT", str(hosts[machine].path))
        code = main(["gpurun", "--root", str(tmp_path / "state"), *words])
        return Said(code, *capfd.readouterr())

    return run


@pytest.mark.parametrize("case", COMMANDS, ids=name)
def test_command(case: Case, call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    words = [word.replace("@", str(tmp_path)) for word in case.command.split()]
    check_command(case, call(case.machine, *words))


@pytest.mark.parametrize("case", REQUESTS, ids=name)
def test_request_explained(case: Case, call) -> None:  # type: ignore[no-untyped-def]
    nodes, error = explained(call(case.machine, "gpu", "explain", "--json", *case.command.split()[1:]))
    check_request(case, nodes, error)


@pytest.mark.sweep(60)
@pytest.mark.parametrize("case", REQUESTS, ids=name)
def test_request_in_a_bundle_explained(case: Case, call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    config = base_config()
    config["process"]["env"] += case.command.split()[1:]
    program = tmp_path / "rootfs/bin/true"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    (tmp_path / "config.json").write_text(json.dumps(config))
    nodes, error = planned(call(case.machine, "explain", "--json", str(tmp_path)))
    check_request(case, nodes, error)


def test_every_sentence_is_said() -> None:
    assert {*SENTENCES} == {case.cell[1:] for case in CASES if case.cell[0] in "!~?"} - {"doctor"}
