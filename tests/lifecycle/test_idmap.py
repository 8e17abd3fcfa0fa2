"""Mounts and user namespaces: mapped ids, what the host has locked, joined namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native

OLD = pytest.mark.not_on("runc 1.1", reason="has no id-mapped mounts")
MAPPED = pytest.mark.takes("mount_setattr", "there are no id-mapped mounts")
STAT = "stat -c '%u:%g' "


@pytest.fixture
def source(runtime: Runtime) -> Path:
    """A directory with a file of 1000:1001."""
    made = runtime.directory / "given"
    made.mkdir()
    (made / "file").write_text("given\n")
    os.chown(made / "file", 1000, 1001)
    return made


def mapping(inside: int, outside: int, size: int = 65536) -> list[dict[str, int]]:
    return [{"containerID": inside, "hostID": outside, "size": size}]


def mapped(bundle: Bundle, source: Path, *options: str, uid: Any = None, gid: Any = None) -> Bundle:
    bundle.mount("/tmp", str(source), *(options or ("bind",)))
    if uid is not None:
        bundle.config["mounts"][-1] |= {"uidMappings": uid, "gidMappings": gid}
    return bundle


@MAPPED
@OLD
def test_own_maps_without_a_user_namespace(runtime: Runtime, bundle: MakeBundle, source: Path) -> None:
    b = bundle().capabilities("CAP_DAC_OVERRIDE").sh(STAT + "/tmp/file; touch /tmp/made")
    mapped(b, source, uid=mapping(0, 100000), gid=mapping(0, 200000))
    b.process["user"] = {"uid": 100007, "gid": 200008}
    source.chmod(0o777)
    assert runtime.output(b) == "101000:201001\n"
    found = os.stat(source / "made")
    assert (found.st_uid, found.st_gid) == (7, 8)


@MAPPED
@OLD
@pytest.mark.parametrize("option", ["idmap", "ridmap"])
def test_map_of_the_containers_user_namespace(runtime: Runtime, bundle: MakeBundle, source: Path, option: str) -> None:
    b = mapped(bundle().user_namespace().sh(STAT + "/tmp/file"), source, "rbind", option)
    assert runtime.output(b) == "1000:1001\n"


@OLD
def test_without_the_option_ids_stay(runtime: Runtime, bundle: MakeBundle, source: Path) -> None:
    assert runtime.output(mapped(bundle().user_namespace().sh(STAT + "/tmp/file"), source)) == "65534:65534\n"


@MAPPED
@OLD
def test_one_source_with_two_maps(runtime: Runtime, bundle: MakeBundle, source: Path) -> None:
    b = bundle().user_namespace().sh(STAT + "/tmp/file; " + STAT + "/var/file")
    mapped(b, source, "rbind", uid=mapping(0, 100000), gid=mapping(0, 100000))
    b.mount("/var", str(source), "rbind")
    b.config["mounts"][-1] |= {"uidMappings": mapping(0, 101000), "gidMappings": mapping(0, 102000)}
    assert runtime.output(b).split() == ["1000:1001", "2000:3001"]


@MAPPED
@OLD
@pytest.mark.parametrize("user_namespace", [False, True])
def test_a_source_that_an_earlier_mount_has_made(
    runtime: Runtime, bundle: MakeBundle, source: Path, user_namespace: bool
) -> None:
    """What the config's first mount brings into the rootfs is the source of the second, whose ids are mapped."""
    b = bundle().user_namespace() if user_namespace else bundle()
    b = mapped(b.sh(STAT + "/var/file"), source, "rbind")
    b.mount("/var", f"{b.rootfs}/tmp", "rbind")
    b.config["mounts"][-1] |= {"uidMappings": mapping(0, 100000), "gidMappings": mapping(0, 100000)}
    assert runtime.output(b) == ("1000:1001\n" if user_namespace else "101000:101001\n")


@OLD
@pytest.mark.gpurun_only
def test_a_late_source_that_is_not_there(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().user_namespace()
    b.mount("/var", f"{b.rootfs}/nothing", "rbind")
    said = f'mounts[6]: error mounting "{b.rootfs}/nothing" to rootfs at "/var": no such file or directory'
    assert said in runtime.refused(b)


@MAPPED
@OLD
def test_map_of_a_joined_user_namespace(runtime: Runtime, bundle: MakeBundle, source: Path) -> None:
    first = runtime.create(bundle().user_namespace())
    b = bundle().user_namespace().namespace("user", f"/proc/{first.pid}/ns/user").sh(STAT + "/tmp/file")
    b.without_namespace("network")
    b.namespace("network", f"/proc/{first.pid}/ns/net")
    mapped(b, source, "rbind", "idmap")
    assert runtime.output(b) == "1000:1001\n"


RUNC_LACKS = pytest.mark.not_on("runc", reason="has no such options: they are crun's, and Podman documents them")


@MAPPED
@RUNC_LACKS
@pytest.mark.parametrize(
    ("option", "seen"),
    [
        ("idmap=uids=0-100000-65536;gids=0-200000-65536", "101000:201001"),
        ("idmap=gids=1001-7-1;uids=1000-9-1", "9:7"),
        ("idmap=uids=0-5-1#1000-70-10;gids=0-5-1#1000-80-10#2000-0-5", "70:81"),
    ],
)
def test_maps_among_the_options(runtime: Runtime, bundle: MakeBundle, source: Path, option: str, seen: str) -> None:
    """`podman run -v a:/b:idmap=uids=0-1-10#10-11-10;gids=0-100-10` (crun.1 "idmap mount options")."""
    assert runtime.output(mapped(bundle().sh(STAT + "/tmp/file"), source, "rbind", option)) == f"{seen}\n"


@MAPPED
@RUNC_LACKS
@pytest.mark.parametrize(
    ("option", "seen"),
    [
        ("idmap=uids=1000-100005-1;gids=1001-100006-1", "5:6"),  # as the host has them
        ("idmap=uids=@1000-5-1;gids=@1001-6-1", "5:6"),  # as the container has them
        ("idmap=uids=@0-0-1#1000-100007-1;gids=@1000-65534-2", "7:65535"),
    ],
)
def test_maps_relative_to_the_containers(runtime: Runtime, bundle: MakeBundle, source: Path, option: str, seen: str) -> None:
    assert runtime.output(mapped(bundle().user_namespace().sh(STAT + "/tmp/file"), source, "rbind", option)) == f"{seen}\n"


@MAPPED
@RUNC_LACKS
def test_a_relative_map_over_several_ranges(runtime: Runtime, bundle: MakeBundle, source: Path) -> None:
    b = bundle().user_namespace().sh(STAT + "/tmp/file")
    b.linux["uidMappings"] = b.linux["gidMappings"] = [*mapping(0, 100000, 1000), *mapping(1000, 200000, 1000)]
    mapped(b, source, "rbind", "idmap=uids=@0-0-2000;gids=@0-0-2000")
    assert runtime.output(b) == "1000:1001\n"


@MAPPED
@RUNC_LACKS
@pytest.mark.parametrize(("option", "below"), [("idmap", "0:0"), ("ridmap", "100000:100000")])
def test_only_ridmap_maps_what_is_below_with_maps_among_the_options(
    runtime: Runtime, bundle: MakeBundle, source: Path, in_bed: Callable[..., None], option: str, below: str
) -> None:
    (source / "below").mkdir()
    in_bed("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(source / "below"))
    try:
        b = bundle().sh(STAT + "/tmp/file /tmp/below")
        mapped(b, source, "rbind", f"{option}=uids=0-100000-65536;gids=0-100000-65536")
        assert runtime.output(b).split() == ["101000:101001", below]
    finally:
        in_bed("umount", str(source / "below"))


@MAPPED
@RUNC_LACKS
def test_mappings_of_the_mount_go_before_those_of_an_option(runtime: Runtime, bundle: MakeBundle, source: Path) -> None:
    b = bundle().sh(STAT + "/tmp/file")
    mapped(b, source, "rbind", "idmap=uids=0-1-70000;gids=0-1-70000", uid=mapping(0, 100000), gid=mapping(0, 200000))
    assert runtime.output(b) == "101000:201001\n"


@MAPPED
@OLD
@pytest.mark.parametrize(("option", "below"), [("idmap", "0:0"), ("ridmap", "100000:100000")])
def test_only_ridmap_maps_what_is_mounted_below(
    runtime: Runtime, bundle: MakeBundle, source: Path, in_bed: Callable[..., None], option: str, below: str
) -> None:
    (source / "below").mkdir()
    in_bed("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(source / "below"))
    try:
        b = bundle().sh(STAT + "/tmp/file /tmp/below")
        mapped(b, source, "rbind", option, uid=mapping(0, 100000), gid=mapping(0, 100000))
        assert runtime.output(b).split() == ["101000:101001", below]
    finally:
        in_bed("umount", str(source / "below"))


@pytest.mark.gpurun_only
def test_file_system_that_has_no_mapped_mounts(runtime: Runtime, bundle: MakeBundle) -> None:
    b = mapped(bundle(), Path("/proc/sys"), "bind", uid=mapping(0, 1), gid=mapping(0, 1))
    assert 'cannot map the ids of "/proc/sys"' in runtime.refused(b)


LOCKED = {"ro": "rw", "nosuid": "suid", "nodev": "dev", "noexec": "exec"}


@pytest.mark.parametrize(("flag", "opposite"), LOCKED.items())
def test_what_the_host_has_locked(
    runtime: Runtime, bundle: MakeBundle, source: Path, in_bed: Callable[..., None], flag: str, opposite: str
) -> None:
    """Root in a user namespace cannot lift what the host has put on the mount that it was given a part of."""
    in_bed("mount", "-t", "tmpfs", "-o", f"mode=777,{flag}", "tmpfs", str(source))
    try:
        b = bundle().user_namespace().capabilities("CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE")
        b.sh(f"mount -o remount,bind,{opposite} /tmp; echo $?; grep ' /tmp ' /proc/mounts")
        mapped(b, source, "rbind")
        out = runtime.output(b).splitlines()
        assert out[0] != "0"
        assert flag in out[1].split()[3].split(",")
    finally:
        in_bed("umount", str(source))


def test_locked_flags_of_the_rootfs(runtime: Runtime, bundle: MakeBundle, in_bed: Callable[..., None]) -> None:
    b = bundle().user_namespace().capabilities("CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE")
    b.sh("mount -o remount,bind,suid / || echo refused")
    in_bed("mount", "--bind", str(b.rootfs), str(b.rootfs))
    in_bed("mount", "-o", "remount,bind,nosuid", str(b.rootfs))
    try:
        assert runtime.output(b) == "refused\n"
    finally:
        in_bed("umount", str(b.rootfs))


@pytest.mark.not_on("runc 1.1", reason="knows nothing of locked flags")
def test_own_flags_on_a_locked_mount(
    runtime: Runtime, bundle: MakeBundle, source: Path, in_bed: Callable[..., None]
) -> None:
    """What the config adds is added; what the host has locked and the config does not name stays."""
    in_bed("mount", "-t", "tmpfs", "-o", "mode=777,nosuid,nodev", "tmpfs", str(source))
    try:
        b = mapped(bundle().user_namespace().sh("grep ' /tmp ' /proc/mounts"), source, "rbind", "ro")
        words = runtime.output(b).split()[3].split(",")
        assert {"ro", "nosuid", "nodev"} <= set(words)
    finally:
        in_bed("umount", str(source))


@pytest.mark.not_on("runc 1.1", reason="knows nothing of locked flags")
def test_clearing_a_locked_flag_is_refused(
    runtime: Runtime, bundle: MakeBundle, source: Path, in_bed: Callable[..., None]
) -> None:
    in_bed("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(source))
    try:
        text = runtime.refused(mapped(bundle().user_namespace(), source, "rbind", "rw"))
        assert "operation not permitted" in text
    finally:
        in_bed("umount", str(source))


def test_the_option_remount(runtime: Runtime, bundle: MakeBundle, leaks: Leaks) -> None:
    b = bundle().sh("grep -E ' /(tmp|dev/shm) ' /proc/mounts")
    b.mount("/tmp", "tmpfs", "size=64k", kind="tmpfs").mount("/tmp", "", "bind", "remount", "ro", "noexec")
    b.mount("/dev/shm", "", "remount", "nosuid", "size=128k", kind="tmpfs")
    lines = {line.split()[1]: line.split()[3].split(",") for line in runtime.output(b).splitlines()}
    assert {"ro", "noexec", "size=64k"} <= set(lines["/tmp"])
    assert "size=128k" in lines["/dev/shm"]
    assert "nodev" not in lines["/dev/shm"]


def test_remount_of_what_is_no_mount(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().mount("/tmp", "", "bind", "remount", "ro")
    assert "/tmp" in runtime.refused(b)


@pytest.mark.not_on("runc 1.1", reason="believes the config")
def test_maps_that_differ_from_the_joined_namespace(runtime: Runtime, bundle: MakeBundle) -> None:
    first = runtime.create(bundle().user_namespace(100000))
    b = bundle().user_namespace(200000).namespace("user", f"/proc/{first.pid}/ns/user")
    runtime.refused(b)


@pytest.mark.gpurun_only
def test_text_for_maps_that_differ(runtime: Runtime, bundle: MakeBundle) -> None:
    first = runtime.create(bundle().user_namespace(100000))
    b = bundle().user_namespace(200000).namespace("user", f"/proc/{first.pid}/ns/user")
    text = runtime.refused(b)
    assert "linux.uidMappings: differs from the map of the joined user namespace (0 100000 65536): give the same" in text


def test_joined_user_namespace_with_a_source_out_of_reach(runtime: Runtime, bundle: MakeBundle, source: Path) -> None:
    hidden = runtime.directory / "hidden"
    hidden.mkdir(mode=0o700)
    shutil.move(source, hidden / "given")
    first = runtime.create(bundle().user_namespace())
    b = bundle().user_namespace().namespace("user", f"/proc/{first.pid}/ns/user").args("cat", "/tmp/file")
    assert runtime.output(mapped(b, hidden / "given")) == "given\n"


@pytest.mark.parametrize("recursive", ["rro", "rnosuid", "rnoexec", "rnodev"])
@pytest.mark.not_on("runc 1.0", reason="has no recursive attributes")
def test_recursive_attributes(
    runtime: Runtime, bundle: MakeBundle, source: Path, in_bed: Callable[..., None], recursive: str
) -> None:
    (source / "below").mkdir()
    in_bed("mount", "-t", "tmpfs", "tmpfs", str(source / "below"))
    try:
        b = mapped(bundle().sh("grep ' /tmp' /proc/mounts"), source, "rbind", recursive)
        lines = runtime.output(b).splitlines()
        assert [line.split()[1] for line in lines] == ["/tmp", "/tmp/below"]
        assert all(recursive[1:] in line.split()[3].split(",") for line in lines)
    finally:
        in_bed("umount", str(source / "below"))


def test_recursive_attribute_that_is_locked(
    runtime: Runtime, bundle: MakeBundle, source: Path, in_bed: Callable[..., None]
) -> None:
    in_bed("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(source))
    try:
        runtime.refused(mapped(bundle().user_namespace(), source, "rbind", "rrw"))
    finally:
        in_bed("umount", str(source))


def test_joined_mount_namespace(
    runtime: Runtime, bundle: MakeBundle, source: Path, in_bed: Callable[..., None], leaks: Leaks
) -> None:
    """What the joined namespace shows is what the config's sources mean; the joined namespace keeps its own root."""
    holder = subprocess.Popen(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", f"mount -t tmpfs none {source}; echo up; read -r _"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=runtime.bed.enter(),
    )
    assert holder.stdout is not None and holder.stdout.readline() == "up\n"
    Path(f"/proc/{holder.pid}/root{source}/only-there").write_text("seen\n")
    try:
        b = bundle().namespace("mount", f"/proc/{holder.pid}/ns/mnt").args("cat", "/tmp/only-there")
        assert runtime.output(mapped(b, source)) == "seen\n"
    finally:
        holder.communicate("\n", timeout=10)


def test_joined_mount_namespace_of_a_user_namespace(runtime: Runtime, bundle: MakeBundle, source: Path) -> None:
    """As another container's: its root is the other's rootfs, in which our bundle is not."""
    first = runtime.create(bundle().user_namespace())
    b = bundle().user_namespace().namespace("user", f"/proc/{first.pid}/ns/user")
    b.namespace("mount", f"/proc/{first.pid}/ns/mnt")
    assert "no such file" in runtime.refused(mapped(b, source))
