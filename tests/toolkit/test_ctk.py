"""``nvidia-ctk config`` and ``nvidia-ctk system``."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from gpurun.gpu.nvidia.request.settings import Settings, read_settings
from gpurun.toolkit.config_file import DEFAULT, set_values
from tests.needs_nodes import needs_nodes
from tests.simdriver import MAJORS, Options, SimulatedDriver, make, minor

from .conftest import Call


def test_the_default_is_what_gpurun_assumes(tmp_path: Path, call: Call) -> None:
    file = tmp_path / "config.toml"
    file.write_text(DEFAULT)
    assert read_settings(str(file)) == Settings()
    assert call("nvidia-ctk", "config", "default").stdout == DEFAULT
    assert call("nvidia-ctk", "config", "create-default", "--output", tmp_path / "made/c.toml").stdout == ""
    assert (tmp_path / "made/c.toml").read_text() == DEFAULT
    assert call("nvidia-ctk", "config", env={"NVIDIA_CTK_CONFIG_FILE_PATH": str(tmp_path / "none")}).stdout == DEFAULT


def test_set(tmp_path: Path, call: Call) -> None:
    file = tmp_path / "config.toml"
    file.write_text("# ours\ndisable-require = true # for now\n[nvidia-container-cli]\nunknown = 1\n")
    sets = ["nvidia-container-cli.no-cgroups", "nvidia-container-cli.root=/run/nvidia/driver", "disable-require=false"]
    sets += ["nvidia-container-runtime.runtimes=crun:runc", "nvidia-container-runtime.modes.cdi.spec-dirs=/etc/cdi"]
    words = [word for one in sets for word in ("--set", one)]
    done = call("nvidia-ctk", "config", f"--config={file}", *words)
    assert done.returncode == 0 and file.read_text().endswith("unknown = 1\n"), "without --in-place the file stays"
    assert call("nvidia-ctk", "config", f"--config={file}", *words, "--in-place").returncode == 0
    assert file.read_text() == done.stdout and done.stdout.startswith("# ours\ndisable-require = false # for now\n")
    settings = read_settings(str(file))
    assert settings.no_cgroups and settings.driver_root == "/run/nvidia/driver" and not settings.policy.disable_require
    document = tomllib.loads(done.stdout)
    assert (
        document["nvidia-container-runtime"]["runtimes"] == ["crun", "runc"]
        and document["nvidia-container-cli"]["unknown"] == 1
    )
    assert set_values("", ("nvidia-container-runtime.runtimes=a,b",), ",", "x").count('["a", "b"]') == 1


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ("disable-require=true,accept-nvidia-visible-devices-as-volume-mounts=true",
         "disable-require = true\naccept-nvidia-visible-devices-as-volume-mounts = true\n"),
        ("disable-require,accept-nvidia-visible-devices-as-volume-mounts",
         "disable-require = true\naccept-nvidia-visible-devices-as-volume-mounts = true\n"),
        ("supported-driver-capabilities=compute,utility", 'supported-driver-capabilities = "compute,utility"\n'),
        ("supported-driver-capabilities=compute,utility,disable-require=false",
         'supported-driver-capabilities = "compute,utility"\ndisable-require = false\n'),
        ("nvidia-container-runtime.runtimes=crun,runc", '[nvidia-container-runtime]\nruntimes = ["crun", "runc"]\n'),
        ("nvidia-container-cli.environment=A=1:B=x,y", '[nvidia-container-cli]\nenvironment = ["A=1", "B=x,y"]\n'),
        ("features.ignore-imex-channel-requests=nil", "[features]\n"),
    ],
)  # fmt: skip
def test_settings_with_commas(item: str, text: str) -> None:
    """One --set may hold several; in NVIDIA's a comma always divides, so that no value can have one."""
    before = "[features]\nignore-imex-channel-requests = true\n" if "nil" in item else ""
    assert tomllib.loads(set_values(before, (item,), ":", "x")) == tomllib.loads(text)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("nonsense=1", "is not a key of the toolkit"),
        ("disable-require=true,nonsense=1", "--set nonsense: is not a key of the toolkit"),
        ("disable-require=true,nonsense", "'true,nonsense' is neither true nor false"),
        ("disable-require=nil", "neither true nor false"),
        ("disable-require=perhaps", "neither true nor false"),
        ("nvidia-container-cli.root", "needs a value"),
        ("nvidia-container-cli=1", "is not a key of the toolkit"),
    ],
)
def test_refused_keys(call: Call, tmp_path: Path, item: str, words: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(DEFAULT)
    done = call("nvidia-ctk", "config", f"--config={file}", "--set", item, "--in-place")
    assert done.returncode == 1 and words in done.stderr and file.read_text() == DEFAULT


def test_a_broken_file(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("broken")
    done = call("nvidia-ctk", "config", f"--config={file}", "--set", "disable-require", "--in-place")
    assert done.returncode == 1 and "is not TOML" in done.stderr and file.read_text() == "broken"
    file.write_text("[disable-require]\n[nvidia-container-cli]\n")
    assert call("nvidia-ctk", "config", f"--config={file}", "-i", "-o", "x").returncode == 1
    done = call("nvidia-ctk", "config", "--set-list-separator=", "--set", "nvidia-container-runtime.runtimes=a")
    assert done.returncode == 1 and "--set-list-separator must not be empty" in done.stderr


def test_info(call: Call) -> None:
    assert "NVRM version:   999.88.77" in call("nvidia-ctk", "info").stdout


def nodes(directory: Path) -> dict[str, tuple[int, int]]:
    return {p.name: (os.major(p.stat().st_rdev), os.minor(p.stat().st_rdev)) for p in directory.iterdir()}


@needs_nodes
def test_control_nodes(call: Call, tmp_path: Path) -> None:
    driver = make(tmp_path / "host", Options(nodes=False))
    dev = driver.path / "dev"
    dev.mkdir(exist_ok=True)
    command = ("nvidia-ctk", "system", "create-device-nodes", "--control-devices")
    done = call(*command, "--dry-run", env=driver.env)
    assert done.returncode == 0 and done.stderr.count("mknod -m 666") == 4 and not list(dev.iterdir())
    assert call(*command, env=driver.env | {"UMASK": "077"}).returncode == 0
    uvm = MAJORS["nvidia-uvm"]
    assert nodes(dev) == {
        "nvidiactl": (195, 255), "nvidia-modeset": (195, 254), "nvidia-uvm": (uvm, 0), "nvidia-uvm-tools": (uvm, 1),
    }  # fmt: skip
    assert {oct(p.stat().st_mode)[-3:] for p in dev.iterdir()} == {"666"}
    done = call(*command, env=driver.env)
    assert (done.returncode, done.stderr) == (0, "")


@needs_nodes
def test_control_nodes_refused(call: Call, tmp_path: Path) -> None:
    driver = make(tmp_path / "host", Options(nodes=False))
    command = ("nvidia-ctk", "system", "create-device-nodes", "--control-devices")
    (driver.path / "dev").mkdir(exist_ok=True)
    (driver.path / "dev/nvidiactl").write_text("")
    done = call(*command, env=driver.env)
    assert done.returncode == 1 and "is not the character device 195:255" in done.stderr
    params = driver.path / "proc/driver/nvidia/params"
    params.write_text(params.read_text().replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0"))
    assert "ModifyDeviceFiles is 0" in call(*command, env=driver.env).stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "driver not loaded" in call(*command, env={"GPURUN_SYSROOT": str(empty)}).stderr


@needs_nodes
def test_links(call: Call, tmp_path: Path) -> None:
    driver = make(tmp_path / "host", Options(gpus=2))
    char = driver.path / "dev/char"
    command = ("nvidia-ctk", "system", "create-dev-char-symlinks")
    assert call(*command, "--dry-run", env=driver.env).stderr.count(" -> ") == 6 and not char.exists()
    assert call(*command, env=driver.env).returncode == 0
    links = {p.name: os.readlink(p) for p in char.iterdir()}
    assert links["195:255"] == "../nvidiactl" and links[f"195:{minor(0, 2)}"] == f"../nvidia{minor(0, 2)}"
    assert len(links) == 6
    assert all(os.stat(char / name).st_rdev == os.makedev(*map(int, name.split(":"))) for name in links)
    assert call(*command, env=driver.env).stderr == ""
    (char / "195:0").unlink()
    (char / "195:0").symlink_to("elsewhere")
    assert call(*command, env=driver.env).returncode == 0 and os.readlink(char / "195:0") == "../nvidia0"


def test_links_for_nodes_that_are_not_there_yet(call: Call, tmp_path: Path) -> None:
    driver: SimulatedDriver = make(tmp_path / "host", Options(gpus=2, nodes=False))
    where = tmp_path / "links"
    where.mkdir()
    moved = driver.path / "elsewhere"
    done = call(
        "nvidia-ctk", "system", "create-dev-char-symlinks", "--create-all", "--dev-char-path=/elsewhere", env=driver.env
    )
    assert done.returncode == 0, done.stderr
    assert os.readlink(moved / "195:1") == str(driver.path / "dev/nvidia1") and (moved / "195:255").is_symlink()
    (moved / "195:1").unlink()
    (moved / "195:1").write_text("")
    done = call(
        "nvidia-ctk", "system", "create-dev-char-symlinks", "--create-all", "--dev-char-path=/elsewhere", env=driver.env
    )
    assert done.returncode == 1 and "is not a link" in done.stderr


def test_modules(call: Call) -> None:
    done = call("nvidia-ctk", "system", "create-device-nodes", "--load-kernel-modules", "--dry-run", "--driver-root=/run/d")
    assert [line.partition("msg=")[2].strip('"') for line in done.stderr.splitlines()] == [
        f"chroot /run/d modprobe {m}" for m in ("nvidia", "nvidia-uvm", "nvidia-modeset")
    ]


def test_cdi(call: Call, host: SimulatedDriver, tmp_path: Path) -> None:
    """The file that `nvidia-ctk cdi generate` writes is that of `gpurun cdi generate`, and `cdi list` finds its devices."""
    file = tmp_path / "cdi/nvidia.yaml"
    options = (f"--output={file}", "--device-name-strategy=index", "--nvidia-ctk-path=/x/nvidia-ctk")
    done = call("nvidia-ctk", "cdi", "generate", *options)
    assert done.returncode == 0, done.stderr
    assert "/x/nvidia-ctk" in file.read_text() and "kind: nvidia.com/gpu" in file.read_text()
    again = call("nvidia-ctk", "cdi", "generate", env={"NVIDIA_CTK_CDI_OUTPUT_FILE_PATH": str(tmp_path / "cdi/other.json")})
    assert again.returncode == 0 and again.stdout == "" and (tmp_path / "cdi/other.json").read_text().startswith("{")
    (tmp_path / "cdi/other.json").unlink()
    listed = call("nvidia-ctk", "--debug", "cdi", "list", f"--spec-dir={file.parent}")
    assert (listed.returncode, listed.stdout) == (0, "nvidia.com/gpu=0\nnvidia.com/gpu=1\nnvidia.com/gpu=all\n")


def test_cdi_usage(call: Call) -> None:
    done = call("nvidia-ctk", "cdi", "frobnicate")
    assert done.returncode == 1 and "no such command" in done.stderr
    assert "\n  generate " in call("nvidia-ctk", "cdi", "--help").stdout
    text = call("nvidia-ctk", "cdi", "generate", "--help").stdout
    assert text.startswith("Usage: nvidia-ctk cdi generate ") and "--device-name-strategy" in text
    assert "\n  nvidia-ctk cdi generate --output " in text and "\n  gpurun " not in text


def test_hook(call: Call, tmp_path: Path) -> None:
    """`nvidia-ctk hook NAME` of older CDI files is nvidia-cdi-hook."""
    (tmp_path / "rootfs").mkdir()
    config = '{"ociVersion": "1.0.0", "process": {"cwd": "/"}, "root": {"path": "rootfs"}}'
    (tmp_path / "config.json").write_text(config)
    state = f'{{"ociVersion": "1.0.0", "id": "x", "pid": 1, "bundle": "{tmp_path}"}}'
    done = call("nvidia-ctk", "hook", "create-symlinks", "--link", "libx.so.1::/usr/lib/libx.so", stdin=state)
    assert done.returncode == 0, done.stderr
    assert os.readlink(tmp_path / "rootfs/usr/lib/libx.so") == "libx.so.1"


@pytest.mark.parametrize(
    "words",
    [
        ("nvidia-ctk", "config"),
        ("nvidia-ctk", "cdi", "generate"),
        ("nvidia-ctk", "runtime", "configure", "--dry-run"),
        ("nvidia-ctk", "info"),
        ("nvidia-container-cli", "--version"),
        ("nvidia-container-cli", "info", "--csv"),
        ("nvidia-container-cli", "list"),
    ],
)
def test_output_that_is_lost_is_an_error(names: Path, host: SimulatedDriver, words: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [names / words[0], *words[1:]], stdout=full, stderr=subprocess.PIPE, env=host.env, text=True, check=False
        )
    assert done.returncode == 1 and "cannot write to stdout: no space left on device" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
