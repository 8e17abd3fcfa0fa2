"""What a container has of its GPUs, from NVML's answer."""

from __future__ import annotations

from typing import Any

import pytest

from gpurun.gpu.nvidia.host.device_numbers import node_minors
from gpurun.gpu.usage import of_gpu
from gpurun.oci.config import Device

GPU: dict[str, Any] = {
    "uuid": "GPU-1",
    "name": "H100",
    "minor": 3,
    "memoryTotal": 1000,
    "memoryUsed": 700,
    "utilization": {"gpu": 5, "memory": 1},
}


def process(pid: int, memory: int | None, kind: str = "compute") -> dict[str, Any]:
    return {"pid": pid, "kind": kind, "memory": memory}


@pytest.mark.parametrize(
    ("processes", "count", "container"),
    [
        ([process(7, 100), process(8, 200), process(9, 400)], 2, 300),
        ([process(9, 400)], 0, 0),
        ([process(7, None), process(8, 200)], 2, 200),
        ([process(7, None)], 1, None),
        ([process(7, 100), process(7, 100, "graphics")], 1, 100),
    ],
)
def test_its_own_share(processes: list[dict[str, Any]], count: int, container: int | None) -> None:
    made = of_gpu({**GPU, "processes": processes}, (7, 8))
    assert made["processes"] == count and made["memory"].get("container") == container
    assert (made["memory"]["total"], made["memory"]["used"]) == (1000, 700)
    assert (made["uuid"], made["utilization"]) == ("GPU-1", {"gpu": 5, "memory": 1})


def test_what_the_driver_does_not_say_is_left_out() -> None:
    assert of_gpu({"uuid": "GPU-1", "minor": 3, "processes": None, "utilization": None}, (7,)) == {
        "uuid": "GPU-1",
        "minor": 3,
        "memory": {},
    }
    assert of_gpu({**GPU, "error": "lost"}, ())["error"] == "lost"


def test_nodes_of_gpus_by_their_numbers() -> None:
    nodes = [("/dev/gpu", "c", 195, 3), ("/dev/nvidiactl", "c", 195, 255), ("/dev/nvidia-modeset", "c", 195, 254)]
    nodes += [("/dev/nvidia7", "c", 1, 7), ("/dev/x", "b", 195, 1), ("/dev/y", "u", 195, 253), ("/dev/again", "c", 195, 3)]
    assert node_minors([Device(*node) for node in nodes]) == (3, 253)
