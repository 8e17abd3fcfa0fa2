"""stats: what containers use, in a table and as JSON."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpurun.commands.stats import COLUMNS, Look, _Watch, row, stats_table
from gpurun.engine import state as store
from gpurun.engine.state import State, save
from gpurun.library.stats import Stats
from gpurun.linux.procfs import stat
from gpurun.record import replace
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
    assert re.split(r"\s{2,}", head.strip()) == [name for name in COLUMNS if name not in ("GPU POWER", "GPU TEMP")]
    assert re.split(r"\s{2,}", line.strip()) == [
        "web", "50.0%", "1.5GiB / 2GiB", "41%", "3GiB / 80GiB", "5", "0B / 0B", "1.5% / - / -",
    ]  # fmt: skip
    for columns in (40, 60, 80, 120):
        narrow = stats_table(rows, columns).splitlines()
        assert max(map(len, narrow)) <= columns and narrow[1].startswith("web")
    assert "GPU" not in stats_table([{**rows[0], "gpus": []}], 0)
    assert "(no container is running)" in stats_table([], 0)


def test_power_and_temperature_where_some_driver_tells_them() -> None:
    told = {**GPU, "vendor": "amd", "power": 91.6, "temperature": 47.0}
    head, line = stats_table([row(look(10.0, 1.0), look(12.0, 2.0), ("web", ""), [GPU, told])], 0).splitlines()
    cells = dict(zip(re.split(r"\s{2,}", head.strip()), re.split(r"\s{2,}", line.strip()), strict=True))
    assert list(cells) == list(COLUMNS) and (cells["GPU POWER"], cells["GPU TEMP"]) == ("- 92W", "- 47°C")
    hung = {"uuid": "0000:63:00.0", "vendor": "amd", "error": "its driver has not answered"}
    head, line = stats_table([row(look(10.0, 1.0), look(12.0, 2.0), ("web", ""), [hung])], 0).splitlines()
    assert "GPU POWER" not in head and re.split(r"\s{2,}", line.strip())[3:5] == ["-", "-"]


@pytest.mark.parametrize(
    ("regions", "cell"),
    [
        ({"drm/a/vram0": {"usage": 1 << 30, "limit": 2 << 30}, "drm/a/vram1": {"usage": 1 << 30}}, "2GiB / 2GiB"),
        ({"drm/a/vram": {"usage": 3 << 20}}, "3MiB"),
    ],
)
def test_memory_that_the_kernel_counts(regions: dict[str, dict[str, int]], cell: str) -> None:
    now = look(12.0, 2.0)
    now = replace(now, stats=replace(now.stats, raw={**now.stats.raw, "dmem": regions}))
    made = row(None, now, ("web", "Docker"), [])
    assert made["dmem"] == regions and made["gpus"] == []
    assert re.split(r"\s{2,}", stats_table([made], 0).splitlines()[1].strip())[3:5] == ["-", cell]


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


@pytest.fixture
def two_roots(tmp_path: Path) -> tuple[str, ...]:
    """State directories with containers of nothing but this process: ``a`` and ``b`` in one, ``b`` in another.  The first
    ``b`` has an engine's name: ``a``."""
    found = stat(os.getpid())
    assert found is not None
    cgroup = tmp_path / "cgroup"
    cgroup.mkdir()
    for number, container_id, name in ((1, "a", ""), (1, "b", "a"), (2, "b", "web")):
        root = tmp_path / str(number)
        made = State(container_id, "/b", "/b/rootfs", str(cgroup), True, os.getpid(), found[1], "2026-01-02T03:04:05Z")
        (root / container_id).mkdir(parents=True)
        save(str(root), replace(made, annotations=json.dumps({"nerdctl/name": name} if name else {})))
        (root / container_id / "config.json").write_text("{}")
    return (str(tmp_path / "1"), str(tmp_path / "2"))


@pytest.mark.parametrize(
    ("names", "shown", "first", "again"),
    [
        ((), ["1/a", "1/b", "2/b"], ["1/a", "1/b", "2/b"], ["1/a", "1/b", "2/b"]),
        (("a",), ["1/a"], ["1/a"], ["1/a"]),
        (("b",), ["1/b", "2/b"], ["1/b", "2/b"], ["1/b", "2/b"]),
        (("web",), ["2/b"], ["1/a", "1/b", "2/b"], ["2/b"]),
        (("a", "web"), ["1/a", "2/b"], ["1/a", "1/b", "2/b"], ["1/a", "2/b"]),
        (("nobody",), [], ["1/a", "1/b", "2/b"], ["1/a", "1/b", "2/b"]),
    ],
)
def test_what_is_read(
    two_roots: tuple[str, ...], monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...], shown: list[str], first: list[str], again: list[str],
) -> None:  # fmt: skip
    """One container among a thousand is looked at alone: by its id at once, by its engine's name once that is found."""
    read: list[str] = []
    parse = store.load

    def load(root: str, container_id: str) -> State:
        loaded = parse(root, container_id)
        read.append(f"{root[-1]}/{container_id}")
        return loaded

    monkeypatch.setattr(store, "load", load)
    watch = _Watch(two_roots, names)
    for expected in (first, again):
        read.clear()
        assert sorted([f"{root[-1]}/{container_id}" for root, container_id in watch.look()]) == shown
        assert sorted(set(read)) == expected


def test_a_table_on_a_terminal(tmp_path: Path) -> None:
    shown = on_terminal("--root", str(tmp_path), "stats", "--once", columns=60)
    assert shown.startswith("CONTAINER") and "(no container is running)" in shown and "\x1b" not in shown
