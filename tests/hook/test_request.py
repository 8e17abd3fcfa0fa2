"""NVIDIA_* variables read as the NVIDIA container toolkit reads them."""

from __future__ import annotations

import pytest

from gpurun.errors import ConfigError, UnsupportedError
from gpurun.hook.gpu import is_replaced_hook
from gpurun.hook.request import CAPABILITIES, GpuRequest, Policy, read_request

UUID = "GPU-5b4f6a10-5197-4a6f-8c59-0a1b2c3d4e5f"


def read(*env: str, privileged: bool = False, policy: Policy | None = None) -> GpuRequest | None:
    return read_request(env, {}, privileged, policy)


def devices(value: str) -> tuple[str, ...] | None:
    request = read(f"NVIDIA_VISIBLE_DEVICES={value}")
    return None if request is None else request.devices


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", None),
        (" , ,", None),
        ("void", None),
        ("0,void", None),
        ("all,void", None),
        ("none", ()),
        ("0,none,all", ()),
        ("all", ("all",)),
        ("all,none", ("all",)),
        ("3,all", ("all",)),
        ("0", ("0",)),
        (" 1 , 0,", ("1", "0")),
        ("0,0,1,0", ("0", "1")),
        (UUID, (UUID,)),
        ("00000000:07:00.0", ("00000000:07:00.0",)),
        ("All", ("All",)),
        ("MIG-5b4f6a10-5197-4a6f-8c59-0a1b2c3d4e5f,0:1", ("MIG-5b4f6a10-5197-4a6f-8c59-0a1b2c3d4e5f", "0:1")),
        (f"MIG-{UUID}/1/0", (f"MIG-{UUID}/1/0",)),
    ],
)
def test_device_list(value: str, expected: tuple[str, ...] | None) -> None:
    assert devices(value) == expected


def test_nothing_asked() -> None:
    assert read() is None
    assert read("PATH=/bin", "NVIDIA_DRIVER_CAPABILITIES=all", "NVIDIA_REQUIRE_CUDA=cuda>=99") is None


def test_the_last_of_duplicate_variables_counts() -> None:
    request = read("NVIDIA_VISIBLE_DEVICES=all", "A=1", "NVIDIA_VISIBLE_DEVICES=1")
    assert request is not None and request.devices == ("1",)
    assert read("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void") is None


def test_entries_without_equals_sign_are_nobodys_business() -> None:
    assert read("NVIDIA_VISIBLE_DEVICES", "X") is None


def test_annotations_are_left_to_the_engine() -> None:
    assert read_request(("A=b",), {"cdi.k8s.io/vendor_0": "nvidia.com/gpu=0"}, True) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ("compute", "utility")),
        ("", ("compute", "utility")),
        ("utility", ("utility",)),
        ("video, utility,,", ("utility", "video")),
        ("all", CAPABILITIES),
        ("compute,all", CAPABILITIES),
    ],
)
def test_capabilities(value: str | None, expected: tuple[str, ...]) -> None:
    env = ["NVIDIA_VISIBLE_DEVICES=all"] + ([] if value is None else [f"NVIDIA_DRIVER_CAPABILITIES={value}"])
    request = read(*env)
    assert request is not None and request.capabilities == expected


@pytest.mark.parametrize("value", ["bogus", "utility,Compute", "compute;utility"])
def test_unsupported_capabilities(value: str) -> None:
    with pytest.raises(ConfigError) as e:
        read("NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_DRIVER_CAPABILITIES={value}")
    allowed = "compat32,compute,display,graphics,ngx,utility,video"
    assert f"unsupported capabilities found in '{value}' (allowed '{allowed}')" in str(e.value)


def test_legacy_images() -> None:
    request = read("CUDA_VERSION=9.2.148")
    assert request is not None
    assert (request.devices, request.capabilities, request.requirements) == (("all",), CAPABILITIES, ("cuda>=9.2",))
    assert read("CUDA_VERSION=12.4.1", "NVIDIA_REQUIRE_CUDA=cuda>=12.4") is None
    assert read("CUDA_VERSION=") is None
    with pytest.raises(ConfigError, match="CUDA_VERSION: 'eleven' is not a version"):
        read("CUDA_VERSION=eleven")


def test_requirements() -> None:
    base = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=12.4", "NVIDIA_REQUIRE_X=brand=tesla")
    request = read(*base, "NVIDIA_REQUIRE_JETPACK=csv-mounts=all", "NVIDIA_REQUIRE_EMPTY=")
    assert request is not None and request.requirements == ("brand=tesla", "cuda>=12.4")
    for yes in ("1", "t", "T", "TRUE", "true", "True"):
        request = read(*base, f"NVIDIA_DISABLE_REQUIRE={yes}")
        assert request is not None and request.requirements == ()
    for no in ("0", "yes", "on", "tRue"):
        request = read(*base, f"NVIDIA_DISABLE_REQUIRE={no}")
        assert request is not None and len(request.requirements) == 2


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("nvidia.com/gpu=0", "nvidia.com/gpu=0: CDI device names"),
        ("/var/run/nvidia-container-devices", "volume mounts are not supported"),
    ],
)
def test_forms_that_are_refused_by_name(value: str, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        devices(value)


def test_cdi_names_are_not_mixed_with_others() -> None:
    with pytest.raises(ConfigError, match="mixes CDI device names"):
        devices("nvidia.com/gpu=0,1")


@pytest.mark.parametrize(
    "variable",
    [
        "NVIDIA_GDS=enabled",
        "NVIDIA_MOFED=enabled",
        "NVIDIA_GDRCOPY=enabled",
        "NVIDIA_NVSWITCH=enabled",
        "NVIDIA_IMEX_CHANNELS=0",
    ],
)
def test_other_devices_are_refused_with_gpus_only(variable: str) -> None:
    with pytest.raises(UnsupportedError, match=variable.partition("=")[0]):
        read("NVIDIA_VISIBLE_DEVICES=0", variable)
    assert read(variable) is None
    request = read("NVIDIA_VISIBLE_DEVICES=none", variable)
    assert request is not None and request.devices == ()


@pytest.mark.parametrize(
    "variable", ["NVIDIA_GDS=Enabled", "NVIDIA_GDS=1", "NVIDIA_IMEX_CHANNELS=all", "NVIDIA_IMEX_CHANNELS="]
)
def test_other_devices_that_are_not_really_asked(variable: str) -> None:
    assert read("NVIDIA_VISIBLE_DEVICES=0", variable) is not None


def test_mig_administration() -> None:
    with pytest.raises(ConfigError, match="cannot set MIG_CONFIG_DEVICES in non privileged container"):
        read("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_MIG_CONFIG_DEVICES=all")
    with pytest.raises(UnsupportedError, match="MIG administration"):
        read("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_MIG_MONITOR_DEVICES=all", privileged=True)


def test_policy_against_images_that_ask() -> None:
    policy = Policy(accept_envvar_when_unprivileged=False)
    request = read("NVIDIA_VISIBLE_DEVICES=all", policy=policy)
    assert request is not None and request.devices == ()
    assert "unprivileged container: [NVIDIA_VISIBLE_DEVICES]" in request.denied
    request = read("NVIDIA_VISIBLE_DEVICES=all", privileged=True, policy=policy)
    assert request is not None and not request.denied


def test_policy_comes_before_what_is_asked() -> None:
    """An image that may not ask is not told that its wish could not be met; a site with volume mounts means them."""
    policy = Policy(accept_envvar_when_unprivileged=False)
    request = read("NVIDIA_VISIBLE_DEVICES=MIG-0", "NVIDIA_DRIVER_CAPABILITIES=bogus", "NVIDIA_GDS=enabled", policy=policy)
    assert request is not None and request.denied
    with pytest.raises(UnsupportedError, match="volume mounts are not supported"):
        read("NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices", policy=policy)


def test_swarm_resources_replace_the_variable() -> None:
    policy = Policy(swarm_resource=("DOCKER_RESOURCE_GPU", "OTHER"))
    request = read("NVIDIA_VISIBLE_DEVICES=all", "OTHER=2", "DOCKER_RESOURCE_GPU=0,1", policy=policy)
    assert request is not None and request.devices == ("0", "1", "2")
    request = read("NVIDIA_VISIBLE_DEVICES=3", policy=policy)
    assert request is not None and request.devices == ("3",)


def test_hostile_values_are_cut_and_escaped() -> None:
    with pytest.raises(ConfigError, match="characters long"):
        devices("0," * 40000)
    with pytest.raises(ConfigError) as e:
        read("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=\x1b[31m\n" + "x" * 1000)
    assert "\x1b" not in str(e.value) and "\n" not in str(e.value) and len(str(e.value)) < 600


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/usr/bin/nvidia-container-runtime-hook", True),
        ("nvidia-container-toolkit", True),
        ("/usr/bin/nvidia-ctk", False),
        ("/nvidia-container-toolkit/other", False),
    ],
)
def test_the_hook_that_gpurun_replaces(path: str, expected: bool) -> None:
    assert is_replaced_hook(path) is expected
