"""stats: what containers use, in a table and as JSON."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpurun.commands.stats import COLUMNS, Look, row, size, stats_table
from gpurun.engine.state import State
from gpurun.library.stats import Stats
from tests.cli.test_terminal import on_terminal
from tests.conftest import MakeBundle
from tests.native.runtime import Runtime

GPU = {
    "uuid": "GPU-1", "minor": 0, "memory": {"total": 80 << 30, "used": 9 << 30, "container": 3 << 30},
    "utilization": {"gpu": 41, "memory": 7},
}  # fmt: skip


ALL = ("cpu", "io", "memory", "pids")


def look(at: float, cpu: float, read: int = 0, controllers: tuple[str, ...] = ALL) -> Look:
    raw = {"cpu": {"psi": {"some": {"avg10": 1.5}}}, "memory": {}, "blkio": {}}
    figures = Stats(cpu, 3 << 29, 2 << 30, 5, None, read, 0, 0, raw)
    return Look("/run/gpurun", State("web-1", "/b", "/b/rootfs", "/c", True, 7), at, figures, controllers)


@pytest.mark.parametrize("missing", ["io", "memory", "pids"])
def test_what_no_controller_counts_is_no_zero(missing: str) -> None:
    controllers = tuple([name for name in ALL if name != missing])
    made = row(look(10.0, 1.0), look(12.0, 2.0, 4096, controllers), ("web", "Docker"), [])
    fields = {"io": made["io"]["readBytes"], "memory": made["memory"]["bytes"], "pids": made["pids"]["current"]}
    assert {name for name, value in fields.items() if value is None} == {missing}
    assert missing != "io" or set(made["io"].values()) == {None}
    column = ["memory", "pids", "io"].index(missing) + 2
    cells = re.split(r"\s{2,}", stats_table([made], 0).splitlines()[1].strip())
    assert [number for number, cell in enumerate(cells) if cell == "-"] == [column]


def test_a_row() -> None:
    made = row(look(10.0, 1.0), look(12.0, 2.0, 4096), ("web", "Docker"), [GPU])
    assert made["cpu"] == {"percent": 50.0, "seconds": 2.0}
    assert made["io"]["readPerSecond"] == 2048
    assert made["memory"] == {"bytes": 3 << 29, "limit": 2 << 30} and made["pids"] == {"current": 5, "limit": None}
    assert made["pressure"] == {"cpu": 1.5, "memory": None, "io": None}
    assert row(None, look(12.0, 2.0), ("", ""), [])["cpu"]["percent"] is None


def test_a_table() -> None:
    rows = [row(look(10.0, 1.0), look(12.0, 2.0), ("web", "Docker"), [GPU])]
    head, line = stats_table(rows, 0).splitlines()
    assert re.split(r"\s{2,}", head.strip()) == list(COLUMNS)
    assert re.split(r"\s{2,}", line.strip()) == [
        "web", "50.0%", "1.5GiB / 2GiB", "41%", "3GiB / 80GiB", "5", "0B / 0B", "1.5% / - / -",
    ]  # fmt: skip
    for columns in (40, 60, 80, 120):
        narrow = stats_table(rows, columns).splitlines()
        assert max(map(len, narrow)) <= columns and narrow[1].startswith("web")
    assert "GPU" not in stats_table([{**rows[0], "gpus": []}], 0)
    assert "(no container is running)" in stats_table([], 0)


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0B"), (999, "999B"), (1000, "0.977KiB"), (1 << 20, "1MiB"), (3 << 29, "1.5GiB")]
)
def test_sizes(number: int, said: str) -> None:
    assert size(number) == said


@pytest.fixture
def busy(runtime: Runtime, bundle: MakeBundle) -> Any:
    return runtime.start(bundle().sh("while :; do :; done"))


@pytest.mark.native
@pytest.mark.gpurun_only
def test_once(runtime: Runtime, bundle: MakeBundle, busy: Any) -> None:
    quiet = runtime.start(bundle().args("sleep", "60"))
    found = {one["id"]: one for one in json.loads(runtime("stats", "--once", "--json").out)}
    assert set(found) == {busy.id, quiet.id}
    assert found[busy.id]["cpu"]["percent"] > 5 > found[quiet.id]["cpu"]["percent"]
    (only,) = json.loads(runtime("stats", "--once", "--format", "json", quiet.id).out)
    assert only["id"] == quiet.id and only["root"] == str(runtime.root)
    assert quiet.id in runtime("stats", "--once").out


@pytest.mark.native
@pytest.mark.gpurun_only
def test_live(runtime: Runtime, busy: Any) -> None:
    with subprocess.Popen(
        [*runtime.argv, "stats", "--interval", "50ms", busy.id],
        stdout=subprocess.PIPE, text=True, preexec_fn=runtime.bed.enter(), stdin=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(6)]
        assert [line.split()[0] for line in lines] == ["CONTAINER", busy.id] * 3
        busy.kill("KILL")
        busy.wait()
        process.stdout.read()
        assert process.wait(20) == 0, "the last one has ended"


@pytest.mark.native
@pytest.mark.gpurun_only
def test_a_signal_ends_it(runtime: Runtime, busy: Any) -> None:
    with subprocess.Popen(
        [*runtime.argv, "stats", "--json", "--interval", "50ms"],
        stdout=subprocess.PIPE, text=True, preexec_fn=runtime.bed.enter(), stdin=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout is not None and json.loads(process.stdout.readline())[0]["id"] == busy.id
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(20) == 0


@pytest.mark.native
@pytest.mark.gpurun_only
def test_containers_that_do_not_run(runtime: Runtime, bundle: MakeBundle) -> None:
    assert "container does not exist" in runtime("stats", "--once", "nobody").text
    ended = runtime.start(bundle().args("true"))
    ended.wait()
    assert "container not running" in runtime("stats", "--once", ended.id).text


def test_a_table_on_a_terminal(tmp_path: Path) -> None:
    shown = on_terminal("--root", str(tmp_path), "stats", "--once", columns=60)
    assert shown.startswith("CONTAINER") and "(no container is running)" in shown and "\x1b" not in shown
