"""Configurations made from what GPUs can be divided into: their names, how many devices fit, hosts with several models."""

from __future__ import annotations

from typing import Any

import pytest

from gpurun.errors import GpuError
from gpurun.gpu.nvidia.mig.config import read_configs
from gpurun.gpu.nvidia.mig.export import as_yaml
from gpurun.gpu.nvidia.mig.generate import generate_config, silent
from gpurun.gpu.nvidia.mig.plan import plan_config
from gpurun.gpu.nvidia.mig.state import GiProfile, MigGpu
from gpurun.record import replace
from tests.gpu.nvidia.mig.test_plan import GPU, OFF, PROFILES, T4

#: An A30: four slices.  NVML says that there may be more of a profile than there are places.
A30 = MigGpu(
    2, "GPU-2", "0000:27:00.0", 0x20B710DE, 0x153210DE, 25769803776, True, True,
    (
        GiProfile(0, 1, 5952, 7, tuple((n, 1) for n in range(4)), (("multiprocessor", 14),)),
        GiProfile(1, 2, 12032, 3, ((0, 2), (2, 2)), (("multiprocessor", 28),)),
        GiProfile(3, 4, 24192, 1, ((0, 4),), (("multiprocessor", 56),)),
    ),
)  # fmt: skip


def configs(*gpus: MigGpu) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = generate_config(gpus)["mig-configs"]
    return found


def devices(*gpus: MigGpu) -> dict[str, list[dict[str, int]]]:
    return {name: [entry["mig-devices"] for entry in listed] for name, listed in configs(*gpus).items()}


@pytest.mark.parametrize("gpu", [GPU, OFF])
def test_an_a100(gpu: MigGpu) -> None:
    assert devices(gpu, T4) == {
        "all-disabled": [{}],
        "all-enabled": [{}],
        "all-1g.10gb": [{"1g.10gb": 4}],
        "all-1g.5gb": [{"1g.5gb": 7}],
        "all-1g.5gb.me": [{"1g.5gb+me": 1}],
        "all-2g.10gb": [{"2g.10gb": 3}],
        "all-3g.20gb": [{"3g.20gb": 2}],
        "all-4g.20gb": [{"4g.20gb": 1}],
        "all-7g.40gb": [{"7g.40gb": 1}],
        "all-balanced": [{"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}],
    }
    assert not any("device-filter" in entry for listed in configs(gpu, T4).values() for entry in listed)


def test_how_many_fit_is_tried_out() -> None:
    found = devices(A30)
    assert found["all-1g.6gb"] == [{"1g.6gb": 4}] and found["all-2g.12gb"] == [{"2g.12gb": 2}]
    assert found["all-balanced"] == [{"1g.6gb": 2, "2g.12gb": 1}]


def test_several_models() -> None:
    """Each entry is for one model; a model without the profile is in no entry of it, and stays as it is."""
    found = configs(A30, GPU)
    assert [(one["device-filter"], one["mig-devices"]) for one in found["all-balanced"]] == [
        ("0x20B010DE", {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}),
        ("0x20B710DE", {"1g.6gb": 2, "2g.12gb": 1}),
    ]
    assert [one["device-filter"] for one in found["all-1g.6gb"]] == ["0x20B710DE"]
    assert "device-filter" not in found["all-disabled"][0]
    read = read_configs(as_yaml(generate_config((A30, GPU))).encode(), "f")
    (change,) = plan_config((replace(GPU, index=0), replace(A30, index=1)), read["all-1g.6gb"])
    assert change.index == 1 and len(change.create) == 4


def test_what_is_not_told() -> None:
    placeless = replace(GPU, profiles=tuple([replace(one, placements=()) for one in PROFILES]))
    for gpu in (replace(GPU, profiles=()), placeless):
        assert list(configs(gpu)) == ["all-disabled", "all-enabled"] and silent((T4, gpu)) == (0,)
    assert silent((GPU, T4)) == ()
    assert list(configs(T4)) == ["all-disabled", "all-enabled"]
    with pytest.raises(GpuError, match="GPU 5 cannot be asked what it can be divided into: lost"):
        configs(GPU, MigGpu(5, problem="lost"))


def test_a_model_that_cannot_be_balanced() -> None:
    assert "all-balanced" not in configs(replace(GPU, profiles=PROFILES[1:5]))
