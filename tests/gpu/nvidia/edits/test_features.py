"""What a site can leave out: feature flags and hooks of jit-cdi in config.toml, and of ``cdi generate``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.cdi.edits import ContainerEdits
from gpurun.gpu.nvidia.cdi.generate import generate
from gpurun.gpu.nvidia.cdi.generated import GenerateOptions
from gpurun.gpu.nvidia.edits.features import FEATURES, HOOKS
from gpurun.gpu.nvidia.host.roots import Roots
from gpurun.gpu.nvidia.request.settings import Settings, read_settings
from gpurun.gpu.resolve import Inquiry, gpu_edits
from tests.gpu.rendering import rendered
from tests.simdriver import Options, SimulatedDriver

ENV = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all")
SOCKETS = {"/run/nvidia-persistenced/socket", "/tmp/nvidia-mps"}


@pytest.fixture
def host(make_sim: Callable[[Options], SimulatedDriver]) -> SimulatedDriver:
    return make_sim(Options(mps=True))


def plan(host: SimulatedDriver, mode: str = "auto", **jit: Any) -> ContainerEdits:
    made = gpu_edits(Inquiry(ENV, {}, False, host.env, Settings(mode=mode, **jit)))
    assert made is not None
    return made


def targets(made: ContainerEdits) -> set[str]:
    return {mount.container_path for mount in made.mounts}


def params(made: ContainerEdits) -> tuple[str, str]:
    """(content of params that we write, host file that is bound in its place)."""
    path = "/proc/driver/nvidia/params"
    tree = next(tree for tree in made.proc_trees if tree.path == "/proc/driver/nvidia")
    return (
        "".join([file.content.decode() for file in tree.files if file.path == path]),
        "".join([bind.host_path for bind in tree.binds if bind.container_path == path]),
    )


@pytest.mark.parametrize("mode", ["auto", "jit-cdi"])
def test_each_hook_left_out_takes_its_work_alone(host: SimulatedDriver, mode: str) -> None:
    whole = plan(host)
    assert whole.links and whole.ldcache and whole.image_files and whole.forward_compat and len(whole.proc_trees) == 2
    assert "ModifyDeviceFiles: 0" in params(whole)[0] and not params(whole)[1]

    def without(hook: str) -> ContainerEdits:
        made = plan(host, mode, jit_disabled_hooks=(hook,))
        assert made.mounts == whole.mounts and made.device_nodes == whole.device_nodes
        return made

    assert not without("create-symlinks").links and without("create-symlinks").ldcache == whole.ldcache
    no_cache = without("update-ldcache")
    assert (no_cache.ldcache, no_cache.image_files, no_cache.forward_compat) == ((), (), None) and no_cache.links
    assert without("enable-cuda-compat").forward_compat is None and without("enable-cuda-compat").ldcache
    assert [t.path for t in without("update-application-profile").proc_trees] == ["/proc/driver/nvidia"]
    own = without("disable-device-node-modification")
    assert params(own) == ("", f"{host.path}/proc/driver/nvidia/params")
    gpus = [b.container_path for b in own.proc_trees[0].binds if "/gpus/" in b.container_path]
    assert len(gpus) == 1, "which GPUs are to be seen is nothing that can be switched off"
    none = without("all")
    assert not (none.links or none.ldcache or none.forward_compat) and params(none) == params(own)
    assert without("chmod") == whole


def test_feature_flags(host: SimulatedDriver) -> None:
    assert targets(plan(host)) >= SOCKETS and plan(host).additional_gids
    quiet = plan(host, jit_feature_flags=("disable-ipc-discoverer",))
    assert targets(plan(host)) - targets(quiet) >= SOCKETS and not targets(quiet) & SOCKETS
    assert plan(host, jit_feature_flags=("no-additional-gids-for-device-nodes",)).additional_gids == ()
    others = tuple([flag for flag, why in FEATURES.items() if why])
    assert plan(host, jit_feature_flags=others) == plan(host)


def test_the_mode_legacy_has_no_such_switches(host: SimulatedDriver) -> None:
    flags = ("disable-ipc-discoverer", "no-additional-gids-for-device-nodes")
    made = plan(host, "legacy", jit_disabled_hooks=("all",), jit_feature_flags=flags)
    assert rendered(made, host) == rendered(plan(host), host)


def test_from_the_sites_file(host: SimulatedDriver, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        '[nvidia-container-runtime.modes.jit-cdi]\nnvcdi-disable-hooks = ["create-symlinks"]\n'
        'nvcdi-feature-flags = ["no-additional-gids-for-device-nodes"]\n'
    )
    made = gpu_edits(Inquiry(ENV, {}, False, host.env, read_settings(str(tmp_path / "config.toml"))))
    assert made is not None and made.links == () and made.additional_gids == () and made.ldcache


def test_in_generated_files(host: SimulatedDriver) -> None:
    def made(*flags: str) -> tuple[set[str], tuple[str, ...]]:
        found = generate(Roots(sysroot=str(host.path)), GenerateOptions(features=flags), {})
        return {m.container_path for m in found.spec.edits.mounts}, found.warnings

    assert made()[0] - made("disable-ipc-discoverer")[0] >= SOCKETS and made()[1] == ()
    files, warnings = made("disable-nvsandboxutils", "disable-nvsandboxutils")
    assert files == made()[0] and len(warnings) == 1 and "disable-nvsandboxutils changes nothing: " in warnings[0]


def test_the_hooks_are_those_of_generated_files(host: SimulatedDriver) -> None:
    """Every hook a file can have has a switch here; chmod is off unless asked for."""
    spec = generate(Roots(sysroot=str(host.path)), GenerateOptions(enabled_hooks=("chmod",)), {}).spec
    found = {hook.args[1] for edits in (spec.edits, *[d.edits for d in spec.devices]) for hook in edits.hooks}
    assert found == set(HOOKS)
