"""What a container is given, in each of the ways."""

from __future__ import annotations

import pytest

from gpurun.errors import GpurunError
from gpurun.kubernetes.config import PluginConfig, Replicated, Sharing
from gpurun.kubernetes.device_plugin.resources import Offer, offers
from gpurun.kubernetes.device_plugin.response import Allocation, MpsPlace, allocation
from gpurun.record import replace
from tests.kubernetes.records import node_of
from tests.simdriver import uuid

OFFER = offers(node_of(2), PluginConfig())[0]
CDI = "k8s.device-plugin.nvidia.com/gpu="


def test_cdi_names_are_the_default() -> None:
    assert allocation(OFFER, PluginConfig(), [uuid(1)]) == Allocation(cdi=(f"{CDI}{uuid(1)}",))
    assert allocation(OFFER, PluginConfig(id_strategy="index"), [uuid(1)]).cdi == (f"{CDI}1",)


def test_annotations() -> None:
    config = PluginConfig(list_strategies=("cdi-annotations",), annotation_prefix="cdi.example.org/")
    (pair,) = allocation(OFFER, config, [uuid(0), uuid(1)]).annotations
    assert pair[0].startswith("cdi.example.org/nvidia-device-plugin_") and len(pair[0].partition("/")[2]) <= 63
    assert pair[1] == f"{CDI}{uuid(0)},{CDI}{uuid(1)}"
    assert allocation(OFFER, config, [uuid(0)]).annotations[0][0] != pair[0]  # a pod's containers share annotations


def test_environment_and_mounts() -> None:
    config = PluginConfig(list_strategies=("envvar",), gds=True, imex_channels=(0,))
    found = allocation(OFFER, config, [uuid(0), uuid(1)])
    assert dict(found.env) == {
        "NVIDIA_VISIBLE_DEVICES": f"{uuid(0)},{uuid(1)}",
        "NVIDIA_GDS": "enabled",
        "NVIDIA_IMEX_CHANNELS": "0",
    }
    assert not found.cdi and not found.mounts
    found = allocation(OFFER, PluginConfig(list_strategies=("volume-mounts",)), [uuid(0)])
    assert dict(found.env) == {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}
    assert found.mounts == (("/dev/null", f"/var/run/nvidia-container-devices/{uuid(0)}"),)


def test_device_specs() -> None:
    config = PluginConfig(list_strategies=("envvar",), pass_device_specs=True)
    found = allocation(OFFER, config, [uuid(1)], ("/dev/nvidiactl",), dev="/run/nvidia/driver")
    assert found.devices == (
        ("/run/nvidia/driver/dev/nvidiactl", "/dev/nvidiactl"),
        ("/run/nvidia/driver/dev/nvidia1", "/dev/nvidia1"),
    )
    assert not allocation(OFFER, PluginConfig(pass_device_specs=True), [uuid(1)], ("/dev/nvidiactl",)).devices


def shared(strategy: str, fail: bool) -> tuple[Offer, PluginConfig]:
    config = PluginConfig(sharing=Sharing(strategy, fail, (Replicated("nvidia.com/gpu", 4),)))
    return offers(node_of(2), config)[0], config


def test_replicas_of_one_gpu_are_one_device() -> None:
    offer, config = shared("time-slicing", False)
    assert allocation(offer, config, [f"{uuid(0)}::0", f"{uuid(0)}::3"]).cdi == (f"{CDI}{uuid(0)}",)
    offer, config = shared("time-slicing", True)
    with pytest.raises(GpurunError, match="2 replicas are asked for, and failRequestsGreaterThanOne is set"):
        allocation(offer, config, [f"{uuid(0)}::0", f"{uuid(1)}::0"])
    assert allocation(offer, config, [f"{uuid(0)}::0"]).cdi


def test_mps() -> None:
    offer, config = shared("mps", True)
    found = allocation(offer, config, [f"{uuid(0)}::1"], mps=MpsPlace("/run/mps/pipe", "/run/mps/shm"))
    assert dict(found.env) == {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"}
    assert found.mounts == (("/run/mps/pipe", "/tmp/nvidia-mps"), ("/run/mps/shm", "/dev/shm"))


@pytest.mark.parametrize(("ids", "said"), [(["GPU-9"], "there is no device GPU-9"), ([], "no device is asked for")])
def test_what_is_not_there(ids: list[str], said: str) -> None:
    with pytest.raises(GpurunError, match=said):
        allocation(replace(OFFER), PluginConfig(), ids)
