"""Finding the tree and a container's place in it, from the texts of /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.cgroup import tree
from gpurun.cgroup.tree import Tree, cgroup2_mount, cgroup_path, hugepage_name, own_cgroup, parse_own_cgroup, v1_controllers
from gpurun.errors import ConfigError, GpurunError
from gpurun.linux.fs import CGROUP2_SUPER_MAGIC, TMPFS_MAGIC, statfs_type
from gpurun.linux.mountinfo import parse_mounts

TREE = Tree("/sys/fs/cgroup", ("cpu", "memory"))

HYBRID = """\
22 1 0:20 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
30 22 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
31 22 0:27 /docker/x /part rw - cgroup2 cgroup rw
32 22 0:27 / /sys/fs/cgroup/uni\\040fied rw,nosuid shared:11 master:3 - cgroup2 cgroup2 rw,nsdelegate
33 22 0:27 / /second rw - cgroup2 cgroup2 rw
"""


def test_mountinfo_names_the_whole_tree_first() -> None:
    assert cgroup2_mount(parse_mounts(HYBRID)) == "/sys/fs/cgroup/uni fied"


def test_mountinfo_with_only_a_part_of_the_tree() -> None:
    assert cgroup2_mount(parse_mounts("\n".join(HYBRID.splitlines()[:3]))) == "/part"


def test_mountinfo_without_cgroup2() -> None:
    # a cgroup2 in the options or the source is none
    assert cgroup2_mount(parse_mounts("30 22 0:26 / /cgroup2 rw - tmpfs cgroup2 rw,cgroup2\n")) is None


def test_v1_controllers_have_their_v2_names() -> None:
    text = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t3\t1\t1\nblkio\t7\t1\t1\nhugetlb\t0\t1\t1\nmemory\t0\t5\t0\n"
    assert v1_controllers(text) == ("cpu", "io")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("12:cpu:/x\n0::/user.slice/a b.scope\n", "/user.slice/a b.scope"),
        ("0::/\n", "/"),
        ("0::/gone (deleted)\n", "/gone"),
        ("3:memory:/x\n", "/"),
        ("", "/"),
        # A name may have all but a newline; what else Python takes for the end of a line is a part of it.
        ("9:devices:/a\x1d0::/another\n0::/mine\n", "/mine"),
        ("0::/mine\x0c/below\x85\u2028\n", "/mine\x0c/below\x85\u2028"),
    ],
)
def test_own_cgroup(text: str, path: str) -> None:
    assert parse_own_cgroup(text) == path


@pytest.mark.parametrize(
    ("cgroups_path", "own", "path"),
    [
        ("/docker/abc", "/system.slice/docker.service", "/docker/abc"),
        ("docker/abc", "/system.slice/docker.service", "/system.slice/docker/abc"),
        ("", "/system.slice/docker.service", "/system.slice/cid"),
        ("", "/", "/cid"),
        ("x", "/", "/x"),
        ("x", "/service", "/x"),
        ("/a//b/./c/", "/", "/a/b/c"),
        # untrusted: `..` stops where the path starts
        ("/../../etc/passwd", "/s/x", "/etc/passwd"),
        ("../../../etc", "/machine.slice/conmon", "/machine.slice/etc"),
        ("/a/../../b", "/", "/b"),
        ("x", "/../outside/x", "/outside/x"),
    ],
)
def test_cgroup_path(cgroups_path: str, own: str, path: str) -> None:
    assert cgroup_path(TREE, cgroups_path, "cid", own) == f"/sys/fs/cgroup{path}"


@pytest.mark.parametrize("cgroups_path", ["/", "/..", ".", "..", "a/..", "//"])
def test_a_path_without_a_cgroup_of_its_own(cgroups_path: str) -> None:
    with pytest.raises(ConfigError, match=r"linux\.cgroupsPath: .* must name a cgroup for this container only"):
        cgroup_path(TREE, cgroups_path, "cid", "/system.slice/x.service")


def test_a_newline_cannot_be_in_a_name() -> None:
    with pytest.raises(ConfigError, match="newline"):
        cgroup_path(TREE, "/a\nb", "cid", "/")


def test_the_root_of_the_file_system_as_tree() -> None:
    assert cgroup_path(Tree("/", ()), "/a", "cid", "/") == "/a"


@pytest.mark.parametrize(
    ("kib", "name"), [(64, "64KB"), (2048, "2MB"), (32768, "32MB"), (1 << 20, "1GB"), (16 << 20, "16GB")]
)
def test_hugepage_names(kib: int, name: str) -> None:
    assert hugepage_name(kib) == name


def test_hugepage_sizes(tmp_path: Path) -> None:
    for name in ("hugepages-2048kB", "hugepages-1048576kB"):
        (tmp_path / name).mkdir()
    assert sorted(tree.hugepage_sizes(str(tmp_path))) == ["1GB", "2MB"]
    assert tree.hugepage_sizes(str(tmp_path / "none")) == ()


def test_unified_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids rdma\n")
    monkeypatch.setattr(tree, "UNIFIED_MOUNTPOINT", str(tmp_path))
    monkeypatch.setattr(tree, "statfs_type", lambda path: CGROUP2_SUPER_MAGIC)
    monkeypatch.setattr(tree, "v1_controllers", lambda text: pytest.fail("v1 is asked though nothing is missing"))
    found = tree.find_tree()
    assert found == Tree(str(tmp_path), ("cpuset", "cpu", "io", "memory", "hugetlb", "pids", "rdma"))


def test_hybrid_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("hugetlb\n")
    mountinfo = f"1 1 0:1 / {tmp_path} rw - cgroup2 cgroup2 rw\n"
    monkeypatch.setattr(tree, "statfs_type", lambda path: TMPFS_MAGIC)
    monkeypatch.setattr(tree, "mounts", lambda: parse_mounts(mountinfo))
    monkeypatch.setattr(tree, "_read_text", {"/proc/cgroups": "memory 4 1 1\nhugetlb 0 1 1\n"}.__getitem__)
    assert tree.find_tree() == Tree(str(tmp_path), ("hugetlb",), ("memory",))


def test_no_cgroup2_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "statfs_type", lambda path: TMPFS_MAGIC)
    monkeypatch.setattr(tree, "mounts", lambda: parse_mounts("1 1 0:1 / / rw - ext4 /dev/vda rw\n"))
    with pytest.raises(GpurunError, match="no cgroup v2 hierarchy is mounted"):
        tree.find_tree()


def test_this_machine() -> None:
    try:
        found = tree.find_tree()
    except GpurunError as e:
        pytest.skip(str(e))
    assert statfs_type(found.root) == CGROUP2_SUPER_MAGIC
    assert not set(found.controllers) & set(found.bound_to_v1)
    assert own_cgroup().startswith("/")
    assert os.path.exists(f"{found.root}/cgroup.procs")
