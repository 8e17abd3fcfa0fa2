"""CDI devices → edits: order, completion of nodes, mounts, hooks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.cdi.document import CdiNode
from gpurun.cdi.edits import PROCESS_ID, ContainerEdits, EditMount, Hook, Link, ProcTree, combine
from gpurun.cdi.files import read_registry
from gpurun.cdi.inject import complete_node, inject
from gpurun.engine.plan.merged_edits import merge_into_config, saved_config
from gpurun.errors import ConfigError, GpuError
from gpurun.oci.config import Mount, OciHook, read_config

Registered = Callable[..., Any]


def device(name: str, **edits: Any) -> dict[str, Any]:
    return {"name": name, "containerEdits": edits}


@pytest.fixture
def injected(tmp_path: Path) -> Callable[..., ContainerEdits]:
    """``injected(names, file={"kind": ..., "devices": [...]}, ...)``: the edits of *names* from these files."""

    def build(*names: str, **files: dict[str, Any]) -> ContainerEdits:
        for file, content in files.items():
            (tmp_path / f"{file}.json").write_text(json.dumps({"cdiVersion": "1.1.0", **content}))
        return inject(names, read_registry((str(tmp_path),)))

    return build


def test_the_edits_of_a_file_come_once_and_before_its_devices(injected: Callable[..., ContainerEdits]) -> None:
    def hook(name: str) -> dict[str, Any]:
        return {"hookName": "createRuntime", "path": f"/bin/{name}"}

    files = {
        "a": {
            "kind": "a.com/a",
            "devices": [device(n, hooks=[hook(f"a{n}")], env=[f"LAST=a{n}"]) for n in "01"],
            "containerEdits": {"hooks": [hook("a")], "env": ["A=1", "LAST=a"]},
        },
        "b": {"kind": "b.com/b", "devices": [device("0", hooks=[hook("b0")])], "containerEdits": {"hooks": [hook("b")]}},
    }
    edits = injected("a.com/a=1", "b.com/b=0", "a.com/a=0", "a.com/a=1", **files)
    assert [h.path for h in edits.hooks] == ["/bin/a", "/bin/a1", "/bin/b", "/bin/b0", "/bin/a0"]
    assert edits.env == ("A=1", "LAST=a0")


def test_all_or_nothing(tmp_path: Path, injected: Callable[..., ContainerEdits]) -> None:
    files = {"a": {"kind": "a.com/a", "devices": [device("0", env=["A=1"])]}}
    with pytest.raises(GpuError) as caught:
        injected("a.com/a=0", "a.com/a=9", "b.com/b=1", **files)
    assert str(caught.value).startswith("unresolvable CDI devices a.com/a=9, b.com/b=1: of that kind there are a.com/a=0")
    assert "(looked in " in str(caught.value) and str(caught.value).endswith(
        ": `gpurun cdi list` shows the devices that the files there have"
    )
    for kind, what in (("b.com/b", "ask b.com"), ("c.com/c", "`gpurun cdi list` shows")):
        with pytest.raises(GpuError, match=f": {what}"):
            inject(("a.com/a=9", "b.com/b=1"), read_registry((str(tmp_path),)), {kind: "ask b.com"}.get)


def test_the_error_tells_what_was_left_out(tmp_path: Path, injected: Callable[..., ContainerEdits]) -> None:
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(GpuError, match=r"unresolvable CDI devices a.com/a=0 \(.*broken.json: cdiVersion: is missing\)"):
        injected("a.com/a=0")


@pytest.mark.parametrize("broken", [True, False])
def test_who_has_files_that_do_not_count_is_not_told_to_make_one_more(tmp_path: Path, broken: bool) -> None:
    """A malformed one, or two that define the same device."""
    whole = json.dumps({"cdiVersion": "1.1.0", "kind": "a.com/a", "devices": [device("0", env=["A=b"])]})
    for name in ("one", "two"):
        (tmp_path / f"{name}.json").write_text("{}" if broken else whole)
    with pytest.raises(GpuError) as caught:
        inject(("a.com/a=0",), read_registry((str(tmp_path),)), {"a.com/a": "make one"}.get)
    assert "make one" not in str(caught.value)
    assert str(caught.value).endswith("repair or remove those files: `gpurun cdi validate` says all that is wrong with them")


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (CdiNode("/dev/null"), ("c", 1, 3, 0o666, "rwm", PROCESS_ID)),
        (CdiNode("/dev/x", "/dev/null", permissions="r", uid=7), ("c", 1, 3, 0o666, "r", 7)),
        (CdiNode("/dev/x", "/dev/null", "u", permissions="none"), ("c", 1, 3, 0o666, "", PROCESS_ID)),
        (CdiNode("/dev/x", "/nowhere", "c", 10, 5), ("c", 10, 5, 0o666, "rwm", PROCESS_ID)),
        (CdiNode("/dev/null", type="b", major=8, minor=1), ("b", 8, 1, 0o666, "rwm", PROCESS_ID)),
        (CdiNode("/dev/null", file_mode=0o600), ("c", 1, 3, 0o600, "rwm", PROCESS_ID)),
        (CdiNode("/dev/x", "/nowhere", "p"), ("p", 0, 0, 0o666, "rwm", PROCESS_ID)),
    ],
)
def test_nodes_are_completed_from_the_host(node: CdiNode, expected: tuple[Any, ...]) -> None:
    made = complete_node(node, "f")
    assert (made.type, made.major, made.minor, made.file_mode, made.permissions, made.uid) == expected


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (CdiNode("/dev/nowhere"), "failed to stat CDI host device /dev/nowhere: No such file"),
        (CdiNode("/dev/x", "/etc/passwd"), "/etc/passwd on the host is not a device node"),
        (CdiNode("/dev/null", type="b"), "not a device node of type b"),
        (CdiNode("/dev/x", "/nowhere", "c", 1 << 20, 1), "not a valid device number"),
        (CdiNode("/dev/x", "/nowhere", "c", 1, -1), "not a valid device number"),
    ],
)
def test_nodes_that_cannot_be(node: CdiNode, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        complete_node(node, "/etc/cdi/f.yaml")
    assert caught.value.where == f"/etc/cdi/f.yaml: device node {node.path}"


def test_files_are_bound_directories_and_file_systems_go_among_the_mounts(
    tmp_path: Path, injected: Callable[..., ContainerEdits]
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    mounts = [
        {"hostPath": str(tmp_path / "link"), "containerPath": "/a/file", "options": ["ro", "rbind"]},
        {"hostPath": str(tmp_path), "containerPath": "/b", "options": ["rbind"]},
        {"hostPath": "none", "containerPath": "/c", "type": "tmpfs", "options": ["size=1m"]},
    ]
    edits = injected("v.com/d=0", a={"kind": "v.com/d", "devices": [device("0", mounts=mounts)]})
    assert [(m.host_path, m.container_path, m.kind) for m in edits.mounts] == [(str(tmp_path / "file"), "/a/file", "file")]
    assert edits.config_mounts == (
        Mount("/b", "bind", str(tmp_path), ("rbind",)),
        Mount("/c", "tmpfs", "none", ("size=1m",)),
    )


@pytest.mark.parametrize(
    ("mount", "words"),
    [
        ({"hostPath": "/nowhere", "containerPath": "/a", "options": ["bind"]}, "/nowhere of the host: No such file"),
        ({"hostPath": "/etc", "containerPath": "/a"}, "names neither a type nor"),
    ],
)
def test_mounts_that_cannot_be(injected: Callable[..., ContainerEdits], mount: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        injected("v.com/d=0", a={"kind": "v.com/d", "devices": [device("0", mounts=[mount])]})


CONFIG: dict[str, Any] = {
    "ociVersion": "1.2.0",
    "root": {"path": "rootfs"},
    "process": {"args": ["true"], "cwd": "/", "user": {"uid": 5, "gid": 6}},
    "mounts": [
        {"destination": "/x/y", "type": "tmpfs"},
        {"destination": "/proc", "type": "proc"},
        {"destination": "/b/", "type": "tmpfs"},
        {"destination": "/x/z", "type": "tmpfs"},
    ],
    "linux": {"devices": [{"path": "/dev/null", "type": "c", "major": 9}, {"path": "/dev/k", "type": "c", "major": 9}]},
    "hooks": {"createRuntime": [{"path": "/bin/a", "args": ["a"]}]},
}


def test_what_goes_into_the_config(injected: Callable[..., ContainerEdits]) -> None:
    edits = injected(
        "v.com/d=0",
        a={
            "kind": "v.com/d",
            "devices": [
                device(
                    "0",
                    deviceNodes=[{"path": "/dev/null"}],
                    mounts=[{"hostPath": "/etc", "containerPath": "/b", "options": ["bind"]}],
                    hooks=[
                        {"hookName": "createRuntime", "path": "/bin/a", "args": ["a"]},
                        {"hookName": "createRuntime", "path": "/bin/b"},
                        {"hookName": "poststop", "path": "/bin/c", "timeout": 3, "env": ["A=b"]},
                    ],
                    netDevices=[{"hostInterfaceName": "eth9", "name": "net0"}],
                    intelRdt={"closID": "x", "schemata": ["L3:0=f"], "enableMonitoring": True},
                    additionalGids=[0, 44],
                )
            ],
        },
    )
    data = json.dumps(CONFIG).encode()
    config, left = merge_into_config(read_config(data), edits)
    assert [m.destination for m in config.mounts] == ["/proc", "/b", "/x/y", "/x/z"]
    assert config.mounts[1].source == "/etc"
    assert [d.path for d in config.linux.devices] == ["/dev/k"]
    assert config.hooks.create_runtime == (OciHook("/bin/a", ("a",)), OciHook("/bin/b"))
    assert config.linux.net_devices == {"eth9": {"name": "net0"}}
    assert config.linux.intel_rdt == {"closID": "x", "schemata": ["L3:0=f"], "enableMonitoring": True}
    assert left.additional_gids == (44,) and (left.device_nodes[0].uid, left.device_nodes[0].gid) == (5, 6)
    assert not (left.hooks or left.config_mounts or left.net_devices or left.intel_rdt)
    saved = json.loads(saved_config(data, edits))
    late = {"path": "/bin/c", "args": [], "env": ["A=b"], "timeout": 3}
    assert saved == {**CONFIG, "hooks": {**CONFIG["hooks"], "poststop": [late]}}
    assert json.loads(saved_config(json.dumps(saved).encode(), edits)) == saved, "what is there is not added again"


def test_a_container_without_edits_keeps_its_config() -> None:
    config = read_config(json.dumps(CONFIG).encode())
    assert merge_into_config(config, ContainerEdits()) == (config, ContainerEdits())


# Requests, all the way from a container's environment.


def test_two_edits_together_have_nothing_twice() -> None:
    def edits(reason: str, bus: str) -> ContainerEdits:
        mount = EditMount("/h", "/c", ("ro",), "file", reason)
        tree = ProcTree("/proc/x", (), (EditMount(f"/h/{bus}", f"/proc/x/{bus}", (), "dir", reason),), reason)
        hook = Hook("createRuntime", "/bin/a", reason=reason)
        return ContainerEdits(
            env=("A=b",),
            mounts=(mount,),
            links=(Link("/l", "t", reason),),
            proc_trees=(tree,),
            hooks=(hook,),
            warnings=(bus,),
        )

    both = combine(edits("one", "0"), edits("two", "1"))
    assert [len(x) for x in (both.env, both.mounts, both.links, both.proc_trees, both.hooks, both.warnings)] == [1] * 5 + [2]
    assert both.mounts[0].reason == "two"
    assert [bind.host_path for bind in both.proc_trees[0].binds] == ["/h/0", "/h/1"], (
        "what either lets through is to be seen"
    )
