"""What is said where the extra is not installed, and that the kubelet's protocols are what the .proto files say."""

from __future__ import annotations

import filecmp
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpurun.kubernetes.protocols import deviceplugin_pb2 as deviceplugin
from gpurun.kubernetes.protocols import dra_v1_pb2 as dra
from gpurun.kubernetes.protocols import podresources_pb2 as podresources
from tests.cli.test_main import gpurun

ROOT = Path(__file__).resolve().parents[2]


def test_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    """An interpreter that has gpurun and its own dependencies, and no grpc."""
    (tmp_path / "grpc.py").write_text("raise ModuleNotFoundError(\"No module named 'grpc'\", name='grpc')\n")
    env = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"}
    done = subprocess.run(
        [sys.executable, "-m", "gpurun", "kubernetes", "device-plugin"], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and done.stderr.count("\n") <= 1
    assert (
        "grpcio is not installed: `apt-get install python3-grpcio`, or install gpurun with its extra `kubernetes`"
        in done.stderr
    )
    (tmp_path / "grpc.py").write_text("import nothing_of_that_name\n")
    done = subprocess.run(
        [sys.executable, "-m", "gpurun", "kubernetes", "device-plugin"], env=env, capture_output=True, text=True, timeout=60
    )
    assert "grpcio is installed, but not nothing_of_that_name, which it needs" in done.stderr


def test_copies_of_the_process_are_free_of_grpc(tmp_path: Path) -> None:
    """With gRPC's threads in them some copies that read a driver's files died: 105 of 200 readings beside it lacked some.

    tests/conftest.py turns them off for the tests' own processes; a user's environment does not.
    """
    (tmp_path / "grpc.py").write_text("import os\nprint(os.environ.get('GRPC_ENABLE_FORK_SUPPORT'))\n")
    env = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    done = subprocess.run(
        [sys.executable, "-c", "from gpurun.kubernetes.extra import need; need('grpc')"],
        env=env | {"PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "0\n", done.stdout + done.stderr


def test_a_pydantic_that_is_too_old(tmp_path: Path) -> None:
    """Debian 12 has pydantic 1, whose models are others."""
    (tmp_path / "pydantic.py").write_text('__version__ = "1.10.4"\n')
    env = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"}
    for command in ("device-plugin", "dra-driver", "labels"):
        done = subprocess.run(
            [sys.executable, "-m", "gpurun", "kubernetes", command], env=env, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 1 and done.stderr.count("\n") <= 1
        assert "pydantic 1.10.4 is installed, and version 2 or newer is needed" in done.stderr


def test_no_such_command() -> None:
    done = gpurun("kubernetes", "scheduler")
    assert done.returncode == 1 and 'kubernetes: no such command "scheduler", use device-plugin' in done.stderr.replace(
        '\\"', '"'
    )


def test_numbers_of_the_protocols() -> None:
    """Written out as bytes: a number that differs from the published one would be another field for the kubelet."""
    one = deviceplugin.ContainerAllocateResponse(envs={"A": "b"}, annotations={"c": "d"})
    one.cdi_devices.add(name="x")
    one.mounts.add(container_path="p", host_path="q")
    one.devices.add(container_path="r", host_path="s", permissions="rw")
    assert one.SerializeToString(deterministic=True) == (
        b"\x0a\x06\x0a\x01A\x12\x01b\x12\x06\x0a\x01p\x12\x01q\x1a\x0a\x0a\x01r\x12\x01s\x1a\x02rw"
        b"\x22\x06\x0a\x01c\x12\x01d\x2a\x03\x0a\x01x"
    )
    device = dra.Device(request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["c"], share_id="s")
    assert device.SerializeToString() == b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x01c\x2a\x01s"
    container = podresources.ContainerResources(name="n")
    container.dynamic_resources.add(claim_name="c").claim_resources.add(driver_name="d")
    assert container.SerializeToString() == b"\x0a\x01n\x2a\x08\x12\x01c\x22\x03\x12\x01d"


@pytest.mark.slow
def test_generated_code_is_what_the_generator_makes(tmp_path: Path) -> None:
    subprocess.run([ROOT / "tools/generate-protocols", tmp_path], check=True, cwd=ROOT)
    made = sorted((tmp_path / "gpurun/kubernetes/protocols").iterdir())
    assert len(made) == 24
    kept = ROOT / "src/gpurun/kubernetes/protocols"
    assert [path.name for path in made if not filecmp.cmp(path, kept / path.name, shallow=False)] == []
