"""Every option of nvidia-ctk and nvidia-cdi-hook 1.20, with its other names and its variables: one row for each.

A name that gpurun does not take fails here, and so does one that nothing is done with and that is not in :data:`NOT_DONE`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
import pytest

from gpurun.cli.parse import parse_command, parse_globals
from gpurun.gpu.nvidia.cdi.known_hooks import COMMANDS, LIMITS
from gpurun.toolkit import ctk
from gpurun.toolkit.ctk_cdi import VARIABLES, translate_options
from tests.needs_nodes import needs_nodes
from tests.simdriver import SimulatedDriver, uuid

from .conftest import Call

PREFIX = "NVIDIA_CTK_CDI_GENERATE_"
#: ``nvidia-ctk cdi COMMAND``: (names, the first is gpurun's own; variable; a value that it takes).
CDI: dict[str, list[tuple[str, str, str]]] = {
    "generate": [
        ("config-search-path", f"{PREFIX}CONFIG_SEARCH_PATHS", "/etc,/opt"),
        ("output", "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", "/x.yaml"),
        ("format", f"{PREFIX}OUTPUT_FORMAT", "json"),
        ("mode discovery-mode", f"{PREFIX}MODE", "nvml"),
        ("dev-root", "NVIDIA_CTK_DEV_ROOT", "/run/d"),
        ("device-name-strategy", f"{PREFIX}DEVICE_NAME_STRATEGIES", "index,uuid"),
        ("driver-root", "NVIDIA_CTK_DRIVER_ROOT", "/run/d"),
        ("library-search-path", f"{PREFIX}LIBRARY_SEARCH_PATHS", "/opt/lib"),
        ("nvidia-cdi-hook-path nvidia-ctk-path", "NVIDIA_CTK_CDI_HOOK_PATH", "/x/nvidia-cdi-hook"),
        ("ldconfig-path", f"{PREFIX}LDCONFIG_PATH", "/sbin/ldconfig.real"),
        ("vendor cdi-vendor", f"{PREFIX}VENDOR", "example.com"),
        ("class cdi-class", f"{PREFIX}CLASS", "card"),
        ("csv.file", f"{PREFIX}CSV_FILES", "/a.csv,/b.csv"),
        ("csv.ignore-pattern", f"{PREFIX}CSV_IGNORE_PATTERNS", "*.so"),
        ("csv.compat-container-root", f"{PREFIX}CSV_CONTAINER_COMPAT_ROOT", "/compat"),
        ("disable-hook disable-hooks", f"{PREFIX}DISABLED_HOOKS", "all"),
        ("enable-hook enable-hooks", f"{PREFIX}ENABLED_HOOKS", "chmod"),
        ("feature-flag feature-flags", f"{PREFIX}FEATURE_FLAGS", "disable-ipc-discoverer"),
        ("no-all-device", f"{PREFIX}NO_ALL_DEVICE", "true"),
        ("device-id device-ids device devices", f"{PREFIX}DEVICE_IDS", "0,1"),
    ],
    "list": [("spec-dir", "NVIDIA_CTK_CDI_SPEC_DIRS", "/etc/cdi,/run/cdi")],
    "transform": [(name, "", "/x") for name in ("from", "to", "input", "output", "relative-to")],
}
#: The rest of nvidia-ctk: command → (names; variables).
REST: dict[str, list[tuple[str, str]]] = {
    "": [("debug d", "NVIDIA_CTK_DEBUG"), ("quiet", "NVIDIA_CTK_QUIET"), ("config", "")],  # NVIDIA_CTK_CONFIG: tested below
    "runtime configure": [
        (names, "")
        for names in (
            "dry-run", "runtime", "config", "drop-in-config", "executable-path", "config-mode", "config-source",
            "oci-hook-path", "nvidia-runtime-name", "nvidia-runtime-path runtime-path", "nvidia-runtime-hook-path",
            "nvidia-set-as-default set-as-default", "cdi.enabled cdi.enable enable-cdi",
        )
    ],
    "config": [
        (names, "") for names in ("config-file config c", "set", "set-list-separator", "in-place i", "output o")
    ],
    "config default": [("output o", "")],
    "config create-default": [("output o", "")],
    "config generate-default": [("output o", "")],
    "system create-device-nodes": [
        ("root driver-root", "ROOT NVIDIA_DRIVER_ROOT DRIVER_ROOT"), ("dev-root", "NVIDIA_DEV_ROOT DEV_ROOT"),
        ("control-devices", ""), ("load-kernel-modules", ""), ("dry-run", "DRY_RUN"),
    ],
    "system create-dev-char-symlinks": [
        ("dev-char-path", "DEV_CHAR_PATH"), ("driver-root", "NVIDIA_DRIVER_ROOT DRIVER_ROOT"), ("create-all", "CREATE_ALL"),
        ("load-kernel-modules", "LOAD_KERNEL_MODULES"), ("create-device-nodes", "CREATE_DEVICE_NODES"),
        ("dry-run", "DRY_RUN"),
    ],
    "info": [],
}  # fmt: skip
#: The hooks of CDI files and their options; each has ``container-spec`` besides.
HOOKS = {
    "update-ldcache": "folder ldconfig-path",
    "create-symlinks": "link",
    "chmod": "path mode",
    "enable-cuda-compat": "host-driver-version host-cuda-version cuda-compat-container-root",
    "disable-device-node-modification": "",
    "update-application-profile": "",
    "apply-cuda-memory-limits": "driver-root gpu-id",
    "noop": None,
}


@pytest.mark.parametrize(
    ("command", "names", "variable", "value"),
    [(command, *row) for command, rows in CDI.items() for row in rows],
    ids=lambda value: str(value)[:40],
)
def test_cdi(command: str, names: str, variable: str, value: str) -> None:
    own, *others = names.split()

    def parsed(words: list[str], env: dict[str, str]) -> object:
        made = parse_command(parse_globals(["cdi"])[0], ["cdi", *translate_options([command, *words], env)])
        assert made.args[0] == command
        return made.options[own]

    items = value.split(",")
    meant = parsed([f"--{own}={item}" for item in items], {})
    for name in others:
        assert parsed([f"--{name}={item}" for item in items], {}) == meant
        if own != "no-all-device":
            assert parsed([word for item in items for word in (f"--{name}", item)], {}) == meant
    if variable:
        assert parsed([], {variable: value}) == meant
        other = parsed([f"--{own}={items[-1]}"], {variable: "false" if own == "no-all-device" else "/nowhere"})
        assert other == parsed([f"--{own}={items[-1]}"], {}), "the command line counts before the variable"
        assert VARIABLES[command][own] == variable


def test_every_variable_has_its_row() -> None:
    rows = {
        command: {names.split()[0]: variable for names, variable, _ in rows if variable} for command, rows in CDI.items()
    }
    assert {command: found for command, found in rows.items() if found} == VARIABLES


@pytest.mark.parametrize(("path", "rows"), REST.items(), ids=lambda value: str(value)[:40])
def test_the_rest(path: str, rows: list[tuple[str, str]]) -> None:
    command: click.Command = ctk.program
    for word in path.split():
        assert isinstance(command, click.Group)
        command = command.commands[word]
    for names, variables in rows:
        first, *others = names.split()
        (option,) = [p for p in command.params if f"--{first}" in p.opts]
        for name in others:
            assert f"{'-' if len(name) == 1 else '--'}{name}" in option.opts, f"{path} --{name}"
        known = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
        assert set(variables.split()) <= set(known), f"{path} --{first}"


@pytest.mark.parametrize(("name", "options"), HOOKS.items())
def test_hooks(name: str, options: str | None) -> None:
    own = {"limit"} if name == LIMITS else set()  # gpurun's own, for its DRA driver
    assert set(COMMANDS[name]) - own == (set() if options is None else {*options.split(), "container-spec"})
    assert set(HOOKS) == set(COMMANDS)


def test_the_site_s_file_by_name(call: Call, tmp_path: Path) -> None:
    """``nvidia-ctk --config FILE`` and NVIDIA_CTK_CONFIG: where the driver is, says the file."""
    file = tmp_path / "config.toml"
    file.write_text('[nvidia-container-cli]\nroot = "/not/there"\n')
    for words, env in ((["--config", str(file)], {}), ([f"--config={file}"], {}), ([], {"NVIDIA_CTK_CONFIG": str(file)})):
        done = call("nvidia-ctk", *words, "cdi", "generate", env=env)
        assert done.returncode == 1 and "/not/there does not exist" in done.stderr, done.stderr
        assert "/not/there" in call("nvidia-ctk", *words, "config", env=env).stdout
    assert call("nvidia-ctk", "--quiet", "cdi", "generate").returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        "cdi generate", "cdi list", "cdi validate", "config", "config default", "config create-default", "info",
        "runtime configure --dry-run", "system create-device-nodes --dry-run",
        "system create-dev-char-symlinks --create-all --dry-run --dev-root=/nonexistent",
    ],
)  # fmt: skip
def test_global_options_behind_the_command(call: Call, tmp_path: Path, words: str) -> None:
    """NVIDIA's program takes them anywhere; --config only where the command has no such option of its own."""
    file = tmp_path / "config.toml"
    file.write_text("disable-require = true\n")
    config = [] if words.startswith(("config", "runtime")) else [f"--config={file}"]
    before = call("nvidia-ctk", "--debug", "--quiet", *config, *words.split())
    for options in (["--debug", "--quiet", *config], ["-d", "-q", *[part for c in config for part in c.split("=")]]):
        after = call("nvidia-ctk", *words.split(), *options)
        assert (after.returncode, after.stdout, after.stderr) == (before.returncode, before.stdout, before.stderr), options
        assert "such option" not in after.stderr and "not defined" not in after.stderr
    first, *rest = words.split()
    assert call("nvidia-ctk", first, "--debug", "--quiet", *config, *rest).stdout == before.stdout


def test_a_configuration_behind_the_command_counts(call: Call, tmp_path: Path) -> None:
    (tmp_path / "cdi").mkdir()
    spec = {"cdiVersion": "0.5.0", "kind": "v.com/d", "devices": [{"name": "x", "containerEdits": {"env": ["A=b"]}}]}
    (tmp_path / "cdi/v.json").write_text(json.dumps(spec))
    file = tmp_path / "config.toml"
    above = os.path.relpath(tmp_path / "cdi", "/")
    file.write_text(f'[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["/{above}"]\n')
    env = {"GPURUN_SYSROOT": ""}
    for words in (["--config", str(file)], [f"--config={file}"]):
        assert call("nvidia-ctk", "cdi", "list", *words, env=env).stdout == "v.com/d=x\n"


@pytest.mark.parametrize("name", HOOKS)
def test_help_of_a_hook(call: Call, name: str) -> None:
    """Without reading any container's state."""
    for words in (
        ["nvidia-ctk", "hook", name, "--help"],
        ["nvidia-ctk", "hook", name, "-h"],
        ["nvidia-cdi-hook", name, "-h"],
    ):
        done = call(*words)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(f"Usage: nvidia-cdi-hook {name}")
    assert call("nvidia-ctk", "hook", name, "--quiet", "--help").stdout == done.stdout


def test_variables_and_any_case(call: Call, tmp_path: Path) -> None:
    env = {f"{PREFIX}DEVICE_IDS": "0,1", f"{PREFIX}DISABLED_HOOKS": "all", f"{PREFIX}NO_ALL_DEVICE": "1"}
    done = call("nvidia-ctk", "cdi", "generate", "--mode", "NVML", "--format=JSON", "--device-name-strategy=index", env=env)
    assert done.returncode == 0 and done.stdout.startswith("{") and "hooks" not in done.stdout
    assert [line.split('"')[3] for line in done.stdout.splitlines() if '"name"' in line] == ["0", "1"]


def test_lists_with_commas(call: Call, host: SimulatedDriver, tmp_path: Path) -> None:
    """As NVIDIA's program divides them, and gpurun's own as well."""
    words = ("--device-id=0,1", "--device-name-strategy=uuid,index", "--no-all-device", "--format=json")
    for program in (("nvidia-ctk",), ("nvidia-ctk", "--quiet")):
        done = call(*program, "cdi", "generate", *words, "--disable-hooks=update-ldcache,create-symlinks")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert [d["name"] for d in found["devices"]] == [uuid(0), "0", uuid(1), "1"]
        hooks = [h["args"] for h in found["containerEdits"]["hooks"]]
        assert hooks and not any({"update-ldcache", "create-symlinks"} & set(args) for args in hooks)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.json").write_text(done.stdout.replace("nvidia.com", f"{name}.com"))
    listed = call("nvidia-ctk", "cdi", "list", f"--spec-dir={tmp_path}/a,{tmp_path}/b").stdout.split()
    assert {line.partition("/")[0] for line in listed} == {"a.com", "b.com"} and len(listed) == 8


def test_what_the_generator_does_not_know_is_left_out(call: Call) -> None:
    """Feature flags and hooks of a newer toolkit are a warning, as NVIDIA's program goes on without a word."""
    same = call("nvidia-ctk", "cdi", "generate")
    words = ("--feature-flag=new,disable-nvsandbox-utils", "--disable-hook=new-hook", "--enable-hook=other-hook")
    done = call("nvidia-ctk", "cdi", "generate", *words)
    assert (done.returncode, done.stdout) == (0, same.stdout)
    for text in ("--feature-flag new is not known", "--disable-hook new-hook is", "--enable-hook other-hook is"):
        assert f"gpurun: {text}" in done.stderr
    assert "--feature-flag disable-nvsandbox-utils changes nothing" in done.stderr
    refused = call("nvidia-ctk", "cdi", "generate", "--enable-hook=all")
    assert refused.returncode == 1 and "cannot be enabled" in refused.stderr


def test_no_device(call: Call) -> None:
    """--device-id none: the driver without a GPU, as the one device."""
    found = json.loads(call("nvidia-ctk", "cdi", "generate", "--device-id=none", "--format=json").stdout)
    assert found["devices"] == [{"name": "none", "containerEdits": {"env": ["NVCT_EMPTY_DEVICE="]}}]
    assert found["containerEdits"]["mounts"] and found["containerEdits"]["deviceNodes"]


def test_a_name_that_says_another_format(call: Call, tmp_path: Path) -> None:
    done = call("nvidia-ctk", "cdi", "generate", "--format=yaml", f"--output={tmp_path}/x.json")
    assert (
        done.returncode == 0
        and "will expect json, because of its name" in done.stderr
        and (tmp_path / "x.json").read_text().startswith("---")
    )


@pytest.mark.parametrize(
    ("name", "form", "made"),
    [
        ("nvidia", "", "nvidia.yaml"),
        ("nvidia.yml", "", "nvidia.yml.yaml"),
        ("a.b", "json", "a.b.json"),
        ("x.json", "", "x.json"),
    ],
)
def test_a_name_that_no_runtime_reads_gets_an_ending(call: Call, tmp_path: Path, name: str, form: str, made: str) -> None:
    words = [f"--format={form}"] if form else []
    done = call("nvidia-ctk", "cdi", "generate", f"--output={tmp_path}/{name}", *words)
    assert done.returncode == 0 and [p.name for p in tmp_path.iterdir()] == [made]
    assert (f"no runtime reads {tmp_path}/{name}" in done.stderr) == (name != made)
    assert (tmp_path / made).read_text()[0] == ("{" if made.endswith("json") else "-")


@needs_nodes
def test_links_with_their_nodes(call: Call, host: SimulatedDriver, tmp_path: Path) -> None:
    """--create-device-nodes is for --create-all, as NVIDIA's says, and makes the control nodes first."""
    dev = tmp_path / "dev"
    dev.mkdir()
    shown = f"../{tmp_path.relative_to('/')}"
    words = ("system", "create-dev-char-symlinks", "--create-device-nodes", "--dry-run", f"--dev-root={shown}")
    assert "is for --create-all" in call("nvidia-ctk", *words).stderr
    done = call("nvidia-ctk", *words, env={"CREATE_ALL": "true"})
    assert done.returncode == 0 and "mknod" in done.stderr and "nvidiactl c 195 255" in done.stderr
    assert "is for --create-all" not in done.stderr and not list(dev.iterdir())


@pytest.mark.parametrize("mode", ["", "config", "config-file", "hook", "oci-hook"])
def test_config_modes(call: Call, mode: str, tmp_path: Path) -> None:
    words = ("--config-mode", mode, "--config", tmp_path / "daemon.json", "--nvidia-runtime-hook-path=/h")
    done = call("nvidia-ctk", "runtime", "configure", "--dry-run", *words)
    assert done.returncode == 0, done.stderr
    assert ('"prestart"' in done.stdout) == ("hook" in mode) != ('"nvidia"' in done.stdout)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("--runtime=containerd --nvidia-runtime-path=rel", "--nvidia-runtime-path"),
        ("--runtime=crio --runtime-path=./rel", "--nvidia-runtime-path"),
        ("--config-mode=oci-hook --nvidia-runtime-hook-path=rel", "--nvidia-runtime-hook-path"),
    ],
)
def test_paths_that_nobody_looks_up(call: Call, words: str, option: str, tmp_path: Path) -> None:
    done = call("nvidia-ctk", "runtime", "configure", "--dry-run", f"--config={tmp_path}/conf", *words.split())
    assert done.returncode == 1 and f"{option}=" in done.stderr and "is not an absolute path" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("engine", ["docker", "containerd", "crio"])
def test_the_usual_name_is_found(call: Call, engine: str, tmp_path: Path) -> None:
    """Docker looks a bare name up, the others get its path."""
    words = (f"--runtime={engine}", f"--config={tmp_path}/conf", "--nvidia-runtime-path=nvidia-container-runtime")
    done = call("nvidia-ctk", "runtime", "configure", "--dry-run", *words)
    assert done.returncode == 0, done.stderr
    assert ('"nvidia-container-runtime"' in done.stdout) == (engine == "docker")
    assert ("/nvidia-container-runtime" in done.stdout) == (engine != "docker")
