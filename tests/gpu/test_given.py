"""The record of the GPUs that a container was given: numbers and keys, and the forms of older gpuruns."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.cdi.edits import DeviceNode
from gpurun.engine import kept
from gpurun.engine.gpus.attach_view import recorded_units
from gpurun.engine.gpus.attached import Attached as Nothing
from gpurun.engine.gpus.attached import ExecFacts, GpuChange, load_change, save_change
from gpurun.errors import GpurunError
from gpurun.gpu.device import GpuDevice
from gpurun.gpu.host.reads import HostNode
from gpurun.gpu.vendors import GivenGpu, given_gpus, read_given

EACH = (
    GivenGpu(195, 0, "nvidia:0000:07:00.0"),
    GivenGpu(235, 13, "nvidia:0000:07:00.0/1/0"),
    GivenGpu(226, 128, "amd:0000:c1:00.0/3"),
    GivenGpu(226, 1 << 19),
)


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "c").mkdir()
    return str(tmp_path)


def test_what_is_written_is_read(root: str) -> None:
    kept.save_gpus(root, "c", EACH)
    assert kept.load_given(root, "c") == EACH
    assert kept.load_given(root, "another") == ()


def test_older_forms(root: str) -> None:
    """Minors of one maker, then both numbers: such containers run while gpurun is replaced."""
    Path(root, "c/gpus").write_text("0 3")
    assert kept.load_given(root, "c") == (GivenGpu(195, 0), GivenGpu(195, 3))
    Path(root, "c/gpus").write_text("195:0 226:128")
    assert kept.load_given(root, "c") == (GivenGpu(195, 0), GivenGpu(226, 128))


@pytest.mark.parametrize(
    "word", ["x", "1:", "1:2:3", "=amd:0", "226:²", "226:1=\x1b[2J", "226:1=AMD", "226:1=a=b", f"226:{'1' * 99}", "-1"]
)
def test_others_are_damaged(root: str, word: str) -> None:
    Path(root, "c/gpus").write_text(f"195:0 {word}")
    with pytest.raises(GpurunError, match="/c/gpus is damaged: it does not list GPUs"):
        kept.load_given(root, "c")
    with pytest.raises(ValueError):
        read_given(word)


def test_a_change_that_an_older_gpurun_has_begun(root: str) -> None:
    facts = ExecFacts(("A=b",), (44,), EACH)
    save_change(root, "c", GpuChange(Nothing(), Nothing(), facts, facts))
    change = load_change(root, "c")
    assert change is not None and change.facts_after == facts
    path = Path(root, "c/gpu-change")
    path.write_text(
        path.read_text().replace('[195,0,"nvidia:0000:07:00.0"]', "[195,0]").replace('[226,524288,""]', "[226,1]")
    )
    change = load_change(root, "c")
    assert change is not None and change.facts_after.given == (GivenGpu(195, 0), *EACH[1:3], GivenGpu(226, 1))


def test_which_nodes_are_of_gpus() -> None:
    nvidia, amd = "nvidia:0000:07:00.0", "amd:0000:c1:00.0"
    nodes = [
        DeviceNode("/dev/nvidia0", "", "c", 195, 0),
        DeviceNode("/dev/nvidia0", "", "c", 195, 0, gpu=nvidia),
        DeviceNode("/dev/nvidiactl", "", "c", 195, 255),
        DeviceNode("/dev/dri/renderD130", "", "c", 226, 130, gpu=nvidia),
        DeviceNode("/dev/dri/card192", "", "c", 226, 192, gpu=amd),
        DeviceNode("/dev/dri/renderD128", "", "c", 226, 128, gpu=amd),
        DeviceNode("/dev/dri/card0", "", "c", 226, 0, gpu="intel:0000:03:00.0"),
        DeviceNode("/dev/dri/renderD129", "", "c", 226, 129),
        DeviceNode("/dev/dri/card1", "", "c", 226, 1),
        DeviceNode("/dev/sda", "", "b", 195, 3),
    ]
    assert [one.text for one in given_gpus(nodes)] == [
        f"195:0={nvidia}",
        f"226:128={amd}",
        "226:0=intel:0000:03:00.0",
        "226:129",
    ]


def test_the_units_of_a_record() -> None:
    """A MIG device's instance is a node of others as well; a key alone opens nothing where the numbers are others by now."""

    def unit(key: str, *numbers: tuple[int, int]) -> GpuDevice:
        nodes = tuple([HostNode("/dev/x", "/dev/x", major, minor, True) for major, minor in numbers])
        return GpuDevice("nvidia", key, (key,), 0, nodes=nodes)

    mig, other = unit("b/1/0", (235, 12), (235, 13)), unit("b/1/1", (235, 12), (235, 14))
    first, second = unit("a", (195, 1)), unit("c", (195, 2))
    units = (mig, other, first, second, unit("d"))
    assert recorded_units((GivenGpu(235, 13, "nvidia:b/1/0"),), units) == (mig,)
    assert recorded_units((GivenGpu(195, 2, "nvidia:a"),), units) == (second,)
    assert recorded_units((GivenGpu(195, 1),), units) == (first,)
    assert recorded_units((GivenGpu(9, 9, "nvidia:a"),), units) == ()
