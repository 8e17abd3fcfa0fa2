"""Random and damaged input to every reader: what is wrong with it is told by the reader's own error, soon, and never else.

What reads /proc, resources and command lines has strategies of its own: test_fuzz_procfs.py, test_fuzz_resources.py,
test_fuzz_command_lines.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

hypothesis = pytest.importorskip("hypothesis")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from gpurun.cdi.edits import CacheEntry, ContainerEdits  # noqa: E402
from gpurun.cdi.files import parse_spec  # noqa: E402
from gpurun.criu import rpc  # noqa: E402
from gpurun.engine import messages  # noqa: E402
from gpurun.engine import state as store  # noqa: E402
from gpurun.engine.plan.container import make_plan  # noqa: E402
from gpurun.errors import GpurunError  # noqa: E402
from gpurun.formats import dbus, gvariant, ldcache, ldconf, protobuf, toml  # noqa: E402
from gpurun.formats.elf import read_elf, read_note  # noqa: E402
from gpurun.gpu.nvidia.request.environment import read_request  # noqa: E402
from gpurun.gpu.nvidia.request.records import Policy  # noqa: E402
from gpurun.ns import journal  # noqa: E402
from gpurun.oci.config import read_config  # noqa: E402
from gpurun.oci.default_spec import default_spec  # noqa: E402
from tests.attacks.fuzzing import changed, damaged, fuzzed, share  # noqa: E402
from tests.engine.plan.planning import HOST  # noqa: E402
from tests.hook.test_compat import NOTE_575, OWNER, SECTION, with_note  # noqa: E402

pytestmark = pytest.mark.attack("damaged input", "a reader hangs, crashes or takes what contradicts itself")


def full_config() -> dict[str, Any]:
    """A config.json with something of most that there is."""
    spec = default_spec()
    spec["annotations"] = {"a": "b", "dev.gpurun.memory.oom.group": "true"}
    spec["process"].update(
        rlimits=[{"type": "RLIMIT_NOFILE", "soft": 10, "hard": 20}],
        oomScoreAdj=10,
        ioPriority={"class": "IOPRIO_CLASS_BE", "priority": 4},
        scheduler={"policy": "SCHED_BATCH", "nice": 5},
        consoleSize={"height": 10, "width": 20},
    )
    spec["mounts"].append({"destination": "/mnt", "type": "bind", "source": "/tmp", "options": ["rbind", "ro", "rprivate"]})
    spec["hooks"] = {"prestart": [{"path": "/bin/true", "args": ["true"], "env": ["A=b"], "timeout": 5}]}
    linux = spec["linux"]
    linux["namespaces"] += [{"type": "user"}, {"type": "time"}]
    linux["uidMappings"] = linux["gidMappings"] = [{"containerID": 0, "hostID": 100000, "size": 65536}]
    linux["timeOffsets"] = {"boottime": {"secs": 10, "nanosecs": 5}}
    linux["devices"] = [{"path": "/dev/x", "type": "c", "major": 1, "minor": 3, "fileMode": 438, "uid": 0, "gid": 0}]
    linux["sysctl"] = {"net.ipv4.ip_forward": "1"}
    linux["resources"] = {
        "memory": {"limit": 1 << 30, "swap": 1 << 31, "reservation": 1 << 29},
        "cpu": {"shares": 512, "quota": 50000, "period": 100000, "cpus": "0-1", "mems": "0"},
        "pids": {"limit": 100},
        "devices": [{"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm"}],
        "hugepageLimits": [{"pageSize": "2MB", "limit": 1 << 21}],
        "unified": {"memory.high": "1G"},
    }
    return json.loads(json.dumps(spec))  # type: ignore[no-any-return]


CONFIG = full_config()


def test_the_base_of_the_configs_is_accepted() -> None:
    """What is made of a base that is refused says nothing of what comes after the refusal."""
    made = make_plan(read_config(json.dumps(CONFIG).encode()), "c", "/bundle", HOST, ContainerEdits())
    assert made.namespaces.uid_map and made.cgroup.writes and made.init.devices


@fuzzed
@given(changed(CONFIG))
def test_configs(document: dict[str, Any]) -> None:
    text = json.dumps(document).encode("utf-8", "surrogatepass")
    try:
        plan = make_plan(read_config(text), "c", "/bundle", HOST, ContainerEdits())
    except GpurunError as e:
        assert str(e) and "Traceback" not in str(e)
        return
    assert plan.init.rootfs.startswith("/")
    for step in plan.init.devices:
        assert step.path.startswith("/") and 0 <= step.major < 1 << 12 and 0 <= step.minor < 1 << 20
    for resource, soft, hard in plan.init.process.rlimits:
        assert 0 <= soft <= hard < 1 << 64 and resource < 16
    assert all("\0" not in text for text in plan.init.process.args)


@fuzzed
@given(damaged(json.dumps(CONFIG).encode()))
def test_texts_of_configs(data: bytes) -> None:
    try:
        make_plan(read_config(data), "c", "/bundle", HOST, ContainerEdits())
    except GpurunError:
        pass


CDI: dict[str, Any] = {
    "cdiVersion": "1.1.0",
    "kind": "vendor.com/class",
    "annotations": {"a": "b"},
    "devices": [
        {
            "name": "one",
            "containerEdits": {
                "env": ["A=b"],
                "deviceNodes": [{"path": "/dev/x", "type": "c", "major": 1, "minor": 3, "permissions": "rw", "uid": 1}],
                "mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["ro", "bind"], "type": "bind"}],
                "hooks": [{"hookName": "createContainer", "path": "/x", "args": ["x"], "env": ["A=b"], "timeout": 3}],
                "intelRdt": {"closID": "x", "enableMonitoring": True},
                "additionalGids": [5],
            },
        }
    ],
    "containerEdits": {"env": ["C=d"]},
}


CDI_YAML = b"cdiVersion: 0.6.0\nkind: a.b/c\ndevices:\n- name: x\n  containerEdits:\n    env:\n    - 'A=b' # c\n"


@fuzzed
@given(changed(CDI), st.sampled_from(["json", "yaml"]))
def test_cdi_documents(document: dict[str, Any], kind: str) -> None:
    try:
        parse_spec(json.dumps(document).encode("utf-8", "surrogatepass"), f"x.{kind}")
    except GpurunError:
        pass


@fuzzed
@given(
    st.one_of(
        damaged(json.dumps(CDI).encode()),
        damaged(CDI_YAML),
        st.text(alphabet="ab:-[]{}#&*!|>'\"%@`,? \n\t01.~", max_size=80).map(str.encode),
    )
)
def test_cdi_texts(data: bytes) -> None:
    for kind in ("json", "yaml"):
        try:
            parse_spec(data, f"x.{kind}")
        except GpurunError:
            pass


TOML = b"""# c
a = true
[b]
c-d = "e" # f
"g.h" = ['i', "j\\n"]
[b.k]
l = 10
"""


@fuzzed
@given(
    st.one_of(damaged(TOML), st.text(max_size=80), st.text(alphabet="a=[]\"'#_+-.10 \n\\,tfruels", max_size=80)).map(
        lambda text: text if isinstance(text, str) else text.decode("utf-8", "replace")
    )
)
def test_toml(text: str) -> None:
    try:
        toml.parse(text, "config.toml")
    except GpurunError:
        pass


DEVICES = ("all", "0,1", "none", "0:1", "GPU-8f6d2a4e-0000-0000-0000-000000000000", "free:2;product=T*", "nvidia.com/gpu=0")
ASKED = st.one_of(st.sampled_from(DEVICES), st.text(max_size=30))


@fuzzed
@given(
    st.lists(ASKED.map(lambda text: f"NVIDIA_VISIBLE_DEVICES={text}"), max_size=2),
    st.one_of(st.sampled_from(["all", "compute,utility", "cuda>=11.0", "0", "true"]), st.text(max_size=60)),
)
def test_requests(devices: list[str], text: str) -> None:
    names = ("DRIVER_CAPABILITIES", "REQUIRE_CUDA", "MIG_CONFIG_DEVICES", "GDS", "IMEX_CHANNELS", "DISABLE_REQUIRE")
    env = tuple(devices + [f"NVIDIA_{name}={text}" for name in names] + [text])
    try:
        read_request(env, {}, False, Policy())
    except GpurunError:
        pass


CACHE = ldcache.compose(None, (CacheEntry("libx.so.1", "/usr/lib/libx.so.1", 0x303),))


@fuzzed
@given(damaged(CACHE))
def test_caches_of_the_loader(data: bytes) -> None:
    try:
        found = ldcache.parse(data)
    except ldcache.CacheError:
        return
    assert len(found) <= len(data)
    ldcache.compose(data, (CacheEntry("liby.so.1", "/usr/lib/liby.so.1", 0x303),))


@fuzzed
@given(st.binary(max_size=200))
def test_paths_of_musl(data: bytes) -> None:
    ldconf.musl_path(data, ("/usr/lib/x",))


LIBRARY = with_note(NOTE_575)


@fuzzed
@given(damaged(LIBRARY))
def test_libraries(data: bytes) -> None:
    fd = os.memfd_create("elf")
    try:
        os.write(fd, data)
        read_elf(fd)
        read_note(fd, SECTION, OWNER)
    finally:
        os.close(fd)


CALL = dbus.method_call(7, "org.x", "/org/x", "org.x.Y", "Do", "sa(sv)u", ("a", (("n", ("s", "v")),), 5))


@fuzzed
@given(damaged(CALL))
def test_messages_of_dbus(data: bytes) -> None:
    try:
        dbus.take_message(data)
    except ValueError:
        pass


ANSWER = protobuf.message([(1, 7), (2, True), (5, protobuf.message([(1, "setup-namespaces"), (2, 123)])), (9, "error")])


@fuzzed
@given(damaged(ANSWER))
def test_messages_of_criu(data: bytes) -> None:
    try:
        answer = rpc.answer(data)
    except protobuf.BadMessage:
        return
    assert 0 <= answer.pid < 1 << 31 and 0 <= answer.restored < 1 << 31


REPORTS = (b"child 123", b"move 12 345 1", b"created", b"failed chdir to cwd: no such file or directory")


@fuzzed
@given(st.one_of([damaged(report) for report in REPORTS]))
def test_reports_of_the_processes_inside(data: bytes) -> None:
    try:
        said = messages.parse_report(data, 1)
    except GpurunError:
        return
    assert said.word == "failed" or all(0 <= number < 10**9 for number in said.numbers)


VARIANTS = ("uint64 5000000", "true", "'a text'", "['a', 'b']", "[('a', uint32 1, 2.5)]", "@as []", '(int16 -1, "b\\n")')


@fuzzed
@given(
    st.one_of(
        st.text(max_size=40),
        st.sampled_from(VARIANTS)
        .flatmap(lambda text: damaged(text.encode()))
        .map(lambda data: data.decode("utf-8", "replace")),
    )
)
def test_properties_of_units(text: str) -> None:
    try:
        gvariant.parse_variant(text)
    except (GpurunError, ValueError):
        pass


@fuzzed
@given(st.data())
def test_states(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    root = tmp_path_factory.getbasetemp() / "states"
    (root / "c").mkdir(parents=True, exist_ok=True)
    store.save(str(root), store.State("c", "/b", "/b/rootfs", "/sys/fs/cgroup/c", True, 12, 34, "2024-01-01T00:00:00Z"))
    path = root / "c/state"
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    try:
        state = store.load(str(root), "c")
    except store.DamagedState as e:
        state = e.left
    assert 0 <= state.pid < 1 << 31 and 0 <= state.start_time < 1 << 63


JOURNAL = b"".join([journal.pack("directory", f"usr/lib/nvidia{number}") for number in range(3)])


@fuzzed
@given(damaged(JOURNAL))
def test_journals(data: bytes) -> None:
    for trace in journal.parse(data):
        assert trace.stamp >= 0


def elf(data: bytes) -> Any:
    fd = os.memfd_create("elf")
    try:
        os.write(fd, data)
        found = read_elf(fd)
        return found is not None and found.soname and read_note(fd, SECTION, OWNER)
    finally:
        os.close(fd)


#: What each base is, and what its first reader makes of it: nothing or an error where it does not come past that reader.
BASES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "CDI in JSON": (json.dumps(CDI).encode(), lambda data: parse_spec(data, "x.json").devices[0].edits.intel_rdt),
    "CDI in YAML": (CDI_YAML, lambda data: parse_spec(data, "x.yaml").devices[0].edits.env),
    "TOML": (TOML.decode(), lambda text: toml.parse(text, "config.toml")["b.k.l"] == 10),
    "loader's cache": (CACHE, ldcache.parse),
    "library": (LIBRARY, elf),
    "D-Bus": (CALL, dbus.take_message),
    "CRIU": (ANSWER, lambda data: rpc.answer(data).pid == 123),
    "journal": (JOURNAL, lambda data: len(journal.parse(data)) == 3),
    **{report.decode(): (report, lambda data: messages.parse_report(data, 1)) for report in REPORTS},
    **{text: (text, gvariant.parse_variant) for text in VARIANTS},
    **{
        devices: (
            (f"NVIDIA_VISIBLE_DEVICES={devices}",),
            lambda env: read_request(env, {}, False, Policy()) or env[0][-4:] == "none",
        )
        for devices in DEVICES
    },
}


@pytest.mark.parametrize("name", BASES)
def test_each_base_is_accepted(name: str) -> None:
    """Or what is made of it tests the first refusal again and again, and nothing of what comes after it."""
    base, read = BASES[name]
    assert read(base)


#: Of each strategy, how many percent at least get past the first reader: about half of what was counted, for another
#: version of hypothesis draws others.
SHARES: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], Any], int]] = {
    "configs": (changed(CONFIG), lambda made: read_config(json.dumps(made).encode("utf-8", "surrogatepass")), 40),
    "CDI": (changed(CDI), lambda made: parse_spec(json.dumps(made).encode("utf-8", "surrogatepass"), "x.json"), 15),
    "TOML": (damaged(TOML), lambda made: toml.parse(made.decode("utf-8", "replace"), "c"), 10),
    "loader's cache": (damaged(CACHE), ldcache.parse, 7),
    "library": (damaged(LIBRARY), elf, 10),
    "D-Bus": (damaged(CALL), dbus.take_message, 4),
    "CRIU": (damaged(ANSWER), rpc.answer, 25),
    "journal": (damaged(JOURNAL), journal.parse, 25),
    "reports": (st.one_of([damaged(r) for r in REPORTS]), lambda made: messages.parse_report(made, 1), 10),
}


@pytest.mark.parametrize("name", SHARES)
def test_how_much_of_a_strategy_is_accepted(name: str) -> None:
    strategy, read, least = SHARES[name]
    assert share(strategy, read) >= least
