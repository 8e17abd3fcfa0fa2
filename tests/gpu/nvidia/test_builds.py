"""A step of a Dockerfile, as BuildKit runs it: with GPUs, and an image that has nothing of them afterwards."""

from __future__ import annotations

import json

import pytest

from tests.conftest import MakeBundle
from tests.gpu.leases.conftest import MakeHost, make_host  # noqa: F401
from tests.native.runtime import ENVIRONMENT, Container, Runtime

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


def test_a_step_with_gpus(make_host: MakeHost, runtime: Runtime, bundle: MakeBundle) -> None:  # noqa: F811
    """NVIDIA/nvidia-container-toolkit#122, #221. The rootfs is compared with what it was by the fixture of bundles."""
    host = make_host(2)
    b, step = bundle(), runtime.new_id()
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=all"]  # of the image, as all images of CUDA have it
    b.sh("nvidia-smi -L; echo made > /layer; exit 3")
    runtime.prepare(b, step)
    log = runtime.directory / "log.json"
    words = ("--log", str(log), "--log-format", "json", "run", "--bundle", str(b.directory), "--keep", step)
    done = runtime(*words, env=ENVIRONMENT | host.env)
    assert done.rc == 3 and done.out.count("GPU ") == 2, done
    assert not [line for line in log.read_text().splitlines() if json.loads(line)["level"] == "error"]
    (b.rootfs / "layer").unlink()  # the step's own work, and all there is of it
    kept = Container(runtime, step, b, runtime("state", step), runtime.directory)
    assert kept.delete() == (0, "", "")
