"""A caller that is not root: its own ids in a user namespace, no cgroup, nothing privileged (``spec --rootless``)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.bed import Bed

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]
UID = 65533


class Rootless:
    """A directory of the user's, with the runtime, a bundle and a state root in it."""

    def __init__(self, place: Path, runtime: str, busybox: Path, bed: Bed) -> None:
        self.place, self.bed = place, bed
        self.path = place / "gpurun"
        shutil.copy(runtime, self.path)
        (place / "rootfs/bin").mkdir(parents=True)
        shutil.copy(busybox, place / "rootfs/bin/busybox")
        for path in (place, *place.rglob("*")):
            os.chown(path, UID, UID)
        assert self("spec", "--rootless").returncode == 0

    def __call__(self, *args: str) -> subprocess.CompletedProcess[str]:
        enter = self.bed.enter(str(self.place))

        def before_exec() -> None:
            enter()
            os.setgroups([])
            os.setresgid(UID, UID, UID)
            os.setresuid(UID, UID, UID)

        command = [str(self.path), "--root", str(self.place / "state"), *args]
        with open(self.place / "out", "w+") as out:
            done = subprocess.run(
                command, preexec_fn=before_exec, cwd=self.place, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                timeout=30, check=False,
            )  # fmt: skip
        return subprocess.CompletedProcess(command, done.returncode, (self.place / "out").read_text())

    def config(self, script: str) -> dict[str, object]:
        config: dict[str, object] = json.loads((self.place / "config.json").read_text())
        process = config["process"]
        assert isinstance(process, dict)
        process["terminal"] = False
        process["args"] = ["/bin/busybox", "sh", "-c", script]
        (self.place / "config.json").write_text(json.dumps(config))
        return config


@pytest.fixture
def rootless(bed: Bed, busybox: Path, tmp_path: Path) -> Iterator[Rootless]:
    runtime = os.environ.get("RUNTIME", str(Path(__file__).resolve().parents[2] / "build/gpurun"))
    place = Path("/var/tmp") / f"gpurun-rootless.{os.getpid()}"
    place.mkdir(mode=0o755)
    try:
        yield Rootless(place, runtime, busybox, bed)
    finally:
        shutil.rmtree(place)


def test_run(rootless: Rootless) -> None:
    rootless.config("busybox id -u; busybox cat /proc/self/uid_map /proc/self/setgroups; exit 7")
    done = rootless("run", "one")
    assert done.returncode == 7, done.stdout
    assert done.stdout.split() == ["0", "0", str(UID), "1", "deny"]
    assert not (rootless.place / "state/one").exists()


def test_life(rootless: Rootless) -> None:
    rootless.config("busybox sleep 1000")
    assert rootless("create", "one").stdout == ""
    assert json.loads(rootless("state", "one").stdout)["status"] == "created"
    assert rootless("start", "one").returncode == 0
    assert rootless("exec", "one", "/bin/busybox", "true").stdout == ""
    assert rootless("kill", "one", "KILL").returncode == 0
    assert rootless("delete", "--force", "one").returncode == 0
    assert rootless("state", "one").returncode == 1


def test_a_limit_needs_a_cgroup(rootless: Rootless) -> None:
    config = rootless.config("true")
    linux = config["linux"]
    assert isinstance(linux, dict)
    linux["resources"] = {"hugepageLimits": [{"pageSize": "2MB", "limit": 1 << 21}]}
    (rootless.place / "config.json").write_text(json.dumps(config))
    done = rootless("run", "one")
    assert done.returncode == 1
    assert "cannot make the cgroup" in done.stdout
    assert not (rootless.place / "state/one").exists()


def test_more_ids_than_its_own_take_newuidmap(rootless: Rootless) -> None:
    """The user has no ranges in /etc/subuid (or there is no newuidmap): either way one sentence says what to do."""
    config = rootless.config("true")
    linux = config["linux"]
    assert isinstance(linux, dict)
    for key in ("uidMappings", "gidMappings"):
        linux[key] = [
            {"containerID": 0, "hostID": UID, "size": 1},
            {"containerID": 1, "hostID": 300000, "size": 10},
        ]
    (rootless.place / "config.json").write_text(json.dumps(config))
    done = rootless("run", "one")
    assert done.returncode == 1
    assert "newuidmap" in done.stdout
    assert not (rootless.place / "state/one").exists()
