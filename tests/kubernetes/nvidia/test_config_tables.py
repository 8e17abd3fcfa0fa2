"""The tables of k8s-device-plugin's tests of its configuration file (api/config/v1, version 0.20), case by case.

Not here: what it writes (4 cases of flags, 4 of devices), for gpurun writes no configuration; patterns of resources' names
(18), which both programs ignore; inputs that are no JSON at all (4), for an empty file means the defaults in both.
"""

from __future__ import annotations

import json
from math import inf
from typing import Any

import pytest

from gpurun.errors import ConfigError
from gpurun.kubernetes.config import PluginConfig, Replicated
from gpurun.kubernetes.config_file import parse
from gpurun.record import replace

UUID = "4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"
Object = dict[str, Any]


def read(document: Object) -> PluginConfig:
    return replace(parse(json.dumps(document), "c"), warnings=())


def refused(document: Object) -> str:
    with pytest.raises(ConfigError) as error:
        parse(json.dumps(document), "c")
    return str(error.value)


#: flags → what they change; 9 cases of TestUnmarshalFlags.
FLAGS: list[tuple[Object, Object]] = [
    ({}, {}),
    ({"gfd": {}}, {}),
    ({"gfd": {"sleepInterval": 0}}, {}),  # no time is as if it were not said: NVIDIA's program would never rest
    ({"gfd": {"sleepInterval": "0s"}}, {}),
    ({"gfd": {"sleepInterval": 5}}, {"sleep_interval": 5e-9}),
    ({"gfd": {"sleepInterval": "5s"}}, {"sleep_interval": 5.0}),
    ({"gfd": {"sleepInterval": "infinite"}}, {"sleep_interval": inf}),
    ({"plugin": {"deviceListStrategy": "envvar"}}, {"list_strategies": ("envvar",)}),
    ({"plugin": {"deviceListStrategy": ["envvar", "cdi-annotations"]}}, {"list_strategies": ("envvar", "cdi-annotations")}),
]


@pytest.mark.parametrize(("flags", "changes"), FLAGS)
def test_flags(flags: Object, changes: Object) -> None:
    assert read({"version": "v1", "flags": flags}) == replace(PluginConfig(), **changes)


#: imex → channels, None where they are refused; 6 cases of TestImexUnmarshal.
IMEX: list[tuple[Object, tuple[int, ...] | None]] = [
    ({}, ()),
    ({"channelIDs": None}, ()),
    ({"channelIDs": []}, ()),
    ({"channelIDs": [0]}, (0,)),
    ({"channelIDs": [0], "required": False}, (0,)),
    ({"channelIDs": [2]}, None),
]


@pytest.mark.parametrize(("imex", "channels"), IMEX)
def test_imex(imex: Object, channels: tuple[int, ...] | None) -> None:
    document = {"version": "v1", "imex": imex}
    if channels is None:
        assert "channelIDs" in refused(document)
    else:
        assert read(document).imex_channels == channels


@pytest.mark.parametrize(("said", "fails"), [({}, True), ({"failRequestsGreaterThanOne": False}, False)])
def test_mps_refuses_more_than_one_unless_told(said: Object, fails: bool) -> None:
    """2 cases of config_test.go."""
    mps = {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]} | said
    assert read({"version": "v1", "sharing": {"mps": mps}}).sharing.fail_more_than_one is fails


#: 19 cases of TestUnmarshalReplicatedDevices and 5 of TestReplicatedDeviceRef: devices, and whether they are taken.
DEVICES: list[tuple[object, bool]] = [
    *[(value, False) for value in ("not-all", -2, 2.0, [-1], ["-1"], ["invalid-UUID"], ["GPU-UUID"], ["MIG-UUID"])],
    ([f"MIG-GPU-{UUID}"], False),
    *[(value, True) for value in ("all", 2, [0], ["0"], ["0:0"])],
    *[([f"{kind}-{UUID}{rest}"], True) for kind, rest in (("GPU", ""), ("MIG", ""), ("MIG-GPU", "/0/0"))],
    ([0, "0:0", f"GPU-{UUID}"], True),
    (["0", "0:0", f"GPU-{UUID}"], True),
    *[([one], True) for one in ("0", "0:0", f"GPU-{UUID}")],
    (["MIG-3eb87630-93d5-b2b6-b8ff-9b359caf4ee2"], True),
    (["MIG-GPU-662077db-fa3f-0d8f-9502-21ab0ef058a2/10/0"], True),
]


@pytest.mark.parametrize(("devices", "taken"), DEVICES)
def test_devices(devices: object, taken: bool) -> None:
    resource = {"name": "valid", "replicas": 2, "devices": devices}
    document = {"version": "v1", "sharing": {"timeSlicing": {"resources": [resource]}}}
    if taken:
        assert read(document).sharing.resources == (Replicated("nvidia.com/valid", 2),)
    else:
        assert "resources[0].devices: " in refused(document)


#: 12 cases of TestUnmarshalReplicatedResource: a resource, and the word that is refused in it (empty: it is taken).
RESOURCES: list[tuple[Object, str]] = [
    ({}, "name"),
    ({"name": "valid"}, "replicas"),
    ({"name": "valid", "devices": "all"}, "replicas"),
    ({"name": "valid", "devices": "all", "rename": "valid-shared"}, "replicas"),
    ({"name": "valid", "devices": "all", "replicas": 2}, ""),
    ({"name": "valid", "devices": "all", "replicas": 2, "rename": "valid-shared"}, ""),
    ({"name": "valid", "replicas": -1}, "replicas"),
    ({"name": "valid", "replicas": 0}, "replicas"),
    ({"name": "valid", "replicas": 2}, ""),
    ({"name": "valid", "replicas": 2, "rename": "valid-shared"}, ""),
    ({"name": "$invalid$", "replicas": 2, "rename": "valid-shared"}, "name"),
    ({"name": "valid", "replicas": 2, "rename": "$invalid$"}, "rename"),
]


@pytest.mark.parametrize(("resource", "wrong"), RESOURCES)
def test_a_resource(resource: Object, wrong: str) -> None:
    document = {"version": "v1", "sharing": {"timeSlicing": {"resources": [resource]}}}
    if wrong:
        assert f"resources[0].{wrong}: " in refused(document)
    else:
        assert read(document).sharing.resources == (Replicated("nvidia.com/valid", 2),)


#: 5 cases of TestUnmarshalReplicatedResources: their names, None where they are refused.
LISTS: list[tuple[Object, list[str] | None]] = [
    ({}, None),
    ({"resources": []}, None),
    ({"resources": [{"name": "valid", "replicas": 2}]}, ["nvidia.com/valid"]),
    ({"resources": [{"name": f"valid{i}", "replicas": 2} for i in (1, 2)]}, ["nvidia.com/valid1", "nvidia.com/valid2"]),
    ({"resources": [{"name": "$invalid$", "replicas": 2}]}, None),
]


@pytest.mark.parametrize(("table", "names"), LISTS)
@pytest.mark.parametrize("strategy", ["timeSlicing", "mps"])
def test_resources(strategy: str, table: Object, names: list[str] | None) -> None:
    document = {"version": "v1", "sharing": {strategy: table}}
    if names is None:
        assert f"sharing.{strategy}.resources" in refused(document)
    else:
        assert [one.name for one in read(document).sharing.resources] == names
