"""NVIDIA_* variables read as the NVIDIA container toolkit reads them."""

from __future__ import annotations

import pytest

from gpurun.errors import ConfigError
from gpurun.gpu.nvidia.host.file_names import CAPABILITIES
from gpurun.gpu.nvidia.request.environment import read_request
from gpurun.gpu.nvidia.request.records import GpuRequest, Policy
from gpurun.gpu.request.injected import is_replaced_hook

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
        (" , ,", ()),  # words, but no name
    ],
)
def test_capabilities(value: str | None, expected: tuple[str, ...]) -> None:
    env = ["NVIDIA_VISIBLE_DEVICES=all"] + ([] if value is None else [f"NVIDIA_DRIVER_CAPABILITIES={value}"])
    request = read(*env)
    assert request is not None and request.capabilities == expected
    request = read(*env, "CUDA_VERSION=9.2")  # an image of old, which gets everything unless it says what
    assert request is not None and request.capabilities == (CAPABILITIES if value is None else expected)


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
    for wrong in ("eleven", "vv11.6", "v", "11.x", "-1", "11.6.1 or so"):
        with pytest.raises(ConfigError, match=f"CUDA_VERSION: '{wrong}' is not a version"):
            read(f"CUDA_VERSION={wrong}")


@pytest.mark.parametrize("version", ["11.6", "v11.6", "11.6.2", "v11.6.2", "11.6.2-rc1", "11.6+build.7", " 11.6 "])
def test_versions_of_legacy_images(version: str) -> None:
    request = read(f"CUDA_VERSION={version}")
    assert request is not None and request.requirements == ("cuda>=11.6",)


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


def test_cdi_names() -> None:
    request = read("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0, vendor.org/a.b=x:y,nvidia.com/gpu=0")
    assert request is not None
    assert (request.devices, request.qualified) == ((), ("nvidia.com/gpu=0", "vendor.org/a.b=x:y"))


@pytest.mark.parametrize("value", ["nvidia.com/gpu=0,1", "all,nvidia.com/gpu=0", "nvidia.com/gpu=0,a=b"])
def test_plain_ids_among_cdi_names_stay_as_they_are(value: str) -> None:
    """Which modes take them is said where the mode is known."""
    request = read(f"NVIDIA_VISIBLE_DEVICES={value}")
    assert request is not None and (request.devices, request.qualified) == ((), tuple(value.split(",")))


EXTRAS = {
    "NVIDIA_GDS": "gds",
    "NVIDIA_MOFED": "mofed",
    "NVIDIA_GDRCOPY": "gdrcopy",
    "NVIDIA_NVSWITCH": "nvswitch",
}


def test_extras_come_with_gpus_only() -> None:
    for variable, extra in EXTRAS.items():
        request = read("NVIDIA_VISIBLE_DEVICES=0", f"{variable}=enabled")
        assert request is not None and request.extras == (extra,)
        assert read(f"{variable}=enabled") is None
        request = read("NVIDIA_VISIBLE_DEVICES=none", f"{variable}=enabled")
        assert request is not None and request.extras == ()
    request = read("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0", *[f"{v}=enabled" for v in EXTRAS])
    assert request is not None and request.extras == tuple(EXTRAS.values())


@pytest.mark.parametrize("value", ["Enabled", "1", "true", "enabled ", ""])
def test_extras_have_one_value(value: str) -> None:
    request = read("NVIDIA_VISIBLE_DEVICES=0", *[f"{v}={value}" for v in EXTRAS])
    assert request is not None and request.extras == ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [("", ()), ("all", ()), (" , ", ()), ("0", (0,)), ("7, channel3,3,07", (3, 7)), ("1048575", (1048575,))],
)
def test_imex_channels(value: str, expected: tuple[int, ...]) -> None:
    request = read("NVIDIA_VISIBLE_DEVICES=none", f"NVIDIA_IMEX_CHANNELS={value}")
    assert request is not None and request.imex_channels == expected


@pytest.mark.parametrize("value", ["1048576", "-1", "0,all", "x", "channel", "0x1", "٣", "9" * 30, "\x1b"])
def test_imex_channels_that_cannot_be(value: str) -> None:
    with pytest.raises(ConfigError, match=r"NVIDIA_IMEX_CHANNELS: '.*' is not an IMEX channel") as e:
        read("NVIDIA_VISIBLE_DEVICES=0", f"NVIDIA_IMEX_CHANNELS={value}")
    assert "\x1b" not in str(e.value)


def test_imex_channels_are_bounded() -> None:
    with pytest.raises(ConfigError, match="asks for 3000 IMEX channels"):
        read("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=" + ",".join(map(str, range(3000))))


def test_imex_channels_by_policy() -> None:
    asked = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=1")
    request = read(*asked, policy=Policy(ignore_imex_channels=True))
    assert request is not None and request.imex_channels == ()


@pytest.mark.parametrize(("name", "extra"), [("CONFIG", "mig-config"), ("MONITOR", "mig-monitor")])
def test_mig_administration(name: str, extra: str) -> None:
    variable = f"NVIDIA_MIG_{name}_DEVICES=all"
    request = read("NVIDIA_VISIBLE_DEVICES=all", variable, privileged=True)
    assert request is not None and request.extras == (extra,)
    with pytest.raises(ConfigError, match=f"cannot set MIG_{name}_DEVICES in non privileged container"):
        read("NVIDIA_VISIBLE_DEVICES=0", variable)
    for mig in (f"MIG-{UUID}/1/0", "0:1"):
        with pytest.raises(ConfigError, match=f"cannot enable {extra} with specific MIG devices selected"):
            read(f"NVIDIA_VISIBLE_DEVICES=0,{mig}", variable, privileged=True)
    with pytest.raises(ConfigError, match="only 'all' can be asked for"):
        read("NVIDIA_VISIBLE_DEVICES=0", variable.replace("all", "0"), privileged=True)
    assert read("NVIDIA_VISIBLE_DEVICES=0", variable.replace("all", "")) is not None


def test_files_of_all_lists() -> None:
    for value, expected in (("csv-mounts=all", True), ("csv-mounts=l4t", False), ("x,csv-mounts=all", True)):
        request = read("NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_REQUIRE_JETPACK={value}")
        assert request is not None and request.all_csv is expected and not request.requirements


MARKER = "/var/run/nvidia-container-devices"
ACCEPTED = Policy(accept_volume_mounts=True)


def mounted(
    *names: str, env: tuple[str, ...] = (), policy: Policy = ACCEPTED, source: str = "/dev/null"
) -> GpuRequest | None:
    mounts = (("/proc", "/proc"), *[(source, f"{MARKER}{name}") for name in names])
    return read_request(env, {}, False, policy, mounts)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["/0", "/1", "/0"], ("0", "1")),
        ([f"/{UUID}/"], (UUID,)),
        (["/all"], ("all",)),
        (["/x/all"], ("all",)),
        (["/0", "/all"], ("all",)),
        ([f"/MIG-{UUID}/1/0"], (f"MIG-{UUID}/1/0",)),
        (["", "/", "/2"], ("2",)),
    ],
)
def test_device_lists_as_volume_mounts(names: list[str], expected: tuple[str, ...]) -> None:
    request = mounted(*names)
    assert request is not None and (request.devices, request.source) == (expected, "mounts")
    assert mounted(*names, policy=Policy()) is None
    assert mounted(*names, source="/dev/zero") is None and mounted(*names, source="dev/null") is None
    assert mounted(*names, source="/dev//../dev/./null") == request


def test_volume_mounts_come_before_the_environment() -> None:
    for value in ("all", "void", MARKER):
        request = mounted("/1", env=(f"NVIDIA_VISIBLE_DEVICES={value}", "NVIDIA_DRIVER_CAPABILITIES=utility"))
        assert request is not None and (request.devices, request.capabilities) == (("1",), ("utility",))
    request = mounted(env=("NVIDIA_VISIBLE_DEVICES=3",))
    assert request is not None and request.devices == ("3",)


def test_a_hardened_site_takes_devices_from_mounts_only() -> None:
    policy = Policy(accept_volume_mounts=True, accept_envvar_when_unprivileged=False)
    env = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_IMEX_CHANNELS=5")
    request = mounted("/1", env=env, policy=policy)
    assert request is not None and request.devices == ("1",) and request.imex_channels == ()
    assert request.warnings == (
        "Ignoring devices requested by environment variable(s) in unprivileged container: [NVIDIA_IMEX_CHANNELS]",
    )
    request = mounted(env=env, policy=policy)
    assert request is not None and request.denied


def test_cdi_names_and_channels_as_volume_mounts() -> None:
    request = mounted("/cdi/nvidia.com/gpu/0", "/cdi/nvidia.com/gpu=1", "/cdi/bad", "/cdi/a/b")
    assert request is not None and request.qualified == ("nvidia.com/gpu=0", "nvidia.com/gpu=1")
    assert [w.partition(" is not")[0] for w in request.warnings] == [
        f"mounts: {MARKER}/cdi/bad",
        f"mounts: {MARKER}/cdi/a/b",
    ]
    request = mounted("/0", "/imex/4", "/imex/channel2", env=("NVIDIA_IMEX_CHANNELS=9",))
    assert request is not None and (request.devices, request.imex_channels) == (("0",), (2, 4))
    with pytest.raises(ConfigError, match=r"^mounts: 'x' is not an IMEX channel"):
        mounted("/0", "/imex/x")
    request = mounted("/0", "/cdi/nvidia.com/gpu/0")
    assert request is not None and request.qualified == ("0", "nvidia.com/gpu=0") and request.source == "mounts"
    with pytest.raises(ConfigError, match="characters long"):
        mounted("/" + "0" * 70000)
    assert mounted("/imex/4") is None  # channels alone make no GPU container


def test_policy_against_images_that_ask() -> None:
    policy = Policy(accept_envvar_when_unprivileged=False)
    request = read("NVIDIA_VISIBLE_DEVICES=all", policy=policy)
    assert request is not None and request.devices == ()
    assert "unprivileged container: [NVIDIA_VISIBLE_DEVICES]" in request.denied
    request = read("NVIDIA_VISIBLE_DEVICES=all", privileged=True, policy=policy)
    assert request is not None and not request.denied


def test_policy_comes_before_what_is_asked() -> None:
    """An image that may not ask is not told that its wish could not be met."""
    policy = Policy(accept_envvar_when_unprivileged=False)
    request = read("NVIDIA_VISIBLE_DEVICES=MIG-0", "NVIDIA_DRIVER_CAPABILITIES=bogus", "NVIDIA_GDS=enabled", policy=policy)
    assert request is not None and request.denied


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
