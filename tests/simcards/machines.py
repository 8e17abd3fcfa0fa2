"""The machines on which every command is tried, and what each of their GPUs is called and opened by.

A GPU has a word: N0 is the first of NVIDIA's by PCI address, A0 of AMD's, I0 of Intel's, G0 of Gaudi's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.simcards import Host, amd, intel
from tests.simdriver import Options, make, minor

#: Minors of this worker alone, and of no other test: every container of the machine with such a node counts.
LATER = 9000 + 64 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
#: Of NVIDIA's nodes the major, in the range that is for experiments and not asked for by other tests.
MAJOR = 240 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 14
NVIDIA = Options(major=MAJOR, drm=False)
CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


@dataclass(frozen=True)
class Machine:
    """*nodes* are the device nodes below /dev of each GPU that a container can have, by its word.

    *add* makes its tree, in which NVIDIA's driver is already where it has *nvidia*.
    """

    add: Callable[[Path], Host]
    nodes: Mapping[str, tuple[str, ...]]
    nvidia: Options | None = None

    def build(self, path: Path) -> Host:
        """The whole tree at *path*."""
        if self.nvidia is not None:
            make(path, self.nvidia)
        return self.add(path)


def _drm(card: int, render: int) -> tuple[str, str]:
    return f"dri/card{card}", f"dri/renderD{render}"


def _mi210(first_card: int, count: int) -> dict[str, tuple[str, ...]]:
    """AMD's index counts by PCI address, numbers of nodes by the order of KFD's nodes."""
    ordered = sorted([(pci, render, i) for i, (pci, render) in enumerate(amd.MI210[:count])])
    return {f"A{n}": _drm(first_card + i, render + LATER) for n, (_, render, i) in enumerate(ordered)}


def _idle(path: Path) -> Host:
    """An MI210 and an Arc without their drivers."""
    host = Host(path)
    for pci, vendor, kind in (("0000:63:00.0", amd.AMD, "0x038000"), ("0000:03:00.0", intel.INTEL, "0x030000")):
        host.write(f"sys/bus/pci/devices/{pci}/vendor", f"{vendor:#06x}")
        host.write(f"sys/bus/pci/devices/{pci}/class", kind)
    return host


NVIDIAS = {f"N{i}": (f"nvidia{minor(i, 2)}",) for i in range(2)}
ARCS = {f"I{i}": _drm(LATER + card, LATER + 128 + card) for i, card in enumerate((0, 1, 3))}
MACHINES = {
    "nvidia": Machine(Host, NVIDIAS, NVIDIA),
    "mi210": Machine(lambda path: amd.mi210(path, LATER, later=LATER), _mi210(LATER, 8)),
    "mi300x": Machine(
        lambda path: amd.mi300x(path, later=LATER), {f"A{i}": _drm(1 + LATER + i, 128 + LATER + i) for i in range(8)}
    ),
    "arc": Machine(lambda path: intel.arc(path, first=LATER), ARCS),
    "gaudi": Machine(
        intel.gaudi, {f"G{i}": (f"accel/accel{i}", f"accel/accel_controlD{i}", f"infiniband/uverbs{i}") for i in range(2)}
    ),
    "nv+amd": Machine(lambda path: amd.beside_nvidia(path, later=LATER), NVIDIAS | _mi210(LATER, 2), NVIDIA),
    "nv+intel": Machine(
        lambda path: intel.arc(path, functions=False, first=LATER),
        NVIDIAS | {name: ARCS[name] for name in ("I0", "I1")},
        NVIDIA,
    ),
    "idle": Machine(_idle, {}),
    "none": Machine(Host, {}),
}


def nodes_of(machine: Machine, words: list[str]) -> set[str]:
    """The names below /dev of the nodes that a container with these GPUs has, those that a maker's share among them."""
    found = {node for word in words for node in machine.nodes[word]}
    makers = {word[0] for word in words}
    return found | ({*CONTROL} if "N" in makers else set()) | ({"kfd"} if "A" in makers else set())
