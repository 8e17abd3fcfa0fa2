"""config-linux.md: file systems, namespaces, mappings, clocks, devices, paths, sysctl, personality."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.levels import must, should
from tests.conformance.refused import refused
from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.runtime import Container, Runtime

pytestmark = pytest.mark.native

FILES = {"network": "net", "mount": "mnt"} | {k: k for k in ("pid", "ipc", "uts", "cgroup", "user", "time")}
PLAIN = ["pid", "network", "ipc", "uts", "cgroup"]
no_time = pytest.mark.not_on("runc 1.1", reason="has no time namespaces")
TIME = pytest.param("time", marks=no_time)


def link(container: Container, kind: str) -> str:
    return os.readlink(container.proc(f"ns/{FILES[kind]}"))


def own(kind: str) -> str:
    return os.readlink(f"/proc/self/ns/{FILES[kind]}")


def asking(bundle: Bundle, kind: str, path: str | None = None) -> Bundle:
    """*bundle* with the namespace *kind*, and nothing that a joined one forbids."""
    if kind == "user" and path is None:
        return bundle.user_namespace()
    if kind == "uts" and path:
        del bundle.config["hostname"]
    return bundle.namespace(kind, path)


@should("config-linux.md: Default Filesystems")
@pytest.mark.parametrize(
    ("path", "kind"), [("/proc", "proc"), ("/sys", "sysfs"), ("/dev/pts", "devpts"), ("/dev/shm", "tmpfs")]
)
def test_config_linux_default_filesystems(runtime: Runtime, bundle: MakeBundle, path: str, kind: str) -> None:
    """/proc, /sys, /dev/pts, /dev/shm SHOULD be made available (here: by the usual mounts)"""
    lines = [line.split() for line in runtime.output(bundle().args("cat", "/proc/mounts")).splitlines()]
    assert [f[2] for f in lines if f[1] == path] == [kind]


@should("config-linux.md: Namespaces")
@pytest.mark.parametrize("kind", [*PLAIN, "mount", "user", TIME])
def test_config_linux_namespaces_are_supported_and_made(runtime: Runtime, bundle: MakeBundle, kind: str) -> None:
    """the types pid, network, mount, ipc, uts, user, cgroup, time SHOULD be supported"""
    assert link(runtime.create(asking(bundle(), kind)), kind) != own(kind)


@must("config-linux.md: Namespaces")
@pytest.mark.parametrize("kind", [*PLAIN, "mount", "user", TIME])
def test_config_linux_namespaces_without_a_path_are_new(runtime: Runtime, bundle: MakeBundle, kind: str) -> None:
    """if `path` is not specified, MUST create a new container namespace of that type"""
    first, second = runtime.create(asking(bundle(), kind)), runtime.create(asking(bundle(), kind))
    assert len({link(first, kind), link(second, kind), own(kind)}) == 3


@pytest.mark.not_on("crun", reason="cannot join a time namespace")
@must("config-linux.md: Namespaces")
@pytest.mark.parametrize("kind", [*PLAIN, "user", TIME])
def test_config_linux_namespaces_path(runtime: Runtime, bundle: MakeBundle, kind: str) -> None:
    """MUST place the container process in the namespace associated with `path`"""
    first = runtime.create(asking(bundle(), kind))
    b = bundle().user_namespace() if kind == "user" else bundle()
    second = runtime.create(asking(b, kind, f"/proc/{first.pid}/ns/{FILES[kind]}"))
    assert link(second, kind) == link(first, kind) != own(kind)


@pytest.mark.sweep(4)
@pytest.mark.not_on("crun", reason="leaves the cgroup behind")
@pytest.mark.not_on("runc 1.1", reason="leaves the cgroup behind, at times")
@must("config-linux.md: Namespaces")
@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("path", ["/nonexistent/ns", "/etc/hostname", "/proc/1/ns/mnt"])
def test_config_linux_namespaces_path_of_another_type(runtime: Runtime, bundle: MakeBundle, kind: str, path: str) -> None:
    """MUST generate an error if `path` is not associated with a namespace of that type"""
    refused(runtime, asking(bundle(), kind, path))


@pytest.mark.not_on("crun", reason="leaves the cgroup behind")
@must("config-linux.md: Namespaces")
@pytest.mark.parametrize("kind", PLAIN)
def test_config_linux_namespaces_path_is_absolute(runtime: Runtime, bundle: MakeBundle, kind: str) -> None:
    """`path` MUST be an absolute path"""
    b = asking(bundle(), kind, f"proc/1/ns/{FILES[kind]}")
    refused(runtime, b)


@must("config-linux.md: Namespaces")
@pytest.mark.parametrize("kind", [*PLAIN, "user", "time"])
def test_config_linux_namespaces_left_out(runtime: Runtime, bundle: MakeBundle, kind: str) -> None:
    """a type that is not in the array MUST be inherited from the runtime"""
    b = bundle().without_namespace(kind)
    if kind == "uts":
        del b.config["hostname"]
    if kind == "network":
        b.config["mounts"] = [m for m in b.config["mounts"] if m["type"] != "sysfs"]
        b.mount("/sys", "/sys", "rbind", "ro")
    assert link(runtime.create(b), kind) == own(kind)


@pytest.mark.not_on("crun", reason="leaves the cgroup behind")
@must("config-linux.md: Namespaces")
@pytest.mark.parametrize("kind", ["pid", "network", "ipc", "uts", "mount", "cgroup"])
def test_config_linux_namespaces_duplicated(runtime: Runtime, bundle: MakeBundle, kind: str) -> None:
    """if `namespaces` contains duplicates of one type, MUST generate an error"""
    b = bundle()
    b.linux["namespaces"].append({"type": kind})
    refused(runtime, b)


@must("config-linux.md: User namespace mappings")
@pytest.mark.parametrize("which", ["uid", "gid"])
def test_config_linux_mappings(runtime: Runtime, bundle: MakeBundle, which: str) -> None:
    """`containerID`, `hostID`, `size` are the namespace's maps"""
    b = bundle().user_namespace()
    maps = [{"containerID": 0, "hostID": 100000, "size": 1000}, {"containerID": 5000, "hostID": 300000, "size": 7}]
    b.linux[f"{which}Mappings"] = maps
    found = [line.split() for line in runtime.create(b).proc(f"{which}_map").read_text().splitlines()]
    assert found == [["0", "100000", "1000"], ["5000", "300000", "7"]]


@should("config-linux.md: User namespace mappings")
def test_config_linux_mappings_leave_the_rootfs(runtime: Runtime, bundle: MakeBundle) -> None:
    """SHOULD NOT modify the ownership of referenced filesystems to realize the mapping"""
    b = bundle().user_namespace().args("true")
    before = {p: (p.lstat().st_uid, p.lstat().st_gid) for p in b.rootfs.rglob("*")}
    runtime.output(b)
    assert {p: (p.lstat().st_uid, p.lstat().st_gid) for p in b.rootfs.rglob("*")} == before


@no_time
@must("config-linux.md: Offset for Time Namespace")
@pytest.mark.parametrize("clock", ["monotonic", "boottime"])
def test_config_linux_time_offsets(runtime: Runtime, bundle: MakeBundle, clock: str) -> None:
    """`secs` and `nanosecs` set the offset of the clock"""
    b = bundle().namespace("time").args("cat", "/proc/self/timens_offsets")
    b.linux["timeOffsets"] = {clock: {"secs": 86400, "nanosecs": 77}}
    assert [clock, "86400", "77"] in [line.split() for line in runtime.output(b).splitlines()]


DEVICES: dict[str, tuple[dict[str, Any], str]] = {
    "c": ({"type": "c", "major": 195, "minor": 3, "fileMode": 0o640, "uid": 7, "gid": 8},
          "character special file c3:3 640 7:8"),
    "u": ({"type": "u", "major": 195, "minor": 4, "fileMode": 0o600}, "character special file c3:4 600 0:0"),
    "b": ({"type": "b", "major": 7, "minor": 9, "fileMode": 0o666}, "block special file 7:9 666 0:0"),
    "p": ({"type": "p", "fileMode": 0o620}, "fifo 0:0 620 0:0"),
}  # fmt: skip


@pytest.mark.sweep(6)
@must("config-linux.md: Devices")
@pytest.mark.parametrize("path", ["/dev/x", "/dev/deep/er/x", "/run/x"])
@pytest.mark.parametrize("kind", DEVICES)
def test_config_linux_devices(runtime: Runtime, bundle: MakeBundle, kind: str, path: str) -> None:
    """`devices` MUST be available in the container, with type, numbers, mode and owner, also outside of /dev"""
    fields, said = DEVICES[kind]
    b = bundle().args("stat", "-c", "%F %t:%T %a %u:%g", path).mount("/run", "tmpfs", "mode=755", kind="tmpfs")
    b.linux["devices"] = [{"path": path, **fields}]
    assert runtime.output(b) == f"{said}\n"


@pytest.mark.not_on("crun", reason="takes it")
@pytest.mark.not_on("runc", reason="takes it")
@must("config-linux.md: Devices")
@pytest.mark.parametrize("there", ["a file", "a directory", "another device", "another type"])
def test_config_linux_devices_another_file_is_there(runtime: Runtime, bundle: MakeBundle, leaks: Leaks, there: str) -> None:
    """if a file already exists at `path` that does not match the requested device, MUST generate an error"""
    b = bundle()
    path = b.rootfs / "var/x"
    if there == "a file":
        path.write_text("kept")
    elif there == "a directory":
        path.mkdir()
    else:
        os.mknod(path, 0o600 | (0o020000 if there == "another device" else 0o060000), os.makedev(1, 7))
    b.linux["devices"] = [{"path": "/var/x", "type": "c", "major": 1, "minor": 3 if there == "another device" else 7}]
    refused(runtime, b)


@must("config-linux.md: Default Devices")
@pytest.mark.parametrize(
    ("name", "numbers"),
    [("null", "1:3"), ("zero", "1:5"), ("full", "1:7"), ("random", "1:8"), ("urandom", "1:9"), ("tty", "5:0")],
)
def test_config_linux_default_devices(runtime: Runtime, bundle: MakeBundle, name: str, numbers: str) -> None:
    """MUST also supply /dev/null, zero, full, random, urandom, tty"""
    out = runtime.output(bundle().args("stat", "-c", "%F %t:%T", f"/dev/{name}"))
    assert out == f"character special file {numbers}\n"


@must("config-linux.md: Default Devices")
def test_config_linux_default_devices_ptmx(runtime: Runtime, bundle: MakeBundle) -> None:
    """/dev/ptmx is a bind mount or symlink of the container's /dev/pts/ptmx"""
    numbers = "stat -L -c %d:%i:%t:%T /dev/ptmx /dev/pts/ptmx"
    first, second = runtime.output(bundle().sh(numbers)).splitlines()
    assert first == second


@must("config-linux.md: Default Devices")
def test_config_linux_default_devices_can_be_used(runtime: Runtime, bundle: MakeBundle) -> None:
    """... and can be used, though all devices are denied"""
    b = bundle().sh("echo x >/dev/null; head -c 3 /dev/zero | wc -c; head -c 4 /dev/urandom | wc -c")
    b.linux["resources"]["devices"] = [{"allow": False, "access": "rwm"}]
    assert runtime.output(b).split() == ["3", "4"]


def rule(allow: bool, access: str = "rwm", **more: Any) -> dict[str, Any]:
    return {"allow": allow, "access": access, **more}


CARD: dict[str, Any] = {"type": "c", "major": 195, "minor": 7}


@must("config-linux.md: Allowed Device list")
@pytest.mark.parametrize(
    ("rules", "granted"),
    [
        ([rule(False)], False),
        ([rule(False), rule(True, **CARD)], True),
        ([rule(False), rule(True, **CARD), rule(False, **CARD)], False),
        ([rule(False), rule(False, **CARD), rule(True, **CARD)], True),
        ([rule(True), rule(False, **CARD)], False),
        ([rule(False), rule(True, **CARD), rule(False)], False),
    ],
)
def test_config_linux_device_rules_in_the_listed_order(
    runtime: Runtime, bundle: MakeBundle, rules: list[dict[str, Any]], granted: bool
) -> None:
    """MUST apply entries in the listed order"""
    b = bundle().sh(": <>/dev/card")
    b.linux["devices"] = [{"path": "/dev/card", **CARD}]
    b.linux["resources"]["devices"] = rules
    err = runtime.run(b).err
    assert ("No such device or address" if granted else "Operation not permitted") in err


@must("config-linux.md: Allowed Device list")
@pytest.mark.parametrize(
    ("access", "how", "granted"), [("r", "<", True), ("r", "<>", False), ("w", "<", False), ("w", ">", True)]
)
def test_config_linux_device_rules_access(
    runtime: Runtime, bundle: MakeBundle, access: str, how: str, granted: bool
) -> None:
    """`access` is composed of r, w and m"""
    b = bundle().sh(f": {how}/dev/card")
    b.linux["devices"] = [{"path": "/dev/card", **CARD}]
    b.linux["resources"]["devices"] = [rule(False), rule(True, access, **CARD)]
    err = runtime.run(b).err
    assert ("No such device or address" if granted else "Operation not permitted") in err


@pytest.mark.not_on("runc 1.1", reason="does not set it again after pivot_root")
@must("config-linux.md: Rootfs Mount Propagation")
@pytest.mark.parametrize("kind", ["shared", "slave", "private", "unbindable"])
def test_config_linux_rootfs_propagation(runtime: Runtime, bundle: MakeBundle, kind: str) -> None:
    """`rootfsPropagation` is shared, slave, private or unbindable"""
    b = bundle().args("cat", "/proc/self/mountinfo")
    b.linux["rootfsPropagation"] = kind
    line = next(x for x in runtime.output(b).splitlines() if x.split()[4] == "/")
    tags = {tag.split(":")[0] for tag in line.split(" - ")[0].split()[6:]}
    if kind in ("shared", "unbindable"):
        assert kind in tags
    else:
        assert not tags & {"shared", "unbindable"}


@must("config-linux.md: Masked Paths")
@pytest.mark.parametrize("path", ["/etc/secret", "/var"])
def test_config_linux_masked_paths(runtime: Runtime, bundle: MakeBundle, path: str) -> None:
    """masks the paths inside the container so that they cannot be read"""
    b = bundle().sh("cat /etc/secret; ls -A /var")
    (b.rootfs / "etc/secret").write_text("secret\n")
    (b.rootfs / "var/secret").write_text("")
    b.linux["maskedPaths"] = [path]
    assert len(runtime.run(b).out.splitlines()) == 1


@must("config-linux.md: Masked Paths")
@pytest.mark.parametrize("name", ["maskedPaths", "readonlyPaths"])
def test_config_linux_paths_that_are_not_there(runtime: Runtime, bundle: MakeBundle, name: str) -> None:
    """a path that the container lacks needs no mask"""
    b = bundle().args("echo", "hi")
    b.linux[name] = ["/proc/no-such-file", "/nonexistent"]
    assert runtime.output(b) == "hi\n"


@pytest.mark.not_on("crun", reason="takes them")
@pytest.mark.not_on("runc", reason="takes them")
@must("config-linux.md: Masked Paths, Readonly Paths")
@pytest.mark.parametrize("name", ["maskedPaths", "readonlyPaths"])
@pytest.mark.parametrize("path", ["etc", "./etc", ""])
def test_config_linux_paths_are_absolute(runtime: Runtime, bundle: MakeBundle, name: str, path: str) -> None:
    """the values MUST be absolute paths in the container namespace"""
    b = bundle()
    b.linux[name] = [path]
    refused(runtime, b)


@must("config-linux.md: Readonly Paths")
@pytest.mark.parametrize("path", ["/etc", "/tmp"])
def test_config_linux_readonly_paths(runtime: Runtime, bundle: MakeBundle, path: str) -> None:
    """sets the paths as read-only inside the container"""
    b = bundle().sh(f"touch {path}/x || ls -d {path}").capabilities("CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE")
    b.linux["readonlyPaths"] = [path]
    result = runtime.run(b)
    assert result.out == f"{path}\n"
    assert "Read-only file system" in result.err


@must("config-linux.md: Sysctl")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("net.ipv4.ip_forward", "1"),
        ("net.ipv4.ping_group_range", "0\t2147483647"),
        ("kernel.msgmax", "9000"),
        ("kernel.shm_rmid_forced", "1"),
    ],
)
def test_config_linux_sysctl(runtime: Runtime, bundle: MakeBundle, name: str, value: str) -> None:
    """`sysctl` modifies kernel parameters at runtime for the container, and for it alone"""
    path = f"/proc/sys/{name.replace('.', '/')}"
    before = Path(path).read_text()
    b = bundle().args("cat", path)
    b.linux["sysctl"] = {name: value}
    assert runtime.output(b) == f"{value}\n"
    assert Path(path).read_text() == before


@pytest.mark.not_on("crun", reason="ignores it")
@must("config-linux.md: Mount Label")
@pytest.mark.skipif(Path("/sys/fs/selinux/enforce").exists(), reason="this machine has SELinux")
def test_config_linux_mount_label_where_there_is_no_selinux(runtime: Runtime, bundle: MakeBundle) -> None:
    """`mountLabel` sets the SELinux context of the mounts: without SELinux that cannot be applied"""
    b = bundle()
    b.linux["mountLabel"] = "system_u:object_r:container_file_t:s0"
    refused(runtime, b)


@must("config-linux.md: Personality")
@pytest.mark.not_on("runc 1.1", reason="does not know the field")
@pytest.mark.parametrize(("domain", "bits"), [("LINUX", "00000000"), ("LINUX32", "00000008")])
def test_config_linux_personality(runtime: Runtime, bundle: MakeBundle, domain: str, bits: str) -> None:
    """`domain` is LINUX or LINUX32"""
    b = bundle().sh("echo up; sleep 1000")
    b.linux["personality"] = {"domain": domain}
    container = runtime.start(b)
    container.wait_for("up")
    assert container.proc("personality").read_text().strip() == bits


@pytest.mark.not_on("runc", reason="takes a closID alone")
@must("config-linux.md: IntelRdt")
@pytest.mark.skipif("resctrl" in Path("/proc/mounts").read_text(), reason="this machine has resctrl mounted")
@pytest.mark.parametrize("fields", [{"closID": "x"}, {"l3CacheSchema": "L3:0=f"}, {"memBwSchema": "MB:0=20"}])
def test_config_linux_intel_rdt_without_resctrl(runtime: Runtime, bundle: MakeBundle, fields: dict[str, str]) -> None:
    """if no mounted resctrl is available, MUST generate an error"""
    b = bundle()
    b.linux["intelRdt"] = fields
    refused(runtime, b)
