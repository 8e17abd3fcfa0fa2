"""The configuration file of NVIDIA's device plugin: what it says, what is wrong with it, and what is said of it."""

from __future__ import annotations

import json
import os
from math import inf
from pathlib import Path

import pytest

from gpurun.errors import ConfigError
from gpurun.kubernetes.config import PluginConfig, Replicated, Sharing
from gpurun.kubernetes.config_file import from_environment, parse
from gpurun.kubernetes.config_source import ConfigSource
from tests.deadline import within

WHOLE = """
version: v1
flags:
  migStrategy: mixed
  failOnInitError: false
  nvidiaDriverRoot: /run/nvidia/driver
  gdsEnabled: true
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [envvar, cdi-cri]
    deviceIDStrategy: index
    nvidiaCTKPath: /usr/bin/nvidia-ctk
  gfd:
    noTimestamp: true
    sleepInterval: 30s
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - name: nvidia.com/gpu
      replicas: 4
    - name: mig-1g.10gb
      replicas: 2
"""


def test_a_whole_file() -> None:
    found = parse(WHOLE, "config.yaml")
    assert (found.mig_strategy, found.fail_on_init_error, found.driver_root) == ("mixed", False, "/run/nvidia/driver")
    assert found.gds and found.pass_device_specs and found.no_timestamp and found.sleep_interval == 30.0
    assert found.list_strategies == ("envvar", "cdi-cri") and found.id_strategy == "index"
    assert found.sharing == Sharing(
        "time-slicing",
        True,
        (
            Replicated("nvidia.com/gpu", 4, "nvidia.com/gpu.shared"),
            Replicated("nvidia.com/mig-1g.10gb", 2, "nvidia.com/mig-1g.10gb.shared"),
        ),
    )
    assert found.warnings == ()


@pytest.mark.parametrize("text", ["", "{}", "version: v1", json.dumps({"version": "v1", "flags": {}, "sharing": None})])
def test_an_empty_file_is_the_defaults(text: str) -> None:
    assert parse(text, "config.yaml") == PluginConfig()


def test_resources_of_every_maker_are_shared_by_time() -> None:
    names = ("amd.com/gpu", "amd.com/cpx_nps4", "gpu.intel.com/xe")
    resources = {"renameByDefault": True, "resources": [{"name": name, "replicas": 3} for name in names]}
    found = parse(json.dumps({"sharing": {"timeSlicing": resources}}), "c")
    assert found.sharing.resources == tuple([Replicated(name, 3, f"{name}.shared") for name in names])
    assert not found.warnings


def test_mps_refuses_more_than_one_unless_told() -> None:
    resources = {"resources": [{"name": "gpu", "replicas": 10}]}
    found = parse(json.dumps({"sharing": {"mps": resources}}), "c").sharing
    assert found == Sharing("mps", True, (Replicated("nvidia.com/gpu", 10),))
    told = parse(json.dumps({"sharing": {"mps": {**resources, "failRequestsGreaterThanOne": False}}}), "c").sharing
    assert not told.fail_more_than_one
    assert not parse(json.dumps({"sharing": {"timeSlicing": resources}}), "c").sharing.fail_more_than_one


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"version": "v2"}, "config.yaml: version: 'v2' is unknown, known is v1"),
        ({"flags": []}, "config.yaml: flags: must be a mapping"),
        ({"flags": {"migStrategy": "some"}}, "migStrategy: 'some' is unknown, known are none, single, mixed"),
        ({"flags": {"failOnInitError": "yes"}}, "config.yaml: flags.failOnInitError: must be true or false"),
        ({"flags": {"plugin": {"deviceListStrategy": "cdi"}}}, "deviceListStrategy: 'cdi' is unknown"),
        ({"flags": {"plugin": {"deviceListStrategy": [1]}}}, "must be a text or a list of texts"),
        ({"flags": {"plugin": {"deviceListStrategy": []}}}, "deviceListStrategy: is empty"),
        ({"sharing": {"timeSlicing": {"resources": []}}}, "must be a list of at least one resource"),
        ({"sharing": {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 1}]}}}, "resources[0].replicas: must be"),
        ({"sharing": {"timeSlicing": {"resources": [{"name": "gpu", "replicas": True}]}}}, "resources[0].replicas: must be"),
        ({"sharing": {"timeSlicing": {"resources": [{"replicas": 2}]}}}, "resources[0].name: must be the name"),
        (
            {"sharing": {"timeSlicing": {"resources": [{"name": "GPU", "replicas": 2}]}}},
            "'GPU' is not the name of a resource",
        ),
        ({"sharing": {"timeSlicing": {"resources": [{"name": "a" * 60, "replicas": 2}]}}}, "at most 63"),
        ({"sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/a_b", "replicas": 2}]}}}, "is not the name of"),
        ({"sharing": {"timeSlicing": {"resources": [{"name": "amd.com/a/b", "replicas": 2}]}}}, "is not the name of"),
        ({"sharing": {"timeSlicing": {"resources": [{"name": "foo.com/gpu", "replicas": 2}]}}}, "is not the name of"),
        ({"sharing": {"mps": {"resources": [{"name": "amd.com/gpu", "replicas": 2}]}}}, "cannot be shared by MPS"),
        ({"sharing": {"mps": {"resources": [{"name": "gpu", "replicas": 2}] * 2}}}, "nvidia.com/gpu is given twice"),
        ({"sharing": {"timeSlicing": {}}}, "sharing.timeSlicing.resources: must be a list of at least one resource"),
        ({"sharing": {"mps": {}}}, "sharing.mps.resources: must be a list of at least one resource"),
        ({"sharing": {"timeSlicing": []}}, "sharing.timeSlicing: must be a mapping"),
        ({"flags": {"gfd": {"sleepInterval": "soon"}}}, "flags.gfd.sleepInterval: 'soon' is not a duration"),
        ({"flags": {"gfd": {"sleepInterval": -1}}}, "flags.gfd.sleepInterval: -1 is not a duration"),
        ({"flags": {"gfd": {"sleepInterval": True}}}, "flags.gfd.sleepInterval: True is not a duration"),
        ({"imex": {"channelIDs": [1]}}, "imex.channelIDs: must be [] or [0]"),
        ([], "config.yaml: must be a mapping"),
    ],
)
def test_what_is_wrong_is_named(document: object, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(json.dumps(document), "config.yaml")
    assert said in str(error.value) and str(error.value).startswith("config.yaml")


UUID = "4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"


def devices(value: object) -> dict[str, object]:
    return {"sharing": {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2, "devices": value}]}}}


@pytest.mark.parametrize(
    "value",
    [
        "not-all", "", -2, 0, 2.0, True, {}, [-1], ["-1"], [True], [None], [1.0], ["0:"], ["²"], ["invalid-UUID"],
        ["GPU-UUID"], ["MIG-UUID"], [f"MIG-GPU-{UUID}"], [f"MIG-GPU-{UUID}/1"], [f"GPU-{UUID}x"], [0, "one"],
    ],
)  # fmt: skip
def test_devices_that_nobody_can_have_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^c: sharing\.timeSlicing\.resources\[0\]\.devices: "):
        parse(json.dumps(devices(value)), "c")


@pytest.mark.parametrize(
    "value", [2, [0], ["0"], ["0:0"], [f"GPU-{UUID}"], [f"MIG-{UUID}"], [f"MIG-GPU-{UUID}/0/0"], [0, "0:0", f"GPU-{UUID}"]]
)
def test_devices_that_could_be_are_ignored_with_a_word(value: object) -> None:
    (warning,) = parse(json.dumps(devices(value)), "c").warnings
    assert "devices cannot be chosen" in warning


def test_how_long_labels_wait() -> None:
    def of(value: object) -> float:
        return parse(json.dumps({"flags": {"gfd": {"sleepInterval": value}}}), "c").sleep_interval

    assert (of("1m30s"), of("500ms"), of(2_000_000_000), of("infinite"), of(None)) == (90.0, 0.5, 2.0, inf, 0.0)
    assert from_environment(PluginConfig(), {"GFD_SLEEP_INTERVAL": "2m"}).sleep_interval == 120.0
    assert from_environment(PluginConfig(), {"GFD_SLEEP_INTERVAL": ""}).sleep_interval == 0.0
    with pytest.raises(ConfigError, match="GFD_SLEEP_INTERVAL: 'soon' is not a duration"):
        from_environment(PluginConfig(), {"GFD_SLEEP_INTERVAL": "soon"})


def test_where_labels_go() -> None:
    flags = {"useNodeFeatureAPI": True, "gfd": {"outputFile": "/srv/gfd", "oneshot": True}}
    found = parse(json.dumps({"flags": flags}), "c")
    assert (found.node_feature_api, found.output_file, found.oneshot) == (True, "/srv/gfd", True) and not found.warnings
    env = {"USE_NODE_FEATURE_API": "true", "GFD_OUTPUT_FILE": "-", "GFD_ONESHOT": "false"}
    changed = from_environment(found, env | {"GFD_USE_NODE_FEATURE_API": "false"})
    assert (changed.node_feature_api, changed.output_file, changed.oneshot) == (False, "-", False)
    assert from_environment(PluginConfig(), env).node_feature_api
    with pytest.raises(ConfigError, match=r"^c: flags\.useNodeFeatureAPI: must be true or false"):
        parse(json.dumps({"flags": {"useNodeFeatureAPI": "yes"}}), "c")


def test_no_yaml() -> None:
    with pytest.raises(ConfigError, match=r"^config.yaml: is not valid YAML: .*line 1"):
        parse("a: [", "config.yaml")
    with pytest.raises(ConfigError, match=r"^config.yaml: is not valid YAML: month must be"):
        parse("version: 2020-13-45", "config.yaml")
    with pytest.raises(ConfigError, match=r"^config.yaml: is nested too deeply"):
        parse("[" * 20000 + "]" * 20000, "config.yaml")


def test_a_file_that_is_too_large_is_not_read_in_part(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("version: v1\n" + "#" * (1 << 20) + "\nflags: {migStrategy: mixed}\n")
    with pytest.raises(ConfigError, match=f"{path}: is larger than 1 MiB"):
        ConfigSource(str(path), {}, {})()


def test_what_nvidias_plugin_ignores_is_ignored_with_a_word() -> None:
    found = parse(
        json.dumps(
            {
                "flags": {"colour": "red"},
                "resources": {"gpus": [{"pattern": "*", "name": "gpu"}]},
                "sharing": {
                    "timeSlicing": {"resources": [{"name": "gpu", "replicas": 2, "rename": "half", "devices": ["0"]}]},
                    "mps": {"resources": [{"name": "gpu", "replicas": 3, "rename": "third", "devices": 1}]},
                },
            }
        ),
        "c",
    )
    assert found.sharing == Sharing("mps", True, (Replicated("nvidia.com/gpu", 3),))
    text = "\n".join(found.warnings)
    for part in (
        "the key colour",
        "resources cannot be named",
        "mps is taken",
        "devices cannot be chosen",
        "renamed at will",
    ):
        assert part in text
    assert len(found.warnings) == 5


def test_nvidias_variables_go_before_the_file() -> None:
    env = {"MIG_STRATEGY": "single", "DEVICE_LIST_STRATEGY": "envvar,volume-mounts", "FAIL_ON_INIT_ERROR": "TRUE", "X": "1"}
    found = from_environment(parse(WHOLE, "c"), env)
    assert found.mig_strategy == "single" and found.list_strategies == ("envvar", "volume-mounts")
    assert found.fail_on_init_error and found.id_strategy == "index"
    with pytest.raises(ConfigError, match="PASS_DEVICE_SPECS: 'maybe' is neither true nor false"):
        from_environment(PluginConfig(), {"PASS_DEVICE_SPECS": "maybe"})
    with pytest.raises(ConfigError, match="environment: migStrategy: 'no'"):
        from_environment(PluginConfig(), {"MIG_STRATEGY": "no"})


@pytest.mark.parametrize("what", ["a FIFO", "a device", "a directory"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, what: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("version: v1\n")
    source = ConfigSource(str(path), {}, {})
    good = source()
    path.unlink()
    if what == "a FIFO":
        os.mkfifo(path)
    elif what == "a device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with within(60):
        assert source() == good  # what was good before goes on
        with pytest.raises(ConfigError, match=f"{path}: is not a regular file"):
            ConfigSource(str(path), {}, {})()
