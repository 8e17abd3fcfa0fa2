"""Bad documents: refused with one sentence that names the place, before anything is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import MakeBundle
from tests.faults.full_config import PATHS, Path, full_config, json_path, replaced, walk, wrong_values
from tests.native.bundle import Bundle, Config
from tests.native.runtime import Runtime

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


def refused(runtime: Runtime, b: Bundle) -> str:
    """The sentence with which ``create`` refuses *b*, after looking that it is one and that nothing was made."""
    cgroups = [*runtime.bed.cgroup(runtime.bed.subtree).iterdir()]
    text = runtime.refused(b)
    assert text.count("\n") == 1, f"more than a sentence: {text}"
    assert "Traceback" not in text
    assert not runtime.root.exists() or [*runtime.root.iterdir()] == []
    assert [*runtime.bed.cgroup(runtime.bed.subtree).iterdir()] == cgroups
    return text


@pytest.mark.sweep(40)
@pytest.mark.parametrize("path", PATHS, ids=json_path)
def test_wrong_type(runtime: Runtime, bundle: MakeBundle, path: Path) -> None:
    right = next(value for p, value in walk(full_config()) if p == path)
    wrong = wrong_values(right)[0]  # all the others: test_reading.py
    b = bundle(replaced(full_config(), path, wrong))
    assert json_path(path) in refused(runtime, b)


@pytest.mark.sweep(6)
@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"nonsense", "line 1, column 1"),
        (b'{"a": 1,}', "line 1, column"),  # 8 or 9: Python 3.13 points at the comma
        (b'{\n "a": \n', "line"),
        (b'{"process": {', "line 1"),
        (b"\xff\xfe{}", "UTF-8"),
        (b"[]", "object"),
        (b'"text"', "object"),
        (b"7", "object"),
        (b"null", ""),
        (b"{}", ""),
        (b'{"a": NaN}', ""),
        (b"[" * 100000, ""),
        (b'{"a":' * 100000, ""),
    ],
    ids=range(15),
)
def test_not_a_config(runtime: Runtime, bundle: MakeBundle, raw: bytes, says: str) -> None:
    b = bundle()
    b.raw = raw
    assert says in refused(runtime, b)


def test_missing_file(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle()
    b.write()
    (b.directory / "config.json").unlink()
    result = runtime("create", "--bundle", str(b.directory), runtime.new_id())
    assert result.rc == 1
    assert "config.json" in result.text and "not found" in result.text


def test_missing_bundle(runtime: Runtime) -> None:
    result = runtime("create", "--bundle", "/nonexistent/bundle", runtime.new_id())
    assert result.rc == 1
    assert "/nonexistent/bundle" in result.text


def test_config_that_is_a_directory(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle()
    (b.directory / "config.json").mkdir()
    result = runtime("create", "--bundle", str(b.directory), runtime.new_id())
    assert result.rc == 1
    assert "is a directory" in result.text


def without(*path: str) -> Callable[[Config], None]:
    def remove(config: Config) -> None:
        target = config
        for step in path[:-1]:
            target = target[step]
        del target[path[-1]]

    return remove


def put(*path_and_value: Any) -> Callable[[Config], None]:
    *path, value = path_and_value

    def change(config: Config) -> None:
        replaced(config, tuple(path), value)

    return change


def drop_namespace(kind: str) -> Callable[[Config], None]:
    def drop(config: Config) -> None:
        config["linux"]["namespaces"] = [n for n in config["linux"]["namespaces"] if n["type"] != kind]

    return drop


@pytest.mark.sweep(12)
@pytest.mark.parametrize(
    ("edit", "where"),
    [
        (without("root"), "root"),
        (without("root", "path"), "root.path"),
        (without("process"), "process"),
        (without("process", "args"), "process.args"),
        (without("process", "cwd"), "process.cwd"),
        (put("process", "args", []), "process.args"),
        (put("process", "cwd", "here"), "process.cwd"),
        (put("process", "env", ["NOEQUALS"]), "process.env[0]"),
        (put("process", "env", ["A=b", "=x"]), "process.env[1]"),
        (put("process", "args", ["a\0b"]), "process.args[0]"),
        (put("process", "user", {"uid": -1, "gid": 0}), "process.user.uid"),
        (put("process", "user", {"uid": 1 << 32, "gid": 0}), "process.user.uid"),
        (put("process", "rlimits", [{"type": "RLIMIT_X", "soft": 1, "hard": 1}]), "process.rlimits[0]"),
        (put("process", "oomScoreAdj", 5000), "process.oomScoreAdj"),
        (put("mounts", 0, {"type": "tmpfs", "source": "x"}), "mounts[0].destination"),
        (put("mounts", 0, "options", ["a\0b"]), "mounts[0].options[0]"),
        (put("linux", "namespaces", [{"path": "/x"}]), "linux.namespaces[0].type"),
        (put("linux", "namespaces", [{"type": "colour"}]), "linux.namespaces[0]"),
        (put("linux", "rootfsPropagation", "sideways"), "linux.rootfsPropagation"),
        (put("linux", "devices", [{"type": "c", "major": 1, "minor": 1}]), "linux.devices[0].path"),
        (put("linux", "resources", "unified", {"a/b": "c"}), "linux.resources.unified"),
        (put("linux", "sysctl", {"vm.swappiness": "1"}), "linux.sysctl"),
        (put("linux", "timeOffsets", {"monotonic": {"secs": 1}}), "linux.timeOffsets"),
        (put("linux", "timeOffsets", {"sideral": {"secs": 1}}), "linux.timeOffsets"),
        (put("linux", "uidMappings", [{"containerID": 0, "hostID": 1, "size": 1}]), "linux.uidMappings"),
        (drop_namespace("uts"), "hostname"),
        (drop_namespace("mount"), "linux"),
        (put("hooks", {"createRuntime": [{"path": "relative"}]}), "hooks.createRuntime[0].path"),
        (put("hooks", {"createRuntime": [{}]}), "hooks.createRuntime[0].path"),
        (put("hooks", {"createRuntime": [{"path": "/x", "timeout": -1}]}), "hooks.createRuntime[0].timeout"),
    ],
)
def test_contradiction(runtime: Runtime, bundle: MakeBundle, edit: Callable[[Config], None], where: str) -> None:
    b = bundle()
    edit(b.config)
    assert where in refused(runtime, b)


#: Fields that change how the process runs, not whether its output is seen; they have tests of their own.
HARMLESS = ("linux.personality", "linux.memoryPolicy", "process.scheduler", "process.ioPriority", "process.execCPUAffinity")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("linux.seccomp", {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": []}),
        ("process.apparmorProfile", "no-such-profile"),
        ("process.selinuxLabel", "system_u:system_r:container_t:s0"),
        ("linux.intelRdt", {"closID": "x"}),
        ("linux.personality", {"domain": "LINUX32"}),
        ("linux.memoryPolicy", {"mode": "MPOL_BIND", "nodes": "0"}),
        ("linux.netDevices", {"eth9": {}}),
        ("linux.mountLabel", "system_u:object_r:container_file_t:s0"),
        ("process.scheduler", {"policy": "SCHED_FIFO", "priority": 10}),
        ("process.ioPriority", {"class": "IOPRIO_CLASS_BE", "priority": 3}),
        ("process.execCPUAffinity", {"initial": "0"}),
    ],
)
def test_what_is_not_done_is_refused_and_not_ignored(runtime: Runtime, bundle: MakeBundle, field: str, value: Any) -> None:
    """A field of the specification either has its effect or stops the container; silence would be a hole."""
    b = bundle().args("echo", "ran")
    *path, last = field.split(".")
    target = b.config
    for step in path:
        target = target[step]
    target[last] = value
    container = runtime.create(b, check=False)
    if container.result.rc:
        assert field in container.err, container.err
        return
    container.start()
    container.wait()
    assert container.out == ("ran\n" if field in HARMLESS else ""), f"{field} was given and had no effect that could be seen"


def test_unknown_fields_are_ignored(runtime: Runtime, bundle: MakeBundle) -> None:
    """Clients are newer than runtimes."""
    b = bundle().args("echo", "ran")
    for target in (b.config, b.process, b.linux, b.config["root"], b.config["mounts"][0], b.linux["resources"]):
        target["someNewField"] = {"a": [1, 2]}
    assert runtime.output(b) == "ran\n"
