"""What every machine (machine_table.py) offers to a cluster: by the device plugin, and by the drivers of DRA.

Each device is asked for alone, by the kubelet's protocols, and what its container would find below /dev is held against the
table.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.cdi.files import read_registry
from gpurun.errors import GpurunError
from gpurun.gpu.vendors import NAMES
from tests.gpu.machine_cells import read_table
from tests.gpu.machine_table import CLUSTER
from tests.kubernetes.cluster import REAL, Cluster, cluster
from tests.kubernetes.nodes import NO_NVIDIA, Node, node
from tests.native.waiting import wait_until
from tests.needs_nodes import needs_nodes
from tests.simcards.machines import MACHINES, Machine, nodes_of

pytestmark = needs_nodes

CASES = read_table(CLUSTER)


def cells(part: str, machine: str) -> dict[str, set[str]]:
    """Resource or driver → the words of its GPUs, of those that have some."""
    found = [case for case in CASES if case.machine == machine and case.command.startswith(f"{part} ")]
    return {case.command.split()[1]: {*case.cell.split()} for case in found if case.cell != "-"}


def word_of(machine: Machine, directory: Path, names: list[str]) -> str:
    """The GPU whose nodes, and no others, the CDI devices *names* of the files in *directory* give."""
    registry = read_registry((str(directory),))
    assert not registry.errors
    found = [registry.devices[name] for name in names]
    edits = [edit for one in found for edit in (one.device.edits, one.file.spec.edits)]
    nodes = {node.path.removeprefix("/dev/") for edit in edits for node in edit.device_nodes}
    nodes.discard("nvidia-modeset")  # a file serves containers of every capability, those that draw too
    (word,) = [word for word in machine.nodes if nodes == nodes_of(machine, [word])]
    return word


def offered(made: Node, machine: Machine, resource: str) -> set[str]:
    """The GPUs of a *resource* of the device plugin's, one for each of its devices."""
    endpoint = made.kubelet.endpoints[resource]
    words = []
    for device, health in made.kubelet.health()[resource].items():
        assert health == "Healthy"
        answer = made.kubelet.allocate(endpoint, [device])
        words.append(word_of(machine, made.cdi_dir, [one.name for one in answer.cdi_devices]))
    assert len(words) == len(set(words))
    return set(words)


def published(made: Cluster, machine: Machine, driver: str) -> set[str]:
    """The GPUs of a *driver* of DRA's, one for each device that it publishes."""
    made.driver_name = driver
    words = []
    for name in made.published():
        claim = made.allocate(f"one-{name}", name)
        answer = made.prepare(claim)[claim.uid]
        assert not answer.error, answer.error
        names = [one for device in answer.devices for one in device.cdi_device_ids]
        words.append(word_of(machine, made.cdi_dir, names))
        assert not made.unprepare(claim)[claim.uid].error
    assert len(words) == len(set(words))
    return set(words)


@pytest.mark.parametrize("name", MACHINES)
def test_device_plugin(name: str) -> None:
    machine, expected = MACHINES[name], cells("plugin", name)
    with node(machine.nvidia or NO_NVIDIA, machine.add) as made:
        made.start_plugin()
        if not expected:
            wait_until(lambda: made.failure)
            assert isinstance(made.failure, GpurunError) and str(made.failure).startswith("no GPU: ")
            return
        made.kubelet.wait(lambda: all(made.kubelet.capacity(name) == len(words) for name, words in expected.items()))
        made.wait_for_a_round()
        assert made.kubelet.health().keys() == expected.keys()
        assert {resource: offered(made, machine, resource) for resource in expected} == expected


@pytest.mark.skipif(REAL, reason="a real node has none of these GPUs")
@pytest.mark.parametrize("name", MACHINES)
def test_dra_drivers(name: str) -> None:
    machine, expected = MACHINES[name], cells("driver", name)
    drivers = [case.command.split()[1] for case in CASES if case.machine == name and case.command.startswith("driver ")]
    with cluster(machine.nvidia or NO_NVIDIA, change=machine.add) as made:
        made.start(makers=NAMES)
        for driver in drivers:
            made.driver_name = driver
            made.until(lambda: len(made.published()) == len(expected.get(made.driver_name, ())))
        found = {driver: published(made, machine, driver) for driver in drivers}
        assert {driver: words for driver, words in found.items() if words} == expected
