"""``linux.resources``, and what ``update`` is given: what is accepted is written to the kernel's files as it was asked for,
by an account of the specification that stands here; all else is refused in a sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

hypothesis = pytest.importorskip("hypothesis")

from hypothesis import example, given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from gpurun.cgroup.resources import CgroupWrite, plan_resources  # noqa: E402
from gpurun.cgroup.scope import annotation_properties, as_systemd_rounds, limit_properties  # noqa: E402
from gpurun.engine.caller import update  # noqa: E402
from gpurun.errors import GpurunError  # noqa: E402
from gpurun.formats import dbus  # noqa: E402
from gpurun.oci.resources import read_resources  # noqa: E402
from tests.attacks.fuzzing import changed, damaged, fuzzed, fuzzed_more, share  # noqa: E402

pytestmark = pytest.mark.attack("damaged input", "a reader hangs, crashes or takes what contradicts itself")

Draw = Callable[..., Any]
Document = dict[str, Any]
ALL = ("cpu", "cpuset", "hugetlb", "io", "memory", "misc", "pids", "rdma")
INT64, UINT64 = (1 << 63) - 1, (1 << 64) - 1

#: Few, so that two of them are often the same, or in the order that counts.
SIZES = st.one_of(st.sampled_from([-1, 0, 4096, 1 << 20, 1 << 30, INT64]), st.integers(1, 8).map(lambda n: n << 28))
CPUS = st.sampled_from(["", "0", "0-3", "0-1,3", "7,8-9", "0-1", "1-2", "0-1\n", "3-1", "0-1\n3", "²"])
DEVICES = st.fixed_dictionaries({"major": st.integers(0, 300), "minor": st.integers(0, 300)})
UNIFIED = st.dictionaries(
    st.sampled_from(["memory.high", "memory.max", "memory.low", "pids.max", "cpu.max", "cpu.weight", "io.max", "misc.max"]),
    st.sampled_from(["max", "0", "100", "64M", "20E", "8:0 rbps=5\n8:16 wbps=7", "50000 100000", "9" * 5000, "\ud800", "²"]),
    max_size=2,
)


@st.composite
def some(draw: Draw, /, **members: st.SearchStrategy[Any]) -> Document:
    """Three in four of *members*."""
    return {name: draw(values) for name, values in members.items() if draw(st.integers(0, 3))}


@st.composite
def throttles(draw: Draw, member: str) -> list[Document]:
    """A list of devices, none of them twice."""
    found = draw(st.lists(DEVICES, unique_by=lambda one: (one["major"], one["minor"]), max_size=2))
    high = (1 << 64) - 1 if member == "rate" else 1000
    numbers = st.integers(0, high) if member == "rate" else st.one_of(st.just(0), st.integers(10, high))
    return [{**one, member: draw(numbers)} for one in found]


RATES = {
    "throttleReadBpsDevice": "rbps", "throttleWriteBpsDevice": "wbps",
    "throttleReadIOPSDevice": "riops", "throttleWriteIOPSDevice": "wiops",
}  # fmt: skip
MEMORY = some(limit=SIZES, reservation=SIZES, swap=SIZES)
CPU = some(
    shares=st.one_of(st.sampled_from([0, 1, 2, 1024, 262144, 1 << 40]), st.integers(2, 262144)),
    quota=st.one_of(st.sampled_from([-1, 0, -5]), st.integers(1000, 1 << 40)),
    period=st.one_of(st.just(0), st.integers(1000, 1_000_000)),
    burst=st.integers(0, 1 << 40),
    idle=st.integers(0, 1),
    cpus=CPUS,
    mems=CPUS,
)
BLOCK_IO = some(
    **{
        "weight": st.one_of(st.just(0), st.integers(10, 1000)),
        "weightDevice": throttles("weight"),
        **{name: throttles("rate") for name in RATES},
    },
)
PIDS = st.fixed_dictionaries({"limit": st.one_of(st.sampled_from([-1, 0, 1]), st.integers(1, 1 << 22))})
#: What update may be given; a config has more.
UPDATES = some(memory=MEMORY, cpu=CPU, pids=PIDS, blockIO=BLOCK_IO, unified=UNIFIED)
PAGES = st.fixed_dictionaries(
    {
        "pageSize": st.sampled_from(["2MB", "1GB", "64KB"]),
        "limit": st.one_of(st.just(UINT64), st.integers(0, 1 << 50)),
    }
)
RDMA = st.dictionaries(
    st.sampled_from(["mlx5_0", "mlx5_1"]),
    st.fixed_dictionaries({}, optional={"hcaHandles": st.integers(0, 1 << 31), "hcaObjects": st.integers(0, 1 << 31)}),
)
CONFIGS = st.builds(
    lambda document, pages, rdma: {**document, "hugepageLimits": pages, "rdma": rdma},
    UPDATES,
    st.lists(PAGES, unique_by=lambda one: one["pageSize"], max_size=2),
    RDMA,
)


class Refused(Exception):
    pass


def weight_of(shares: int) -> int:
    log = math.log2(min(max(shares, 2), 262144))
    return math.ceil(10 ** ((log * log + 125 * log) / 612 - 7 / 34)) if shares > 2 else 1


def asked(document: Document) -> dict[tuple[str, str], str]:
    """(file, device or "") → value: what the specification's members mean on cgroup v2, without an order."""
    made: dict[tuple[str, str], str] = {}

    def put(file: str, value: Any, device: str = "") -> None:
        made[file, device] = "max" if value == -1 else str(value)

    memory, cpu, block = document.get("memory", {}), document.get("cpu", {}), document.get("blockIO", {})
    if "pids" in document:
        put("pids.max", max(document["pids"]["limit"], 1) if document["pids"]["limit"] >= 0 else -1)
    limit, swap = memory.get("limit", 0), memory.get("swap", 0)
    if limit:
        put("memory.max", limit)
    if memory.get("reservation"):
        put("memory.low", memory["reservation"])
    if swap > 0 and limit >= 0:
        if swap < limit or limit == 0:
            raise Refused
        put("memory.swap.max", swap - limit)
    elif swap or limit == -1:
        put("memory.swap.max", swap or -1)
    if "idle" in cpu:
        put("cpu.idle", cpu["idle"])
    if cpu.get("shares") and cpu.get("idle") != 1:
        put("cpu.weight", weight_of(cpu["shares"]))
    if cpu.get("quota") or cpu.get("period"):
        put("cpu.max", f"{cpu['quota'] if cpu.get('quota', 0) > 0 else 'max'} {cpu.get('period') or 100000}")
    if "burst" in cpu:
        put("cpu.max.burst", cpu["burst"])
    for name in ("cpus", "mems"):
        if "\n" in cpu.get(name, "").rstrip("\n"):
            raise Refused
        if cpu.get(name):
            put(f"cpuset.{name}", cpu[name])
    if block.get("weight"):
        put("io.bfq.weight", block["weight"])
    for one in block.get("weightDevice", ()):
        if one["weight"]:
            put("io.bfq.weight", one["weight"], f"{one['major']}:{one['minor']}")
    for name, key in RATES.items():
        for one in block.get(name, ()):
            put(f"io.max {key}", one["rate"] or -1, f"{one['major']}:{one['minor']}")
    for one in document.get("hugepageLimits", ()):
        for file in ("max", "rsvd.max"):
            put(f"hugetlb.{one['pageSize']}.{file}", one["limit"] if one["limit"] < INT64 else -1)
    for device, limits in document.get("rdma", {}).items():
        for member, key in (("hcaHandles", "hca_handle"), ("hcaObjects", "hca_object")):
            if member in limits:
                put(f"rdma.max {key}", limits[member], device)
    for file, text in document.get("unified", {}).items():
        for line in text.replace("\ud800", "\ufffd").split("\n"):
            put_line(made, file, line)
    return made


def put_line(made: dict[tuple[str, str], str], file: str, value: str) -> None:
    """One write(2) of *value*; of a file with a line for each device it changes what the line names."""
    head, _, rest = value.partition(" ")
    if file == "io.max" or file == "rdma.max":
        for word in rest.split():
            key, _, number = word.partition("=")
            made[f"{file} {key}", head] = number
    elif file.endswith(".weight") and rest:
        made[file, head] = rest
    else:
        made[file, ""] = value


def written(writes: tuple[CgroupWrite, ...]) -> dict[tuple[str, str], str]:
    made: dict[tuple[str, str], str] = {}
    for write in writes:
        assert "/" not in write.file and "\0" not in write.value and "\n" not in write.value.rstrip("\n")
        write.value.encode()
        put_line(made, write.file, write.value)
    return made


def read(document: Document, where: str = "linux.resources") -> Any:
    """As update reads its document from a file."""
    return update.read_update(json.dumps(document).encode(), "stdin")


@fuzzed_more
@given(CONFIGS)
@example({"cpu": {"cpus": "0-1\n3"}})
@example({"unified": {"memory.max": "\ud800"}})
def test_what_is_asked_for_is_written(document: Document) -> None:
    try:
        wanted: Any = asked(document)
    except Refused:
        wanted = None
    if wanted is None:
        with pytest.raises(GpurunError):
            plan_resources(read(document), ALL)
        return
    assert written(plan_resources(read(document), ALL)) == wanted


#: Mostly all but one or two: with more that are missing nearly all documents are refused.
HAVE = st.one_of(
    st.sets(st.sampled_from(ALL), min_size=1, max_size=2).map(lambda lacking: set(ALL) - lacking),
    st.sets(st.sampled_from(ALL)),
)


@fuzzed_more
@given(CONFIGS, HAVE)
def test_a_limit_without_its_controller_is_refused_and_never_forgotten(document: Document, have: set[str]) -> None:
    try:
        wanted = asked(document)
        found = written(plan_resources(read(document), sorted(have)))
    except (GpurunError, Refused):
        return
    for (file, device), value in wanted.items():
        if file.partition(".")[0] in have:
            assert found[file, device] == value
        else:
            assert (file, device) not in found
            limits_nothing = value in ("max", "0" if file in ("cpu.idle", "cpu.max.burst", "memory.low") else "100")
            assert limits_nothing or value.startswith("max ") or not value.strip()


@fuzzed_more
@given(UPDATES, UPDATES)
def test_an_update(before: Document, given_now: Document) -> None:
    """What is given is in the files; of what is not, only what it takes to write that; and the document says both."""
    try:
        new, old = read(given_now), read(before)
        plan_resources(old, ALL)
        merged = update.merge(old, new)
        found = written(plan_resources(update.to_write(new, merged), ALL))
    except GpurunError:
        return
    assert read({**before, **update.to_document(merged, before)}) == merged
    assert update.merge(merged, new) == merged and update.merge(old, read({})) == old
    both = {key: {**before.get(key, {}), **present(given_now.get(key, {}))} for key in ("memory", "cpu")}
    if given_now.get("memory", {}).get("limit") == -1 and not given_now["memory"].get("swap"):
        both["memory"]["swap"] = 0
    wanted = asked({**given_now, **both})
    alone = {file for file, _ in found}
    for file, device in found:
        if (file, "") not in asked_unified(given_now):
            assert found[file, device] == wanted[file, device], file
    for file in files_of(given_now):
        assert file in alone, file
    allowed = files_of(given_now) | {file.partition(" ")[0] for file, _ in asked_unified(given_now)}
    assert {file.partition(" ")[0] for file in alone} <= {file.partition(" ")[0] for file in allowed} | companions(given_now)


def present(members: Document) -> Document:
    """Zero and the empty text are not given, but where they have a meaning."""
    return {key: value for key, value in members.items() if value or key in ("burst", "idle")}


def asked_unified(document: Document) -> dict[tuple[str, str], str]:
    return asked({"unified": document.get("unified", {})})


def files_of(document: Document) -> set[str]:
    """The files that a member of *document* asks for by itself."""
    names = {
        "memory": {"limit": "memory.max", "reservation": "memory.low"},
        "cpu": {"quota": "cpu.max", "period": "cpu.max", "burst": "cpu.max.burst", "idle": "cpu.idle", "cpus": "cpuset.cpus",
                "mems": "cpuset.mems"},
    }  # fmt: skip
    found = set()
    for group, members in names.items():
        found |= {members[key] for key in present(document.get(group, {})) if key in members}
    found |= {file for file, _ in asked({k: v for k, v in document.items() if k in ("pids", "blockIO", "unified")})}
    return found


def companions(document: Document) -> set[str]:
    """What limits the same thing as what is given, and is written with it."""
    made: set[str] = set()
    memory, cpu = document.get("memory", {}), document.get("cpu", {})
    if memory.get("limit") or memory.get("swap"):
        made |= {"memory.max", "memory.swap.max"}
    if cpu.get("shares"):
        made |= {"cpu.weight", "cpu.idle"}
    if cpu.get("quota") or cpu.get("period"):
        made |= {"cpu.max.burst"}
    return made


@st.composite
def worse(draw: Draw) -> bytes:
    document = draw(CONFIGS)
    if draw(st.booleans()):
        return json.dumps(draw(changed(document))).encode("utf-8", "surrogatepass")
    text: bytes = draw(damaged(json.dumps(document).encode()))
    return text


@fuzzed
@given(worse())
def test_changed_and_damaged_documents(text: bytes) -> None:
    try:
        new = update.read_update(text, "stdin")
        writes = plan_resources(new, ALL)
    except GpurunError as e:
        assert str(e)
        return
    written(writes)
    tell_systemd(writes)
    for write in writes:
        if write.file in ("memory.max", "memory.low", "memory.swap.max", "pids.max") and ".unified." not in write.where:
            assert write.value == "max" or 0 <= int(write.value) <= INT64


def tell_systemd(writes: tuple[CgroupWrite, ...]) -> None:
    """What systemd is told fits into its types, and rounds a quota up, by less than a percent of a CPU."""
    try:
        properties = limit_properties(writes)
    except GpurunError:
        return
    for one in properties:
        dbus.method_call(1, "a.b", "/a", "a.b", "C", f"sv{one.signature}", (one.name, (one.signature, one.value), one.value))
    for write, rounded in zip(writes, as_systemd_rounds(writes), strict=True):
        if write.file == "cpu.max" and ".unified." not in write.where and not write.value.startswith("max"):
            (quota, period), (up, same) = [[int(word) for word in w.value.split()] for w in (write, rounded)]
            assert same == period and quota <= up + 1 and up <= quota + period // 100 + 1, (write, rounded)


@fuzzed_more
@given(CONFIGS)
@example({"cpu": {"cpus": "²"}})
@example({"cpu": {"cpus": "3-1"}})
@example({"unified": {"memory.max": "20E"}})
@example({"unified": {"memory.max": "9" * 5000}})
def test_what_systemd_is_told(document: Document) -> None:
    try:
        writes = plan_resources(read_resources(document), ALL)
    except GpurunError:
        return
    tell_systemd(writes)


PROPERTIES = st.tuples(
    st.sampled_from(["TimeoutStopSec", "CPUWeight", "AllowedCPUs", "RuntimeMaxSec", "ab"]),
    st.one_of(
        st.builds(
            lambda word, number: f"{word}{number}",
            st.sampled_from(["", "-", "uint64 ", "uint32 ", "byte ", "int16 ", "@d ", "@t "]),
            st.one_of(st.integers(0, 300), st.sampled_from([1 << 31, 1 << 32, 1 << 63])),
        ),
        st.sampled_from(["true", "'a b'", "['a', 'b']", "[byte 0x3, 5]", "(1, 'x')", "[('a', true)]", "@as []", "1.5"]),
        st.text(alphabet="0123456789.eE-+xu inft64'[](),@aysb\\", max_size=25),
        st.sampled_from(
            [
                "uint64 18446744073709551615",
                "@d inf",
                "@d nan",
                "@d 1e300",
                "9" * 5000,
                "'\\ud800'",
                "[" * 5000,
                "@ay [1, 2]",
            ]
        ),
    ),
)


@fuzzed
@given(PROPERTIES)
def test_properties_that_annotations_ask_for(asked_for: tuple[str, str]) -> None:
    name, text = asked_for
    try:
        found = annotation_properties({f"org.systemd.property.{name}": text})
    except GpurunError:
        return
    for one in found:
        dbus.method_call(1, "a.b", "/a", "a.b", "C", f"sv{one.signature}", (one.name, (one.signature, one.value), one.value))


@fuzzed
@given(st.integers(0, (1 << 60) - 1), st.sampled_from(["", "b", "k", "K", "kb", "KiB", "m", "MiB", "g", "Gb", "t", "p"]))
def test_sizes(number: int, unit: str) -> None:
    power = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}[unit[:1].lower()]
    assert update.parse_bytes(f"{number}{unit}", "memory") == number << 10 * power
    if power:
        assert update.parse_bytes(f"{number}.5{unit}", "memory") == (number << 10 * power) + (1 << 10 * power - 1)


DAMAGED_SIZES = st.text(alphabet="0123456789.kmgtpbi- \n²٣", max_size=12)


@fuzzed
@given(DAMAGED_SIZES)
@example("9" * 5000)
@example("1." + "9" * 5000)
def test_damaged_sizes(text: str) -> None:
    try:
        assert update.parse_bytes(text, "memory") >= -1
    except GpurunError as e:
        assert "memory" in str(e)


def _both(made: tuple[Document, set[str]]) -> bool:
    """Whether a document with some of the controllers is accepted, and asks for something."""
    document, have = made
    return bool(plan_resources(read(document), sorted(have)))


def _updated(made: tuple[Document, Document]) -> Any:
    old, new = read(made[0]), read(made[1])
    plan_resources(old, ALL)
    return plan_resources(update.to_write(new, update.merge(old, new)), ALL)


#: Of each strategy, how many percent at least are accepted and come to something.
SHARES: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], Any], int]] = {
    "configs": (CONFIGS, lambda made: plan_resources(read(made), ALL), 50),
    "some controllers": (st.tuples(CONFIGS, HAVE), _both, 20),
    "updates": (st.tuples(UPDATES, UPDATES), _updated, 30),
    "changed and damaged": (worse(), lambda made: plan_resources(update.read_update(made, "stdin"), ALL), 15),
    "systemd": (CONFIGS, lambda made: limit_properties(plan_resources(read_resources(made), ALL)), 35),
    "properties": (PROPERTIES, lambda made: annotation_properties({f"org.systemd.property.{made[0]}": made[1]}), 25),
    "damaged sizes": (DAMAGED_SIZES, lambda made: update.parse_bytes(made, "memory") is not None, 8),
}


@pytest.mark.parametrize("name", SHARES)
def test_how_much_of_a_strategy_is_accepted(name: str) -> None:
    strategy, reads, least = SHARES[name]
    assert share(strategy, reads) >= least
