"""Node x configuration -> resources and their devices."""

from __future__ import annotations

import pytest

from gpurun.errors import GpuError
from gpurun.kubernetes.config import PluginConfig, Replicated, Sharing
from gpurun.kubernetes.device_plugin.resources import offers
from tests.kubernetes.records import gpu, mig, node, node_of
from tests.simdriver import uuid


def ids(made: tuple[object, ...]) -> dict[str, list[str]]:
    return {offer.name: [device.id for device in offer.devices] for offer in made}  # type: ignore[attr-defined]


def test_whole_gpus() -> None:
    made = offers(node_of(2), PluginConfig())
    assert ids(made) == {"nvidia.com/gpu": [uuid(0), uuid(1)]}
    assert made[0].devices[1].numa == 1 and made[0].devices[1].index == "1" and made[0].replicas == 1


DIVIDED = node(gpu(0, 2, (mig(0, 0), mig(0, 1, "1c.2g.20gb"), mig(0, 2, "1g.10gb+me"))), gpu(1, 2))


def test_mig_strategies() -> None:
    assert ids(offers(DIVIDED, PluginConfig())) == {"nvidia.com/gpu": [uuid(0), uuid(1)]}
    made = offers(DIVIDED, PluginConfig(mig_strategy="mixed"))
    assert ids(made) == {
        "nvidia.com/gpu": [uuid(1)],
        "nvidia.com/mig-1g.10gb": ["MIG-0-0"],
        "nvidia.com/mig-1c.2g.20gb": ["MIG-0-1"],
        "nvidia.com/mig-1g.10gb.me": ["MIG-0-2"],
    }
    device = next(offer for offer in made if offer.name == "nvidia.com/mig-1g.10gb").devices[0]
    assert device.mig and device.index == "0:0" and device.paths[1] == "/dev/nvidia-caps/nvidia-cap0"
    alike = node(gpu(0, 2, (mig(0, 0), mig(0, 1))), gpu(1, 2, (mig(1, 0),)))
    assert ids(offers(alike, PluginConfig(mig_strategy="single"))) == {"nvidia.com/gpu": ["MIG-0-0", "MIG-0-1", "MIG-1-0"]}
    assert ids(offers(node_of(2), PluginConfig(mig_strategy="single"))) == {"nvidia.com/gpu": [uuid(0), uuid(1)]}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (DIVIDED, "GPU 0 has MIG, GPU 1 has not: use mixed, or divide all"),
        (node(gpu(0, 1, (mig(0, 0), mig(0, 1, "2g.20gb")))), "there are MIG devices 1g.10gb and 2g.20gb"),
        (node(gpu(0, 1, mig=True)), "GPU 0 has MIG and no MIG device"),
    ],
)
def test_a_node_that_single_does_not_fit(wrong: object, said: str) -> None:
    with pytest.raises(GpuError, match=said):
        offers(wrong, PluginConfig(mig_strategy="single"))  # type: ignore[arg-type]


def test_replicas() -> None:
    sharing = Sharing("time-slicing", False, (Replicated("nvidia.com/gpu", 3),))
    (made,) = offers(node_of(2), PluginConfig(sharing=sharing))
    assert made.name == "nvidia.com/gpu" and made.replicas == 3
    assert [d.id for d in made.devices] == [f"{uuid(i)}::{n}" for i in (0, 1) for n in (0, 1, 2)]
    renamed = Sharing("time-slicing", False, (Replicated("nvidia.com/gpu", 2, "nvidia.com/gpu.shared"),))
    (made,) = offers(node_of(1), PluginConfig(sharing=renamed))
    assert made.name == "nvidia.com/gpu.shared" and made.base == "nvidia.com/gpu"
    other = Sharing("time-slicing", False, (Replicated("nvidia.com/mig-1g.10gb", 2),))
    assert sorted(ids(offers(DIVIDED, PluginConfig(mig_strategy="mixed", sharing=other)))["nvidia.com/mig-1g.10gb"]) == [
        "MIG-0-0::0",
        "MIG-0-0::1",
    ]


def test_mps_is_not_for_mig_devices() -> None:
    sharing = Sharing("mps", True, (Replicated("nvidia.com/mig-1g.10gb", 2),))
    with pytest.raises(GpuError, match="MIG devices cannot be shared so"):
        offers(DIVIDED, PluginConfig(mig_strategy="mixed", sharing=sharing))
