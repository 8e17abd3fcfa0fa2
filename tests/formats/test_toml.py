"""The small reader of TOML against tomllib."""

from __future__ import annotations

import tomllib

import pytest

from gpurun.errors import ConfigError
from gpurun.formats.toml import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
