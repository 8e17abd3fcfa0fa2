"""A caller that is not root: its own ids in a user namespace, no cgroup, nothing privileged (``spec --rootless``)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.native.bed import Bed, remove_cgroup
from tests.native.listing import tree_listing
from tests.needs_nodes import require_nodes
from tests.simcards import RENDER, VIDEO, amd
from tests.simdriver import Options, bus_id, make, minor, uuid

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]
UID = 65533


class Rootless:
    """A directory of the user's, with the runtime, a bundle and a state root in it."""

    def __init__(self, place: Path, runtime: str, busybox: Path, bed: Bed) -> None:
        self.place, self.bed = place, bed
        self.before: tuple[str, ...] = ()  # a command that is given the runtime's as its own
        self.groups: list[int] = []  # the caller's additional ones
        self.cgroup = ""  # where the caller is, absolute in the tree; "": where all callers are
        self.path = place / "gpurun"
        shutil.copy(runtime, self.path)
        (place / "rootfs/bin").mkdir(parents=True)
        shutil.copy(busybox, place / "rootfs/bin/busybox")
        for path in (place, *place.rglob("*")):
            os.chown(path, UID, UID)
        assert self("spec", "--rootless").returncode == 0

    def __call__(self, *args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        enter, groups = self.bed.enter(str(self.place)), self.groups
        procs = f"/sys/fs/cgroup{self.cgroup}/cgroup.procs" if self.cgroup else ""

        def before_exec() -> None:
            enter()
            if procs:
                with open(procs, "w") as f:
                    f.write("0")
            os.setgroups(groups)
            os.setresgid(UID, UID, UID)
            os.setresuid(UID, UID, UID)

        command = [*self.before, str(self.path), "--root", str(self.place / "state"), *args]
        with open(self.place / "out", "w+") as out:
            done = subprocess.run(
                command, preexec_fn=before_exec, cwd=self.place, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                timeout=30, check=False, env=os.environ | (env or {}),
            )  # fmt: skip
        return subprocess.CompletedProcess(command, done.returncode, (self.place / "out").read_text())

    def config(self, script: str) -> dict[str, object]:
        config: dict[str, object] = json.loads((self.place / "config.json").read_text())
        process = config["process"]
        assert isinstance(process, dict)
        process["terminal"] = False
        process["args"] = ["/bin/busybox", "sh", "-c", script]
        self.write(config)
        return config

    def write(self, config: dict[str, object]) -> None:
        (self.place / "config.json").write_text(json.dumps(config))


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


@pytest.mark.parametrize("value", [0, 300])
def test_oom_score_adj(rootless: Rootless, value: int) -> None:
    """One's own file belongs to the host's root as soon as one is in a user namespace, or not dumpable."""
    config = rootless.config("busybox cat /proc/self/oom_score_adj; busybox sleep 1000")
    config["process"]["oomScoreAdj"] = value  # type: ignore[index]
    (rootless.place / "config.json").write_text(json.dumps(config))
    assert rootless("create", "one").stdout == ""
    try:
        assert rootless("start", "one").returncode == 0
        assert rootless("exec", "one", "/bin/busybox", "cat", "/proc/self/oom_score_adj").stdout == f"{value}\n"
    finally:
        assert rootless("delete", "--force", "one").returncode == 0


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


def test_root_of_a_user_namespace_does_without_a_cgroup(rootless: Rootless) -> None:
    """As rootless Podman with ``--cgroup-manager=cgroupfs`` calls its runtime where no cgroup may be written, crun alike."""
    config = rootless.config("busybox id -u; busybox cat /proc/self/uid_map")
    linux = config["linux"]
    assert isinstance(linux, dict)
    linux["namespaces"] = [n for n in linux["namespaces"] if n["type"] != "user"]
    del linux["uidMappings"], linux["gidMappings"]
    linux["resources"] = {"devices": [{"allow": False, "access": "rwm"}]}
    (rootless.place / "config.json").write_text(json.dumps(config))
    rootless.before = ("unshare", "--user", "--map-root-user")
    done = rootless("run", "one")
    assert done.returncode == 0, done.stdout
    assert done.stdout.split() == ["0", "0", str(UID), "1"]
    linux["cgroupsPath"] = "/named"  # where somebody says where it is to be, it is there or nowhere
    (rootless.place / "config.json").write_text(json.dumps(config))
    done = rootless("run", "one")
    assert done.returncode == 1
    assert "cannot make the cgroup" in done.stdout


@pytest.fixture
def delegated(rootless: Rootless, bed: Bed) -> Iterator[str]:
    """A part of the cgroup tree that is the user's, with the caller in it."""
    path = f"{bed.subtree}/delegated"
    caller = bed.cgroup(f"{path}/caller")
    caller.mkdir(parents=True)
    for directory in (caller, caller.parent):
        os.chown(directory, UID, UID)
        os.chown(directory / "cgroup.procs", UID, UID)
    rootless.cgroup = f"{path}/caller"
    yield path
    remove_cgroup(bed.cgroup(path))


def test_a_cgroup_of_the_users_own(rootless: Rootless, bed: Bed, delegated: str) -> None:
    """The kernel takes device programs from the host's root alone, and a rootless caller can make no device nodes either."""
    config = rootless.config("busybox sleep 1000")
    config["linux"] |= {"cgroupsPath": f"{delegated}/c", "resources": {"devices": [{"allow": False, "access": "rwm"}]}}  # type: ignore[operator]
    (rootless.place / "config.json").write_text(json.dumps(config))
    assert rootless("create", "one").stdout == ""
    assert bed.cgroup(f"{delegated}/c/cgroup.procs").read_text()
    assert rootless("delete", "--force", "one").returncode == 0
    assert not bed.cgroup(f"{delegated}/c").exists()


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


def test_gpus(rootless: Rootless, place: Path) -> None:
    """Nodes and libraries are bound, the cache is the container's root's, and all is taken away again by the same user."""
    sim = make(place / "rootless-host", Options())
    (sim.path).chmod(0o755)
    (rootless.place / "rootfs/etc/ld.so.conf.d").mkdir(parents=True)
    (rootless.place / "rootfs/etc/ld.so.cache").write_bytes(b"the image's")
    for path in (rootless.place / "rootfs").rglob("*"):
        os.lchown(path, UID, UID)
    config = rootless.config(
        "cd /dev; busybox ls -n nvidia* /etc/ld.so.cache; busybox ls /etc/ld.so.conf.d; (: <>nvidia0) 2>&1"
    )
    process = config["process"]
    assert isinstance(process, dict)
    process["env"].append("NVIDIA_VISIBLE_DEVICES=all")
    config["root"] = {"path": "rootfs"}
    (rootless.place / "config.json").write_text(json.dumps(config))
    before = tree_listing(rootless.place / "rootfs", exact=True)
    try:
        done = rootless("run", "one", env=sim.env)
    finally:
        shutil.rmtree(sim.path)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("-rw-r--r--    1 0        0 ") and lines[0].endswith("/etc/ld.so.cache"), done.stdout
    assert [line.split()[-1] for line in lines[1:6]] == ["nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", "nvidiactl"]
    assert "00-gpurun.conf" in lines[6] and "No such device or address" in lines[-1], done.stdout
    after = tree_listing(rootless.place / "rootfs", exact=True)
    assert {k for k in before.keys() | after.keys() if before.get(k) != after.get(k)} == made_by_the_engine(before, after)


def made_by_the_engine(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Mount points of the config's own mounts, which the image of this test lacks, and the root directory's time."""
    return {".", *(after.keys() - before.keys())} & {".", "dev", "proc", "sys"}


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("sys", ["image", "volume", "kernel"])
def test_some_of_amds_gpus(rootless: Rootless, place: Path, bed: Bed, root: bool, sys: str) -> None:
    """KFD lists the GPUs of all: the list is covered by one of the container's own, which goes with it.

    The kernel may have no KFD, so /sys is also a directory of the image, or a volume, that has the place.
    """
    host = amd.mi210(place / "rootless-host", count=3)
    host.path.chmod(0o755)
    require_nodes(host.real_nodes)
    config: Any = rootless.config(
        f"cd {amd.PLACE}/nodes; busybox ls; busybox cat 2/gpu_id 2/mem_banks/0/properties 2/io_links/*/properties; : > 2/x"
    )
    config["process"]["env"].append(f"AMD_VISIBLE_DEVICES={amd.MI210[1][0]}")
    own = rootless.place / ("volume" if sys == "volume" else "rootfs/sys")
    shown = own / amd.PLACE.removeprefix("/sys/")
    if sys != "kernel":
        config["mounts"] = [mount for mount in config["mounts"] if mount["destination"] != "/sys"]
        (shown / "nodes/0").mkdir(parents=True)
        for path in (own, *own.rglob("*")):
            os.chown(path, UID, UID)
    if sys == "volume":
        config["mounts"].append({"destination": "/sys", "type": "bind", "source": str(own), "options": ["rbind"]})
    if root:
        config["linux"]["namespaces"] = [one for one in config["linux"]["namespaces"] if one["type"] != "user"]
        del config["linux"]["uidMappings"], config["linux"]["gidMappings"]
        rootless.before = ("unshare", "--user", "--map-root-user", "--mount")
    rootless.write(config)
    before = bed.mounts()
    try:
        done = rootless("run", "one", env=host.env)
        explained = rootless("explain", env=host.env).stdout
    finally:
        shutil.rmtree(host.path)
    assert bed.mounts() == before and "cannot be covered" not in done.stdout
    assert f"a private {amd.PLACE}" in explained and f"{amd.PLACE}/nodes/2/gpu_id" in explained
    lines = done.stdout.splitlines()
    if sys == "kernel" and not Path(amd.PLACE).is_dir():
        assert "can't cd" in done.stdout, done.stdout  # it runs as ever: there is nothing to cover
        return
    assert "0" in lines, done.stdout
    at = lines.index("0")
    assert lines[at : at + 5] == ["0", "1", "2", "20003", "heap_type 1"], done.stdout
    ends = [line for line in lines if line.startswith("node_")]
    assert ends == ["node_from 2", "node_to 0"], done.stdout  # the way to the other processor is one of p2p_links
    assert lines[-1].endswith("Read-only file system"), done.stdout
    if sys != "kernel":
        assert [path.name for path in (shown / "nodes").iterdir()] == ["0"] and not list((shown / "nodes/0").iterdir())


def test_a_share_of_amds_memory_takes_root(rootless: Rootless, place: Path, bed: Bed, delegated: str) -> None:
    """Also where the user has a cgroup of its own, in which it could set limits: nobody would count its shares."""
    host = amd.mi210(place / "rootless-host", count=1)
    host.path.chmod(0o755)
    require_nodes(host.real_nodes)
    host.write("sys/fs/cgroup/dmem.capacity", f"drm/{amd.MI210[0][0]}/vram {64 << 30}")
    config: Any = rootless.config("echo runs")
    config["process"]["env"] += ["AMD_VISIBLE_DEVICES=all", "GPURUN_GPU_MEMORY=8GiB"]
    config["linux"]["cgroupsPath"] = f"{delegated}/c"
    rootless.write(config)
    try:
        done = rootless("run", "one", env=host.env)
    finally:
        shutil.rmtree(host.path)
    assert done.returncode == 1 and done.stdout.count("\n") == 1
    assert "process.env GPURUN_GPU_MEMORY: a share of a GPU needs root of the host" in done.stdout
    assert not (rootless.place / "state/one").exists() and not bed.cgroup(f"{delegated}/c").exists()


@pytest.mark.parametrize("member", [True, False])
@pytest.mark.parametrize("root", [False, True])
def test_amds_groups_without_a_range_of_ids(rootless: Rootless, place: Path, root: bool, member: bool) -> None:
    """A user namespace with the caller's ids alone has no group of the nodes, and keeps those that the caller is in."""
    host = amd.mi210(place / "rootless-host", count=1)
    host.path.chmod(0o755)
    require_nodes(host.real_nodes)
    config: Any = rootless.config("(: <>/dev/dri/renderD128) 2>&1; (: <>/dev/kfd) 2>&1")
    config["process"]["env"].append("AMD_VISIBLE_DEVICES=all")
    if root:
        config["linux"]["namespaces"] = [one for one in config["linux"]["namespaces"] if one["type"] != "user"]
        del config["linux"]["uidMappings"], config["linux"]["gidMappings"]
        rootless.before = ("unshare", "--user", "--map-root-user", "--mount")
    rootless.write(config)
    rootless.groups = [RENDER, VIDEO] if member else []
    log = rootless.place / "log"
    try:
        done = rootless("--log", str(log), "run", "one", env=host.env)
    finally:
        shutil.rmtree(host.path)
    assert done.returncode in (0, 1) and "additional groups" not in done.stdout, done.stdout
    told = [line.rpartition(": ")[2] for line in done.stdout.splitlines()]
    assert told == (["No such device or address"] * 2 if member else ["Permission denied"] * 2), done.stdout
    warned = [line for line in log.read_text().splitlines() if "the container cannot open device nodes" in line]
    assert len(warned) == (0 if member else 1)
    assert member or all(word in warned[0] for word in ("renderD128", "/dev/kfd", "usermod -aG", "keep_original_groups"))


def test_amds_list_that_cannot_be_covered(rootless: Rootless, place: Path) -> None:
    """/sys of the image is a link: the container runs without the cover, and the caller's log says so, not its stderr."""
    host = amd.mi210(place / "rootless-host", count=3)
    host.path.chmod(0o755)
    require_nodes(host.real_nodes)
    config: Any = rootless.config("echo runs")
    config["process"]["env"].append(f"AMD_VISIBLE_DEVICES={amd.MI210[1][0]}")
    config["mounts"] = [mount for mount in config["mounts"] if mount["destination"] != "/sys"]
    rootless.write(config)
    (rootless.place / "rootfs/beside").mkdir()
    os.chown(rootless.place / "rootfs/beside", UID, UID)
    (rootless.place / "rootfs/sys").symlink_to("beside")
    log = rootless.place / "log"
    try:
        done = rootless("--log", str(log), "run", "one", env=host.env)
    finally:
        shutil.rmtree(host.path)
    assert (done.returncode, done.stdout) == (0, "runs\n")
    (line,) = [line for line in log.read_text().splitlines() if "cannot be covered" in line]
    assert "level=warning" in line and f"{amd.PLACE} shows the GPUs of all: it cannot be covered: " in line


@pytest.mark.parametrize("root", [False, True])
def test_gpus_that_come_and_go(rootless: Rootless, place: Path, root: bool) -> None:
    """Root of a user namespace, as a rootless engine has it, binds what it sees of the host; a plain user cannot bind, and
    is told so before anything has changed."""
    sim = make(place / "rootless-host", Options())
    sim.path.chmod(0o755)
    config = rootless.config("exec busybox sleep 600")
    config["root"] = {"path": "rootfs"}
    rootless.write(config)
    if root:
        linux: Any = config["linux"]
        linux["namespaces"] = [one for one in linux["namespaces"] if one["type"] != "user"]
        del linux["uidMappings"], linux["gidMappings"]
        rootless.write(config)
    look = (
        "cd /dev; busybox ls -d nvidia[0-9]* 2>&1; busybox ls /proc/driver/nvidia/gpus 2>&1; echo ${NVIDIA_VISIBLE_DEVICES-}"
    )
    (rootless.place / "rootfs/look").write_text(f"{look}; (: <nvidia{minor(1, 2)}) 2>&1")
    script = rootless.place / "script"
    script.write_text(
        '"$@" create one && "$@" start one || exit 9\n"$@" gpu attach one 1; echo rc $?\n'
        '"$@" exec one /bin/busybox sh /look\n"$@" gpu detach one 1; echo rc $?\n"$@" exec one /bin/busybox sh /look\n'
        '"$@" delete --force one || exit 8\n'
    )
    before = tree_listing(rootless.place / "rootfs")
    rootless.before = (*(("unshare", "--user", "--map-root-user", "--mount") if root else ()), "sh", str(script))
    (sim.path / "user").mkdir()
    os.chown(sim.path / "user", UID, UID)
    try:
        done = rootless(env=sim.env | {"XDG_RUNTIME_DIR": "/user"})  # below the simulated host
    finally:
        shutil.rmtree(sim.path)
    assert done.returncode == 0, done.stdout
    after = tree_listing(rootless.place / "rootfs")
    assert set(after) - set(before) == {"dev", "proc", "sys"}, "directories of the config's own mounts"
    if not root:
        assert done.stdout.count("only root can change the GPUs of one") == 2 and done.stdout.count("rc 1") == 2
        assert bus_id(1) not in done.stdout and uuid(1) not in done.stdout
        return
    lines = done.stdout.splitlines()
    assert lines[:3] == ["rc 0", f"nvidia{minor(1, 2)}", bus_id(1)] and lines[3] == uuid(1), done.stdout
    assert lines[4].endswith("No such device or address") and lines[5] == "rc 0", done.stdout
    assert lines[6].endswith("No such file or directory") and lines[7] == "none", done.stdout


def test_a_cgroup_that_the_user_may_make_and_not_enter(rootless: Rootless, bed: Bed, delegated: str) -> None:
    """Its directory alone is the user's: a container that needs no limit does without, as with crun."""
    os.chown(bed.cgroup(f"{delegated}/cgroup.procs"), 0, 0)
    config = rootless.config("busybox echo ran")
    config["linux"]["resources"] = {"devices": [{"allow": False, "access": "rwm"}]}  # type: ignore[index]
    rootless.write(config)
    done = rootless("run", "one")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert [path.name for path in bed.cgroup(delegated).iterdir() if path.is_dir()] == ["caller"]
