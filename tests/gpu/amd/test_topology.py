"""KFD's topology as a container without a device filter sees it: the processors, its own GPUs, and links among them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gpurun.cdi.edits import ContainerEdits, EditMount, FileEdit, ProcTree
from gpurun.errors import GpuError
from gpurun.gpu.amd import resolve
from gpurun.gpu.amd.topology import PLACE, KfdTopology, TopologyNode, filter_topology, read_topology
from gpurun.gpu.explain import edit_items
from gpurun.gpu.resolve import Inquiry, gpu_edits
from gpurun.linux.mount import MS_BIND, MS_SHARED, mount
from tests.hook.applying import applied, applied_alone, mount_basics
from tests.needs_nodes import require_nodes
from tests.simcards import Host, amd

NODES = f"{PLACE}/nodes"


def tree_of(host: Host, *chosen: int) -> ProcTree:
    numbers = frozenset(chosen)
    return filter_topology(read_topology(str(host.path), numbers), numbers)


def files_of(tree: ProcTree) -> dict[str, str]:
    """Name below the topology → content."""
    assert all(file.mode == 0o444 for file in tree.files)
    return {file.path.removeprefix(f"{PLACE}/"): file.content.decode() for file in tree.files}


def values(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in [line.split() for line in text.splitlines()]}


def links_of(files: dict[str, str], node: int) -> dict[tuple[str, int], dict[str, int]]:
    """(kind, number) → properties of the links of *node*."""
    found = {}
    for name, content in files.items():
        words = name.split("/")
        if words[:2] == ["nodes", str(node)] and words[2] in ("io_links", "p2p_links"):
            assert words[4:] == ["properties"]
            found[words[2], int(words[3])] = values(content)
    return found


def on_host(host: Host) -> dict[str, str]:
    top = host.path / PLACE.lstrip("/")
    return {str(file.relative_to(top)): file.read_text() for file in top.rglob("*") if file.is_file()}


@pytest.mark.parametrize("chosen", [(2,), (9,), (2, 3), (4, 7), (2, 5, 9), (3, 4, 5, 6, 7, 8, 9)])
@pytest.mark.parametrize("make", [amd.mi210, amd.mi300x])
def test_what_is_left_is_consistent(tmp_path: Path, make: Any, chosen: tuple[int, ...]) -> None:
    host = make(tmp_path)
    before, tree = on_host(host), tree_of(host, *chosen)
    after = files_of(tree)
    assert (after["generation_id"], after["system_properties"]) == (before["generation_id"], before["system_properties"])
    kept = (0, 1, *chosen)  # two processors
    assert {int(name.split("/")[1]) for name in after if name.startswith("nodes/")} == set(range(len(kept)))
    for new, old in enumerate(kept):
        for name in ("gpu_id", "name"):
            assert after[f"nodes/{new}/{name}"] == before[f"nodes/{old}/{name}"]
        links = links_of(after, new)
        was = [
            (kind, {**properties, "node_from": new, "node_to": kept.index(properties["node_to"])})
            for (kind, _), properties in sorted(links_of(before, old).items())
            if properties["node_to"] in kept
        ]
        assert [(kind, properties) for (kind, _), properties in sorted(links.items())] == was
        counts = {f"{kind}_count": len([1 for one, _ in links if one == kind]) for kind in ("io_links", "p2p_links")}
        for kind in ("io_links", "p2p_links"):
            assert {i for one, i in links if one == kind} == set(range(counts[f"{kind}_count"])), "numbered from 0"
        expected = values(before[f"nodes/{old}/properties"]) | counts
        assert list(values(after[f"nodes/{new}/properties"]).items()) == list(expected.items()), "in the host's order too"
    real = host.path / PLACE.lstrip("/")
    assert {(bind.host_path, bind.container_path) for bind in tree.binds} == {
        (f"{real}/nodes/{old}/{name}", f"{NODES}/{kept.index(old)}/{name}")
        for old in chosen
        for name in ("mem_banks", "caches")
    }
    assert all(bind.kind == "dir" and {"ro", "nosuid", "nodev", "noexec"} <= set(bind.options) for bind in tree.binds)


def test_the_plan_is_pure_and_keeps_words_that_it_does_not_know() -> None:
    link = "type 2\nnode_from 7\nnode_to 4\nweight 20\nnew_word 1 2  3"
    away = link.replace("node_to 4", "node_to 5")
    nodes = (
        TopologyNode(4, "0", "", "cpu_cores_count 8\nio_links_count 9"),
        TopologyNode(
            7, "123", "ip discovery", "simd_count 1\nodd\nio_links_count 2\np2p_links_count 3", (away, link), (away,)
        ),
    )
    tree = filter_topology(KfdTopology("/nowhere", (), nodes), frozenset([7]))
    assert files_of(tree) == {
        "nodes/0/gpu_id": "0\n",
        "nodes/0/name": "\n",
        "nodes/0/properties": "cpu_cores_count 8\nio_links_count 0\n",
        "nodes/1/gpu_id": "123\n",
        "nodes/1/name": "ip discovery\n",
        "nodes/1/properties": "simd_count 1\nodd\nio_links_count 1\np2p_links_count 0\n",
        "nodes/1/io_links/0/properties": "type 2\nnode_from 1\nnode_to 0\nweight 20\nnew_word 1 2  3\n",
    }
    assert tree.binds == ()


@pytest.mark.parametrize("text", ["", "node_from 7", "node_from x\nnode_to 4", "node_from 7\nnode_to -4", "node_to 4"])
def test_a_link_without_both_ends_is_left_out(text: str) -> None:
    nodes = (TopologyNode(4, "0", "", "cpu_cores_count 8"), TopologyNode(7, "1", "", "io_links_count 1", (text,)))
    files = files_of(filter_topology(KfdTopology("/nowhere", (), nodes), frozenset([7])))
    assert files["nodes/1/properties"] == "io_links_count 0\n" and not links_of(files, 1)


def huge(path: Path) -> None:
    path.write_text("cpu_cores_count 0\n" + "x 1\n" * 100000)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def odd(path: Path) -> None:
    path.write_bytes(b"simd_count 1\n\xff\xfe 1")


def gone(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("name", "spoil", "says"),
    [
        ("nodes/2/properties", huge, "nodes/2/properties has more than 4096 bytes"),
        ("nodes/2/properties", fifo, "nodes/2/properties cannot be used"),
        ("nodes/2/properties", odd, "nodes/2/properties is no text"),
        ("nodes/2/gpu_id", gone, "nodes/2/gpu_id cannot be used"),
        ("nodes/2/gpu_id", odd, "nodes/2/gpu_id is no text"),
        ("nodes/0/gpu_id", huge, "nodes/0/gpu_id has more than 4096 bytes"),
        ("nodes/2/io_links/0/properties", huge, "io_links/0/properties has more than 4096 bytes"),
        ("system_properties", huge, "system_properties has more than 4096 bytes"),
    ],
)
def test_a_tree_that_is_not_kfds_is_told_in_a_sentence(tmp_path: Path, name: str, spoil: Any, says: str) -> None:
    host = amd.mi210(tmp_path)
    spoil(host.path / PLACE.lstrip("/") / name)
    with pytest.raises(GpuError, match=says):
        tree_of(host, 2)


def test_nodes_of_others_are_not_looked_at_closely(tmp_path: Path) -> None:
    host = amd.mi210(tmp_path)
    (host.path / NODES.lstrip("/") / "many").mkdir()
    gone(host.path / NODES.lstrip("/") / "3/gpu_id")
    huge(host.path / NODES.lstrip("/") / "4/io_links/0/properties")
    fifo(host.path / NODES.lstrip("/") / "5/properties")
    assert len({file.path.split("/")[8] for file in tree_of(host, 2).files if "/nodes/" in file.path}) == 3


def test_more_links_than_any_host_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = amd.mi210(tmp_path)
    monkeypatch.setattr("gpurun.gpu.amd.topology._MOST_LINKS", 10)
    with pytest.raises(GpuError, match="more than 10 links in the topology"):
        tree_of(host, 2, 3)


def test_a_node_that_goes_meanwhile(tmp_path: Path) -> None:
    host = amd.mi210(tmp_path, count=2)
    with pytest.raises(GpuError, match="nodes/9 is not there any more"):
        tree_of(host, 2, 9)


def asked(host: Host, value: str, **more: Any) -> ContainerEdits:
    require_nodes(host.real_nodes)
    made = gpu_edits(Inquiry((f"AMD_VISIBLE_DEVICES={value}",), {}, False, host.env, **more))
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("value", "confined", "running", "covered"),
    [
        ("0", True, False, True),
        ("all", True, False, False),
        ("0,1", True, False, False),
        ("0", False, False, False),
        ("0", True, True, False),
    ],
)
def test_only_without_root_and_for_a_part_of_the_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, confined: bool, running: bool, covered: bool
) -> None:
    monkeypatch.setattr(resolve, "is_confined", lambda: confined)
    made = asked(amd.mi210(tmp_path, count=2), value, running=running)
    assert [tree.path for tree in made.proc_trees] == ([PLACE] if covered else []) and not made.warnings
    shown = [item for item in edit_items(made) if item.kind == "private"]
    assert bool(shown) == covered
    if covered:
        assert (shown[0].path, shown[0].reason) == (
            PLACE,
            "without a device filter ROCm is to find the GPUs of the container only",
        )
        gpu = [file for file in made.proc_trees[0].files if file.path == f"{NODES}/2/properties"]
        assert b"drm_render_minor 129\n" in gpu[0].content, "AMD's index 0 is KFD's node 3 here"


def test_all_is_a_part_where_one_of_kfds_cannot_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KFD has a GPU whose device nodes this host has not: to ROCm it would be one that it cannot open."""
    monkeypatch.setattr(resolve, "is_confined", lambda: True)
    host = amd.mi210(tmp_path, count=3)
    (lost, given) = amd.MI210[0], amd.MI210[1:3]
    (host.path / "sys/bus/pci/drivers/amdgpu" / lost[0]).unlink()
    made = asked(host, "all")
    assert {node.path for node in made.device_nodes if "render" in node.path} == {
        f"/dev/dri/renderD{render}" for _, render in given
    }
    (tree,) = made.proc_trees
    texts = [file.content.decode() for file in tree.files if file.path.endswith("/properties")]
    minors = {values(text)["drm_render_minor"] for text in texts if "drm_render_minor" in text}
    assert minors == {0, *[render for _, render in given]} and not made.warnings


def test_an_odd_topology_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "is_confined", lambda: True)
    host = amd.mi210(tmp_path, count=2)
    huge(host.path / PLACE.lstrip("/") / "system_properties")
    made = asked(host, "0")
    assert made.proc_trees == () and made.device_nodes
    (warning,) = made.warnings
    assert warning.startswith("the container sees the GPUs of all in KFD's topology, and ROCm may fail: ")
    assert warning.endswith("system_properties has more than 4096 bytes")


# How it is put over the container's own


@pytest.fixture
def place(rootfs: Path) -> Path:
    made = rootfs / PLACE.lstrip("/")
    (made / "nodes/7").mkdir(parents=True)
    return made


def small(source: Path) -> ContainerEdits:
    source.mkdir()
    (source / "bank").write_text("live")
    bind = EditMount(str(source), f"{NODES}/0/mem_banks", ("ro",), "dir")
    return ContainerEdits(proc_trees=(ProcTree(PLACE, (FileEdit(f"{NODES}/0/gpu_id", b"5\n"),), (bind,)),))


@pytest.mark.native
def test_the_containers_own_is_covered(place: Path, rootfs: Path, in_mount_namespace: Any, tmp_path: Path) -> None:
    edits = small(tmp_path / "banks")

    def look() -> tuple[list[str], str, str, str]:
        applied(rootfs, edits)
        try:
            (place / "nodes/0/new").write_text("")
        except OSError as e:
            refused = str(e.strerror)
        nodes = place / "nodes"
        return os.listdir(nodes), (nodes / "0/gpu_id").read_text(), (nodes / "0/mem_banks/bank").read_text(), refused

    assert in_mount_namespace(look) == (["0"], "5\n", "live", "Read-only file system")
    assert os.listdir(place / "nodes") == ["7"], "nothing stays on the host"


@pytest.mark.native
def test_a_sysfs_that_is_shared_with_the_host_is_covered_in_the_container_alone(
    rootfs: Path, in_mount_namespace: Any, tmp_path: Path
) -> None:
    (rootfs / "sys").mkdir(exist_ok=True)
    path = "/sys/devices/virtual/mem"  # which every kernel has
    tree = ProcTree(path, (FileEdit(f"{path}/ours", b""),), ())

    def look() -> tuple[list[str], bool]:
        mount("", "/sys", "", MS_SHARED)
        mount("/sys", f"{rootfs}/sys", "", MS_BIND)
        applied(rootfs, ContainerEdits(proc_trees=(tree,)))
        return os.listdir(f"{rootfs}{path}"), "ours" in os.listdir(path)

    assert in_mount_namespace(look) == (["ours"], False)


@pytest.mark.native
def test_a_tree_of_a_thousand_links_fits(place: Path, rootfs: Path, in_mount_namespace: Any) -> None:
    files = tuple([FileEdit(f"{NODES}/0/io_links/{i}/properties", b"x" * 400) for i in range(1000)])

    def look() -> int:
        applied(rootfs, ContainerEdits(proc_trees=(ProcTree(PLACE, files, ()),)))
        return len(os.listdir(place / "nodes/0/io_links"))

    assert in_mount_namespace(look) == 1000


@pytest.mark.native
@pytest.mark.parametrize("which", ["sys", "sys/devices", PLACE.lstrip("/")])
@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_a_link_in_the_image_leads_nowhere(
    place: Path,
    rootfs: Path,
    in_mount_namespace: Any,
    tmp_path: Path,
    which: str,
    absolute: bool,
    inside: bool,
    capfd: pytest.CaptureFixture[str],
) -> None:
    link = rootfs / which
    beside = link.rename(rootfs / ("sys/beside" if inside and which != "sys" else "beside"))
    link.symlink_to(f"/{beside.relative_to(rootfs)}" if absolute else os.path.relpath(beside, link.parent))
    edits = small(tmp_path / "banks")

    def look() -> list[str]:
        applied(rootfs, edits)
        return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "beside" in line]

    assert in_mount_namespace(look) == []
    assert f"{PLACE} shows the GPUs of all: it cannot be covered: " in capfd.readouterr().err


@pytest.mark.native
@pytest.mark.parametrize("what", ["nothing", "no topology", "a file", "a FIFO"])
def test_a_container_without_such_a_directory(rootfs: Path, in_mount_namespace: Any, tmp_path: Path, what: str) -> None:
    top = rootfs / PLACE.lstrip("/")
    if what != "nothing":
        top.parent.mkdir(parents=True)
    if what == "a file":
        top.write_text("")
    if what == "a FIFO":
        os.mkfifo(top)
    edits = small(tmp_path / "banks")

    def look() -> list[str]:
        mount_basics(rootfs)
        before = Path("/proc/self/mountinfo").read_text()
        applied_alone(rootfs, edits)
        return sorted(set(Path("/proc/self/mountinfo").read_text().splitlines()) - set(before.splitlines()))

    assert in_mount_namespace(look) == []
