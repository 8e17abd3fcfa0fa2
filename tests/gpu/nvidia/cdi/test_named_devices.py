"""Requests by CDI names, in each mode of the site; NVIDIA's hooks, known and foreign, and what they are turned into."""

from __future__ import annotations

import json
import os

import pytest

from gpurun.cdi.edits import ContainerEdits, Hook
from gpurun.engine.plan.merged_edits import merge_into_config
from gpurun.errors import ConfigError, GpuError, GpurunError
from gpurun.gpu.nvidia.cdi import named_devices
from gpurun.gpu.nvidia.cdi.hook_work import do_known_hooks, hook_work
from gpurun.gpu.nvidia.cdi.known_hooks import COMMANDS, as_known_call, parse_call
from gpurun.gpu.nvidia.cdi.named_devices import annotated_devices, spec_dirs, split_devices
from gpurun.gpu.nvidia.request.settings import Settings
from gpurun.gpu.request.injected import Injected
from gpurun.gpu.resolve import Inquiry, gpu_edits, replace_engine_hooks
from gpurun.hook.cdi_hook_program import main as cdi_hook
from gpurun.oci.config import Device, Mount, OciHook, read_config
from gpurun.record import replace
from tests.cdi.test_inject import CONFIG
from tests.simdriver import VERSION, Options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from tests.simdriver import SimulatedDriver


def device(name: str, **edits: Any) -> dict[str, Any]:
    return {"name": name, "containerEdits": edits}


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
    assert as_known_call(Hook("createContainer", path, tuple(args.split()))) is not None


@pytest.mark.parametrize("program", ["nvidia-cdi-hook", "nvidia-ctk", "gpurun", "gpurun-fast"])
def test_known_hooks_of_an_engine_are_replaced(program: str) -> None:
    """Whichever program the CDI file names: run as well, it would do the work a second time, and fail at its own mask."""
    words = (program, *(() if program == "nvidia-cdi-hook" else ("hook",)), "disable-device-node-modification")
    hook = OciHook(f"/opt/{program}", words)
    edits = replace_engine_hooks(Injected((hook,)), {})
    assert edits is not None and [one.path for one in edits.replaced_hooks] == [hook.path]
    assert replace_engine_hooks(Injected((OciHook("/opt/another", words),)), {}) is None


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
    assert as_known_call(hook) is None
    edits = ContainerEdits(hooks=(hook,))
    assert do_known_hooks(edits, {}) == edits


@pytest.fixture
def ask(sim: SimulatedDriver, tmp_path: Path) -> Callable[..., ContainerEdits | None]:
    """``ask("NAME=value", mode=...)``: the edits for a container on the simulated host with CDI files in tmp_path."""

    def call(*env: str, mode: str = "auto", annotations: dict[str, str] | None = None, **rest: Any) -> ContainerEdits | None:
        settings = Settings(mode=mode, spec_dirs=(os.path.relpath(tmp_path, sim.path).join(("/", "")),))
        return gpu_edits(Inquiry(env, annotations or {}, False, sim.env, settings, **rest))

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
        ("cdi", "v.com/d=x,0", True, 0),
        ("cdi", "0,v.com/d=x", True, 0),
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
        ("jit-cdi", "nvidia.com/gpu=0,0", "mixes CDI device names"),
        ("legacy", "nvidia.com/gpu=0", 'the mode "legacy"'),
        ("cdi", "0,runtime.nvidia.com/gpu=0", "is not supported when requesting other CDI devices"),
        ("cdi", "nvidia.com/gpu=0,7", "unresolvable CDI devices nvidia.com/gpu=7"),
        ("cdi", "0/0", "not a CDI device name"),
    ],
)
def test_requests_that_are_refused(ask: Callable[..., ContainerEdits | None], mode: str, value: str, words: str) -> None:
    with pytest.raises(GpurunError, match=words):
        ask(f"NVIDIA_VISIBLE_DEVICES={value}", mode=mode)


def test_a_gpu_without_a_file(ask: Callable[..., ContainerEdits | None]) -> None:
    with pytest.raises(GpuError, match=r": `gpurun cdi generate --output=.*/nvidia.yaml` describes NVIDIA's GPUs"):
        ask("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=9")


def test_annotations_count_where_the_site_says_so(ask: Callable[..., ContainerEdits | None]) -> None:
    annotations = {"cdi.k8s.io/b": "v.com/d=x", "cdi.k8s.io/a": "nvidia.com/gpu=0,v.com/d=x", "other": "bad"}
    assert ask(annotations=annotations) is None
    assert ask(annotations=annotations, mode="jit-cdi") is None
    edits = ask("NVIDIA_VISIBLE_DEVICES=1", annotations=annotations, mode="cdi")
    assert edits is not None and edits.env == ("NVIDIA_VISIBLE_DEVICES=void", "FROM=file", "V=1")
    kind = "nvidia.com/gpu"
    assert annotated_devices(annotations, ("cdi.k8s.io/",), kind) == ("nvidia.com/gpu=0", "v.com/d=x")
    assert annotated_devices({"a": "0, GPU-1,v.com/d=x"}, ("a",), kind) == (f"{kind}=0", f"{kind}=GPU-1", "v.com/d=x")
    for bad in ("=bad", "v.com/d=", "v.com=x", "a/b", "", "0,"):
        with pytest.raises(ConfigError, match=r"annotations.other: \".*\" is neither a CDI device name"):
            annotated_devices({"other": bad}, ("other",), kind)
    with pytest.raises(ConfigError, match="more than 65536 are not read"):
        annotated_devices({"a": "x" * 65537}, ("a",), kind)


def test_annotations_without_a_kind_are_of_the_default_one(ask: Callable[..., ContainerEdits | None]) -> None:
    edits = ask(annotations={"cdi.k8s.io/a": "0"}, mode="cdi")
    assert edits is not None and edits.env == ("NVIDIA_VISIBLE_DEVICES=void", "FROM=file")


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
    with pytest.raises(ConfigError, match="is not of the form vendor/class=device"):
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
    nodes = (Device("/dev/nvidia0", "c", 195, 1), Device("/dev/fuse", "c", 10, 229))
    edits = gpu_edits(Inquiry((), {}, False, sim.env, injected=Injected(hooks, mounts, nodes)))
    assert edits is not None
    assert [(h.path, h.args[1]) for h in edits.replaced_hooks] == [(program, h.args[1]) for h in hooks[1:]]
    assert [(m.host_path, m.container_path) for m in edits.mounts] == [(str(source), path)]
    links = {link.path: link.target for link in edits.links}
    assert links == {"/usr/lib64/libcuda.so": "libcuda.so.1", "/usr/lib64/libcuda.so.1": source.name}
    assert {e.soname: e.path for e in edits.ldcache}["libcuda.so.1"] == "/usr/lib64/libcuda.so.1"
    (tree,) = edits.proc_trees
    assert [b.container_path.rpartition("/")[2] for b in tree.binds] == ["0000:07:00.0"], (
        "the GPU with minor 1, however its node is called"
    )
    config = {**CONFIG, "hooks": {"createContainer": [{"path": h.path, "args": h.args, "env": h.env} for h in hooks]}}
    config["mounts"] = [{"destination": m.destination, "source": m.source, "options": m.options} for m in mounts]
    new, _ = merge_into_config(read_config(json.dumps(config).encode()), edits)
    assert new.hooks.create_container == hooks[:1] and [m.destination for m in new.mounts] == ["/data"]


def test_a_config_with_foreign_hooks_only(sim: SimulatedDriver) -> None:
    hooks = (OciHook("/usr/bin/nvidia-cdi-hook", ("x", "unknown")), OciHook("/bin/foreign"))
    assert gpu_edits(Inquiry((), {}, False, sim.env, injected=Injected(hooks, (), ()))) is None


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


def test_what_the_hooks_show_goes_by_the_numbers_of_nodes(make_sim: Callable[[Options], SimulatedDriver]) -> None:
    """Not by their names: a node can have any, in a CDI file as in a config."""
    sim = make_sim(Options(gpus=2))
    nodes = (
        Device("/dev/nvidia0", "c", 195, 1),
        Device("/dev/nvidia7", "c", 1, 3),
        Device("/dev/nvidia9", "b", 195, 0),
        Device("/dev/nvidiactl", "c", 195, 255),
    )

    def work(command: str, devices: tuple[Device, ...] = nodes) -> ContainerEdits:
        call = parse_call((command,))
        assert call is not None
        return hook_work(call, (), (), devices, sim.env)

    (profile,) = work("update-application-profile").proc_trees
    assert b"0x2]" in profile.files[0].content
    (tree,) = work("disable-device-node-modification").proc_trees
    assert [bind.host_path.rpartition("/")[2] for bind in tree.binds] == ["0000:07:00.0"], "the GPU with minor 1"
    assert work("update-application-profile", nodes[1:]) == ContainerEdits()


@pytest.mark.parametrize("words", [("--help",), ("help",), ("-h",), ("help", "chmod"), *[(c, "--help") for c in COMMANDS]])
def test_help_of_the_hook_program(words: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    assert cdi_hook(list(words)) == 0
    said = capfd.readouterr()
    assert said.out.startswith("Usage: nvidia-cdi-hook") and not said.err
    named = [word for word in words if word in COMMANDS]
    for option in COMMANDS[named[0]] if named else ():
        assert f"--{option}" in said.out


@pytest.mark.parametrize(
    ("euid", "nested", "own_env", "dirs"),
    [
        (1000, False, {"XDG_CONFIG_HOME": "/x/", "HOME": "/home/me"}, ("/x/cdi",)),
        (1000, False, {"XDG_CONFIG_HOME": "", "HOME": "/home/me"}, ("/home/me/.config/cdi",)),
        (0, True, {"HOME": "/home/me"}, ("/home/me/.config/cdi",)),
        (0, False, {"XDG_CONFIG_HOME": "/x", "HOME": "/root"}, ()),
        (1000, False, {"XDG_CONFIG_HOME": "x", "HOME": "/home/me"}, ()),
        (1000, False, {}, ()),
    ],
)
def test_a_users_own_directory(
    monkeypatch: pytest.MonkeyPatch, euid: int, nested: bool, own_env: dict[str, str], dirs: tuple[str, ...]
) -> None:
    """Behind the site's, whose devices of the same name it has precedence over; root of the host has none."""
    monkeypatch.setattr("posix.geteuid", lambda: euid)
    monkeypatch.setattr(named_devices, "in_user_namespace", lambda: nested)
    assert spec_dirs(Settings(spec_dirs=("/site",)), own_env) == ("/site", *dirs)
