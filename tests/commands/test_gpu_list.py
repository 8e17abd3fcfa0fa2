"""gpu list: all containers that have a GPU, whichever runtime has made them, by the names that people know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpurun.commands.gpu_use import container_id_of
from tests.conftest import MakeBundle
from tests.gpu.leases.conftest import MakeHost, make_host  # noqa: F401
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.simdriver import uuid

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


def test_containers_that_gpurun_does_not_know(
    runtime: Runtime,
    bundle: MakeBundle,
    make_host: MakeHost,  # noqa: F811
    tmp_path: Path,
) -> None:
    """One in a state directory that nobody names, as another runtime's is; one with a name; and one that hides its GPU."""
    host = make_host(3)
    env = ENVIRONMENT | host.env
    foreign = Runtime(runtime.path, runtime.bed, tmp_path / "foreign")
    foreign.directory.mkdir()
    try:
        made = []
        for index, (one, name) in enumerate([(foreign, ""), (runtime, "web"), (foreign, "")]):
            b = bundle().sh("exec sleep 600")
            b.process["env"] += [f"NVIDIA_VISIBLE_DEVICES={index}"]
            b.config["annotations"] = {"nerdctl/name": name} if name else {}
            made.append(one.start(b, env=env))
        foreign("exec", made[2].id, "sh", "-c", "mkdir /dev/.a; mv /dev/nvidia* /dev/.a", env=env)
        listed = json.loads(runtime("gpu", "list", "--json", env=env).out)["gpus"]
        assert [[holder["pid"] for holder in gpu["holders"]] for gpu in listed] == [[one.pid] for one in made]
        assert [gpu["containers"] for gpu in listed] == [[], [made[1].id], []]
        assert [gpu["holders"][0]["name"] for gpu in listed] == [made[0].id, "web", made[2].id]
        lines = runtime("gpu", "list", env=env).out.splitlines()
        shown = {line.split()[1]: line.split()[-1] for line in lines if "GPU-" in line}
        assert shown == {uuid(0): made[0].id, uuid(1): "web", uuid(2): made[2].id}
    finally:
        foreign.cleanup()


def test_the_id_in_a_cgroup() -> None:
    digits = "0123456789abcdef" * 4
    for path in (
        f"/system.slice/docker-{digits}.scope",
        f"/docker/{digits}",
        f"/kubepods/podx/cri-containerd-{digits}.scope/init",
    ):
        assert container_id_of(path) == digits
    assert container_id_of("/system.slice/ssh.service") == ""
