"""Files of /proc as kernels and the driver write them, with the names that a container may choose in them: what is read is
what was written, a name never makes a line or a field of its own, and what no kernel writes is an error in one sentence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

hypothesis = pytest.importorskip("hypothesis")

from hypothesis import example, given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from gpurun.cgroup import tree  # noqa: E402
from gpurun.cgroup.oom import parse_kills  # noqa: E402
from gpurun.engine.caller import exec_cgroup, mount_hint  # noqa: E402
from gpurun.engine.checkpoint import checkpoint_devices  # noqa: E402
from gpurun.errors import GpurunError  # noqa: E402
from gpurun.gpu.leases import container_nodes, names  # noqa: E402
from gpurun.gpu.nvidia.edits import injected  # noqa: E402
from gpurun.gpu.nvidia.host import driver, gpus, mig, modprobe, nodes  # noqa: E402
from gpurun.gpu.nvidia.host.roots import Roots  # noqa: E402
from gpurun.linux import procfs  # noqa: E402
from gpurun.linux.mountinfo import MountEntry, parse_mounts  # noqa: E402
from gpurun.ns.idmap import same_map, tidy  # noqa: E402
from gpurun.ns.namespaces import host_id  # noqa: E402
from tests.attacks.fuzzing import damaged, fuzzed, share  # noqa: E402

pytestmark = pytest.mark.attack("damaged input", "a reader hangs, crashes or takes what contradicts itself")

Draw = Callable[..., Any]

#: What a directory or a program may be called: all but a slash and a null byte, mostly what a reader takes for its own.
HOSTILE = (
    *("\n", "\t", " ", "\\", "\\040", ":", "0::", " - ", ")", ") R 1", "(deleted)", "//deleted", "..", "x", "=", ",", "#"),
    *("\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\udc80", "\udcff", "docker-"),
)
NAMES = st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=4)), min_size=1, max_size=5).map(
    lambda parts: "".join(parts).replace("/", "").replace("\0", "") or "x"
)
PATHS = st.lists(NAMES, max_size=4).map(lambda parts: "/" + "/".join(parts))
NUMBERS = st.integers(0, (1 << 31) - 1)


def as_read(text: str) -> str:
    """*text* as it is after the way through the bytes of a file."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")


#: What the kernel escapes in the paths of mountinfo, and in the sources.
OF_PATHS, OF_SOURCES = " \t\n\\", " \t\n\\#"


def escaped(text: str, others: str = OF_PATHS) -> str:
    """As the kernel's mangle() writes a path in mountinfo."""
    return "".join(f"\\{ord(c):03o}" if c in others else c for c in text)


@st.composite
def tables_of_mounts(draw: Draw) -> tuple[str, list[MountEntry]]:
    lines, wanted = [], []
    for number in range(draw(st.integers(0, 5))):
        root = as_read(draw(st.one_of(st.just("/"), PATHS)))
        point, source = as_read(draw(PATHS)), as_read(draw(st.one_of(NAMES, PATHS)))
        device = f"{draw(st.integers(0, 4095))}:{draw(st.integers(0, 1 << 20))}"
        fields = draw(st.lists(st.sampled_from(["shared:7", "master:3", "propagate_from:1", "unbindable"]), max_size=3))
        kind = draw(st.sampled_from(["ext4", "proc", "cgroup2", "fuse.x", "overlay", "tmpfs"]))
        before = [str(number + 20), "1", device, escaped(root), escaped(point), "rw,relatime", *fields]
        lines.append(f"{' '.join(before)} - {kind} {escaped(source, OF_SOURCES)} rw\n")
        wanted.append(MountEntry(str(number + 20), root, point, kind, device, "1"))
    return "".join(lines), wanted


@fuzzed
@given(tables_of_mounts())
def test_mounts(made: tuple[str, list[MountEntry]]) -> None:
    text, wanted = made
    assert parse_mounts(text) == wanted
    whole = [m.point for m in wanted if m.fstype == "cgroup2" and m.root == "/"]
    if whole:
        assert tree.cgroup2_mount(wanted) == whole[0]


@fuzzed
@given(st.data())
def test_damaged_mounts(data: st.DataObject) -> None:
    text, _ = data.draw(tables_of_mounts())
    bad = data.draw(damaged(text.encode("utf-8", "surrogateescape"))).decode("utf-8", "surrogateescape")
    try:
        found = parse_mounts(bad)
    except GpurunError as e:
        assert "mountinfo" in str(e)
        return
    assert len(found) <= bad.count("\n") + 1


def reads(data: bytes) -> Any:
    """Every file of /proc that procfs.py reads is *data*."""
    return patch.object(procfs, "read_file", lambda path, limit=1 << 20: data[:limit])


STAT = b" %c %d 2 3 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 %d 4096 256 18446744073709551615 0 0\n"


@fuzzed
@given(NAMES, st.sampled_from("RSDZTtXI"), NUMBERS, st.integers(0, (1 << 63) - 1))
def test_stat(name: str, letter: str, parent: int, start: int) -> None:
    data = b"77 (" + name.encode("utf-8", "surrogatepass")[:15] + b")" + STAT % (letter.encode(), parent, start)
    with reads(data):
        assert procfs.stat(77) == (letter, start) and procfs.parent(77) == parent
        assert procfs.is_alive(77, start) == (letter not in "ZX") and not procfs.is_alive(77, start + 1)


DAMAGED_STAT = damaged(b"77 (a program)" + STAT % (b"R", 5, 99))


@fuzzed
@given(DAMAGED_STAT)
def test_damaged_stat(data: bytes) -> None:
    with reads(data):
        assert procfs.parent(77) >= 0
        procfs.oom_kills()
        procfs.in_user_namespace()
        try:
            found = procfs.stat(77)
        except GpurunError as e:
            assert "/proc/77/stat" in str(e)
        else:
            assert found is not None and found[1] >= 0


@st.composite
def lists_of_cgroups(draw: Draw) -> list[tuple[str, str]]:
    """The lines of a /proc/pid/cgroup: the hierarchies of v1, if any, and v2's; no name has a newline (cgroup_mkdir)."""
    made = []
    for controllers in draw(st.lists(st.sampled_from(["cpu,cpuacct", "devices", "name=systemd", "pids"]), unique=True)):
        made.append((controllers, as_read(draw(PATHS)).replace("\n", "")))
    if draw(st.booleans()) or not made:
        made.insert(draw(st.integers(0, len(made))), ("", as_read(draw(PATHS)).replace("\n", "")))
    return made


@fuzzed
@given(lists_of_cgroups())
@example([("devices", "/a\x1d0::/another"), ("", "/system.slice/mine")])
@example([("", "/mine\x0c/below")])
def test_cgroups(made: list[tuple[str, str]]) -> None:
    lines = [f"{0 if not controllers else 9}:{controllers}:{path}\n" for controllers, path in made]
    data = "".join(lines).encode("utf-8", "surrogateescape")
    unified = next((path for controllers, path in made if not controllers), "")
    with reads(data), patch.object(tree, "read_file", lambda path: data):
        assert procfs.cgroups(77) == made
        assert tree.cgroup_of(77) == (unified.removesuffix(" (deleted)") or "/")
        assert exec_cgroup._cgroup_of(77) == ("" if unified == "/" or unified.startswith("/..") else unified)
        longest = max([path for _, path in made], key=len)
        assert container_nodes.cgroup_of(77) == (unified if unified not in ("", "/") else longest)
        names.of_cgroup(unified)


CONTROLLERS = damaged(
    b"0::/system.slice/x.scope\n#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t2\t80\t1\nblkio\t3\t1\t1\n"
)


@fuzzed
@given(CONTROLLERS)
def test_damaged_lines_of_controllers(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    assert tree.parse_own_cgroup(text) is not None and len(procfs.parse_cgroups(text)) <= text.count("\n") + 1
    assert all(name and name != "blkio" for name in tree.v1_controllers(text))
    with patch.object(mount_hint, "read_file", lambda path: data):
        assert "nodev" not in mount_hint.file_systems()


@fuzzed
@given(st.lists(st.tuples(st.integers(1, 1 << 16), st.integers(1, 1 << 20)), max_size=5), st.integers(0, 1 << 19))
def test_maps_of_ids(counts: list[tuple[int, int]], asked: int) -> None:
    """Ranges side by side within; each somewhere without."""
    at, wanted, text = 0, -1, ""
    for count, outside in counts:
        text += f"{at:>10} {outside:>10} {count:>10}\n"
        if at <= asked < at + count:
            wanted = outside + asked - at
        at += count
    assert host_id(text, asked) == host_id(tidy(text), asked) == wanted
    assert same_map(text, tidy(text))


@st.composite
def mapped_files(draw: Draw) -> tuple[list[str], list[str]]:
    """(files that a process has mapped, mount points), of which some are the files or above them."""
    mapped = draw(st.lists(PATHS, max_size=4))
    above = [path[: at + 1].rstrip("/") for path in mapped for at, c in enumerate(f"{path}/") if c == "/" and at]
    return mapped, draw(st.lists(st.one_of(PATHS, st.sampled_from(above or ["/x"])), min_size=1, max_size=3))


@fuzzed
@given(mapped_files())
def test_files_that_are_mapped(made: tuple[list[str], list[str]]) -> None:
    mapped, points = made
    mapped = [as_read(path).replace("\n", "\\012") for path in mapped]
    points = [as_read(point).rstrip("/") for point in points if point != "/"]
    text = "".join(f"7f00-7f01 r-xp 00000000 08:01 7   {path}\n" for path in mapped)
    data = ("7ffe-7fff rw-p 00000000 00:00 0   [stack]\n" + text).encode("utf-8", "surrogateescape")
    with patch.object(checkpoint_devices, "read_file", lambda path, limit: data):
        used = checkpoint_devices._points_in_use((0,), points)
    assert used == tuple(p for p in points if any(path == p or path.startswith(p + "/") for path in mapped))


@fuzzed
@given(st.lists(st.binary(max_size=12), max_size=6), st.binary(max_size=40))
def test_command_lines_of_others(words: list[bytes], name: bytes) -> None:
    line = b"\0".join([b"/usr/bin/conmon", b"-n", name.replace(b"\0", b""), *words, b""])
    with patch.object(names, "read_file", lambda path: line):
        assert names._of_conmon(77) == name.replace(b"\0", b"").decode("utf-8", "replace")
    with patch.object(names, "read_file", lambda path: b"\0".join([b"conmon", *words])):
        names._of_conmon(77)


KILL = (
    b"x invoked oom-killer: gfp_mask=0xcc0, order=0, oom_score_adj=0",
    b"memory: usage 65536kB, limit 65536kB, failcnt 1",
    b"[    501]     0   501    1000     500    40960        0             0 sh",
    b"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,mems_allowed=0,oom_memcg=/a.scope,task_memcg=/a.scope/x,"
    b"task=sh,pid=501,uid=0",
)


@fuzzed
@given(damaged(b"\n".join(KILL)))
@example(KILL[3].replace(b"pid=501", b"pid=" + b"9" * 5000))
def test_kills_that_the_kernel_tells_of(data: bytes) -> None:
    for kill in parse_kills(data.split(b"\n")):
        assert kill.pid >= 0 and kill.usage >= 0 and kill.limit >= 0


# ---- the driver's files ------------------------------------------------------------------------------------------------

MINORS = st.integers(0, 40)
MODELS = st.text(st.characters(blacklist_characters="\n\r", blacklist_categories=("Cs", "Cc", "Zl", "Zp")), max_size=20)


@st.composite
def hosts(draw: Draw) -> list[dict[str, Any]]:
    """GPUs as the driver tells of them, each with the MIG devices (GI, CI) that it is divided into."""
    made = []
    for at, minor in enumerate(draw(st.lists(MINORS, unique=True, max_size=4))):
        divided = draw(st.lists(st.tuples(st.integers(0, 14), st.integers(0, 7)), unique=True, max_size=3))
        made.append(
            {
                "bus": f"0000:{at * 16 + 1:02x}:00.0",
                "minor": minor,
                "uuid": f"GPU-{draw(st.uuids())}",
                "model": draw(MODELS).strip(),
                "excluded": draw(st.booleans()),
                "numa": draw(st.sampled_from([-1, 0, 1])),
                "mig": sorted(divided),
            }
        )
    return made


def cap(minor: int, gi: int, ci: int = -1) -> int:
    return 1000 + minor * 200 + gi * 10 + ci + 1


def files_of(host: list[dict[str, Any]]) -> dict[str, str]:
    made = {
        "proc/devices": "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n235 nvidia-caps\n510 nvidia-uvm\n\n"
        "Block devices:\n  8 sd\n195 nvidia-block\n",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue\nGCC version: 12.2\n",
        "proc/driver/nvidia/params": "ModifyDeviceFiles: 1\nDeviceFileUID: 0\n",
    }
    minors = ["config 1", "monitor 2"]
    for gpu in host:
        made[f"proc/driver/nvidia/gpus/{gpu['bus']}/information"] = (
            f"Model: \t\t {gpu['model']}\nIRQ:   \t\t 1\nGPU UUID: \t {gpu['uuid']}\nDevice Minor: \t {gpu['minor']}\n"
            f"GPU Excluded:\t {'Yes' if gpu['excluded'] else 'No'}\n"
        )
        made[f"sys/bus/pci/devices/{gpu['bus']}/numa_node"] = f"{gpu['numa']}\n"
        base = f"capabilities/gpu{gpu['minor']}/mig"
        for gi, ci in gpu["mig"]:
            for path, number in ((f"gi{gi}", cap(gpu["minor"], gi)), (f"gi{gi}/ci{ci}", cap(gpu["minor"], gi, ci))):
                made[f"proc/driver/nvidia/{base}/{path}/access"] = f"DeviceFileMinor: {number}\nDeviceFileMode: 292\n"
                minors.append(f"gpu{gpu['minor']}/{path}/access {number}")
    made["proc/driver/nvidia-caps/mig-minors"] = "\n".join(minors) + "\n"
    return made


def write(directory: Path, files: dict[str, bytes]) -> Roots:
    shutil.rmtree(directory, ignore_errors=True)
    for name, data in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return Roots(sysroot=str(directory))


@fuzzed
@given(hosts())
def test_hosts_with_gpus(tmp_path_factory: pytest.TempPathFactory, host: list[dict[str, Any]]) -> None:
    files = {name: text.encode() for name, text in files_of(host).items()}
    roots = write(tmp_path_factory.getbasetemp() / "host", files)
    assert driver.module_version(roots) == "550.163.01"
    assert nodes.read_majors(roots) == {"mem": 1, "nvidia": 195, "nvidiactl": 195, "nvidia-caps": 235, "nvidia-uvm": 510}
    wanted = [gpu for gpu in host if not gpu["excluded"]]
    found = gpus.read_gpus(roots)
    assert [(g.minor, g.uuid, g.model, g.numa_node, g.bus_id) for g in found] == [
        (g["minor"], g["uuid"], g["model"], g["numa"], g["bus"]) for g in wanted
    ]
    for gpu, said in zip(found, wanted, strict=True):
        assert (gpu.node.path, gpu.node.major, gpu.node.minor) == (f"/dev/nvidia{gpu.minor}", 195, gpu.minor)
        assert [(m.gi, m.ci) for m in gpu.mig] == said["mig"]
        for one in gpu.mig:
            assert [n.minor for n in one.nodes] == [cap(gpu.minor, one.gi), cap(gpu.minor, one.gi, one.ci)]
    assert injected._administration(roots) == (1, 2)


@st.composite
def damaged_hosts(draw: Draw) -> dict[str, bytes]:
    files = {name: text.encode() for name, text in files_of(draw(hosts())).items()}
    odd = st.one_of(
        st.sampled_from(["²", "٣", "-1", "+1", "1_0", "9" * 5000, str(1 << 20), str(1 << 64), "0x10", ""]), NAMES
    )
    for name in draw(st.lists(st.sampled_from(sorted(files)), min_size=1, max_size=3)):
        if draw(st.booleans()):
            files[name] = draw(damaged(files[name]))
        else:  # the number of one line is another
            lines = files[name].split(b"\n")
            at = draw(st.integers(0, len(lines) - 1))
            head = lines[at].rpartition(b" ")[0]
            lines[at] = head + b" " + draw(odd).encode("utf-8", "surrogatepass")
            files[name] = b"\n".join(lines)
    return files


@fuzzed
@given(damaged_hosts())
def test_damaged_hosts_with_gpus(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    roots = write(tmp_path_factory.getbasetemp() / "host", files)
    try:
        found = gpus.read_gpus(roots)
        minors = mig.read_minors(roots, "", nodes.read_majors(roots))
        modprobe.missing(roots, ("compute",))
        driver.module_version(roots)
        driver.proc_files(roots)
        gpus.numa_nodes(roots, (0, 1, 2))
        numbers = injected._administration(roots)
    except GpurunError as e:
        assert str(e)
        return
    every = [gpu.node for gpu in found] + [node for gpu in found for one in gpu.mig for node in one.nodes]
    for node in every:
        assert 0 <= node.major < 1 << 12 and 0 <= node.minor < 1 << 20 and node.mode <= 0o777 and ".." not in node.path
    assert all(0 <= number < 1 << 20 for number in (*minors.of.values(), *numbers))


def _stat(data: bytes) -> bool:
    with reads(data):
        return procfs.stat(77) is not None


#: Of each strategy, what is to come of it, and in how many percent of its cases at least.
SHARES: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], Any], int]] = {
    "a whole cgroup2 tree": (
        tables_of_mounts(),
        lambda made: any(m.fstype == "cgroup2" and m.root == "/" for m in made[1]),
        6,
    ),
    "damaged mounts": (
        tables_of_mounts().flatmap(lambda made: damaged(made[0].encode("utf-8", "surrogateescape"))),
        lambda data: parse_mounts(data.decode("utf-8", "surrogateescape")),
        60,
    ),
    "damaged stat": (DAMAGED_STAT, _stat, 30),
    "damaged lines of controllers": (
        CONTROLLERS,
        lambda data: "cpu" in tree.v1_controllers(data.decode("utf-8", "replace")),
        30,
    ),
    "a mount point in use": (
        mapped_files(),
        lambda made: any(f"{path}/".startswith(f"{point}/") for path in made[0] for point in made[1] if point != "/"),
        30,
    ),
    "kills": (damaged(b"\n".join(KILL)), lambda data: [*parse_kills(data.split(b"\n"))], 40),
    "hosts with MIG devices": (hosts(), lambda host: any(gpu["mig"] and not gpu["excluded"] for gpu in host), 40),
}


@pytest.mark.parametrize("name", SHARES)
def test_how_much_of_a_strategy_reaches_what_it_tests(name: str) -> None:
    strategy, reaches, least = SHARES[name]
    assert share(strategy, reaches) >= least


def test_how_many_damaged_hosts_are_read(tmp_path: Path) -> None:
    assert share(damaged_hosts(), lambda files: gpus.read_gpus(write(tmp_path / "host", files))) >= 30
