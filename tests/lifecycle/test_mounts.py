"""Mounts: kinds, flags, propagation, and mount points that the image lacks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.inject import Injection
from tests.native.leaks import Leaks
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native


def mounted(text: str) -> dict[str, tuple[str, set[str]]]:
    """``/proc/mounts`` as mount point → (type, options); of several on one place the last one, which is the visible one."""
    return {f[1]: (f[2], set(f[3].split(","))) for f in (line.split() for line in text.splitlines())}


@pytest.fixture
def source(runtime: Runtime) -> Path:
    """A directory of the host with a file in it."""
    directory = runtime.directory / "source"
    (directory / "deep").mkdir(parents=True)
    (directory / "file").write_text("content\n")
    return directory


def test_default_mounts(runtime: Runtime, bundle: MakeBundle) -> None:
    found = mounted(runtime.output(bundle().args("cat", "/proc/mounts")))
    assert found["/proc"][0] == "proc"
    assert found["/dev"][0] == "tmpfs" and {"rw", "nosuid", "size=65536k", "mode=755"} <= found["/dev"][1]
    assert found["/dev/pts"][0] == "devpts" and {"gid=5", "mode=620", "ptmxmode=666", "noexec"} <= found["/dev/pts"][1]
    assert found["/dev/shm"][0] == "tmpfs" and {"nosuid", "nodev", "noexec"} <= found["/dev/shm"][1]
    assert found["/dev/mqueue"][0] == "mqueue"
    assert found["/sys"][0] == "sysfs" and {"ro", "nosuid", "nodev", "noexec"} <= found["/sys"][1]


def test_nothing_of_the_hosts_tree_remains(runtime: Runtime, bundle: MakeBundle) -> None:
    out = runtime.output(bundle().sh("cat /proc/self/mountinfo; ls /"))
    info = [line.split() for line in out.splitlines() if " - " in line]
    roots = [f for f in info if f[4] == "/"]
    assert len(roots) == 1, "the old root is still below the new one"
    assert not [f for f in info if not f[4].startswith(("/proc", "/dev", "/sys")) and f[4] != "/"]


@pytest.mark.parametrize("options", [["bind"], ["rbind"], ["bind", "rw"], ["rbind", "rprivate"]])
def test_bind(runtime: Runtime, bundle: MakeBundle, source: Path, options: list[str]) -> None:
    b = bundle().sh("cat /tmp/file && echo new >/tmp/made").mount("/tmp", str(source), *options)
    assert runtime.output(b) == "content\n"
    assert (source / "made").read_text() == "new\n"


@pytest.mark.parametrize("options", [["bind", "ro"], ["rbind", "ro"], ["ro", "bind", "nosuid"]])
def test_bind_read_only(runtime: Runtime, bundle: MakeBundle, source: Path, options: list[str]) -> None:
    b = bundle().sh("cat /tmp/file; echo new >/tmp/made").mount("/tmp", str(source), *options)
    result = runtime.run(b)
    assert result.rc != 0
    assert result.out == "content\n"
    assert "Read-only file system" in result.err
    assert not (source / "made").exists()
    (source / "still-writable-here").touch()


@pytest.mark.parametrize("flag", ["nosuid", "nodev", "noexec", "noatime", "nodiratime", "ro", "strictatime"])
def test_bind_with_flag(runtime: Runtime, bundle: MakeBundle, source: Path, flag: str) -> None:
    b = bundle().args("cat", "/proc/mounts").mount("/tmp", str(source), "bind", flag)
    options = mounted(runtime.output(b))["/tmp"][1]
    if flag == "strictatime":
        assert not {"relatime", "noatime"} & options
    else:
        assert flag in options


def test_bind_of_a_file(runtime: Runtime, bundle: MakeBundle, source: Path) -> None:
    b = bundle().args("cat", "/etc/group").mount("/etc/group", str(source / "file"), "bind", "ro")
    assert runtime.output(b) == "content\n"


def test_type_is_ignored_with_bind(runtime: Runtime, bundle: MakeBundle, source: Path) -> None:
    b = bundle().args("cat", "/tmp/file").mount("/tmp", str(source), "rbind", kind="none")
    assert runtime.output(b) == "content\n"


def test_missing_source(runtime: Runtime, bundle: MakeBundle) -> None:
    text = runtime.refused(bundle().mount("/tmp", "/nonexistent/source", "bind"))
    assert "/nonexistent/source" in text
    assert "no such file or directory" in text


@pytest.mark.parametrize(("name", "target"), [("deep", "/new/dir"), ("file", "/new/sub/file")])
def test_missing_target_is_made(
    runtime: Runtime, bundle: MakeBundle, source: Path, leaks: Leaks, name: str, target: str
) -> None:
    leaks.allow_rootfs_changes()
    b = bundle().sh(f"[ -e {target} ] && stat -c %F {target}").mount(target, str(source / name), "bind")
    assert runtime.output(b) == ("directory\n" if name == "deep" else "regular file\n")
    assert (b.rootfs / "new").stat().st_mode & 0o777 == 0o755


def test_rbind_takes_submounts_along_and_bind_does_not(runtime: Runtime, bundle: MakeBundle) -> None:
    below = {
        point for line in Path("/proc/mounts").read_text().splitlines() if (point := line.split()[1]).startswith("/dev/")
    }
    assert below
    for option, found in (("rbind", below), ("bind", set())):
        b = bundle().args("cat", "/proc/mounts").mount("/tmp", "/dev", option)
        assert {point for point in mounted(runtime.output(b)) if point.startswith("/tmp/")} == {
            f"/tmp{p[4:]}" for p in found
        }


def test_source_may_be_an_earlier_mount_of_the_list(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle()
    b.mount("/tmp", "tmpfs", kind="tmpfs")
    b.mount("/var", str(b.rootfs / "tmp"), "bind").sh("touch /tmp/x && ls /var")
    assert runtime.output(b) == "x\n"


@pytest.mark.parametrize("user_namespace", [False, True])
def test_destinations_as_the_host_sees_them(
    runtime: Runtime, bundle: MakeBundle, source: Path, user_namespace: bool
) -> None:
    """Some callers put the path of the rootfs before them; runc takes it away.  What is mounted there is a source, too."""
    b = bundle().user_namespace() if user_namespace else bundle()
    b.mount("/tmp", str(source), "rbind").mount(f"{b.rootfs}/tmp/deep", str(source), "rbind")
    b.mount(f"{b.rootfs}/var", f"{b.rootfs}/tmp", "rbind").args("cat", "/var/deep/file")
    assert runtime.output(b) == "content\n"
    b.mount(f"{b.rootfs}/proc/self", str(source), "bind")
    assert "cannot be mounted because it is inside /proc" in runtime.refused(b)


@pytest.mark.parametrize(
    ("options", "expected"),
    [(["size=1m", "mode=700"], {"rw", "size=1024k", "mode=700"}), (["nosuid", "nodev", "noexec", "ro"], {"ro", "noexec"})],
)
def test_tmpfs(runtime: Runtime, bundle: MakeBundle, options: list[str], expected: set[str]) -> None:
    b = bundle().args("cat", "/proc/mounts").mount("/run", "tmpfs", *options, kind="tmpfs")
    kind, found = mounted(runtime.output(b))["/run"]
    assert kind == "tmpfs"
    assert expected <= found


def test_tmpfs_keeps_the_mode_of_what_it_covers(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().args("stat", "-c", "%a", "/tmp", "/run")
    (b.rootfs / "run").chmod(0o711)
    b.mount("/tmp", "tmpfs", kind="tmpfs").mount("/run", "tmpfs", kind="tmpfs")
    assert runtime.output(b).split() == ["1777", "711"]


@pytest.mark.not_on("runc 1.1", reason="gives it the mode of the mount point that it has made")
def test_tmpfs_where_nothing_was_has_the_kernels_mode(runtime: Runtime, bundle: MakeBundle, leaks: Leaks) -> None:
    """The mode is that of a new tmpfs, and not that of the directories which were made to mount it."""
    leaks.allow_rootfs_changes()
    b = bundle().sh("stat -c %a /new/place; cat /proc/self/mounts").mount("/new/place", "tmpfs", kind="tmpfs")
    mode, *mounts = runtime.output(b).splitlines()
    assert mode == "1777"
    (line,) = [line for line in mounts if line.split()[1] == "/new/place"]
    assert "mode=" not in line
    assert {oct((b.rootfs / name).stat().st_mode)[-4:] for name in ("new", "new/place")} == {"0755"}


def test_tmpcopyup(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh("cat /etc/hello; rm /etc/hello; ls /etc").mount("/etc", "tmpfs", "tmpcopyup", kind="tmpfs")
    (b.rootfs / "etc/hello").write_text("copied\n")
    assert runtime.output(b).split() == ["copied", "group", "passwd"]
    assert (b.rootfs / "etc/hello").exists()


LINK_COPIES = pytest.mark.not_on("runc", reason="has no copy-symlink: it is crun's, and Podman's no-dereference")


@LINK_COPIES
@pytest.mark.parametrize("user_namespace", [False, True])
@pytest.mark.parametrize("text", ["/bin/echo", "nowhere at all", "file"])
def test_copy_symlink(
    runtime: Runtime, bundle: MakeBundle, source: Path, leaks: Leaks, text: str, user_namespace: bool
) -> None:
    """The link itself is made in the container, wherever it leads there (crun.1 "copy-symlink mount options")."""
    leaks.allow_rootfs_changes()
    (source / "link").symlink_to(text)
    source.chmod(0o700)  # which the root of a user namespace cannot enter
    b = bundle().sh("readlink /new/place/link; readlink /etc/link")
    if user_namespace:
        b.user_namespace()
    b.mount("/new/place/link", str(source / "link"), "rbind", "copy-symlink", "ro", "rprivate")
    b.mount("/etc/link", str(source / "link"), "bind", "copy-symlink")
    assert runtime.output(b) == f"{text}\n" * 2
    assert runtime.output(b) == f"{text}\n" * 2, "it is there already, as it should be"
    assert os.readlink(b.rootfs / "new/place/link") == text


@LINK_COPIES
def test_copy_symlink_of_what_is_none(runtime: Runtime, bundle: MakeBundle, source: Path) -> None:
    b = bundle().args("cat", "/tmp/file").mount("/tmp", str(source), "rbind", "copy-symlink", "ro")
    assert runtime.output(b) == "content\n"


@LINK_COPIES
def test_copy_symlink_over_something_else(runtime: Runtime, bundle: MakeBundle, source: Path) -> None:
    (source / "link").symlink_to("/bin/echo")
    for name in ("passwd", "other"):
        b = bundle().mount(f"/etc/{name}", str(source / "link"), "rbind", "copy-symlink")
        (b.rootfs / "etc/other").symlink_to("/bin/cat")
        text = runtime.refused(b)
        assert f'mounts[6]: error mounting "{source}/link" to rootfs at "/etc/{name}"' in text
        assert "file exists" in text


@LINK_COPIES
def test_copy_symlink_never_leaves_the_rootfs(runtime: Runtime, bundle: MakeBundle, source: Path, leaks: Leaks) -> None:
    leaks.allow_rootfs_changes()
    (source / "link").symlink_to("/bin/echo")
    outside = runtime.directory / "outside"
    outside.mkdir()
    b = bundle().args("true").mount("/etc/out/link", str(source / "link"), "rbind", "copy-symlink")
    (b.rootfs / "etc/out").symlink_to(outside)
    runtime.run(b)
    assert not list(outside.iterdir())


@pytest.mark.not_on("runc", reason="refuses it, as the kernel does")
@pytest.mark.parametrize("network", [None, "joined"])
@pytest.mark.parametrize("cgroup", [False, True])
def test_sysfs_where_the_network_is_anothers(
    runtime: Runtime, bundle: MakeBundle, network: str | None, cgroup: bool
) -> None:
    """A user namespace that does not own its network namespace may mount no sysfs: /sys is the host's, read-only."""
    b = bundle().user_namespace().capabilities("CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE")
    b.without_namespace("network")
    if network:
        b.namespace("network", "/proc/self/ns/net")
    if cgroup:
        b.mount("/sys/fs/cgroup", "cgroup", "nosuid", "noexec", "nodev", "rw", kind="cgroup")
    b.sh(
        "grep ' /sys' /proc/self/mountinfo; ls /sys/class/net;"
        "mkdir /sys/fs/cgroup/x || echo refused; ls /sys/firmware | wc -l"
    )
    out = runtime.output(b).splitlines()
    mounts = {line.split()[4]: line for line in out if " - " in line}
    assert " - sysfs " in mounts["/sys"]
    assert {"ro", "nosuid", "nodev", "noexec"} <= set(mounts["/sys"].split()[5].split(","))
    assert not [line for line in mounts.values() if "shared:" in line or "master:" in line]
    assert set(out) >= set(os.listdir("/sys/class/net"))
    assert ("refused" in out) is not cgroup
    assert out[-1] == "0", "the masked paths are masked"
    if not cgroup:
        below = [line for path, line in mounts.items() if path.startswith("/sys/fs/cgroup")]
        assert below and all("ro" in line.split()[5].split(",") for line in below)


@pytest.mark.gpurun_only
@pytest.mark.parametrize(
    "refused",
    [
        "by the kernel",
        # What stands in for it is a process of its own for each file system, and strace counts calls in each process.
        pytest.param("by an error", marks=pytest.mark.takes("fsconfig", "there is no such call to answer with an error")),
    ],
)
def test_what_is_mounted_below_the_hosts_sysfs_has_the_options_of_sys(
    runtime: Runtime, bundle: MakeBundle, tmp_path: Path, refused: str
) -> None:
    """The host's mounts below /sys come with it: none of them has fewer restrictions than was asked for /sys."""
    b = bundle().sh("grep ' /sys' /proc/self/mountinfo").mount("/sys/fs/cgroup", "cgroup", "ro", kind="cgroup")
    b.linux["maskedPaths"] = []
    if refused == "by the kernel":
        b.user_namespace().without_namespace("network")
        result = runtime.run(b)
    else:  # of the file systems that are made each one in its turn, until it is that of /sys
        for number in range(2, 40):  # the first asks whether a filter refuses the call
            injection = Injection(tmp_path / "log", "fsconfig", "EPERM", str(number))
            with injection as tracer:
                result = runtime.run(b, tracer=tracer)
            if result.rc == 0 or not injection.injected:
                break
        assert injection.injected, "no sysfs was refused"
    assert result.rc == 0, result
    below = [line.split() for line in result.out.splitlines() if line.split()[4].startswith("/sys")]
    own = below.pop()  # the container's own cgroup mount comes last, with what was asked for it
    assert own[4] == "/sys/fs/cgroup" and len(below) > 1, result
    for line in below:
        assert {"ro", "nosuid", "nodev", "noexec"} <= set(line[5].split(",")), line


@pytest.mark.gpurun_only
def test_a_writable_sysfs_is_never_the_hosts(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().user_namespace().without_namespace("network")
    mount = next(m for m in b.config["mounts"] if m["destination"] == "/sys")
    mount["options"].remove("ro")
    text = runtime.refused(b)
    assert 'error mounting "sysfs" to rootfs at "/sys": operation not permitted' in text


@pytest.mark.parametrize("kind", ["private", "slave", "shared", "unbindable"])
def test_propagation_of_a_mount(runtime: Runtime, bundle: MakeBundle, source: Path, kind: str) -> None:
    b = bundle().args("cat", "/proc/self/mountinfo").mount("/tmp", str(source), "bind", f"r{kind}")
    line = next(x for x in runtime.output(b).splitlines() if x.split()[4] == "/tmp")
    tags = {t.split(":")[0] for t in line.split(" - ")[0].split()[6:]}
    # On a host whose own mounts are shared (systemd's are), a slave has a master, and so has what is shared anew.
    allowed = {"private": set(), "slave": {"master"}, "shared": {"shared", "master"}, "unbindable": {"unbindable"}}[kind]
    assert tags <= allowed
    assert kind not in ("shared", "unbindable") or kind in tags


OLD_RUNC = pytest.mark.not_on("runc 1.1", reason="does not set it again after pivot_root")


@pytest.mark.parametrize(
    "kind",
    [
        "private",
        "slave",
        "rprivate",
        "rslave",
        *(pytest.param(k, marks=OLD_RUNC) for k in ("shared", "rshared", "unbindable")),
    ],
)
def test_propagation_of_the_root(runtime: Runtime, bundle: MakeBundle, kind: str) -> None:
    b = bundle().args("cat", "/proc/self/mountinfo")
    b.linux["rootfsPropagation"] = kind
    line = next(x for x in runtime.output(b).splitlines() if x.split()[4] == "/")
    tags = {t.split(":")[0] for t in line.split(" - ")[0].split()[6:]}
    wanted = kind.removeprefix("r")
    if wanted in ("shared", "unbindable"):
        assert wanted in tags
    else:
        assert "shared" not in tags


def test_unknown_propagation(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle()
    b.linux["rootfsPropagation"] = "everywhere"
    assert "rootfsPropagation" in runtime.refused(b)


def test_cgroup_mount_shows_the_containers_own_cgroup(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh("cat /proc/mounts; cat /sys/fs/cgroup/cgroup.procs; cat /proc/self/cgroup")
    b.mount("/sys/fs/cgroup", "cgroup", "nosuid", "noexec", "nodev", "relatime", "ro", kind="cgroup")
    lines = runtime.output(b).splitlines()
    mount = next(x for x in lines if " /sys/fs/cgroup " in x).split()
    assert mount[2] == "cgroup2" and "ro" in mount[3].split(",")
    assert "1" in lines, "process 1 is not in the cgroup that the container sees"
    assert "0::/" in lines


def test_the_source_of_the_cgroup_mount_is_the_configs(runtime: Runtime, bundle: MakeBundle) -> None:
    """Programs look for it in /proc/mounts; what the host has mounted its own tree from is not the container's."""
    for user in (False, True):
        b = bundle().args("grep", " /sys/fs/cgroup ", "/proc/self/mountinfo")
        b.mount("/sys/fs/cgroup", "cgroup", "nosuid", "noexec", "nodev", "relatime", "ro", kind="cgroup")
        if user:
            b.user_namespace()
        line = runtime.output(b).split()
        assert line[3] == "/"
        assert line[line.index("-") + 1 :][:2] == ["cgroup2", "cgroup"]
        assert {"ro", "nosuid", "nodev", "noexec"} <= set(line[5].split(","))


def test_recursive_read_only(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().args("cat", "/proc/mounts").mount("/tmp", "/dev", "rbind", "rro")
    found = {k: v[1] for k, v in mounted(runtime.output(b)).items() if k == "/tmp" or k.startswith("/tmp/")}
    assert len(found) > 1
    assert all("ro" in options for options in found.values())


@pytest.mark.parametrize("target", ["/proc/1", "/proc/self", "/proc/sys/kernel"])
def test_mounts_below_proc_are_refused(runtime: Runtime, bundle: MakeBundle, source: Path, target: str) -> None:
    assert "/proc" in runtime.refused(bundle().mount(target, str(source), "bind"))


@pytest.mark.not_on("runc 1.1", reason="drops it silently")
def test_bind_takes_no_data(runtime: Runtime, bundle: MakeBundle, source: Path) -> None:
    runtime.refused(bundle().mount("/tmp", str(source), "bind", "size=5k"))
