"""Requests for AMD's and Intel's GPUs and what their drivers say in sysfs, damaged at random: an error, or an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

hypothesis = pytest.importorskip("hypothesis")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from gpurun.errors import GpurunError  # noqa: E402
from gpurun.gpu.amd.health import error_counts  # noqa: E402
from gpurun.gpu.amd.host import amd_gpus  # noqa: E402
from gpurun.gpu.amd.topology import filter_topology, read_topology  # noqa: E402
from gpurun.gpu.leases.limits import region_limits, regions_of  # noqa: E402
from gpurun.gpu.resolve import Inquiry, gpu_edits  # noqa: E402
from tests.attacks.fuzzing import damaged, fuzzed  # noqa: E402
from tests.needs_nodes import require_nodes  # noqa: E402
from tests.simcards import Host, amd, intel  # noqa: E402

pytestmark = [pytest.mark.attack("damaged input", "a reader hangs, crashes or takes what contradicts itself")]

ADDRESS = amd.MI210[0][0]
WORDS = (
    "all",
    "0",
    "0-1",
    "1-0",
    "amd:1",
    "intel:0",
    "nvidia:0",
    "card0",
    ADDRESS,
    f"{ADDRESS}/0",
    intel.VF,
    "0xef2c1799a1f3e200",
)
VALUES = st.one_of(
    st.lists(st.sampled_from(WORDS), max_size=3).map(",".join),
    st.sampled_from(WORDS)
    .flatmap(lambda word: damaged(word.encode()))
    .map(lambda data: data.decode("utf-8", "surrogateescape")),
    st.text(max_size=30),
)
VARIABLES = ("AMD_VISIBLE_DEVICES", "GPURUN_VISIBLE_DEVICES", "HABANA_VISIBLE_DEVICES", "DOCKER_RESOURCE_GPU")
PROPERTIES = (
    b"cpu_cores_count 0\nsimd_count 416\nsimd_per_cu 4\ngfx_target_version 90010\nlocation_id 25344\ndrm_render_minor 128\n"
)
CAPACITY = f"drm/{ADDRESS}/vram 68719476736\ndrm/{intel.B580}/vram0 100\ndrm/{intel.B580}/vram1 300\n".encode()

#: A region with something behind its name and as its amount, which chance rarely makes of a good one.
LINES = st.tuples(st.text(max_size=4), st.one_of(st.integers().map(str), st.text(max_size=4))).map(
    lambda pair: f"drm/{ADDRESS}/vram{pair[0]} {pair[1]}\n".encode("utf-8", "surrogatepass")
)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    made = amd.mi210(tmp_path_factory.mktemp("fuzz"), first_card=60, count=2, later=100)
    require_nodes(made.real_nodes)
    return intel.arc(made.path)


@fuzzed
@given(st.lists(st.tuples(st.sampled_from(VARIABLES), VALUES), min_size=1, max_size=2))
def test_requests(host: Host, asked: list[tuple[str, str]]) -> None:
    env = tuple([f"{name}={value}" for name, value in asked if "free" not in value])
    try:
        made = gpu_edits(Inquiry(env, {}, False, host.env))
    except GpurunError as e:
        assert str(e) and "\n" not in str(e), "one sentence"
        return
    nodes = made.device_nodes if made is not None else ()
    assert all((node.host_path or node.path).startswith(f"{host.path}/dev/") for node in nodes)


@fuzzed
@given(damaged(PROPERTIES), damaged(b"4\n"), damaged(b"type 11\nnode_from 2\nnode_to 3\nweight 15\n"))
def test_what_kfd_says(host: Host, properties: bytes, number: bytes, link: bytes) -> None:
    node = host.path / "sys/devices/virtual/kfd/kfd/topology/nodes/2"
    before = {name: (node / name).read_bytes() for name in ("properties", "gpu_id", "io_links/0/properties")}
    for name, data in zip(before, (properties, number, link), strict=True):
        (node / name).write_bytes(data)
    try:
        gpus = amd_gpus(str(host.path))
        assert len(gpus) in (1, 2) and len({gpu.key for gpu in gpus}) == len(gpus)
        chosen = frozenset([2])
        tree = filter_topology(read_topology(str(host.path), chosen), chosen)
        assert all(file.path.startswith(f"{amd.PLACE}/") and "/../" not in file.path for file in tree.files)
    except GpurunError as e:
        assert "\n" not in str(e)
    finally:
        for name, data in before.items():
            (node / name).write_bytes(data)


@fuzzed
@given(st.one_of(damaged(CAPACITY), LINES), st.sampled_from([ADDRESS, intel.B580]))
def test_regions_of_memory(capacity: bytes, address: str) -> None:
    found = regions_of(capacity.decode("utf-8", "surrogateescape"), address)
    assert all(name.startswith(f"drm/{address}/vram") and name.isascii() and " " not in name for name, _ in found)
    sizes = [(name, size) for name, size in found if size]
    assert sum([size for _, size in region_limits(1 << 30, tuple(sizes))] if sizes else [0]) <= 1 << 30


@fuzzed
@given(damaged(b"ue: 1\nce: 3\nde: 0\n"))
def test_counts_of_errors(text: bytes) -> None:
    found = error_counts({"umc": text.decode("utf-8", "surrogateescape")})
    assert all(name in ("correct_umc", "uncorrect_umc") and count >= 0 for name, count in found)


def test_the_bases_are_accepted(host: Host, tmp_path: Path) -> None:
    """Else all that is made of them would be refused for the same reason."""
    assert len(regions_of(CAPACITY.decode(), intel.B580)) == 2 and len(amd_gpus(str(host.path))) == 2
    assert error_counts({"umc": "ue: 1\nce: 3\nde: 0\n"}) == (("correct_umc", 3), ("uncorrect_umc", 1))
    for word in ("all", "0", "amd:1", ADDRESS):
        assert gpu_edits(Inquiry((f"AMD_VISIBLE_DEVICES={word}",), {}, False, host.env)) is not None
