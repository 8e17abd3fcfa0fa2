"""User namespaces: maps, owners, joined ones."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.conftest import MakeBundle
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native


def test_maps(runtime: Runtime, bundle: MakeBundle) -> None:
    out = runtime.output(bundle().user_namespace(100000, 5000).sh("id -u; id -g; cat /proc/self/uid_map /proc/self/gid_map"))
    uid, gid, uid_map, gid_map = out.splitlines()
    assert (uid, gid) == ("0", "0")
    assert uid_map.split() == gid_map.split() == ["0", "100000", "5000"]


def test_several_ranges_apart_for_users_and_groups(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().user_namespace(200000).sh("cat /proc/self/uid_map; echo; cat /proc/self/gid_map")
    b.linux["uidMappings"] = [
        {"containerID": 0, "hostID": 200000, "size": 10},
        {"containerID": 10, "hostID": 300000, "size": 100},
    ]
    b.linux["gidMappings"] = [{"containerID": 0, "hostID": 200000, "size": 65536}]
    uid_map, gid_map = runtime.output(b).split("\n\n")
    assert [line.split() for line in uid_map.splitlines()] == [["0", "200000", "10"], ["10", "300000", "100"]]
    assert [line.split() for line in gid_map.splitlines()] == [["0", "200000", "65536"]]


def test_the_first_process_is_the_mapped_user_on_the_host(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().user_namespace(100000).sh("echo up; sleep 1000"))
    container.wait_for("up")
    assert os.stat(f"/proc/{container.pid}/cwd/.").st_uid in (0, 100000)
    status = dict(line.split(":\t", 1) for line in container.proc("status").read_text().splitlines())
    assert status["Uid"].split() == ["100000"] * 4
    assert status["Gid"].split() == ["100000"] * 4


def test_devices_belong_to_the_containers_root(runtime: Runtime, bundle: MakeBundle) -> None:
    """Device nodes cannot be made in a user namespace: the host's are bound; they must work."""
    b = bundle().user_namespace().sh("echo x >/dev/null && head -c 3 /dev/zero | wc -c && [ -c /dev/urandom ]")
    result = runtime.run(b)
    assert result.rc == 0, result.text
    assert result.out.splitlines()[0] == "3"


def test_mounts_work(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().user_namespace().sh("cat /proc/mounts; touch /dev/shm/x /mnt/y && cat /mnt2/file")
    source = runtime.directory / "given"
    source.mkdir()
    (source / "file").write_text("given\n")
    (b.rootfs / "mnt").mkdir()
    (b.rootfs / "mnt2").mkdir()
    b.mount("/mnt", "tmpfs", kind="tmpfs").mount("/mnt2", str(source), "bind", "ro")
    lines = runtime.output(b).splitlines()
    assert lines[-1] == "given"
    mounted = {line.split()[1]: line.split()[2] for line in lines[:-1]}
    expected = {"/proc": "proc", "/sys": "sysfs", "/dev/pts": "devpts", "/dev/mqueue": "mqueue", "/mnt": "tmpfs"}
    assert {k: mounted.get(k) for k in expected} == expected


def test_source_that_only_the_hosts_root_can_reach(runtime: Runtime, bundle: MakeBundle) -> None:
    secret = runtime.directory / "secret"
    secret.mkdir(mode=0o700)
    (secret / "open").mkdir()
    (secret / "open/file").write_text("reached\n")
    b = bundle().user_namespace().args("cat", "/tmp/file").mount("/tmp", str(secret / "open"), "rbind", "ro")
    assert runtime.output(b) == "reached\n"


def test_hostname_and_sysctl_inside(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().user_namespace().sh("hostname; cat /proc/sys/net/ipv4/ip_forward")
    b.config["hostname"] = "mapped"
    b.linux["sysctl"] = {"net.ipv4.ip_forward": "1"}
    assert runtime.output(b).split() == ["mapped", "1"]


@pytest.mark.parametrize(
    "with_maps",
    [True, pytest.param(False, marks=pytest.mark.not_on("runc 1.1", reason="wants the maps again"))],
)
def test_joined(runtime: Runtime, bundle: MakeBundle, with_maps: bool) -> None:
    """Kubernetes gives the path and the equal maps; both are right."""
    first = runtime.create(bundle().user_namespace())
    b = bundle().user_namespace().namespace("user", f"/proc/{first.pid}/ns/user")
    if not with_maps:
        del b.linux["uidMappings"], b.linux["gidMappings"]
    b.namespace("network", f"/proc/{first.pid}/ns/net")
    second = runtime.create(b)
    for kind in ("user", "net"):
        assert os.readlink(second.proc(f"ns/{kind}")) == os.readlink(first.proc(f"ns/{kind}"))


@pytest.mark.parametrize(("kind", "name"), [("network", "net"), ("ipc", "ipc"), ("uts", "uts"), ("pid", "pid")])
def test_a_new_one_beside_namespaces_of_the_hosts_user(runtime: Runtime, bundle: MakeBundle, kind: str, name: str) -> None:
    """Which root of the new one may not join: they are joined before it is made."""
    first = runtime.create(bundle())
    b = bundle().user_namespace().namespace(kind, f"/proc/{first.pid}/ns/{name}").args("readlink", f"/proc/self/ns/{name}")
    del b.config["hostname"]
    # File systems of namespaces that the user namespace does not own.
    b.config["mounts"] = [m for m in b.config["mounts"] if m["destination"] not in ("/sys", "/dev/mqueue")]
    b.linux["maskedPaths"] = []
    if kind == "pid":
        b.config["mounts"][0] = {"destination": "/proc", "type": "bind", "source": "/proc", "options": ["rbind"]}
    assert runtime.output(b).strip() == os.readlink(first.proc(f"ns/{name}"))


def test_a_user_that_has_no_mapping(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().user_namespace(100000, 10)
    b.process["user"] = {"uid": 5000, "gid": 0}
    runtime.refused(b)


@pytest.mark.not_on("runc 1", reason="ignores them")
def test_maps_without_the_namespace(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle()
    b.linux["uidMappings"] = [{"containerID": 0, "hostID": 100000, "size": 10}]
    assert "user namespace" in runtime.refused(b).lower()


@pytest.mark.not_on("runc 1.1", reason="has other words for it")
@pytest.mark.not_on("crun", reason="maps every id to itself where it has the right to")
def test_the_namespace_without_maps_is_refused(runtime: Runtime, bundle: MakeBundle) -> None:
    """Its root would be the host's, though the config asks for a user namespace."""
    text = "user namespaces enabled, but no namespace path to join nor mappings to apply specified"
    assert text in runtime.refused(bundle().namespace("user").sh("cat /proc/self/uid_map"))


def test_the_runtime_itself_in_a_user_namespace(runtime: Runtime, bundle: MakeBundle) -> None:
    """As rootless Podman calls it: root of a namespace whose kernel takes no device program and makes no nodes."""
    b = bundle().sh("[ -c /dev/null ] && echo x >/dev/null && cat /proc/self/oom_score_adj && echo inside")
    b.process["oomScoreAdj"] = 200
    for mount in b.config["mounts"]:
        mount["options"] = [o for o in mount.get("options", []) if not o.startswith("gid=")]
    b.config["process"].pop("rlimits")
    b.config["linux"].pop("resources")
    container_id = runtime.new_id()
    runtime.prepare(b, container_id)
    command = [*runtime.argv, "run", "--bundle", str(b.directory), container_id]
    enter = runtime.bed.enter(None)
    result = subprocess.run(
        ["unshare", "-Ur", *command], preexec_fn=enter, capture_output=True, text=True, timeout=30, check=False
    )
    assert (result.returncode, result.stdout) == (0, "200\ninside\n"), result.stderr


@pytest.mark.parametrize("mounts", [True, False])
def test_a_rootfs_that_the_namespace_may_not_search(runtime: Runtime, bundle: MakeBundle, mounts: bool) -> None:
    """As an image is that was unpacked for root alone."""
    b = bundle().user_namespace()
    if not mounts:
        b.config["mounts"] = []
        del b.linux["maskedPaths"], b.linux["readonlyPaths"]
    os.chown(b.rootfs, 0, 0)
    b.rootfs.chmod(0o700)
    text = runtime.refused(b)
    assert "permission denied" in text
    if runtime.name.startswith("gpurun"):
        assert f'"{b.rootfs}": permission denied: the container\'s root may not search it (its mode is 0700)' in text
        assert "chown" in text and "chmod" in text


def test_what_comes_with_its_namespaces_belongs_to_its_root(runtime: Runtime, bundle: MakeBundle) -> None:
    """Made before the user namespace had its maps, it would be nobody's: SELinux lets only an owner label /dev/mqueue."""
    places = "/dev/mqueue /dev/shm /proc/self/net/ /sys/class/net/lo/"
    assert set(runtime.output(bundle().user_namespace().sh(f"stat -c '%u %g' {places}")).splitlines()) == {"0 0"}
