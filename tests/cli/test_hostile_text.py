"""What an image, a container or another user has written moves no cursor and forges no line, whichever command prints it.

Every text of a config.json gets what a terminal obeys, then each command that reads a bundle prints it; the names of
containers, of their processes and of what another wrote into a state go through every table.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpurun import __main__, log
from gpurun.commands import gpu, gpu_explain, gpu_leases, gpu_list, tables
from gpurun.commands.all_containers import Listed, as_json, rows
from gpurun.commands.control import ps_lines
from gpurun.commands.stats import row, stats_table
from gpurun.errors import clean, escape
from gpurun.formats.jsontext import dumps, quote, visible
from gpurun.gpu.host.finding import Finding
from gpurun.gpu.leases.lease import Lease, Leased
from gpurun.metrics.exposition import families
from gpurun.metrics.samples import Sample
from gpurun.output import write_stderr, write_stdout
from gpurun.record import replace
from tests.faults.full_config import full_config, json_path, replaced, walk
from tests.launcher.front import Store
from tests.native.bundle import Config, base_config
from tests.screens import look

#: Clears the screen, rings, begins a sequence with one byte, turns the text around, ends lines in five ways.
EVIL = "\x1b[2J\x07\x9b31m\u202e\U000e0041\u00ad\u2028\x85\r\x0bq\nforged: line\n"


def check(text: str) -> None:
    """*text* has nothing but what is printed, and its lines are its own."""
    for line in text.split("\n"):
        assert line.replace("\t", "").isprintable(), repr(line)
        assert not line.startswith("forged"), text


def usable() -> Config:
    """A config with many fields that this host's kernel need not have anything for."""
    config = full_config()
    config["linux"]["resources"] = {"devices": config["linux"]["resources"]["devices"]}
    config["linux"]["namespaces"] = base_config()["linux"]["namespaces"]
    for field in ("uidMappings", "gidMappings", "timeOffsets"):
        del config["linux"][field]
    config["process"]["env"] = ["PATH=/bin"]
    return config


TEXTS = [path for path, value in walk(usable()) if isinstance(value, str)]
COMMANDS = (("explain",), ("explain", "--json"), ("explain", "--diff"), ("validate",), ("gpu", "explain"))


def printed(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a command."""
    code = __main__.main(["gpurun", *words])
    log._Log.waiting = []
    out, err = capfd.readouterr()
    return code, out, err


@pytest.fixture
def bundles(tmp_path: Path) -> tuple[Path, Path]:
    """Two bundles with the usable config."""
    for name in ("one", "other"):
        (tmp_path / name / "rootfs/bin").mkdir(parents=True)
        (tmp_path / name / "rootfs/bin/true").touch(0o755)
        (tmp_path / name / "config.json").write_text(json.dumps(usable()))
    return tmp_path / "one", tmp_path / "other"


def words_of(command: tuple[str, ...], one: Path, other: Path) -> list[str]:
    return [*command, str(one), *([str(other)] if "--diff" in command else [])]


def test_the_base_is_explained(bundles: tuple[Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    """What is spoiled below is a config that every one of the commands takes."""
    assert len(TEXTS) > 40
    for command in COMMANDS:
        code, out, err = printed(capfd, *words_of(command, *bundles))
        assert (code, err) == (0, "") and out, command


@pytest.mark.parametrize("path", TEXTS, ids=json_path)
def test_every_text_of_a_config(
    bundles: tuple[Path, Path], capfd: pytest.CaptureFixture[str], path: tuple[str | int, ...]
) -> None:
    value: Any = usable()
    for step in path:
        value = value[step]
    (bundles[0] / "config.json").write_text(json.dumps(replaced(usable(), path, f"{value}{EVIL}")))
    for command in COMMANDS:
        _, out, err = printed(capfd, *words_of(command, *bundles))
        check(out)
        check(err)
        if "--json" in command and out:
            json.loads(out)


@pytest.mark.parametrize("where", [("annotations",), ("linux", "sysctl"), ("linux", "netDevices")], ids=json_path)
def test_every_name_that_is_free(
    bundles: tuple[Path, Path], capfd: pytest.CaptureFixture[str], where: tuple[str, ...]
) -> None:
    config = usable()
    target: Any = config
    for step in where:
        target = target.setdefault(step, {})
    target[f"net.x{EVIL}"] = {} if where[-1] == "netDevices" else "1"
    (bundles[0] / "config.json").write_text(json.dumps(config))
    for command in COMMANDS:
        _, out, err = printed(capfd, *words_of(command, *bundles))
        check(out)
        check(err)


def test_what_is_printed_is_told_apart_from_what_it_was_made_of(
    bundles: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    """--diff compares what is meant, not how it looks."""
    for bundle, text in zip(bundles, ("a\n", "a\\n"), strict=True):
        (bundle / "config.json").write_text(json.dumps(replaced(usable(), ("process", "args"), ["true", text])))
    code, out, _ = printed(capfd, "explain", "--diff", *map(str, bundles))
    assert code == 1 and out.count("args: true a\\n") == 2


@pytest.mark.parametrize("words", [["run"], ["--log-format", "json", "run"]], ids=" ".join)
def test_a_message(bundles: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str]) -> None:
    """On stderr beside a log, where lines of a message were kept once, as without one."""
    (bundles[0] / "config.json").write_text(json.dumps(replaced(usable(), ("root", "path"), f"rootfs{EVIL}")))
    for options in ([], ["--log", str(tmp_path / "log")]):
        bundle = ["--bundle", str(bundles[0]), "c"]
        code, _, err = printed(capfd, "--root", str(tmp_path / "root"), *options, *words, *bundle)
        log._Log.fd, log._Log.json = 2, False
        assert code == 1 and err.count("\n") == 1, err
        check(err)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A container whose state has what another has written."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        made = Store(tmp_path, process.pid)
        one_line = EVIL.replace("\n", "")  # the file has a field a line
        made.save(
            bundle=f"/b{one_line}", rootfs=f"/r{one_line}", owner=f"o{one_line}", annotations=f'{{"a":"b{"é"}\u202e"}}'
        )
        yield made
        process.kill()


@pytest.mark.parametrize(
    "words", [["state", "c"], ["list"], ["list", "--format", "json"], ["list", "--all"], ["list", "--all", "-f", "json"]]
)
def test_a_state(store: Store, capfd: pytest.CaptureFixture[str], words: list[str]) -> None:
    code, out, _ = printed(capfd, "--root", str(store.root), *words)
    assert code == 0
    check(out)
    if words[0] == "state":
        assert json.loads(out)["annotations"] == {"a": "bé\u202e"} and "bé\\u202e" in out


def test_a_directory_that_is_no_container(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    """Its name is in the way of `list`, which says so."""
    (store.root / f"x{EVIL}").mkdir()
    (store.root / f"x{EVIL}" / "state").write_text("")
    _, out, err = printed(capfd, "--root", str(store.root), "list")
    check(out)
    check(err)


def test_tables(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    listed = [Listed(f"i{EVIL}", f"n{EVIL}", f"e{EVIL}", "runc", "running", 7, f"/b{EVIL}", f"c{EVIL}", f"/r{EVIL}")]
    check(tables.table(rows(listed), 0))
    check(as_json(listed))
    one = look("c", 1.0, 1.0, 1, (1, 1, 1), 0.0)
    check(stats_table([row(None, replace(one, state=replace(one.state, id=f"i{EVIL}")), (f"n{EVIL}", "e"), [])], 0))
    check(stats_table([row(None, one, (f"n{EVIL}", "e"), [])], 80))
    unit = Leased("k", f"GPU-{EVIL}", 0, 0)
    lease = Lease(
        f"i{EVIL}", f"/r{EVIL}", (unit,), 7, 7, "b", 7, 7, name=f"n{EVIL}", engine=f"e{EVIL}", request=f"free;{EVIL}"
    )
    check(tables.table([gpu_leases._cells(lease)]))
    holders = [{"id": f"i{EVIL}", "name": f"n{EVIL}", "engine": f"e{EVIL}", "pid": 7}]
    process = {"pid": 7, "command": f"p{EVIL}", "container": f"c{EVIL}", "memory": 1}
    mig = {
        "gpuInstance": 1,
        "computeInstance": 0,
        "profile": f"p{EVIL}",
        "uuid": None,
        "containers": [f"c{EVIL}"],
        "holders": holders,
    }
    about = {"index": 0, "uuid": f"GPU-{EVIL}", "busId": "b", "node": f"/dev/{EVIL}", "numaNode": -1, "model": f"m{EVIL}"}
    gpus = [
        about
        | {
            "containers": [f"c{EVIL}"],
            "holders": holders,
            "problem": f"p{EVIL}",
            "leases": [gpu_leases.row(lease)],
            "migDevices": [mig],
        }
    ]
    answer = {"driverVersion": "1", "gpus": [gpus[0] | {"processes": [process]}], "nvml": f"why{EVIL}"}
    check(gpu_list.fitting(answer, 0))
    check(gpu_list.fitting(answer, 80))
    check(dumps(answer, 2))
    findings = (Finding("containers", "fail", f"c{EVIL}"), Finding(f"s{EVIL}", "ok", "text"))
    monkeypatch.setattr("gpurun.gpu.doctor.examine", lambda env: findings)
    monkeypatch.setattr(gpu, "_containers", lambda *_: [])
    _, out, _ = printed(capfd, "gpu", "doctor")
    assert out.count("\n") == 2
    check(out)
    _, out, _ = printed(capfd, "gpu", "doctor", "--json")
    check(out)
    monkeypatch.setattr(gpu_explain, "answer_for", lambda *_: _answer())
    _, out, _ = printed(capfd, "gpu", "explain", "NVIDIA_VISIBLE_DEVICES=0")
    check(out)
    _, out, _ = printed(capfd, "gpu", "explain", "--json", "NVIDIA_VISIBLE_DEVICES=0")
    check(out)


def _answer() -> dict[str, Any]:
    item = {"kind": "file", "path": f"/p{EVIL}", "source": f"/s{EVIL}", "reason": f"r{EVIL}"}
    request = {"source": f"s{EVIL}", "devices": [f"d{EVIL}"], "capabilities": [f"c{EVIL}"], "requirements": [f"r{EVIL}"]}
    missing = [{"what": f"w{EVIL}", "reason": f"r{EVIL}"}]
    return {
        "request": request | {"extras": [f"e{EVIL}"], "denied": False},
        "driverVersion": f"v{EVIL}",
        "items": [item],
        "missing": missing,
        "error": f"e{EVIL}",
    }


def test_a_process_forges_no_line_of_ps() -> None:
    """Its words may have what ends lines for Python: the process 7 is no other's."""
    output = "UID PID CMD\nroot 7 a\u2028root 9 forged\nroot 8 b\x85root 9 forged\n"
    assert ps_lines(output, frozenset((9,))) == "UID PID CMD\n"


def test_labels_of_metrics() -> None:
    """A label's value may be any text in Prometheus' format: what is escaped is escaped before."""
    family = families([Sample("m", "gauge", "h", (("name", f"n{EVIL}"),), 1.0)])[0]
    check(family.samples[0].labels["name"])


def test_what_stays_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    """Letters of all languages, quotes and backslashes are people's; a tab and the end of a line are ours."""
    text = 'Grüße, 日本語, привет "a" \\x2d\tb\nc\n'
    write_stdout(text)
    assert capfd.readouterr().out == text
    write_stderr("a\x1bb\nc")
    assert capfd.readouterr().err == "a\\x1bb\\nc\n"
    assert clean('a"b\\c') == 'a"b\\\\c'


@pytest.mark.parametrize(
    "c", [chr(n) for n in (0, 7, 27, 127, 0x80, 0x9B, 0xA0, 0xAD, 0x202E, 0x2066, 0xFEFF, 0xE0041, 0x10FFFF)]
)
def test_json_says_the_same_by_other_characters(c: str) -> None:
    assert json.loads(quote(f"a{c}b")) == f"a{c}b" and quote(c).isprintable()
    document = json.dumps({"k": f"a{c}"}, ensure_ascii=False)
    assert visible(document).isprintable() and json.loads(visible(document)) == {"k": f"a{c}"}
    assert escape(c).isprintable() and escape(c) != c


def test_bytes_that_are_no_utf_8(capfd: pytest.CaptureFixture[str]) -> None:
    write_stdout(os.fsdecode(b"a\xffb\n"))
    assert capfd.readouterr().out == "a\\xffb\n"
    assert quote(os.fsdecode(b"a\xff")) == '"a\ufffd"'
