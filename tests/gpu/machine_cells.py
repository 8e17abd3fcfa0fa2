"""The cells of tests/gpu/machine_table.py: read, and held against what a command said."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from gpurun.cdi.files import parse_spec
from tests.gpu.machine_table import COLUMNS, SENTENCES, TABLE
from tests.simcards.machines import MACHINES, Machine, nodes_of

_MAKERS = {"kernel module": "N", "amdgpu": "A", "Intel's GPUs": "I", "Gaudi": "G"}
_PREFIXES = {"amd:": "A", "intel:": "I", "": "N"}


class Case(NamedTuple):
    command: str
    machine: str
    cell: str


class Said(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


def read_table(table: str = TABLE) -> list[Case]:
    """All cells of *table* that are tried."""
    columns = COLUMNS.split(", ")
    assert columns == [*MACHINES]
    cases = []
    for line in table.strip().splitlines():
        command, *cells = [part.strip() for part in line.split(" | ")]
        assert len(cells) == len(columns), command
        cases += [Case(command, name, cell) for name, cell in zip(columns, cells, strict=True) if cell != "*"]
    return cases


def sentence_of(name: str) -> re.Pattern[str]:
    """The sentence *name*; what stands in brackets is a pattern."""
    parts = re.split(r"\[([^\]]*)\]", SENTENCES[name])
    return re.compile("".join([f"(?:{part})" if i % 2 else re.escape(part) for i, part in enumerate(parts)]))


def sentences(err: str, warnings: bool = False) -> list[str]:
    """What stands on stderr, each line as a person reads it; *warnings* are of the log."""
    found = []
    for line in err.splitlines():
        record = re.fullmatch(r'time="[^"]*" level=(\w+) msg="(.*)"', line)
        if (record is not None and record[1] == "warning") == warnings:
            found.append((record[2] if record else line).replace('\\"', '"'))
    return found


def check_command(case: Case, said: Said) -> None:
    """Hold *said* against the cell of a command that is no request."""
    if case.command.startswith("gpu doctor"):
        _check_doctor(case, said)
        return
    told = sentences(said.err, case.cell[0] == "?")
    if case.cell[0] in "!~?":
        assert (said.code, said.out) == (1 if case.cell[0] == "!" else 0, ""), said
        assert len(told) == 1 and sentence_of(case.cell[1:]).fullmatch(told[0]), (case, told)
        return
    assert (said.code, told) == (0, []), (case, said)
    assert _shown(case, said.out) == _words(case.cell), (case, said.out)


def check_request(case: Case, nodes: set[str], error: str) -> None:
    """Hold what a request brought, *nodes* below /dev or an *error*, against its cell."""
    machine = MACHINES[case.machine]
    if case.cell.startswith("!"):
        assert sentence_of(case.cell[1:]).fullmatch(error) and not nodes, (case, error)
        return
    assert not error, (case, error)
    if case.cell in ("N", "A", "I"):
        chosen = [word for word in machine.nodes if word[0] == case.cell and nodes == nodes_of(machine, [word])]
        assert len(chosen) == 1, (case, nodes)
    else:
        assert nodes == nodes_of(machine, sorted(_words(case.cell))), case


def planned(said: Said) -> tuple[set[str], str]:
    """(nodes below /dev, why create would fail) of ``explain --json BUNDLE``."""
    if said.code:
        (error,) = sentences(said.err)
        return set(), error
    assert not sentences(said.err), said
    edits = json.loads(said.out)["init"]["edits"]
    return {node["path"].removeprefix("/dev/") for node in edits["device_nodes"]}, ""


def explained(said: Said) -> tuple[set[str], str]:
    """(nodes below /dev, why create would fail) of ``gpu explain --json``."""
    answer = json.loads(said.out)
    assert not sentences(said.err) and said.code == (1 if answer["error"] else 0), said
    return {item["path"].removeprefix("/dev/") for item in answer["items"] if item["kind"] == "node"}, answer["error"]


def _words(cell: str) -> set[str]:
    return set() if cell == "-" else set(cell.split())


def _shown(case: Case, out: str) -> set[str]:
    shown = next(function for prefix, function in _SHOWN if case.command.startswith(prefix))
    return shown(MACHINES[case.machine], out)


def _list_json(machine: Machine, out: str) -> set[str]:
    rows = json.loads(out)["gpus"]
    return {f"{row.get('vendor', 'nvidia')[0].upper()}{row['index']}" for row in rows}


def _list_table(machine: Machine, out: str) -> set[str]:
    found = [re.match(r"(amd:|intel:|)(\d+) ", line) for line in out.splitlines()[1:]]
    return {f"{_PREFIXES[one[1]]}{one[2]}" for one in found if one}


def _generated(machine: Machine, out: str) -> set[str]:
    """The GPUs all of whose nodes some device of the CDI file has."""
    spec = parse_spec(out.encode(), "stdout")
    devices = [{node.path.removeprefix("/dev/") for node in device.edits.device_nodes} for device in spec.devices]
    return {word for word, nodes in machine.nodes.items() if any(device.issuperset(nodes) for device in devices)}


def _empty(machine: Machine, out: str) -> set[str]:
    return {
        str(value) for name, value in json.loads(out or "{}").items() if value and name in ("leases", "waiting", "devices")
    }


def _used(machine: Machine, out: str) -> set[str]:
    """The containers of which figures are shown: none runs here."""
    heading, *rows = out.splitlines()
    assert heading.startswith("CONTAINER ")
    return {*rows} - {"(no container is running)"}


def _labelled(machine: Machine, out: str) -> set[str]:
    """Whose labels there are."""
    prefixes = {"nvidia.com": "N", "amd.com": "A", "beta.amd.com": "A", "gpu.intel.com": "I"}
    return {prefixes[line.partition("/")[0]] for line in out.splitlines()}


def _measured(machine: Machine, out: str) -> set[str]:
    """The GPUs of which figures are served."""
    samples = [sample for family in text_string_to_metric_families(out) for sample in family.samples]
    found = {f"A{one.labels['gpu_id']}" for one in samples if one.name.startswith("gpu_") and one.name != "gpu_nodes_total"}
    assert [one.value for one in samples if one.name == "gpu_nodes_total"] == ([len(found)] if found else [])
    addresses = {one.labels["pci_bdf"]: one.labels["hw_name"] for one in samples if one.name == "hw_gpu_info"}
    assert addresses.keys() == {one.labels["pci_bdf"] for one in samples if one.name == "hw_gpu_utilization_ratio"}
    return found | {f"I{int(name.removeprefix('gpu-')) - 1}" for name in addresses.values()}


def _installed(machine: Machine, out: str) -> set[str]:
    (line,) = [line for line in out.splitlines() if line.startswith("# and links of ")]
    return {maker[0] for maker in ("NVIDIA", "AMD") if f"{maker}'s" in line}


_SHOWN: tuple[tuple[str, Callable[[Machine, str], set[str]]], ...] = (
    ("gpu list --json", _list_json),
    ("gpu list", _list_table),
    ("stats", _used),
    ("cdi generate", _generated),
    ("kubernetes labels", _labelled),
    ("metrics", _measured),
    ("run install docker", _installed),
    ("", _empty),
)


def _check_doctor(case: Case, said: Said) -> None:
    """Which makers are spoken of; whether cgroups and BPF work is this machine's."""
    if "--json" in case.command:
        found = [(one["verdict"], one["subject"]) for one in json.loads(said.out)]
    else:
        matches = [re.match(r"(ok|note|fail) +(.*?): ", line) for line in said.out.splitlines()]
        found = [(one[1], one[2]) for one in matches if one]
    ours = [subject for verdict, subject in found if verdict == "fail" and subject not in ("cgroup", "BPF")]
    assert sentences(said.err) == [] and said.code == int("fail" in [verdict for verdict, _ in found])
    if case.cell == "!doctor":
        assert set(ours) == {"GPUs"} and not {*_MAKERS} & {subject for _, subject in found}, found
    else:
        assert not ours and {_MAKERS[subject] for _, subject in found if subject in _MAKERS} == _words(case.cell), found
