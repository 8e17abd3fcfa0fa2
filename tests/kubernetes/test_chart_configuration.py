"""The device plugin's configuration files in the chart, and its values, which go before them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.cli.parse import parse
from gpurun.commands.kubernetes_options import config_changes
from gpurun.kubernetes.config import PluginConfig
from gpurun.kubernetes.config_file import parse as parse_config
from gpurun.kubernetes.config_source import ConfigSource
from gpurun.record import replace
from tests.kubernetes.charts import (
    Object,
    needs_helm,
    pods,
    rendered,
)

FILE = """version: v1
flags:
  migStrategy: mixed
  failOnInitError: true
  nvidiaDriverRoot: /srv/driver
  plugin: {deviceListStrategy: [envvar], deviceIDStrategy: index, passDeviceSpecs: true}
  gfd: {sleepInterval: 5m}
sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}
"""


def configured(part: str, values: Object, directory: Path) -> PluginConfig:
    """What the *part* of the chart with *values* does, from its arguments and the file of its config map."""
    found = rendered(values, directory)
    (container,) = pods(found)[f"gpurun-{part}"]["containers"]
    invocation = parse(container["args"])
    data: dict[str, str] = next((one["data"] for one in found if one["kind"] == "ConfigMap"), {})
    path = ""
    if invocation.option("config-dir"):
        path = str(directory / "file")
        Path(path).write_text(data[invocation.option("default-config")])
    base = PluginConfig(fail_on_init_error=False)
    made = ConfigSource(path, {}, config_changes(invocation), base=base)()
    return replace(made, driver_root=invocation.option("driver-root", made.driver_root))


@needs_helm
@pytest.mark.parametrize("part", ["device-plugin", "labels"])
def test_a_configuration_file_has_effect(part: str, tmp_path: Path) -> None:
    """What no value of the chart says is left to the file."""
    values = {"devicePlugin": {"config": {"own": FILE}, "defaultConfig": "own"}}
    assert configured(part, values, tmp_path) == parse_config(FILE, "file")
    assert configured(part, {}, tmp_path) == PluginConfig(fail_on_init_error=False)
    (container,) = pods(rendered(values, tmp_path))["gpurun-labels"]["containers"]
    assert not parse(container["args"]).option("interval"), "the file says how long labels wait"


@needs_helm
def test_a_value_goes_before_the_file(tmp_path: Path) -> None:
    said = {
        "migStrategy": "single", "failOnInitError": False, "deviceListStrategy": ["cdi-cri", "volume-mounts"],
        "deviceIDStrategy": "uuid", "passDeviceSpecs": False,
    }  # fmt: skip
    values = {"devicePlugin": {"config": {"own": FILE}, "defaultConfig": "own"} | said, "driverRoot": "/opt/driver"}
    assert configured("device-plugin", values, tmp_path) == replace(
        parse_config(FILE, "file"), mig_strategy="single", fail_on_init_error=False, id_strategy="uuid",
        list_strategies=("cdi-cri", "volume-mounts"), pass_device_specs=False, driver_root="/opt/driver",
    )  # fmt: skip
    assert configured("labels", values, tmp_path).mig_strategy == "single"
