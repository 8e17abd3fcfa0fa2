"""Making and limiting real cgroups, and the kernel's own verdicts on a device program."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from errno import EINVAL, ENOENT, ENOTDIR, ENXIO, EPERM
from pathlib import Path

import pytest

from gpurun.cgroup import manager
from gpurun.cgroup.devices import container_rules, device_program
from gpurun.cgroup.resources import CgroupWrite, plan_resources
from gpurun.cgroup.tree import Tree
from gpurun.errors import GpurunError, StepError
from gpurun.linux import bpf
from gpurun.oci.resources import DeviceRule, read_resources

LIMIT = CgroupWrite("memory.max", "1", "w")


@pytest.fixture
def cgroup(base: Path) -> Iterator[Path]:
    path = base / "container"
    path.mkdir()
    yield path
    path.rmdir()


@pytest.fixture
def directory(cgroup: Path) -> Iterator[int]:
    fd = manager.open_dir(str(cgroup))
    yield fd
    os.close(fd)


def test_create_makes_what_is_missing(tree: Tree, base: Path) -> None:
    path = base / "a" / "b"
    assert manager.create(str(path), tree.root) == (str(base / "a"), str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert (path / "cgroup.procs").read_text() == ""
    # controllers are enabled in all above, not in the container's own
    assert set((base / "a" / "cgroup.subtree_control").read_text().split()) == set(tree.controllers)
    assert set((path / "cgroup.controllers").read_text().split()) == set(tree.controllers)
    assert (path / "cgroup.subtree_control").read_text().split() == []
    manager.undo_create((str(base / "a"), str(path)))


def test_create_uses_an_empty_cgroup(tree: Tree, cgroup: Path) -> None:
    assert manager.create(str(cgroup), tree.root) == ()


def test_create_refuses_a_cgroup_in_use(tree: Tree, base: Path, spawn: Callable[..., int]) -> None:
    inner = base / "a" / "inner"
    inner.mkdir(parents=True)
    spawn(inner)
    with pytest.raises(GpurunError) as caught:
        manager.create(str(base / "a"), tree.root)
    assert str(caught.value) == "container's cgroup is not empty: 1 process(es) found"
    manager.kill(str(base / "a"))
    manager.remove(str(base / "a"))


def test_create_refuses_a_frozen_cgroup(tree: Tree, cgroup: Path) -> None:
    (cgroup / "cgroup.freeze").write_text("1")
    with pytest.raises(GpurunError, match="container's cgroup unexpectedly frozen"):
        manager.create(str(cgroup), tree.root)


def test_create_refuses_a_cgroup_below_a_frozen_one(tree: Tree, base: Path, cgroup: Path) -> None:
    """Its processes would be frozen as they are born, and create would wait for them."""
    (cgroup / "cgroup.freeze").write_text("1")
    with pytest.raises(
        GpurunError, match=f"^container's cgroup unexpectedly frozen: {cgroup} is frozen, with everything below it"
    ):
        manager.create(str(cgroup / "a/b"), tree.root)
    assert not (cgroup / "a").exists()


def test_a_failing_create_leaves_nothing(tree: Tree, base: Path) -> None:
    (base / "cgroup.max.depth").write_text("2")
    with pytest.raises(StepError) as caught:
        manager.create(str(base / "a" / "b" / "c"), tree.root)
    assert str(caught.value) == f"cannot make the cgroup {base}/a/b/c: resource temporarily unavailable"
    assert not (base / "a").exists()


def test_a_file_of_the_kernel_is_no_cgroup(tree: Tree, base: Path) -> None:
    with pytest.raises(StepError) as caught:
        manager.create(str(base / "cgroup.procs" / "x"), tree.root)
    assert caught.value.errno == ENOTDIR


def test_undo_leaves_what_others_use(base: Path) -> None:
    (base / "a" / "b").mkdir(parents=True)
    (base / "a" / "other").mkdir()
    manager.undo_create((str(base / "a"), str(base / "a" / "b")))
    assert [entry.name for entry in (base / "a").iterdir() if entry.is_dir()] == ["other"]
    manager.remove(str(base / "a"))


def test_a_threaded_tree_takes_no_domain_limits(tree: Tree, base: Path) -> None:
    (base / "top").mkdir()
    (base / "top" / "one").mkdir()
    (base / "top" / "one" / "cgroup.type").write_text("threaded")
    path = base / "top" / "new"
    with pytest.raises(GpurunError) as caught:
        manager.create(str(path), tree.root, (LIMIT,))
    assert str(caught.value) == (
        f'cannot enter cgroupv2 "{base / "top"}" with "domain threaded" mode as domain controllers are requested'
    )
    assert not path.exists()
    manager.create(str(path), tree.root)
    assert (path / "cgroup.type").read_text() == "threaded\n"
    manager.remove(str(base / "top"))


def test_an_invalid_cgroup_takes_no_domain_limits(tree: Tree, base: Path) -> None:
    invalid = base / "top" / "new"
    (base / "top" / "one").mkdir(parents=True)
    (base / "top" / "one" / "cgroup.type").write_text("threaded")
    invalid.mkdir()
    assert (invalid / "cgroup.type").read_text() == "domain invalid\n"
    with pytest.raises(GpurunError, match="cannot enter cgroupv2") as caught:
        manager.create(str(invalid), tree.root, (LIMIT,))
    assert "domain controllers" in str(caught.value)
    manager.remove(str(base / "top"))


def test_no_process_where_controllers_are_given_away(tree: Tree, base: Path) -> None:
    inner = base / "inner"
    inner.mkdir()
    manager.create(str(inner / "other"), tree.root)
    given = [
        name for name in (inner / "cgroup.subtree_control").read_text().split() if name not in ("cpu", "cpuset", "pids")
    ]
    if not given:
        pytest.skip("this machine's cgroup v2 has no controller but those for threads")
    with pytest.raises(
        GpurunError, match=rf'the cgroup "{inner}" cannot hold processes: it enables controllers \({" ".join(given)}'
    ):
        manager.create(str(inner), tree.root)
    manager.remove(str(inner))


def test_a_limit_below_a_cgroup_with_processes(tree: Tree, base: Path, spawn: Callable[..., int]) -> None:
    """A cgroup that holds processes can give no controllers away; the error names it, and how many there are."""
    if "hugetlb" not in tree.controllers:
        pytest.skip("the hugetlb controller is not in this machine's cgroup v2")
    inner = base / "inner"
    inner.mkdir()
    pid = spawn(inner)
    (made,) = manager.create(str(inner / "c"), tree.root)
    fd = manager.open_dir(made)
    try:
        with pytest.raises(GpurunError) as caught:
            manager.write_resources(fd, (CgroupWrite("hugetlb.2MB.max", "0", "w"),))
    finally:
        os.close(fd)
    where = (
        f'cannot set w: there is no hugetlb.2MB.max: the cgroup v2 controller "hugetlb" is not given to cgroups in "{inner}"'
    )
    assert str(caught.value) == f'{where}, for 1 process(es) are in "{inner}" itself: move them, or name another place'
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    manager.remove(str(inner))


def test_open_dir_of_nothing(base: Path) -> None:
    with pytest.raises(StepError, match="no such file or directory"):
        manager.open_dir(str(base / "none"))


def test_add_process(cgroup: Path, base: Path, directory: int, spawn: Callable[..., int]) -> None:
    pid = spawn(base)
    manager.add_process(directory, pid, str(cgroup))
    assert (cgroup / "cgroup.procs").read_text() == f"{pid}\n"
    manager.kill(str(cgroup))
    os.waitpid(pid, 0)
    with pytest.raises(StepError, match=rf"cannot move process {pid} into the cgroup .*no such process"):
        manager.add_process(directory, pid, str(cgroup))


def test_limits_are_written(tree: Tree, base: Path) -> None:
    if "hugetlb" not in tree.controllers:
        pytest.skip("the hugetlb controller is not in this machine's cgroup v2")
    path = base / "limited"
    document = {"hugepageLimits": [{"pageSize": "2MB", "limit": 4 << 20}], "unified": {"cgroup.max.depth": "3"}}
    writes = plan_resources(read_resources(document), tree.controllers)
    manager.create(str(path), tree.root, writes)
    fd = manager.open_dir(str(path))
    manager.write_resources(fd, writes)
    assert (path / "hugetlb.2MB.max").read_text() == f"{4 << 20}\n"
    assert (path / "hugetlb.2MB.rsvd.max").read_text() == f"{4 << 20}\n"
    assert (path / "cgroup.max.depth").read_text() == "3\n"
    os.close(fd)
    manager.remove(str(path))


def test_a_refused_value_is_named(directory: int) -> None:
    with pytest.raises(StepError) as caught:
        manager.write_resources(directory, (CgroupWrite("cgroup.max.depth", "deep", "linux.resources.unified.x"),))
    assert str(caught.value) == 'cannot set linux.resources.unified.x: writing "deep" to cgroup.max.depth: invalid argument'
    assert caught.value.errno == EINVAL


def test_a_missing_file(directory: int, cgroup: Path) -> None:
    missing = CgroupWrite("nothing.max", "5", "w")
    with pytest.raises(StepError) as caught:
        manager.write_resources(directory, (missing,))
    assert caught.value.errno == ENOENT
    optional = CgroupWrite("nothing.max", "5", "w", (ENOENT,))
    other = CgroupWrite("nothing.max", "5", "w", otherwise=CgroupWrite("cgroup.max.depth", "7", "w"))
    manager.write_resources(directory, (optional, other))
    assert (cgroup / "cgroup.max.depth").read_text() == "7\n"


def test_what_may_be_ignored_ends_with_its_own_write(directory: int, cgroup: Path) -> None:
    manager.write_resources(
        directory,
        (CgroupWrite("cgroup.max.depth", "deep", "w", (EINVAL,)), CgroupWrite("cgroup.max.descendants", "9", "w")),
    )
    assert (cgroup / "cgroup.max.descendants").read_text() == "9\n"


@pytest.mark.parametrize("file", ["../cgroup.max.depth", "/proc/self/comm", "inner/cgroup.max.depth/..", "link"])
def test_no_name_leaves_the_cgroup(tmp_path: Path, file: str) -> None:
    """Plain directories stand in for a cgroup: what matters is where a name may lead."""
    inside = tmp_path / "cgroup"
    inside.mkdir()
    outside = tmp_path / "cgroup.max.depth"
    outside.write_text("as it was")
    (inside / "link").symlink_to(outside)
    fd = os.open(inside, os.O_RDONLY)
    with pytest.raises(StepError):
        manager.write_resources(fd, (CgroupWrite(file, "5", "w"),))
    os.close(fd)
    assert outside.read_text() == "as it was"


def test_no_link_is_a_cgroup(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StepError, match=r"/tree/a: (not a directory|too many levels of symbolic links)"):
        manager.create(str(tmp_path / "tree" / "a" / "b"), str(tmp_path / "tree"))
    assert list((tmp_path / "elsewhere").iterdir()) == []


class Memory:
    """A directory with the one file that the check reads."""

    def __init__(self, directory: Path, usage: str | None) -> None:
        if usage is not None:
            (directory / "memory.current").write_text(usage)
        self.fd = os.open(directory, os.O_RDONLY)


@pytest.mark.parametrize(
    ("limit", "swap", "message"),
    [
        (1000, 0, "rejecting memory limit 1000 <= usage 1000"),
        (999, -1, "rejecting memory limit 999 <= usage 1000"),
        (2000, 1000, "rejecting memory+swap limit 1000 <= usage 1000"),
        (1001, 1001, None),
        (-1, -1, None),
        (0, 0, None),
    ],
)
def test_check_before_update(tmp_path: Path, limit: int, swap: int, message: str | None) -> None:
    memory = Memory(tmp_path, "1000\n")
    if message is None:
        manager.check_memory_before_update(memory.fd, limit, swap)
    else:
        with pytest.raises(GpurunError) as caught:
            manager.check_memory_before_update(memory.fd, limit, swap)
        assert str(caught.value) == message
    os.close(memory.fd)


def test_check_before_update_without_a_memory_controller(tmp_path: Path) -> None:
    memory = Memory(tmp_path, None)
    manager.check_memory_before_update(memory.fd, 1, 1)
    os.close(memory.fd)


def program(*rules: DeviceRule) -> bytes:
    return device_program(container_rules((DeviceRule(False, "a", None, None, "rwm"), *rules)))


GPU = DeviceRule(True, "c", 195, None, "rw")


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    """Device nodes: /dev/null, the memory, and NVIDIA's numbers, behind which no driver need be."""
    for name, major, minor in (("null", 1, 3), ("mem", 1, 1), ("nvidia0", 195, 0), ("nvidiactl", 195, 255)):
        try:
            os.mknod(tmp_path / name, 0o600 | stat.S_IFCHR, os.makedev(major, minor))
        except PermissionError:
            pytest.skip("device nodes cannot be made here")
    try:
        os.close(os.open(tmp_path / "null", os.O_RDWR))
    except PermissionError:
        pytest.skip(f"{tmp_path} is mounted nodev")
    return tmp_path


def verdicts(cgroup: Path, nodes: Path, spawn: Callable[..., int]) -> dict[str, int]:
    """The errno (0 for none) that a process in *cgroup* gets from opening each of the nodes, and from a mknod."""
    results = nodes / "results"

    def probe() -> None:
        lines = []
        for name in ("null", "mem", "nvidia0", "nvidiactl"):
            try:
                os.close(os.open(nodes / name, os.O_RDWR))
                lines.append(f"{name} 0")
            except OSError as e:
                lines.append(f"{name} {e.errno}")
        try:
            os.mknod(nodes / "made", 0o600 | stat.S_IFBLK, os.makedev(7, 99))
            os.unlink(nodes / "made")
            lines.append("mknod 0")
        except OSError as e:
            lines.append(f"mknod {e.errno}")
        results.write_text("\n".join(lines))

    results.unlink(missing_ok=True)
    os.waitpid(spawn(cgroup, probe), 0)
    return {name: int(number) for name, number in (line.split() for line in results.read_text().splitlines())}


def attach(fd: int, code: bytes) -> None:
    """Load and attach, as create does."""
    loaded = manager.load_devices(code)
    try:
        manager.attach_devices(fd, loaded)
    finally:
        os.close(loaded)


def test_the_kernel_enforces_the_program(cgroup: Path, directory: int, nodes: Path, spawn: Callable[..., int]) -> None:
    before = verdicts(cgroup, nodes, spawn)
    assert before["nvidia0"] != EPERM  # ENXIO where no driver is, else it opens

    attach(directory, program())
    denied = verdicts(cgroup, nodes, spawn)
    assert denied == {"null": 0, "mem": EPERM, "nvidia0": EPERM, "nvidiactl": EPERM, "mknod": 0}

    attach(directory, program(GPU))
    granted = verdicts(cgroup, nodes, spawn)
    assert granted == {**before, "mem": EPERM}
    if not os.path.exists("/dev/nvidiactl"):
        assert (granted["nvidia0"], granted["nvidiactl"]) == (ENXIO, ENXIO)


def test_one_program_is_replaced(directory: int) -> None:
    assert bpf.prog_query(directory) == ()
    attach(directory, program())
    first = bpf.prog_query(directory)
    attach(directory, program(GPU))
    second = bpf.prog_query(directory)
    assert (len(first), len(second)) == (1, 1)
    assert first != second


def test_several_programs_become_one(directory: int) -> None:
    for _ in range(3):
        fd = bpf.prog_load(program())
        bpf.prog_attach(directory, fd)
        os.close(fd)
    old = bpf.prog_query(directory)
    assert len(old) == 3
    attach(directory, program(GPU))
    new = bpf.prog_query(directory)
    assert len(new) == 1
    assert new[0] not in old


def test_no_descriptor_is_left(directory: int) -> None:
    before = os.listdir("/proc/self/fd")
    attach(directory, program())
    attach(directory, program(GPU))
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_program_that_the_kernel_refuses(directory: int) -> None:
    endless = b"\xb4" + bytes(7)  # r0 = 0, and no exit
    with pytest.raises(StepError) as caught:
        attach(directory, endless)
    assert str(caught.value).startswith("cannot restrict devices: bpf(BPF_PROG_LOAD): ")
    assert bpf.prog_query(directory) == ()


def test_a_directory_that_is_no_cgroup(tmp_path: Path, tree: Tree) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(StepError, match="BPF_PROG_QUERY"):
        attach(fd, program())
    os.close(fd)
