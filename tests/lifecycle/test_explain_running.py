"""`explain --running ID`: what was done for a container that there is, and what has changed of it since."""

from __future__ import annotations

import json

import pytest

from tests.conftest import MakeBundle
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.needs_nodes import require_nodes
from tests.simdriver import VERSION, Options, SimulatedDriver, bus_id, minor, uuid

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]
HOST = Options(gpus=2)


def test_through_its_life(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().args("sleep", "60")
    container = runtime.create(b)
    said = runtime("explain", "--running", container.id)
    assert said.rc == 0, said
    first, *rest = said.out.splitlines()
    assert first.startswith(f"container {container.id}: created, process {container.pid}, created 2")
    assert any("sleep" in line for line in rest)
    assert not any(line.startswith("since changed") for line in rest)
    assert container.start().rc == 0
    assert f"container {container.id}: running, process {container.pid}" in runtime("explain", "--running", container.id).out
    told = json.loads(runtime("explain", "--json", "--running", container.id).out)
    assert (told["status"], told["pid"], told["changed"]) == ("running", container.pid, [])
    container.kill("KILL")
    container.wait()
    said = runtime("explain", "--running", container.id)
    assert said.out.startswith(f"container {container.id}: stopped, created 2"), "it has no process any more"


def test_the_config_of_its_creation_counts(runtime: Runtime, bundle: MakeBundle) -> None:
    """Not what the bundle says by now."""
    b = bundle().args("sleep", "60")
    container = runtime.create(b)
    (b.directory / "config.json").write_text("{}")
    said = runtime("explain", "--running", container.id)
    assert said.rc == 0 and "sleep" in said.out


def test_what_cannot_be_asked(runtime: Runtime, bundle: MakeBundle) -> None:
    said = runtime("explain", "--running", "nobody")
    assert said.rc == 1 and "container does not exist" in said.text
    container = runtime.create(bundle().args("sleep", "60"))
    said = runtime("explain", "--running", container.id, "/tmp")
    assert said.rc != 0 and "one bundle, or --diff with two, or --running with the id of a container" in said.text


def test_the_gpus_of_a_container(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> None:
    """By its own records and its /dev: the saved config says nothing of them."""
    require_nodes(host.real_nodes)
    env = ENVIRONMENT | host.env
    b = bundle().args("sleep", "60")
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=1"]
    container = runtime.start(b, env=env)
    node = f"/dev/nvidia{minor(1, 2)}"
    said = runtime("explain", "--running", container.id, env=env)
    assert said.rc == 0 and f"GPUs        GPU 1, {node}\n" in said.out, said
    part = said.out.partition("GPU: what the container has\n")[2]
    assert f"  GPU 1: {node} {uuid(1)}\n" in part and f"libraries of the driver {VERSION}\n" in part
    told = json.loads(runtime("explain", "--json", "--running", container.id, env=env).out)
    (gpu,) = told["gpus"]
    assert (gpu["shown"], gpu["name"], gpu["node"], gpu["since"]) == ("GPU 1", uuid(1), node, "create")
    assert gpu["key"] == f"nvidia:{bus_id(1)}" and not gpu["given"]
    done = runtime("gpu", "attach", container.id, "0", env=env)
    assert done.rc == 0, done
    out = runtime("explain", "--running", container.id, env=env).out
    assert f"GPU 0: /dev/nvidia{minor(0, 2)} {uuid(0)}, attached since\n" in out
    assert runtime("gpu", "detach", container.id, "1", env=env).rc == 0
    out = runtime("explain", "--running", container.id, env=env).out
    assert f"GPUs        GPU 0, /dev/nvidia{minor(0, 2)}\n" in out, [line for line in out.splitlines() if "GPU" in line]
    assert uuid(1) not in out


def test_the_gpus_of_one_that_hides_them_or_has_stopped(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> None:
    require_nodes(host.real_nodes)
    env = ENVIRONMENT | host.env
    b = bundle().args("sleep", "60")
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=1"]
    container = runtime.start(b, env=env)
    node = f"/dev/nvidia{minor(1, 2)}"
    assert runtime("exec", container.id, "sh", "-c", f"mkdir /dev/.a; mv {node} /dev/.a/x", env=env).rc == 0
    gpu = f"GPU 1: {node} {uuid(1)}"
    assert runtime("explain", "--running", container.id, env=env).out.count(f"{gpu}, whose node is not in its /dev\n") == 1
    container.kill("KILL")
    container.wait()
    assert runtime("explain", "--running", container.id, env=env).out.count(f"{gpu}\n") == 1
    without = runtime("explain", "--running", container.id).out
    assert f"a GPU that this host does not have now: {node}" in without


def test_a_container_without_gpus(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().args("sleep", "60"))
    said = runtime("explain", "--running", container.id).out
    assert "GPUs        none\n" in said and "GPU: what" not in said
