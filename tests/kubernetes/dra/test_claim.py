"""An allocation of a ResourceClaim, and the opaque configuration in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import ConfigError
from gpurun.kubernetes.dra.claim import Allocated, DeviceConfig, read_claim, read_config
from gpurun.kubernetes.dra.opaque import bytes_of, schema
from tests.golden import same_as_golden

VERSION = "resource.nvidia.com/v1beta1"


def config(sharing: dict[str, Any] | None, kind: str = "GpuConfig") -> dict[str, Any]:
    return {"apiVersion": VERSION, "kind": kind} | ({"sharing": sharing} if sharing is not None else {})


def claim(results: list[dict[str, Any]], configs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    devices = {"results": results, "config": configs or []}
    return {
        "metadata": {"name": "c", "namespace": "ns", "uid": "u-1"},
        "status": {"allocation": {"devices": devices}},
    }


def result(request: str = "gpu", device: str = "gpu-0", **more: Any) -> dict[str, Any]:
    return {"request": request, "driver": "gpu.nvidia.com", "pool": "node-1", "device": device} | more


def opaque(parameters: dict[str, Any], requests: list[str] | None = None, source: str = "FromClaim") -> dict[str, Any]:
    driver = {"driver": "gpu.nvidia.com", "parameters": parameters}
    return {"source": source, "opaque": driver} | ({"requests": requests} if requests else {})


def test_the_devices_of_this_node_and_driver() -> None:
    found = read_claim(
        claim(
            [
                result(),
                result("mine/sub", "gpu-1", adminAccess=True),
                result("shared", "gpu-2", shareID="s-1"),
                result(pool="node-2"),
                result(driver="other.example"),
            ]
        ),
        "node-1",
    )
    assert (found.uid, found.namespace, found.name) == ("u-1", "ns", "c")
    assert found.devices == (
        Allocated("gpu", "node-1", "gpu-0"),
        Allocated("mine/sub", "node-1", "gpu-1", True),
        Allocated("shared", "node-1", "gpu-2", False, "s-1"),
    )
    assert read_claim({"metadata": {"name": "c", "namespace": "n", "uid": "u"}}, "node-1").devices == ()


def test_which_configuration_counts() -> None:
    slow = config({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}})
    fast = config({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}})
    of = [
        opaque(fast, ["one"]),
        opaque(slow, source="FromClass"),
        {"source": "FromClaim", "opaque": {"driver": "other.example", "parameters": {"anything": 1}}},
    ]
    found = read_claim(claim([result("one"), result("two", "gpu-1"), result("one/sub", "gpu-2")], of), "node-1")
    assert [device.config.interval for device in found.devices] == [1, 3, 1]


def test_mps() -> None:
    found = read_config(
        config(
            {
                "strategy": "MPS",
                "mpsConfig": {
                    "defaultActiveThreadPercentage": 50,
                    "defaultPinnedDeviceMemoryLimit": "10Gi",
                    "defaultPerDevicePinnedMemoryLimit": {"0": "5Gi"},
                },
            }
        ),
        "c",
    )
    assert found == DeviceConfig("MPS", 0, 50, 10 << 30, (("0", 5 << 30),))
    assert read_config(config(None, "MigDeviceConfig"), "c") == DeviceConfig()


REFUSED: list[tuple[Any, str | None]] = [
    (None, "x: must be a mapping"),
    ({"apiVersion": "v1", "kind": "GpuConfig"}, "x.apiVersion: 'v1' is unknown, known is resource.nvidia.com/v1beta1"),
    (config({"strategy": "Luck"}), "x.sharing.strategy: 'Luck' is unknown"),
    (config({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Soon"}}), "interval: 'Soon' is unknown"),
    (
        config({"strategy": "TimeSlicing", "mpsConfig": {"a": 1}}),
        "sharing: mpsConfig cannot be given with the strategy TimeSlicing",
    ),
    (
        config({"strategy": "MPS", "timeSlicingConfig": {"a": 1}}),
        "sharing: timeSlicingConfig cannot be given with the strategy MPS",
    ),
    (config({"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 101}}), "must be a number from 0 to 100"),
    (config({"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "much"}}), "'much' is not an amount"),
    (
        config({"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "1" * 5000}}),
        "is not an amount of memory",
    ),
    (config({"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"0": "x"}}}), "Limit.0: 'x' is no"),
    (config({"timeSlicingConfig": {}, "mpsConfig": {}}), "x.sharing.strategy: is missing"),
    (config({"strategy": "MPS", "mpsConfig": []}), None),
]


@pytest.mark.parametrize(("parameters", "said"), REFUSED)
def test_what_is_not_understood(parameters: Any, said: str | None) -> None:
    if said is None:
        assert read_config(parameters, "x") == DeviceConfig("MPS")
        return
    with pytest.raises(ConfigError) as error:
        read_config(parameters, "x")
    assert said in str(error.value)


def test_amounts() -> None:
    assert [bytes_of(text) for text in ("1Gi", "512Mi", "1k", 7, "2G")] == [1 << 30, 1 << 29, 1000, 7, 2 * 10**9]


def test_the_schema_of_the_documents_is_the_models() -> None:
    """UPDATE_GOLDEN=1 writes it anew."""
    file = Path(__file__).resolve().parents[3] / "docs/gpu-config.schema.json"
    made = json.dumps(schema(), indent=2, sort_keys=True) + "\n"
    same_as_golden(file, made)
    sharing = schema()["$defs"]["Sharing"]["properties"]["strategy"]
    assert sharing["enum"] == ["TimeSlicing", "MPS"]


@pytest.mark.parametrize(
    ("amount", "size"),
    [
        ("8Gi", 8 << 30),
        ("1536Mi", 1536 << 20),
        ("8589934592", 8 << 30),
        ("9G", 9 * 10**9),
        ("9e9", 9 * 10**9),
        ("1.5e1", 15),
        ("8589934592500m", (8 << 30) + 1),
        ("1Pi", 1 << 50),
        ("1E", 10**18),
        ("1Ei", 1 << 60),
        (".5k", 500),
    ],
)
def test_a_share_of_memory(amount: str, size: int) -> None:
    shared = result(shareID="s-1", consumedCapacity={"memory": amount})
    assert read_claim(claim([shared, result(device="gpu-1", consumedCapacity={"other": "1"})]), "node-1").devices == (
        Allocated("gpu", "node-1", "gpu-0", False, "s-1", memory=size),
        Allocated("gpu", "node-1", "gpu-1"),
    )


@pytest.mark.parametrize("amount", ["", "-1", "1e99", "9Ei", "1 Gi", "8Gi\n", {"a": 1}, "9" * 5000])
def test_a_share_of_memory_that_is_none(amount: object) -> None:
    with pytest.raises(
        ConfigError, match=r"^claim ns/c: consumedCapacity\.memory: .{1,60} is not an amount of memory such as 8Gi$"
    ):
        read_claim(claim([result(shareID="s-1", consumedCapacity={"memory": amount})]), "node-1")
