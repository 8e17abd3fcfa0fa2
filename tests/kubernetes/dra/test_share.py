"""What a claim has of a GPU that several claims share."""

from __future__ import annotations

from typing import Any

import pytest

from gpurun.errors import GpurunError
from gpurun.gpu.nvidia.cdi.known_hooks import parse_call
from gpurun.gpu.nvidia.host.roots import Roots
from gpurun.kubernetes.dra.claim import Allocated, DeviceConfig
from gpurun.kubernetes.dra.share import limit_edits, limit_of
from gpurun.kubernetes.dra.slices import Allocatable
from gpurun.kubernetes.specs import NodeHost

GIB = 1 << 30
GPU = Allocatable("gpu-0", "GPU-1", "GPU-1", 0, memory=80 * GIB)


def wanted(memory: int, share: str = "s-1", **more: Any) -> Allocated:
    return Allocated("r", "node-1", "gpu-0", share=share, memory=memory, **more)


@pytest.mark.parametrize(
    ("device", "size"),
    [
        (wanted(8 * GIB), 8 * GIB),
        (wanted(80 * GIB - 1), 80 * GIB - 1),
        (wanted(80 * GIB), 0),  # the whole GPU, as claims without an amount have it
        (wanted(0), 0),
        (wanted(8 * GIB, share=""), 0),
        (wanted(8 * GIB, admin=True), 0),
        (wanted(80 * GIB, config=DeviceConfig("MPS")), 0),
        (wanted(8 * GIB, admin=True, config=DeviceConfig("MPS")), 0),
    ],
)
def test_how_much(device: Allocated, size: int) -> None:
    assert limit_of("claim ns/c", device, GPU) == size


def test_a_gpu_of_which_nvml_says_nothing_just_now() -> None:
    """No answer is no reason to give a share all of the memory."""
    unknown = Allocatable("gpu-0", "GPU-1", "GPU-1", 0)
    assert limit_of("claim ns/c", wanted(8 * GIB), unknown) == 8 * GIB
    assert limit_of("claim ns/c", wanted(0), unknown) == 0


@pytest.mark.parametrize("strategy", ["MPS", "TimeSlicing"])
def test_what_would_concern_the_other_claims(strategy: str) -> None:
    with pytest.raises(GpurunError, match=rf"^claim ns/c: gpu-0 is shared with other claims, so {strategy} cannot be set"):
        limit_of("claim ns/c", wanted(8 * GIB, config=DeviceConfig(strategy)), GPU)


@pytest.mark.parametrize(
    ("host", "root", "env"),
    [
        (NodeHost(Roots()), "/", ()),
        (NodeHost(Roots("/run/nvidia/driver", "/host"), "/host"), "/run/nvidia/driver", ()),
        (NodeHost(Roots("/", "/simulated")), "/", ("GPURUN_SYSROOT=/simulated",)),
    ],
)
def test_the_hook_that_tells_the_driver(host: NodeHost, root: str, env: tuple[str, ...]) -> None:
    """It names paths of the host, wherever the program that writes it runs."""
    (hook,) = limit_edits(host, "GPU-1", 8 * GIB).hooks
    assert (hook.stage, hook.path, hook.env[1:]) == ("createRuntime", host.hook[0], env)
    call = parse_call(hook.args[1:])
    assert call is not None and call.command == "apply-cuda-memory-limits"
    assert call.options == {"driver-root": (root,), "gpu-id": ("GPU-1",), "limit": (str(8 * GIB),)}
