"""The tables of gpu-feature-discovery's tests of its labels (internal/lm of k8s-device-plugin, version 0.20), case by case.

Its GPUs are called MOCKMODEL, have 300 MiB and compute capability 8.0; of its GPUs with MIG it says no capability, which
gpurun does.  Not here: whose the NodeFeature object is (5 cases): gpurun's is the DaemonSet's that --daemonset names.
"""

from __future__ import annotations

import re

import pytest

from gpurun.kubernetes.config import PluginConfig, Replicated, Sharing
from gpurun.kubernetes.labels import labels_of, value
from gpurun.kubernetes.node import NodeGpu, NodeMig
from gpurun.record import replace
from tests.kubernetes.records import gpu, mig, node

MIB = 1 << 20
GPU, SMALL = "nvidia.com/gpu", "nvidia.com/mig-1g.1gb"
PARTS = (
    "multiprocessorCount", "sharedCopyEngineCount", "sharedDecoderCount", "sharedEncoderCount", "sharedJpegCount",
    "sharedOfaCount",
)  # fmt: skip
ENGINES = ("multiprocessors", *[f"engines.{name}" for name in ("copy", "decoder", "encoder", "jpeg", "ofa")])


def full() -> NodeGpu:
    whole = gpu(0, model="MOCKMODEL")
    return replace(whole, memory=300 * MIB, compute="8.0", mig_capable=False)


def enabled(*migs: NodeMig) -> NodeGpu:
    return replace(full(), mig_enabled=True, mig_capable=True, migs=migs)


def part(gi: int, ci: int, mebibytes: int, counts: tuple[int, ...] = (0,) * 6, profile: str = "") -> NodeMig:
    sizes = (("gpuInstanceSliceCount", gi), ("computeInstanceSliceCount", ci))
    counted = (*zip(PARTS, counts, strict=True), *sizes)
    return replace(mig(0, 0, profile or f"{gi}g.{mebibytes}gb"), memory=mebibytes * MIB, parts=counted)


def of(gpus: list[NodeGpu], strategy: str = "none", sharing: Sharing | None = None) -> dict[str, str]:
    return labels_of(node(*gpus), PluginConfig(mig_strategy=strategy, sharing=sharing or Sharing()), "m")


def shared(how: str, name: str = GPU, rename: str = "", replicas: int = 2) -> Sharing:
    return Sharing(how, False, (Replicated(name, replicas, rename),))


def resource(count: int, replicas: int, how: str, product: str, memory: int = 300, name: str = GPU) -> dict[str, str]:
    said = {"count": count, "replicas": replicas, "sharing-strategy": how, "product": product, "memory": memory}
    return {f"{name}.{key}": str(text) for key, text in said.items()}


def parts(gi: int, ci: int, counts: tuple[int, ...] = (0,) * 6, name: str = GPU) -> dict[str, str]:
    return {f"{name}.slices.gi": str(gi), f"{name}.slices.ci": str(ci)} | {
        f"{name}.{word}": str(count) for word, count in zip(ENGINES, counts, strict=True)
    }


CAPABILITY = {f"{GPU}.compute.major": "8", f"{GPU}.compute.minor": "0", f"{GPU}.family": "ampere"}
TIME = shared("time-slicing")
#: 7 cases of TestMigStrategyNoneLabels and 7 of TestGPUResourceLabeler: GPUs, sharing → labels among those that there are.
WITHOUT: list[tuple[list[NodeGpu], Sharing, dict[str, str]]] = [
    ([full()], Sharing(), resource(1, 1, "none", "MOCKMODEL") | CAPABILITY),
    ([full()], TIME, resource(1, 2, "time-slicing", "MOCKMODEL-SHARED") | CAPABILITY),
    ([full(), full()], TIME, resource(2, 2, "time-slicing", "MOCKMODEL-SHARED") | CAPABILITY),
    ([enabled()], TIME, resource(1, 0, "none", "MOCKMODEL")),
    ([enabled(), enabled()], TIME, resource(2, 0, "none", "MOCKMODEL")),
    ([enabled(), full()], TIME, resource(2, 2, "time-slicing", "MOCKMODEL-SHARED") | CAPABILITY),
    ([full()], shared("time-slicing", "nvidia.com/not-gpu"), resource(1, 1, "none", "MOCKMODEL") | CAPABILITY),
    ([full()], shared("time-slicing", rename=f"{GPU}.shared"), resource(1, 2, "time-slicing", "MOCKMODEL") | CAPABILITY),
    ([full()], shared("mps", "nvidia.com/not-gpu"), resource(1, 1, "none", "MOCKMODEL") | CAPABILITY),
    ([full()], shared("mps"), resource(1, 2, "mps", "MOCKMODEL-SHARED") | CAPABILITY),
    ([full()], shared("mps", rename=f"{GPU}.shared"), resource(1, 2, "mps", "MOCKMODEL") | CAPABILITY),
]


@pytest.mark.parametrize(("gpus", "sharing", "wanted"), WITHOUT)
def test_without_mig(gpus: list[NodeGpu], sharing: Sharing, wanted: dict[str, str]) -> None:
    found = of(gpus, "none", sharing)
    assert wanted.items() <= found.items() and "nvidia.com/mig.strategy" not in found


@pytest.mark.parametrize("strategy", ["none", "single", "mixed"])
def test_no_gpu_no_label(strategy: str) -> None:
    """A case of each of the tables."""
    assert of([], strategy) == {}


COUNTS = (12, 13, 14, 15, 16, 17)
INVALID = resource(0, 0, "", "MOCKMODEL-MIG-INVALID", 0)
#: 8 cases of TestMigStrategySingleLabels.
SINGLE: list[tuple[list[NodeGpu], dict[str, str]]] = [
    ([full()], resource(1, 1, "none", "MOCKMODEL") | CAPABILITY),
    ([full(), full()], resource(2, 1, "none", "MOCKMODEL") | CAPABILITY),
    ([enabled(part(1, 2, 100))], resource(1, 1, "none", "MOCKMODEL-MIG-1g.100gb", 100) | parts(1, 2)),
    (
        [enabled(part(1, 2, 100, COUNTS)), enabled(part(1, 2, 100, COUNTS))],
        resource(2, 1, "none", "MOCKMODEL-MIG-1g.100gb", 100) | parts(1, 2, COUNTS),
    ),
    ([enabled()], INVALID),
    ([enabled(part(1, 2, 100), part(3, 4, 100))], INVALID),
    ([enabled(part(1, 2, 100)), full()], INVALID | CAPABILITY),
    ([enabled(part(1, 2, 100)), full(), enabled()], INVALID | CAPABILITY),
]


@pytest.mark.parametrize(("gpus", "wanted"), SINGLE)
def test_one_size_of_mig_devices(gpus: list[NodeGpu], wanted: dict[str, str]) -> None:
    assert (wanted | {"nvidia.com/mig.strategy": "single"}).items() <= of(gpus, "single").items()


TWO = Sharing("time-slicing", False, (Replicated(GPU, 2, f"{GPU}.shared"), Replicated(SMALL, 2)))
#: 5 cases of TestMigResourceLabeler.
MIGS: list[tuple[str, NodeMig, Sharing, dict[str, str]]] = [
    ("single", part(1, 2, 300), Sharing(), resource(1, 1, "none", "MOCKMODEL-MIG-1g.300gb")),
    ("single", part(1, 2, 300), TIME, resource(1, 2, "time-slicing", "MOCKMODEL-MIG-1g.300gb-SHARED")),
    (
        "single", part(1, 2, 300), shared("time-slicing", rename=f"{GPU}.shared"),
        resource(1, 2, "time-slicing", "MOCKMODEL-MIG-1g.300gb"),
    ),
    (
        "mixed", part(1, 2, 300, profile="1g.1gb"), TWO,
        resource(1, 2, "time-slicing", "MOCKMODEL-MIG-1g.1gb-SHARED", name=SMALL),
    ),
    (
        "mixed", part(1, 2, 300, profile="1g.1gb"), shared("time-slicing", SMALL, f"{SMALL}.shared"),
        resource(1, 2, "time-slicing", "MOCKMODEL-MIG-1g.1gb", name=SMALL),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("strategy", "device", "sharing", "wanted"), MIGS)
def test_a_mig_device(strategy: str, device: NodeMig, sharing: Sharing, wanted: dict[str, str]) -> None:
    name = SMALL if strategy == "mixed" else GPU
    assert (wanted | parts(1, 2, name=name)).items() <= of([enabled(device)], strategy, sharing).items()


@pytest.mark.parametrize(
    ("gpus", "capable"), [([full()], "false"), ([full()] * 2, "false"), ([enabled()], "true"), ([full(), enabled()], "true")]
)
def test_what_mig_could_divide(gpus: list[NodeGpu], capable: str) -> None:
    """4 cases of TestMigCapabilityLabeler."""
    assert of(gpus)["nvidia.com/mig.capable"] == capable


@pytest.mark.parametrize(
    ("gpus", "sharing", "capable"),
    [
        ([full()], Sharing(), "false"),
        ([full()], None, "false"),
        ([full()], TIME, "false"),
        ([full()], shared("mps"), "true"),
        # NVIDIA's program ends with an error here, and the node has no label at all: gpurun says that there is no MPS.
        ([enabled()], shared("mps"), "false"),
    ],
)
def test_mps(gpus: list[NodeGpu], sharing: Sharing | None, capable: str) -> None:
    """5 cases of TestSharingLabeler; the sixth, MPS with one replica, is refused in the configuration file by both."""
    assert of(gpus, "none", sharing)["nvidia.com/mps.capable"] == capable


GRAPHICS, COMPUTE, BRIDGE = 0x030000, 0x030200, 0x068000


@pytest.mark.parametrize(
    ("classes", "mode"),
    [
        ([GRAPHICS], "graphics"),
        ([COMPUTE], "compute"),
        ([BRIDGE], "unknown"),
        ([COMPUTE] * 3, "compute"),
        ([GRAPHICS] * 3, "graphics"),
        ([GRAPHICS, COMPUTE, GRAPHICS], "unknown"),
    ],
)
def test_the_mode(classes: list[int], mode: str) -> None:
    """6 cases of TestGPUModeLabeler."""
    assert of([replace(full(), pci_class=one) for one in classes])[f"{GPU}.mode"] == mode


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a space separated string", "a-space-separated-string"),
        ("some(thing)else", "somethingelse"),
        ("some ( thing )else", "some-thing-else"),
        ("NVIDIA-TITAN-X-(Pascal)", "NVIDIA-TITAN-X-Pascal"),
        (" input  with multiple   spaces   ", "input-with-multiple-spaces"),
        ("some [ / thing / ]else", "some-thing-else"),
        ("some / thing /else", "some-thing-else"),
        ("some-thing.else_new", "some-thing.else_new"),
    ],
)
def test_values(text: str, wanted: str) -> None:
    """8 cases of TestSanitise."""
    assert value(text) == wanted


_WHOLE = [f"{GPU}.{word}" for word in "machine count replicas sharing-strategy product memory family mode".split()]
_WHOLE += [f"nvidia.com/cuda.{word}" for word in (
    "driver.major driver.minor driver.rev runtime.major runtime.minor driver-version.major driver-version.minor "
    "driver-version.revision driver-version.full runtime-version.major runtime-version.minor runtime-version.full"
).split()]  # fmt: skip
_WHOLE += [f"nvidia.com/{word}" for word in "gfd.timestamp mig.capable mps.capable".split()]
_WHOLE += [f"{GPU}.compute.major", f"{GPU}.compute.minor"]
_STRATEGY = "nvidia.com/mig.strategy"
_DIVIDED = [f"slices.{word}" for word in ("gi", "ci")] + list(ENGINES)
_ALL = ["product", "count", "replicas", "sharing-strategy", "memory", *_DIVIDED]


def exactly(gpus: list[NodeGpu], strategy: str) -> dict[str, str]:
    return labels_of(node(*gpus), PluginConfig(mig_strategy=strategy), "m", 1700000000)


def test_the_names_of_all_labels() -> None:
    """Four of the files tests/expected-output*.txt, which 9 of its runs are held against: no more, no less."""
    assert set(exactly([full()], "none")) == set(_WHOLE)
    assert set(exactly([enabled(part(3, 0, 20), part(3, 0, 20))], "none")) == set(_WHOLE)
    whole = exactly([replace(full(), migs=(part(3, 0, 20),))], "single")  # MIG is off: what it was divided into is no more
    assert set(whole) == set(_WHOLE) | {_STRATEGY} and whole[f"{GPU}.product"] == "MOCKMODEL"
    single = exactly([enabled(part(3, 0, 20), part(3, 0, 20))], "single")
    assert set(single) == {*_WHOLE, _STRATEGY, *[f"{GPU}.{word}" for word in _DIVIDED]}
    assert resource(2, 1, "none", "MOCKMODEL-MIG-3g.20gb", 20).items() <= single.items()
    mixed = exactly([enabled(part(3, 0, 20), part(1, 0, 5))], "mixed")
    sizes = [f"nvidia.com/mig-{size}.{word}" for size in ("3g.20gb", "1g.5gb") for word in _ALL]
    assert set(mixed) == {*_WHOLE, _STRATEGY, *sizes}
    for labels in (whole, single, mixed):
        assert re.fullmatch("[0-9]{10}", labels["nvidia.com/gfd.timestamp"])
        assert re.fullmatch("[0-9]+[.][0-9]+[.][0-9]+", labels["nvidia.com/cuda.driver-version.full"])


def test_virtual_gpus_have_three_more() -> None:
    """tests/expected-output-vgpu.txt."""
    virtual = exactly([replace(full(), hypervisor=("460.16", "r460_00"))], "none")
    more = {"present": "true", "host-driver-version": "460.16", "host-driver-branch": "r460_00"}
    assert {name: virtual[name] for name in set(virtual) - set(_WHOLE)} == {
        f"nvidia.com/vgpu.{name}": text for name, text in more.items()
    }
