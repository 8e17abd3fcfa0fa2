"""Where labels go: as the options say, else as the configuration does, on the tests' API server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.cli.parse import parse
from gpurun.commands.kubernetes_labels_where import Where
from gpurun.errors import GpurunError, UsageError
from gpurun.kubernetes.config import PluginConfig
from tests.kubernetes.api_server import ApiServer
from tests.simdriver import SimulatedDriver

LABELS, MAKERS = {"nvidia.com/gpu.count": "2"}, ("nvidia",)
OBJECTS = PluginConfig(node_feature_api=True)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    made = ApiServer()
    made.put("nodes", {"metadata": {"name": "node-1", "labels": {}}})
    yield made
    made.stop()


@pytest.fixture
def config(server: ApiServer, tmp_path: Path) -> str:
    return str(server.kubeconfig(tmp_path / "kubeconfig"))


def where(config: str, *words: str, **env: str) -> Where:
    common = ("--kubeconfig", config, "--node-name", "node-1")
    return Where(parse(["kubernetes", "labels", *common, *words]), env)


def objects(server: ApiServer) -> list[dict[str, str]]:
    return [dict(one["spec"]["labels"]) for one in server.all("nodefeatures")]


def test_the_configuration_says_it(server: ApiServer, config: str, tmp_path: Path) -> None:
    file = tmp_path / "features.d/gfd"
    made = where(config, NAMESPACE="gpurun")
    made.set(PluginConfig(output_file=str(file)), LABELS, MAKERS)
    assert file.read_text() == "nvidia.com/gpu.count=2\n" and not objects(server)
    made.set(OBJECTS, LABELS, MAKERS)
    assert not file.exists() and objects(server) == [LABELS]
    made.set(PluginConfig(output_file=str(file)), LABELS, MAKERS)
    assert file.exists() and objects(server) == [{}], "labels are told in one place"
    other = tmp_path / "other"
    made.set(PluginConfig(output_file=str(other)), LABELS, MAKERS)
    assert other.exists() and not file.exists()
    made.end()
    assert not other.exists()


def test_the_object_stays_when_the_program_ends(server: ApiServer, config: str) -> None:
    made = where(config, "--namespace", "gpurun")
    made.set(OBJECTS, LABELS, MAKERS)
    made.end()
    assert objects(server) == [LABELS], "it goes with the DaemonSet"


@pytest.mark.parametrize("words", [("--patch-node",), ("-o", "FILE"), ("-o", "FILE", "--use-node-feature-api=false")])
def test_an_option_goes_before_the_configuration(
    words: tuple[str, ...], server: ApiServer, config: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gfd"
    made = where(config, *[str(file) if word == "FILE" else word for word in words], NAMESPACE="gpurun")
    made.set(OBJECTS, LABELS, MAKERS)
    made.set(OBJECTS, LABELS, MAKERS)
    assert not objects(server)
    (node,) = server.all("nodes")
    assert (file.exists(), node["metadata"]["labels"]) == ((False, LABELS) if "--patch-node" in words else (True, {}))
    assert capfd.readouterr().err.count("useNodeFeatureAPI of the configuration is not obeyed") == 1


def test_an_object_needs_a_namespace(config: str) -> None:
    made = where(config)
    with pytest.raises(GpurunError, match="needs --daemonset, or --namespace"):
        made.set(OBJECTS, LABELS, MAKERS)
    with pytest.raises(UsageError, match="needs --daemonset, or --namespace"):
        where(config, "--use-node-feature-api")


def test_a_file_that_cannot_be_removed_is_told(config: str, tmp_path: Path) -> None:
    file = tmp_path / "gfd"
    made = where(config, "-o", str(file))
    made.set(PluginConfig(), LABELS, MAKERS)
    file.unlink()
    made.end()  # somebody else has removed it
    made.set(PluginConfig(), LABELS, MAKERS)
    file.unlink()
    file.mkdir()
    with pytest.raises(GpurunError, match=f"remove {file}: is a directory"):
        made.end()


def test_the_command_with_a_file(server: ApiServer, config: str, sim: SimulatedDriver, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\nflags: {useNodeFeatureAPI: true, gfd: {oneshot: true}}\n")
    env = os.environ | sim.env | {"PYTHONPATH": "src", "KUBECONFIG": config}
    words = ["kubernetes", "labels", "--node-name", "node-1", "--namespace", "gpurun", "--config-file", str(file)]
    done = subprocess.run([sys.executable, "-m", "gpurun", *words], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [one["nvidia.com/gpu.count"] for one in objects(server)] == ["1"]
