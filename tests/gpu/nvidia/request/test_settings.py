"""What the keys of the toolkit's config.toml do."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import ConfigError
from gpurun.gpu.nvidia.host.file_names import CAPABILITIES
from gpurun.gpu.nvidia.host.roots import Roots
from gpurun.gpu.nvidia.request.settings import UNUSED, Settings, read_settings, roots_of, settings_path
from gpurun.gpu.resolve import Inquiry, gpu_edits
from gpurun.record import replace
from tests.formats.test_toml import TYPICAL, flat
from tests.simdriver import SimulatedDriver


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


#: Section by section what the toolkit's documentation lists, with a value that is not the default.
EVERY_KEY = """
disable-require = true
swarm-resource = "R"
accept-nvidia-visible-devices-envvar-when-unprivileged = false
accept-nvidia-visible-devices-as-volume-mounts = true
supported-driver-capabilities = "compute"
[nvidia-container-cli]
root = "/r"
path = "/p"
environment = ["CUDA_MPS_PIPE_DIRECTORY=/run/mps", "A=b=c"]
debug = "/d"
ldcache = "/etc/other.cache"
user = "root:video"
load-kmods = false
no-pivot = true
no-cgroups = true
ldconfig = "@/sbin/ldconfig"
[nvidia-container-runtime]
debug = "/var/log/r.log"
log-level = "debug"
runtimes = ["crun"]
mode = "cdi"
[nvidia-container-runtime.modes.csv]
mount-spec-path = "/csv"
compat-container-root = "/c"
[nvidia-container-runtime.modes.cdi]
default-kind = "a/b"
annotation-prefixes = ["x/"]
spec-dirs = ["/s"]
[nvidia-container-runtime.modes.jit-cdi]
nvcdi-feature-flags = ["f"]
nvcdi-disable-hooks = ["h"]
[nvidia-container-runtime.modes.legacy]
cuda-compat-mode = "disabled"
[nvidia-container-runtime-hook]
path = "/h"
skip-mode-detection = true
[nvidia-ctk]
path = "/k"
[features]
allow-cuda-compat-libs-from-container = true
allow-ldconfig-from-container = true
allow-unknown-oci-spec-fields = true
disable-cuda-compat-lib-hook = true
disable-imex-channel-creation = true
ignore-imex-channel-requests = true
no-additional-gids-for-device-nodes = true
[gpurun]
dev-root = "/dev-is-here"
library-dirs = ["/opt/lib"]
"""


def test_every_key_of_the_toolkit_is_honoured_or_has_its_reason(tmp_path: Path) -> None:
    """A key that is neither read nor listed in UNUSED would change nothing when it is left out."""
    file = tmp_path / "config.toml"

    def read(values: dict[str, Any]) -> Settings:
        file.write_text("".join([f"{key} = {json.dumps(value)}\n" for key, value in values.items()]))
        return read_settings(str(file))

    whole = flat(tomllib.loads(EVERY_KEY))
    everything = read(whole)
    for key in whole:
        without = read({k: v for k, v in whole.items() if k != key})
        assert (without == everything) is (key in UNUSED), key
    assert not everything.warnings
    assert set(UNUSED) <= set(whole) and all(UNUSED.values())


def test_what_the_keys_mean(tmp_path: Path) -> None:
    (tmp_path / "f").write_text(EVERY_KEY)
    made = read_settings(str(tmp_path / "f"))
    assert made.environment({"PATH": "/bin"}) == {"PATH": "/bin", "CUDA_MPS_PIPE_DIRECTORY": "/run/mps", "A": "b=c"}
    assert not made.additional_gids and not made.creates_imex_channels and made.policy.ignore_imex_channels
    assert roots_of({"GPURUN_SYSROOT": "/sim"}, made) == Roots(
        "/r", "/sim", "/dev-is-here", "/etc/other.cache", ("/opt/lib",)
    )
    plain = Settings()
    assert plain.additional_gids and plain.creates_imex_channels and roots_of({}, plain) == Roots()


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
        ("[nvidia-container-cli]\nroot = 'run/driver'", "'run/driver' is not an absolute path"),
        ("[nvidia-container-cli]\nenvironment = ['A']", "'A' is not of the form NAME=VALUE"),
        ("[nvidia-container-cli]\nenvironment = 'A=b'", r"environment: must be an array of strings"),
        ("[nvidia-container-runtime.modes.cdi]\nspec-dirs = [1]", r"spec-dirs: must be an array of strings"),
        ("[nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = 'x'", "'x' is unknown, known are ldconfig, mount"),
        ("[features]\ndisable-imex-channel-creation = 1", r"creation: must be true or false"),
    ],
)
def test_values_that_cannot_be(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "f").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_settings(str(tmp_path / "f"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[nvidia-container-cli]\nrooot = '/r'", "the key nvidia-container-cli.rooot is not known and changes nothing ("),
        ("[gpurun]\nlibrary-dir = '/opt'", "the key gpurun.library-dir is not known"),
        ("[features]\nof-tomorrow = false", "the key features.of-tomorrow is not known"),
        ("root = '/r'\n[a]\nb = 1", "the keys root, a.b are not known and change nothing"),
        ("\n".join([f"k{n} = 1" for n in range(9)]), "the keys k0, k1, k2, k3, k4 and 4 more are not known"),
        ("[nvidia-container-runtime]\nmode = 'foo'", 'runtime.mode: "foo" is not known, so "auto" holds (known are auto,'),
        ("[nvidia-container-runtime]\nlog-level = 'loud'", 'log-level: "loud" is not known, so "info" holds'),
    ],
)
def test_what_nobody_knows_is_told(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "f").write_text(text)
    made = read_settings(str(tmp_path / "f"))
    (warning,) = made.warnings
    assert warning.startswith(f"{tmp_path}/f: ") and words in warning
    assert replace(made, warnings=()) == Settings()


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
    made = gpu_edits(Inquiry(asked, {}, False, env))
    assert made is not None and made.warnings and not made.device_nodes
    made = gpu_edits(Inquiry(asked, {}, True, env))
    assert made is not None and made.device_nodes
    file.write_text("swarm-resource = 'MY_GPUS'\n")
    made = gpu_edits(Inquiry(("MY_GPUS=1",), {}, False, env))
    assert made is not None and len([n for n in made.device_nodes if n.path[-1].isdigit()]) == 1
    file.write_text("broken")
    with pytest.raises(ConfigError, match="line 1"):
        gpu_edits(Inquiry(asked, {}, False, env))


def test_who_asks_for_a_gpu_is_told_of_unknown_keys(sim: SimulatedDriver, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("disable-requires = true\n")
    own = sim.env | {"NVIDIA_CTK_CONFIG_FILE_PATH": str(file)}
    made = gpu_edits(Inquiry(("NVIDIA_VISIBLE_DEVICES=0",), {}, False, own))
    assert made is not None and any("disable-requires is not known" in text for text in made.warnings)
    assert gpu_edits(Inquiry(("A=b",), {}, False, own)) is None, "a container without a GPU has nothing to do with it"
