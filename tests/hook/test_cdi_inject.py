"""CDI devices → edits: order, completion of nodes, known and foreign hooks, requests and modes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.engine.edited import edited, saved_config
from gpurun.errors import ConfigError, GpuError, GpurunError
from gpurun.hook.cdi import annotated_devices, split_devices
from gpurun.hook.cdi_document import CdiNode
from gpurun.hook.cdi_files import read_registry
from gpurun.hook.cdi_hooks import known_call, parse_call
from gpurun.hook.cdi_inject import complete_node, inject
from gpurun.hook.cdi_known import do_known_hooks, hook_work
from gpurun.hook.edits import PROCESS_ID, ContainerEdits, EditMount, Hook, Link, ProcTree, combine
from gpurun.hook.gpu import Injected, gpu_edits
from gpurun.hook.settings import Settings
from gpurun.oci.config import Device, Mount, OciHook, read_config
from gpurun.record import replace
from tests.simdriver import VERSION, SimulatedDriver

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


def test_all_or_nothing(injected: Callable[..., ContainerEdits]) -> None:
    files = {"a": {"kind": "a.com/a", "devices": [device("0", env=["A=1"])]}}
    with pytest.raises(GpuError) as caught:
        injected("a.com/a=0", "a.com/a=9", "b.com/b=1", **files)
    assert str(caught.value).startswith("unresolvable CDI devices a.com/a=9, b.com/b=1: of that kind there are a.com/a=0")


def test_the_error_tells_what_was_left_out(tmp_path: Path, injected: Callable[..., ContainerEdits]) -> None:
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(GpuError, match=r"unresolvable CDI devices a.com/a=0 \(.*broken.json: cdiVersion: is missing\)"):
        injected("a.com/a=0")


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
        (CdiNode("/dev/x", "/etc/passwd"), "/etc/passwd of the host is no device node"),
        (CdiNode("/dev/null", type="b"), "no device node of type b"),
        (CdiNode("/dev/x", "/nowhere", "c", 1 << 20, 1), "no numbers of a device"),
        (CdiNode("/dev/x", "/nowhere", "c", 1, -1), "no numbers of a device"),
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
    config, left = edited(read_config(data), edits)
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
    assert edited(config, ContainerEdits()) == (config, ContainerEdits())


@pytest.mark.parametrize(
    ("path", "args"),
    [
        ("/usr/bin/nvidia-cdi-hook", "nvidia-cdi-hook create-symlinks --link a::/b --link=c::/d"),
        ("/usr/bin/nvidia-ctk", "nvidia-ctk hook update-ldcache --folder /a --folder /b,/c --ldconfig-path /sbin/x"),
        ("/opt/gpurun", "gpurun hook disable-device-node-modification"),
        ("/usr/bin/nvidia-cdi-hook", "x chmod --mode 755 --path /dev/dri"),
        ("/usr/bin/nvidia-cdi-hook", "x --quiet noop"),
    ],
)
def test_hooks_that_are_known(path: str, args: str) -> None:
    assert known_call(Hook("createContainer", path, tuple(args.split()))) is not None


@pytest.mark.parametrize(
    ("stage", "path", "args"),
    [
        ("prestart", "/usr/bin/nvidia-cdi-hook", "x noop"),
        ("createContainer", "/usr/bin/other", "x noop"),
        ("createContainer", "/usr/bin/nvidia-ctk", "x noop"),
        ("createContainer", "/usr/bin/nvidia-cdi-hook", "x new-command"),
        ("createContainer", "/usr/bin/nvidia-cdi-hook", "x create-symlinks --new x"),
        ("createContainer", "/usr/bin/nvidia-cdi-hook", "x create-symlinks --link nocolons"),
        ("createContainer", "/usr/bin/nvidia-cdi-hook", "x create-symlinks --link"),
        ("createContainer", "/usr/bin/nvidia-cdi-hook", "x update-ldcache --folder relative"),
        ("createContainer", "/usr/bin/nvidia-cdi-hook", "x chmod --mode u+x --path /a"),
        ("createContainer", "/usr/bin/nvidia-cdi-hook", "x create-symlinks --container-spec f --link a::/b"),
        ("createContainer", "/usr/bin/nvidia-cdi-hook", "x"),
    ],
)
def test_hooks_that_are_run_as_they_are(stage: str, path: str, args: str) -> None:
    hook = Hook(stage, path, tuple(args.split()))
    assert known_call(hook) is None
    edits = ContainerEdits(hooks=(hook,))
    assert do_known_hooks(edits, {}) == edits


# Requests, by the whole road from a container's environment.


@pytest.fixture
def ask(sim: SimulatedDriver, tmp_path: Path) -> Callable[..., ContainerEdits | None]:
    """``ask("NAME=value", mode=...)``: the edits for a container on the simulated host with CDI files in tmp_path."""

    def call(*env: str, mode: str = "auto", annotations: dict[str, str] | None = None, **rest: Any) -> ContainerEdits | None:
        settings = Settings(mode=mode, spec_dirs=(os.path.relpath(tmp_path, sim.path).join(("/", "")),))
        return gpu_edits(env, annotations or {}, False, sim.env, settings, **rest)

    content = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [device("0", env=["FROM=file"])],
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
    }
    (tmp_path / "nvidia.json").write_text(json.dumps(content))
    (tmp_path / "v.json").write_text(json.dumps({**content, "kind": "v.com/d", "devices": [device("x", env=["V=1"])]}))
    return call


@pytest.mark.parametrize(
    ("mode", "value", "from_file", "nodes"),
    [
        ("auto", "0", False, 1),
        ("auto", "nvidia.com/gpu=0", True, 0),
        ("auto", "runtime.nvidia.com/gpu=0", False, 1),
        ("auto", "runtime.nvidia.com/gpu=all", False, 2),
        ("cdi", "0", True, 0),
        ("cdi", "nvidia.com/gpu=0", True, 0),
        ("cdi", "runtime.nvidia.com/gpu=1", False, 1),
        ("cdi", "none", False, 0),
        ("jit-cdi", "0", False, 1),
        ("jit-cdi", "nvidia.com/gpu=0,nvidia.com/gpu=1", False, 2),
        ("jit-cdi", "v.com/d=x", True, 0),
        ("legacy", "0", False, 1),
    ],
)
def test_modes(ask: Callable[..., ContainerEdits | None], mode: str, value: str, from_file: bool, nodes: int) -> None:
    edits = ask(f"NVIDIA_VISIBLE_DEVICES={value}", mode=mode)
    assert edits is not None
    gpus = [n for n in edits.device_nodes if n.path.removeprefix("/dev/nvidia").isdigit()]
    assert ("NVIDIA_VISIBLE_DEVICES=void" in edits.env, len(gpus)) == (from_file, nodes)


def test_the_driver_and_a_foreign_file_together(ask: Callable[..., ContainerEdits | None]) -> None:
    edits = ask("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0,v.com/d=x", mode="jit-cdi")
    assert edits is not None and "V=1" in edits.env and any(n.path == "/dev/nvidiactl" for n in edits.device_nodes)


def test_a_cdi_name_asks_for_all_of_the_driver_unless_told_otherwise(ask: Callable[..., ContainerEdits | None]) -> None:
    name = "NVIDIA_VISIBLE_DEVICES=runtime.nvidia.com/gpu=0"
    whole, part = ask(name), ask(name, "NVIDIA_DRIVER_CAPABILITIES=utility")
    assert whole is not None and any("libEGL" in m.container_path for m in whole.mounts)
    assert part is not None and not any("libcuda" in m.container_path for m in part.mounts)


@pytest.mark.parametrize(
    ("mode", "value", "words"),
    [
        ("auto", "nvidia.com/gpu=7", "unresolvable CDI devices nvidia.com/gpu=7"),
        ("auto", "runtime.nvidia.com/gpu=7", "7: unknown device"),
        ("auto", "runtime.nvidia.com/gpu=0,v.com/d=x", "is not supported when requesting other CDI devices"),
        ("auto", "nvidia.com/gpu=0,0", "mixes CDI device names"),
        ("legacy", "nvidia.com/gpu=0", 'the mode "legacy"'),
        ("cdi", "0/0", "no CDI device name"),
    ],
)
def test_requests_that_are_refused(ask: Callable[..., ContainerEdits | None], mode: str, value: str, words: str) -> None:
    with pytest.raises(GpurunError, match=words):
        ask(f"NVIDIA_VISIBLE_DEVICES={value}", mode=mode)


def test_annotations_count_where_the_site_says_so(ask: Callable[..., ContainerEdits | None]) -> None:
    annotations = {"cdi.k8s.io/b": "v.com/d=x", "cdi.k8s.io/a": "nvidia.com/gpu=0,v.com/d=x", "other": "bad"}
    assert ask(annotations=annotations) is None
    assert ask(annotations=annotations, mode="jit-cdi") is None
    edits = ask("NVIDIA_VISIBLE_DEVICES=1", annotations=annotations, mode="cdi")
    assert edits is not None and edits.env == ("NVIDIA_VISIBLE_DEVICES=void", "FROM=file", "V=1")
    assert annotated_devices(annotations, ("cdi.k8s.io/",)) == ("nvidia.com/gpu=0", "v.com/d=x")
    with pytest.raises(ConfigError, match=r"annotations.other: \"bad\" is no CDI device name"):
        annotated_devices(annotations, ("other",))
    with pytest.raises(ConfigError, match="more than 65536 are not read"):
        annotated_devices({"a": "x" * 65537}, ("a",))


def test_the_stand_alone_hook_takes_no_cdi_devices(ask: Callable[..., ContainerEdits | None]) -> None:
    with pytest.raises(GpuError, match="invoking the NVIDIA Container Runtime Hook directly"):
        ask("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0", files=False)


def test_a_stale_file_is_told(ask: Callable[..., ContainerEdits | None], tmp_path: Path) -> None:
    old = tmp_path / "libcuda.so.1.2.3"
    old.write_text("x")
    mount = {"hostPath": str(old), "containerPath": "/lib/libcuda.so.1.2.3", "options": ["bind"]}
    content = {"cdiVersion": "0.5.0", "kind": "o.com/gpu", "devices": [device("0", mounts=[mount])]}
    (tmp_path / "old.json").write_text(json.dumps(content))
    edits = ask("NVIDIA_VISIBLE_DEVICES=o.com/gpu=0")
    assert edits is not None and len(edits.warnings) == 1
    assert f"was written for the NVIDIA driver 1.2.3, this host runs {VERSION}" in edits.warnings[0]
    old.unlink()
    with pytest.raises(GpurunError, match=r"No such file.*was written for the NVIDIA driver 1.2.3"):
        ask("NVIDIA_VISIBLE_DEVICES=o.com/gpu=0")


def test_split_devices_names_each_once() -> None:
    assert split_devices(("v.com/d=x", "v.com/d=x"), Settings(), "s") == ((), ("v.com/d=x",))
    with pytest.raises(ConfigError, match="is no vendor/class=device"):
        split_devices(("=x",), Settings(), "s")


def test_hooks_that_an_engine_has_put_in_are_taken_over(sim: SimulatedDriver) -> None:
    """As dockerd leaves the config: nodes and mounts are there, the hooks are NVIDIA's; no request in the environment."""
    source = next(sim.path.rglob(f"libcuda.so.{VERSION}"))
    path = "/usr/lib64/" + source.name
    program = "/usr/bin/nvidia-cdi-hook"
    hooks = (
        OciHook("/bin/foreign", ("foreign",)),
        OciHook(program, ("nvidia-cdi-hook", "create-symlinks", "--link", "libcuda.so.1::/usr/lib64/libcuda.so"), ("A=b",)),
        OciHook(program, ("nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib64")),
        OciHook(program, ("nvidia-cdi-hook", "disable-device-node-modification")),
    )
    mounts = (Mount(path, "", str(source), ("ro", "rbind")), Mount("/data", "bind", "/etc", ("rbind",)))
    nodes = (Device("/dev/nvidia1", "c"), Device("/dev/fuse", "c"))
    edits = gpu_edits((), {}, False, sim.env, injected=Injected(hooks, mounts, nodes))
    assert edits is not None
    assert [(h.path, h.args[1]) for h in edits.replaced_hooks] == [(program, h.args[1]) for h in hooks[1:]]
    assert [(m.host_path, m.container_path) for m in edits.mounts] == [(str(source), path)]
    links = {link.path: link.target for link in edits.links}
    assert links == {"/usr/lib64/libcuda.so": "libcuda.so.1", "/usr/lib64/libcuda.so.1": source.name}
    assert {e.soname: e.path for e in edits.ldcache}["libcuda.so.1"] == "/usr/lib64/libcuda.so.1"
    (tree,) = edits.proc_trees
    assert [b.container_path.rpartition("/")[2] for b in tree.binds] == ["0000:07:00.0"], "the GPU with minor 1"
    config = {**CONFIG, "hooks": {"createContainer": [{"path": h.path, "args": h.args, "env": h.env} for h in hooks]}}
    config["mounts"] = [{"destination": m.destination, "source": m.source, "options": m.options} for m in mounts]
    new, _ = edited(read_config(json.dumps(config).encode()), edits)
    assert new.hooks.create_container == hooks[:1] and [m.destination for m in new.mounts] == ["/data"]


def test_a_config_with_foreign_hooks_only(sim: SimulatedDriver) -> None:
    hooks = (OciHook("/usr/bin/nvidia-cdi-hook", ("x", "unknown")), OciHook("/bin/foreign"))
    assert gpu_edits((), {}, False, sim.env, injected=Injected(hooks, (), ())) is None


def test_the_hook_program_composes_the_cache_once(sim: SimulatedDriver) -> None:
    """Under other runtimes each hook is a process; the one that writes the loader's cache knows of those beside it."""
    source = next(sim.path.rglob(f"libcuda.so.{VERSION}"))
    mounts = (Mount(f"/usr/lib64/{source.name}", "", str(source), ("ro", "rbind")),)
    words = {
        "links": ("create-symlinks", "--link", "libcuda.so.1::/usr/lib64/libcuda.so"),
        "compat": ("enable-cuda-compat", "--host-driver-version=1.2"),
        "cache": ("update-ldcache", "--folder", "/usr/lib64"),
    }
    hooks = tuple([OciHook("/usr/bin/nvidia-cdi-hook", ("nvidia-cdi-hook", *w)) for w in words.values()])

    def work(name: str, beside: tuple[OciHook, ...] = hooks) -> ContainerEdits:
        call = parse_call(words[name])
        assert call is not None
        return hook_work(call, beside, mounts, (), {})

    assert work("compat") == ContainerEdits()
    alone = work("compat", hooks[:2]).forward_compat
    assert alone is not None and (alone.directory, alone.driver_version) == ("/usr/local/cuda/compat", "1.2")
    cache = work("cache")
    assert cache.forward_compat == replace(alone, reason=cache.forward_compat.reason if cache.forward_compat else "")
    assert {e.soname for e in cache.ldcache} == {"libcuda.so.1", "libcuda.so"}
    assert [link.path for link in work("links").links] == ["/usr/lib64/libcuda.so"] and not work("links").ldcache


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
