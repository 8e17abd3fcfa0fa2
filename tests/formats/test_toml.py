"""Configuration files by tomllib: the flat dictionary, and errors with their line."""

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
        'a = "\\q"',
    ],
)
def test_what_is_no_such_toml_names_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match="f: line 2: is not valid TOML: "):
        parse(f"ok = 1\n{text}\n", "f")


def test_a_key_given_twice() -> None:
    with pytest.raises(ConfigError, match="line 2: is not valid TOML: Cannot overwrite a value"):
        parse("a = 1\na = 2\n", "f")
    with pytest.raises(ConfigError, match=r"^f: a\.b: is given twice$"):
        parse('"a.b" = 1\n[a]\nb = 2\n', "f")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = " + "[" * 200_000, "f: is nested too deeply"),
        ("a = " + "[" * 100 + "]" * 100, "f: a: is nested too deeply"),
        ("[" + "a." * 100 + "a]", "f: is nested too deeply"),
        ("a = " + "9" * 5000, "f: is not valid TOML: "),
        ("x.a = 2001-01-01", "f: x.a: is a date or a time"),
        ("a = [[{b = 12:00:00}]]", "f: a: is a date or a time"),
        ("a = 1\n\n[", "f: line 3: is not valid TOML"),
        ('a = "\x1b"', "f: line 1: is not valid TOML"),
    ],
)
def test_what_nobody_reads_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f")
    assert str(caught.value).startswith(words) and str(caught.value).isprintable()


def test_more_of_toml_than_containers_need() -> None:
    assert parse('a = {b = 1.5, c = {}}\nd = """\nx"""\n[[e]]\nf = 1\n', "f") == {"a.b": 1.5, "d": "x", "e": [{"f": 1}]}
