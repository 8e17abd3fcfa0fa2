"""The models of config.json, and ``validate``, which is made of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpurun.commands.validate import validate
from gpurun.errors import ConfigError, GpurunError
from gpurun.invocation import Globals, Invocation
from gpurun.library.validation import check_file
from gpurun.oci.config import read_config
from gpurun.oci.default_spec import default_spec
from gpurun.oci.problems import problems
from gpurun.oci.schema import Problem
from tests.engine.plan.planning import base, set_path

FULL: dict[str, Any] = {
    "process.user": {"uid": 1, "gid": 2, "umask": 18, "additionalGids": [5]},
    "process.consoleSize": {"height": 24, "width": 80},
    "process.scheduler": {"policy": "SCHED_FIFO", "priority": 10, "flags": ["SCHED_FLAG_RESET_ON_FORK"]},
    "process.ioPriority": {"class": "IOPRIO_CLASS_IDLE"},
    "process.execCPUAffinity": {"initial": "0-3", "final": "7"},
    "process.apparmorProfile": "docker-default",
    "process.selinuxLabel": "system_u:system_r:container_t:s0",
    "process.oomScoreAdj": -1000,
    "linux.timeOffsets": {"monotonic": {"secs": 1}, "boottime": {"nanosecs": 3}},
    "linux.devices": [{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "fileMode": 438, "uid": 0, "gid": 0}],
    "linux.netDevices": {"eth0": {"name": "inner"}},
    "linux.intelRdt": {"closID": "a", "l3CacheSchema": "L3:0=f", "enableMonitoring": True},
    "linux.personality": {"domain": "LINUX32"},
    "linux.memoryPolicy": {"mode": "MPOL_BIND", "nodes": "0", "flags": ["MPOL_F_STATIC_NODES"]},
    "linux.seccomp": {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["a"], "action": "SCMP_ACT_LOG"}]},
    "linux.sysctl": {"net.ipv4.ip_forward": "1"},
    "linux.rootfsPropagation": "rslave",
    "hooks": {"poststop": [{"path": "/bin/true", "args": ["true"], "env": ["A=b"], "timeout": 1}]},
    "annotations": {"a": "b"},
    "windows": {"anything": 1},
}


def said(document: Any) -> list[str]:
    return [f"{p.where}: {p.what}" for p in problems(document)]


@pytest.mark.parametrize("rootless", [True, False])
def test_what_spec_writes_is_valid(rootless: bool) -> None:
    assert problems(default_spec(rootless)) == ()


def test_every_kind_of_member_is_valid() -> None:
    config = base()
    for path, value in FULL.items():
        set_path(config, path, value)
    assert problems(config) == ()
    read_config(json.dumps(config).encode())


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("ociVersion", ..., "ociVersion: is missing"),
        ("ociVersion", "2.0.0", 'ociVersion: "2.0.0" is not a version of the specification, such as 1.2.0'),
        ("root", ..., "root: is missing"),
        ("process", None, "process: is missing"),
        ("process.args", [], "process.args: must not be empty"),
        ("process.args", ["a", 1], "process.args[1]: must be a string, not a number"),
        ("process.cwd", "tmp", 'process.cwd: "tmp" must be an absolute path'),
        ("process.env", ["A=1", "B"], 'process.env[1]: "B" must be NAME=value'),
        ("process.terminal", "yes", "process.terminal: must be true or false, not a string"),
        ("process.user.uid", 1 << 32, "process.user.uid: 4294967296 is out of range, it must be 4294967295 or less"),
        ("process.user.uid", True, "process.user.uid: must be an integer, not a boolean"),
        ("process.user.uid", 1.0, "process.user.uid: must be an integer, not a number"),
        ("process.oomScoreAdj", 1001, "process.oomScoreAdj: 1001 is out of range, it must be 1000 or less"),
        ("process.ioPriority", {}, "process.ioPriority.class: is missing"),
        ("hostname", "a\0b", "hostname: contains a null byte"),
        ("mounts", {}, "mounts: must be an array, not an object"),
        ("mounts", [{"destination": ""}], "mounts[0].destination: must not be empty"),
        ("hooks", {"poststart": [{"path": "x"}]}, 'hooks.poststart[0].path: "x" must be an absolute path'),
        ("annotations", {"a": 1}, "annotations.a: must be a string, not a number"),
        (
            "linux.namespaces",
            [{"type": "net"}],
            'linux.namespaces[0].type: "net" is unknown, it must be one of '
            "pid, network, mount, ipc, uts, user, cgroup or time",
        ),
        ("linux.namespaces", [{"type": "pid", "path": "x"}], 'linux.namespaces[0].path: "x" must be an absolute path'),
        ("linux.uidMappings", [{"containerID": 0, "hostID": 0, "size": 0}], "linux.uidMappings[0].size: 0 is out of range"),
        ("linux.resources", {"devices": [{"allow": True, "access": "rx"}]}, "linux.resources.devices[0].access: "),
        ("linux.resources", [], "linux.resources: must be an object, not an array"),
        ("linux.seccomp", {}, "linux.seccomp.defaultAction: is missing"),
        ("linux.rootfsPropagation", "x", 'linux.rootfsPropagation: "x" is unknown, it must be one of shared, slave'),
    ],
)
def test_mistakes(path: str, value: Any, text: str) -> None:
    (only,) = said(set_path(base(), path, value))
    assert only.startswith(text)


def test_all_mistakes_at_once() -> None:
    config = base()
    config["process"]["cwd"] = ""
    config["mounts"][3]["options"] = "ro"
    config["linux"]["namespaces"][1]["type"] = 7
    assert [p.where for p in problems(config)] == ["process.cwd", "mounts[3].options", "linux.namespaces[1].type"]


def test_typing_mistakes_are_told_of_but_are_none() -> None:
    config = set_path(base(), "proces", {})
    config["mounts"][1]["option"] = []
    assert problems(config) == (
        Problem("proces", 'is not in the specification and ignored (did you mean "process"?)', fatal=False),
        Problem("mounts[1].option", 'is not in the specification and ignored (did you mean "options"?)', fatal=False),
    )


def test_null_is_absent() -> None:
    assert problems(set_path(base(), "linux.resources", None)) == ()


@pytest.mark.parametrize("document", [None, [], "x", 1])
def test_what_is_no_object(document: Any) -> None:
    assert said(document)[0].startswith(": must be an object, not ")


@pytest.mark.parametrize(
    ("path", "value"),
    [("process.cwd", 5), ("process.user.gid", -1), ("linux.sysctl", {"a": 1}), ("mounts", [1]), ("linux.namespaces", {})],
)
def test_the_engines_readers_refuse_the_same_at_the_same_path(path: str, value: Any) -> None:
    config = set_path(base(), path, value)
    with pytest.raises(ConfigError) as raised:
        read_config(json.dumps(config).encode())
    assert [p.where for p in problems(config)] == [raised.value.where]


def bundle(directory: Path, config: Any) -> Path:
    (directory / "rootfs").mkdir()
    (directory / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return directory


def call(directory: Path) -> int:
    return validate(Invocation("validate", (str(directory),), {}, Globals("/run/gpurun")))


def test_valid_bundle(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(bundle(tmp_path, default_spec())) == 0
    assert capfd.readouterr().out == f"{tmp_path}/config.json: valid\n"


def test_bundle_with_mistakes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = set_path(set_path(base(), "process.cwd", "x"), "root", {})
    assert call(bundle(tmp_path, config)) == 1
    assert capfd.readouterr().out == 'root.path: is missing\nprocess.cwd: "x" must be an absolute path\n'


def test_contradictions_are_found_by_the_plan(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = base()
    config["linux"]["namespaces"] = [n for n in config["linux"]["namespaces"] if n["type"] != "uts"]
    config["extra"] = 1
    assert call(bundle(tmp_path, config)) == 1
    assert capfd.readouterr().out.splitlines() == [
        "hostname: unable to set hostname without a private UTS namespace",
        "note: extra: is not in the specification and ignored",
    ]


def test_rootfs_that_is_not_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(bundle(tmp_path, set_path(base(), "root.path", "elsewhere"))) == 1
    assert capfd.readouterr().out == f'root.path: "{tmp_path}/elsewhere" is not a directory\n'


def test_text_that_is_no_json(tmp_path: Path) -> None:
    bundle(tmp_path, '{"a": }')
    (only,) = check_file(f"{tmp_path}/config.json", str(tmp_path))
    assert "is not valid JSON" in only.what and only.fatal
    (tmp_path / "config.json").write_bytes(b'{"a": "\xff"}')
    (only,) = check_file(f"{tmp_path}/config.json", str(tmp_path))
    assert only.what == "is not UTF-8 text (byte 7)"


@pytest.mark.parametrize("text", ["", " \n", '{"a": }', "[1"])
def test_a_text_that_is_no_object_is_refused_in_the_words_of_create(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    (only,) = check_file(f"{tmp_path}/config.json", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        read_config(text.encode())
    assert only.what == caught.value.what


def test_a_version_that_create_takes_all_the_same(tmp_path: Path) -> None:
    (only,) = [one for one in problems({"ociVersion": "9.0"}) if one.where == "ociVersion"]
    assert only.what == '"9.0" is not a version of the specification, such as 1.2.0: `create` and runc accept it anyway'


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(GpurunError, match="no such file or directory"):
        call(tmp_path)


def test_the_built_file_tells_all_of_them(tmp_path: Path) -> None:
    """With nothing installed: by the one-file program, in an empty environment."""
    program = Path(__file__).resolve().parents[2] / "build/gpurun"
    if not program.exists():
        pytest.skip("not built: make build")
    config = set_path(set_path(base(), "process.cwd", "x"), "mount", [])
    config["process"]["capabilities"] = {"bounding": ["CAP_KIL"], "effective": 7}
    made = bundle(tmp_path, config)
    done = subprocess.run([program, "validate", made], capture_output=True, text=True, env={}, cwd="/", timeout=60)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        'process.cwd: "x" must be an absolute path',
        "process.capabilities.effective: must be an array, not a number",
        'note: mount: is not in the specification and ignored (did you mean "mounts"?)',
        'note: process.capabilities.bounding[0]: "CAP_KIL" is not a capability and is ignored (did you mean "CAP_KILL"?)',
    ]
