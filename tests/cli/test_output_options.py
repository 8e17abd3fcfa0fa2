"""--format and --json: the same at every command that has an answer for people and for programs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpurun.cli.parse import parse
from gpurun.cli.rows import Option, command
from gpurun.cli.table import COMMANDS, GROUPS
from gpurun.cli.topics import BELOW
from tests.launcher.front import Store
from tests.simdriver import Options, make

from .test_main import gpurun

#: What has no such answer, and why.
WITHOUT = {
    **dict.fromkeys(
        ("create", "start", "run", "kill", "delete", "exec", "pause", "resume", "update", "checkpoint", "restore", "bundle",
         "gpu lease", "gpu attach", "gpu detach", "install", "uninstall", "install-names", "kubernetes device-plugin",
         "kubernetes dra-driver", "kubernetes mig-manager", "kubernetes install-node", "kubernetes uninstall-node", "hook"),
        "does something, and has nothing to tell",
    ),
    "events": "JSON, an object a line, as runc's; `stats` is for people",
    "spec": "writes a file, which is JSON",
    "gpu mig": "export is a file, in YAML or JSON; the others do something",
    "cdi generate": "a file, in YAML or JSON",
    "cdi refresh": "a file, in YAML or JSON",
    "cdi transform": "a file, in the format that it had",
    "kubernetes explain": "sentences for people, about what `kubectl get -o json` has for programs",
    "kubernetes manifests": "YAML, for `kubectl apply`",
    "kubernetes labels": "a file of Node Feature Discovery's",
    "metrics": "the format of Prometheus",
}  # fmt: skip
EVERY = [name for name in COMMANDS if name not in GROUPS] + [f"{name} {below}" for name in GROUPS for below in BELOW[name]]


def options_of(name: str) -> dict[str, Option]:
    """The options of output that the command *name* has, by their names."""
    group, _, below = name.partition(" ")
    taken = [o for o in command(group).options if not below or below in o.takers]
    return {option.name: option for option in taken if option.name in ("format", "json")}


@pytest.mark.parametrize("name", EVERY)
def test_each_command_has_both_or_none(name: str) -> None:
    found = options_of(name)
    if name in WITHOUT:
        assert "json" not in found and found.get("format", Option("", "", "", "yaml or json")).help.endswith("yaml or json")
        return
    assert [found[option].kind for option in ("format", "json")] == ["text", "switch"]
    assert found["format"].help.endswith("table or json") and found["json"].help.endswith("the same as --format json")


def test_what_has_no_such_answer_is_a_command() -> None:
    assert set(WITHOUT) < set(EVERY)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, ...]]:
    """Command → the words that make it say something, on a host with two GPUs, a bundle and a container."""
    directory = tmp_path_factory.mktemp("told")
    driver = make(directory / "driver", Options(gpus=2))
    store = Store(directory, os.getpid())
    (store.cgroup / "cgroup.procs").write_text(f"{os.getpid()}\n")
    bundle = directory / "bundle"
    (bundle / "rootfs").mkdir(parents=True)
    assert gpurun("spec", "--bundle", str(bundle)).returncode == 0
    words: dict[str, tuple[str, ...]] = {name: () for name in EVERY if name not in WITHOUT}
    words |= {"state": ("c",), "ps": ("c",), "validate": (str(bundle),), "explain": (str(bundle),), "stats": ("--once",)}
    words["gpu explain"] = ("NVIDIA_VISIBLE_DEVICES=0",)
    return {**words, "root": (str(store.root),), "driver": (str(driver.path),)}


@pytest.mark.parametrize("name", [name for name in EVERY if name not in WITHOUT])
def test_each_answers_in_the_same_way(name: str, told: dict[str, tuple[str, ...]]) -> None:
    env = {"GPURUN_SYSROOT": told["driver"][0]}

    def said(*options: str) -> tuple[str, str]:
        done = gpurun("--root", told["root"][0], *name.split(), *options, *told[name], env=env)
        return done.stdout, done.stderr

    as_json, _ = said("--json")
    for line in as_json.splitlines() if name == "stats" else [as_json]:
        json.loads(line)
    for_people, why = said("--format", "table")
    assert for_people + why and not for_people.startswith(("{", "["))
    assert said("--format=xml")[1].endswith('msg="invalid format option \\"xml\\", use table or json"\n')
    usual, chosen = said()[0], as_json if name in ("state", "features") else for_people
    assert usual[:1] == chosen[:1] and said("--format", "json")[0][:1] == as_json[:1]
    if name not in ("ps", "stats", "explain", "gpu list", "gpu doctor"):  # which tell what is so at that moment
        assert (usual, said("--format", "json")[0]) == (chosen, as_json)


def test_ps_takes_the_option_behind_the_id_too(told: dict[str, tuple[str, ...]]) -> None:
    done = gpurun("--root", told["root"][0], "ps", "c", "--json")
    assert (done.stdout, done.stderr) == (f"[{os.getpid()}]\n", "")


def test_json_wins_over_the_other_option() -> None:
    assert parse(["list", "--json", "--format", "table"]).form() == "json"
    assert parse(["list", "--json=false"]).form() == "table"


def test_two_bundles_as_json(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "rootfs").mkdir(parents=True)
        gpurun("spec", "--bundle", str(tmp_path / name))
    config = tmp_path / "b/config.json"
    config.write_text(config.read_text().replace('"runc"', '"other"').replace('"gpurun"', '"other"'))
    words = ("explain", "--diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json")
    same = json.loads(gpurun(*words[:3], words[2], "--json").stdout)
    assert same == {"bundles": [words[2], words[2]], "sections": []}
    done = gpurun(*words)
    sections = json.loads(done.stdout)["sections"]
    assert done.returncode == 1 and [sorted(section) for section in sections] == [["first", "second", "title"]] * len(
        sections
    )
    assert any("other" in line for section in sections for line in section["second"])


def test_mistakes_of_a_config_as_json(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"ociVersion": "1.0.2", "process": {"cwd": 7}, "root": {"path": "rootfs"}}')
    done = gpurun("validate", "--json", str(tmp_path))
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["config"], answer["valid"]) == (1, str(config), False)
    assert "process.cwd" in [problem["where"] for problem in answer["problems"]]


def test_cdi_devices_and_files_as_json(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(
        '{"cdiVersion": "0.5.0", "kind": "a.b/c", "devices": [{"name": "d", "containerEdits": {"env": ["A=1"]}}]}'
    )
    bad.write_text("{")
    words = ("--json", "--spec-dir", str(tmp_path))
    listed = json.loads(gpurun("cdi", "list", *words).stdout)
    assert listed["devices"] == [{"name": "a.b/c=d", "file": str(good)}] and listed["directories"] == [str(tmp_path)]
    done = gpurun("cdi", "validate", *words)
    checked = json.loads(done.stdout)
    assert (done.returncode, done.stderr, checked["files"]) == (1, "", [{"path": str(good), "devices": 1}])
    for problems in (listed["problems"], checked["problems"]):
        assert len(problems) == 1 and str(bad) in problems[0]


def test_where_there_is_no_cdi_file_the_advice_names_what_was_read(tmp_path: Path) -> None:
    host = make(tmp_path / "host", Options(gpus=1))
    done = gpurun("cdi", "list", env=host.env)
    assert f"--output={host.path}/etc/cdi/nvidia.yaml" in done.stderr and " /etc/cdi" not in done.stderr


def test_where_there_is_no_gpu_no_cdi_file_is_advised(tmp_path: Path) -> None:
    done = gpurun("cdi", "list", env={"GPURUN_SYSROOT": str(tmp_path)})
    assert (
        f"looked in {tmp_path}/etc/cdi" in done.stderr and "--output" not in done.stderr and " /etc/cdi" not in done.stderr
    )
    assert "this host has no GPU that a CDI file could describe" in done.stderr
