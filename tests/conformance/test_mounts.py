"""config.md "Mounts"."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conformance.levels import must, should
from tests.conformance.refused import refused
from tests.conftest import MakeBundle
from tests.native.leaks import Leaks
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native

#: config.md "Linux mount options": those that MUST be implemented, without the bind and propagation ones ...
OPTIONS = """
    async atime defaults dev diratime dirsync exec iversion lazytime loud noatime nodev nodiratime noexec noiversion
    nolazytime norelatime nostrictatime nosuid relatime ro rw silent strictatime suid sync
""".split()
#: ... those that are for bind mounts ...
BIND = "bind private rbind rprivate rshared rslave runbindable shared slave unbindable".split()
#: ... and those that SHOULD be.
RECURSIVE = """
    ratime rdev rdiratime rexec rnoatime rnodev rnodiratime rnoexec rnorelatime rnostrictatime rnosuid rnosymfollow
    rrelatime rro rrw rstrictatime rsuid rsymfollow
""".split()
FAULTS = {
    "defaults": pytest.mark.not_on("runc", reason="hands `defaults` to the file system"),
}
#: What /proc/mounts shows of an option of a tmpfs.
SHOWN = "dirsync lazytime noatime nodev nodiratime noexec nosuid ro rw sync nosymfollow relatime".split()


def mounted(text: str, where: str) -> tuple[str, set[str]]:
    """(type, options) of the uppermost mount at *where*."""
    lines = [line.split() for line in text.splitlines()]
    return next((f[2], set(f[3].split(","))) for f in reversed(lines) if f[1] == where)


@pytest.fixture
def source(runtime: Runtime) -> Path:
    directory = runtime.directory / "source"
    directory.mkdir()
    (directory / "file").write_text("content\n")
    return directory


@must("config.md: Mounts")
def test_config_mounts_in_the_listed_order(runtime: Runtime, bundle: MakeBundle, source: Path) -> None:
    """MUST mount entries in the listed order"""
    b = bundle().sh("ls /tmp; cat /proc/mounts").mount("/tmp", str(source), "bind").mount("/tmp", "tmpfs", kind="tmpfs")
    assert "file" not in runtime.output(b).splitlines()
    b.config["mounts"][-2:] = reversed(b.config["mounts"][-2:])
    assert "file" in runtime.output(b).splitlines()


@must("config.md: Mounts")
def test_config_mounts_upon_mounts(runtime: Runtime, bundle: MakeBundle, source: Path) -> None:
    """... so that a mount may lie on one before it"""
    b = bundle().args("cat", "/run/deep/er/file")
    b.mount("/run", "tmpfs", kind="tmpfs").mount("/run/deep/er", str(source), "bind")
    assert runtime.output(b) == "content\n"


@must("config.md: Mounts")
@pytest.mark.parametrize("destination", ["tmp", "./tmp", "etc/../tmp"])
def test_config_mounts_relative_destination(runtime: Runtime, bundle: MakeBundle, source: Path, destination: str) -> None:
    """a relative destination MUST be interpreted as relative to "/\""""
    b = bundle().args("cat", "/tmp/file").mount(destination, str(source), "bind")
    b.process["cwd"] = "/usr"
    assert runtime.output(b) == "content\n"


@must("config.md: Mounts")
def test_config_mounts_relative_source(runtime: Runtime, bundle: MakeBundle) -> None:
    """a relative source of a bind mount is relative to the bundle"""
    b = bundle().args("cat", "/tmp/file").mount("/tmp", "beside", "bind")
    (b.directory / "beside").mkdir()
    (b.directory / "beside/file").write_text("beside\n")
    assert runtime.output(b) == "beside\n"


@pytest.mark.sweep(10)
@pytest.mark.not_on("crun", reason="hands some to the file system, which refuses them")
@must("config.md: Linux mount options")
@pytest.mark.parametrize("option", [pytest.param(o, marks=FAULTS.get(o, ())) for o in OPTIONS])
def test_config_mount_options_that_must_be(runtime: Runtime, bundle: MakeBundle, option: str) -> None:
    """the options of mount(8) that MUST be implemented, on a tmpfs"""
    b = bundle().args("cat", "/proc/mounts").mount("/run", "tmpfs", option, kind="tmpfs")
    kind, options = mounted(runtime.output(b), "/run")
    assert kind == "tmpfs"
    assert (option in options) is (option in SHOWN)
    opposite = {"atime": "noatime", "dev": "nodev", "exec": "noexec", "suid": "nosuid", "rw": "ro", "async": "sync"}
    assert opposite.get(option) not in options


@pytest.mark.not_on("crun", reason="sets no shared and no unbindable")
@must("config.md: Linux mount options")
@pytest.mark.parametrize("option", BIND)
def test_config_mount_options_of_binds(runtime: Runtime, bundle: MakeBundle, source: Path, option: str) -> None:
    """the options of bind mounts and their propagation that MUST be implemented"""
    options = [option] if option in ("bind", "rbind") else ["rbind", option]
    b = bundle().args("cat", "/proc/self/mountinfo", "/tmp/file").mount("/tmp", str(source), *options)
    lines = runtime.output(b).splitlines()
    assert lines[-1] == "content"
    tags = next(line for line in lines if len(line.split()) > 5 and line.split()[4] == "/tmp").split(" - ")[0]
    wanted = option.removeprefix("r")
    assert ("shared:" in tags, "unbindable" in tags) == (wanted == "shared", wanted == "unbindable")


@must("config.md: Linux mount options")
def test_config_mount_options_remount(runtime: Runtime, bundle: MakeBundle) -> None:
    """`remount` MUST be implemented"""
    b = bundle().args("cat", "/proc/mounts")
    b.mount("/run", "tmpfs", kind="tmpfs").mount("/run", "tmpfs", "remount", "ro", kind="tmpfs")
    assert "ro" in mounted(runtime.output(b), "/run")[1]


@must("config.md: Linux mount options")
@pytest.mark.parametrize("option", ["ro", "nosuid", "nodev", "noexec", "noatime"])
def test_config_mount_options_on_a_bind(runtime: Runtime, bundle: MakeBundle, source: Path, option: str) -> None:
    """the options of mount(8), on a bind mount"""
    b = bundle().args("cat", "/proc/mounts").mount("/tmp", str(source), "bind", option)
    assert option in mounted(runtime.output(b), "/tmp")[1]


@pytest.mark.sweep(6)
@pytest.mark.not_on("crun", reason="the kernel refuses some as it sets them; no rnosymfollow")
@pytest.mark.not_on("runc 1.1", reason="knows them not all")
@should("config.md: Linux mount options")
@pytest.mark.parametrize("option", RECURSIVE)
def test_config_mount_options_that_are_recursive(runtime: Runtime, bundle: MakeBundle, source: Path, option: str) -> None:
    """the recursive options (mount_setattr with AT_RECURSIVE)"""
    b = bundle().args("cat", "/proc/mounts").mount("/tmp", str(source), "rbind", option)
    options = mounted(runtime.output(b), "/tmp")[1]
    shown = option.removeprefix("r")
    assert (shown in options) is (shown in SHOWN), options


@pytest.mark.not_on("crun", reason="hands them to the file system")
@pytest.mark.not_on("runc 1.1", reason="does not know them")
@should("config.md: Linux mount options")
@pytest.mark.parametrize("option", ["nosymfollow", "symfollow"])
def test_config_mount_options_symfollow(runtime: Runtime, bundle: MakeBundle, option: str) -> None:
    """`nosymfollow` and `symfollow`"""
    b = bundle().args("cat", "/proc/mounts").mount("/run", "tmpfs", option, kind="tmpfs")
    assert ("nosymfollow" in mounted(runtime.output(b), "/run")[1]) == (option == "nosymfollow")


@should("config.md: Linux mount options")
def test_config_mount_options_unknown_are_the_file_systems(runtime: Runtime, bundle: MakeBundle) -> None:
    """SHOULD treat unknown options as filesystem-specific ones"""
    b = bundle().args("cat", "/proc/mounts").mount("/run", "tmpfs", "size=1m", "nr_inodes=77", kind="tmpfs")
    assert {"size=1024k", "nr_inodes=77"} <= mounted(runtime.output(b), "/run")[1]


@must("config.md: Linux mount options")
def test_config_mount_options_that_nobody_knows(runtime: Runtime, bundle: MakeBundle) -> None:
    """... and a file system that does not know them is an error"""
    refused(runtime, bundle().mount("/run", "tmpfs", "telepathic", kind="tmpfs"))


MAP = [{"containerID": 0, "hostID": 100000, "size": 65536}]


@pytest.mark.not_on("runc 1.1", reason="has no id-mapped mounts")
@pytest.mark.takes("mount_setattr", "there are no id-mapped mounts")
@should("config.md: POSIX-platform Mounts")
@pytest.mark.parametrize("option", ["idmap", "ridmap"])
def test_config_mounts_mappings(runtime: Runtime, bundle: MakeBundle, source: Path, option: str) -> None:
    """`uidMappings` and `gidMappings` map the ids of a mount, with `idmap` or `ridmap`"""
    os.chown(source / "file", 7, 8)
    b = bundle().args("stat", "-c", "%u:%g", "/tmp/file").mount("/tmp", str(source), "rbind", option)
    b.config["mounts"][-1] |= {"uidMappings": MAP, "gidMappings": MAP}
    assert runtime.output(b) == "100007:100008\n"


@pytest.mark.not_on("crun", reason="leaves the cgroup behind")
@pytest.mark.not_on("runc 1.1", reason="has no id-mapped mounts")
@must("config.md: Linux mount options")
@pytest.mark.parametrize("option", ["idmap", "ridmap"])
def test_config_mounts_idmap_without_mappings(runtime: Runtime, bundle: MakeBundle, source: Path, option: str) -> None:
    """without mappings and without a user namespace, an error MUST be returned for `idmap` and `ridmap`"""
    refused(runtime, bundle().mount("/tmp", str(source), "rbind", option))


@pytest.mark.not_on("crun", reason="leaves the cgroup behind")
@pytest.mark.not_on("runc 1.1", reason="has no id-mapped mounts")
@must("config.md: POSIX-platform Mounts")
@pytest.mark.parametrize("which", ["uidMappings", "gidMappings"])
def test_config_mounts_mappings_go_together(runtime: Runtime, bundle: MakeBundle, source: Path, which: str) -> None:
    """`uidMappings` MUST be specified along with `gidMappings`, and the other way round"""
    b = bundle().mount("/tmp", str(source), "bind", "idmap")
    b.config["mounts"][-1][which] = MAP
    refused(runtime, b)


@must("config.md: Mounts")
def test_config_mounts_destination_inside_the_container(
    runtime: Runtime, bundle: MakeBundle, source: Path, leaks: Leaks
) -> None:
    """the destination is a path inside the container, never one that a link of the image points to outside"""
    leaks.allow_rootfs_changes()
    b = bundle().sh("cat /link/file").mount("/link", str(source), "bind")
    target = runtime.directory / "outside"
    target.mkdir()
    (b.rootfs / "link").symlink_to(target)
    assert runtime.output(b) == "content\n"
    assert list(target.iterdir()) == []
