"""The toolkit's config.toml: our small reader against tomllib, and what its keys do."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import ConfigError
from gpurun.hook.gpu import gpu_edits
from gpurun.hook.request import CAPABILITIES
from gpurun.hook.settings import Settings, parse, read_settings, settings_path
from tests.simdriver import SimulatedDriver

#: What ``nvidia-ctk config create-default`` writes, shortened, with the odd things people add.
TYPICAL = r"""
#accept-nvidia-visible-devices-as-volume-mounts = false
accept-nvidia-visible-devices-envvar-when-unprivileged = false   # hardened
disable-require = true
supported-driver-capabilities = "compute,utility"
swarm-resource = "DOCKER_RESOURCE_GPU, OTHER"

[nvidia-container-cli]
environment = []
ldconfig = '@/sbin/ldconfig.real'
load-kmods = true
no-cgroups = true
root = "/run/nvidia/driver"
path = "a \"quoted\" \\ # no comment"

[nvidia-container-runtime]
log-level = "info"
mode = "legacy"
runtimes = [
    "runc",  # the first ]
    "crun",
]
number = 1_000

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
spec-dirs = ["/etc/cdi", "/var/run/cdi"]

[nvidia-container-runtime-hook]
path = "nvidia-container-runtime-hook"
skip-mode-detection = true
"""


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in values.items():
        made |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return made


@pytest.mark.parametrize(
    "text", [TYPICAL, "", "# nothing\n", "a=1", "[t]\na = [1, 2, [3, 'x'], ]\nb = -5\n", '[a."b"]\nc = ""\n']
)
def test_agrees_with_tomllib(text: str) -> None:
    assert parse(text, "f") == flat(tomllib.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "= 1",
        "a = ",
        "a = yes",
        'a = "x',
        "a = 'x",
        "[t",
        "[t] x",
        "a = 1 2",
        "a = [1 2]",
        "a = [1",
        "a = {b = 1}",
        'a = "\\q"',
    ],
)
def test_what_is_no_such_toml_names_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match="f: line 2: "):
        parse(f"ok = 1\n{text}\n", "f")


def test_a_key_given_twice() -> None:
    with pytest.raises(ConfigError, match="line 2: a is given twice"):
        parse("a = 1\na = 2\n", "f")


def test_settings(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(TYPICAL)
    made = read_settings(str(file))
    assert (made.driver_root, made.no_cgroups, made.mode, made.skip_mode_detection) == (
        "/run/nvidia/driver",
        True,
        "legacy",
        True,
    )
    policy = made.policy
    assert not policy.accept_envvar_when_unprivileged and policy.disable_require
    assert policy.supported_capabilities == ("compute", "utility")
    assert policy.swarm_resource == ("DOCKER_RESOURCE_GPU", "OTHER")


def test_defaults(tmp_path: Path) -> None:
    assert read_settings(str(tmp_path / "absent")) == Settings()
    (tmp_path / "empty").write_text("")
    assert read_settings(str(tmp_path / "empty")) == Settings()
    assert Settings().policy.supported_capabilities == CAPABILITIES


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("disable-require = 'yes'", "disable-require: must be true or false"),
        ("[nvidia-container-cli]\nroot = true", r"nvidia-container-cli\.root: must be a string"),
        ("supported-driver-capabilities = 'compute,teleport'", "'teleport' is unknown"),
    ],
)
def test_values_that_cannot_be(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "f").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_settings(str(tmp_path / "f"))


def test_where_it_is() -> None:
    default = "/etc/nvidia-container-runtime/config.toml"
    assert settings_path({}) == default
    assert settings_path({"GPURUN_SYSROOT": "/sim/"}) == "/sim" + default
    assert settings_path({"XDG_CONFIG_HOME": "/x"}) == "/x/nvidia-container-runtime/config.toml"
    assert settings_path({"XDG_CONFIG_HOME": "/x", "NVIDIA_CTK_CONFIG_FILE_PATH": "/f"}) == "/f"


def test_the_engine_follows_the_sites_policy(sim: SimulatedDriver, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    env = sim.env | {"NVIDIA_CTK_CONFIG_FILE_PATH": str(file)}
    asked = ("NVIDIA_VISIBLE_DEVICES=all",)
    file.write_text("accept-nvidia-visible-devices-envvar-when-unprivileged = false\n")
    made = gpu_edits(asked, {}, False, env)
    assert made is not None and made.warnings and not made.device_nodes
    made = gpu_edits(asked, {}, True, env)
    assert made is not None and made.device_nodes
    file.write_text("swarm-resource = 'MY_GPUS'\n")
    made = gpu_edits(("MY_GPUS=1",), {}, False, env)
    assert made is not None and len([n for n in made.device_nodes if n.path[-1].isdigit()]) == 1
    file.write_text("broken")
    with pytest.raises(ConfigError, match="line 1"):
        gpu_edits(asked, {}, False, env)
