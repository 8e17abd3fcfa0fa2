"""What people see on a terminal: its width and NO_COLOR are kept to, and a pipe gets what programs read."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from gpurun.cli.terminal import fold
from tests.native.bundle import base_config
from tests.simdriver import Options, SimulatedDriver, make

SOURCE = Path(__file__).resolve().parents[2] / "src"
CODE = f"import sys\nsys.path.insert(0, {str(SOURCE)!r})\nfrom gpurun.__main__ import main\nsys.exit(main())"


#: With a /proc of its own: the containers of other tests, which have the same simulated GPUs, are not to be seen.
ALONE = ["unshare", "--pid", "--fork", "--mount-proc"] if os.geteuid() == 0 else []


def on_terminal(*args: str, columns: int = 0, env: dict[str, str] | None = None) -> str:
    """What a terminal of that many *columns* (0: it does not say) shows of gpurun's stdout and stderr."""
    master, slave = pty.openpty()
    if columns:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environ = {"PATH": os.environ["PATH"], "TERM": "xterm", **(env or {})}
    with subprocess.Popen(
        [*ALONE, sys.executable, "-c", CODE, *args], stdin=subprocess.DEVNULL, stdout=slave, stderr=slave, env=environ
    ) as done:
        os.close(slave)
        shown = b""
        try:
            while more := os.read(master, 65536):
                shown += more
        except OSError:  # EIO: nobody has the other side any more
            pass
        done.wait(60)
    os.close(master)
    return shown.decode().replace("\r\n", "\n")


def in_pipe(*args: str, env: dict[str, str] | None = None) -> str:
    environ = {"PATH": os.environ["PATH"], **(env or {})}
    return subprocess.run(
        [*ALONE, sys.executable, "-c", CODE, *args], capture_output=True, text=True, env=environ, timeout=60
    ).stdout


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> SimulatedDriver:
    return make(tmp_path_factory.mktemp("terminal") / "host", Options(gpus=2, nodes=False, mig=((0, 1, 0),)))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle")
    (path / "rootfs").mkdir()
    (path / "config.json").write_text(json.dumps(base_config()))
    return path


def commands(bundle: Path) -> list[tuple[str, ...]]:
    ask = ("gpu", "explain", "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all")
    return [("gpu", "list"), ("gpu", "doctor"), ask, ("explain", str(bundle))]


@pytest.mark.sweep(4)
@pytest.mark.parametrize("number", range(4), ids=["list", "doctor", "gpu explain", "explain"])
@pytest.mark.parametrize("columns", [60, 80, 132])
def test_lines_end_between_words(host: SimulatedDriver, bundle: Path, number: int, columns: int) -> None:
    words = commands(bundle)[number]
    plain = in_pipe(*words, env=host.env)
    shown = on_terminal(*words, columns=columns, env=host.env)
    longest = max(len(word) for word in plain.split())
    for line in shown.splitlines():
        assert len(line) <= columns or len(line.split()) == 1 or len(line.split()[-1]) > columns // 2, line
    assert longest > 30 and {w for w in plain.split() if len(w) > 20} <= set(shown.split()), "every path is whole"
    if number:
        assert shown.split() == plain.split(), "the same words in the same order"


def test_a_pipe_is_not_broken_into_lines(host: SimulatedDriver, bundle: Path) -> None:
    for words in commands(bundle):
        assert in_pipe(*words, env=host.env) == in_pipe(*words, env=host.env | {"COLUMNS": "60"})
    table = in_pipe("gpu", "list", env=host.env)
    assert table.startswith("INDEX   UUID") and max(map(len, table.splitlines())) > 100


def test_a_list_that_fits_is_a_table_and_another_is_not(host: SimulatedDriver) -> None:
    table = in_pipe("gpu", "list", env=host.env)
    assert on_terminal("gpu", "list", columns=200, env=host.env) == table
    narrow = on_terminal("gpu", "list", columns=80, env=host.env)
    assert "INDEX" not in narrow and narrow.startswith("0   NVIDIA A100-SXM4-40GB\n    uuid        GPU-")
    assert "    MIG device 1/0\n" in narrow and "numa" in narrow and "containers" not in narrow
    assert set(table.split()) - {"INDEX", "UUID", "BUS", "ID", "NODE", "NUMA", "MODEL", "CONTAINERS", "-"} <= set(
        narrow.split()
    )


@pytest.mark.parametrize(
    ("env", "columns"), [({"COLUMNS": "60"}, 60), ({"COLUMNS": "x"}, 80), ({"COLUMNS": "0"}, 80), ({"COLUMNS": "5"}, 40)]
)
def test_columns_count_before_the_terminal(host: SimulatedDriver, env: dict[str, str], columns: int) -> None:
    shown = on_terminal("gpu", "doctor", env=host.env | env)
    widest = max([len(line) for line in shown.splitlines() if len(line.split()[-1]) < 25])
    assert columns - 25 < widest <= columns


@pytest.mark.parametrize(
    ("env", "coloured"),
    [
        ({}, True),
        ({"NO_COLOR": ""}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": "0"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_no_color(env: dict[str, str], coloured: bool) -> None:
    """https://no-color.org: any value that is not empty."""
    shown = on_terminal("--root", "/nowhere/at/all", "state", "x", env=env)
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert text == "ERRO[0000] container does not exist\n" and (text != shown) == coloured


def test_folded() -> None:
    assert fold("a b\n", 0) == "a b\n" and fold("a b\n", 3) == "a b\n"
    assert fold("  mounts  /a/very/long/path   (why)\n", 20) == "  mounts\n      /a/very/long/path\n      (why)\n"
    assert fold("x\n\nlong words here\n", 10, 2) == "x\n\nlong words\n  here\n"
    assert fold("--one-option-name-with-hyphens\n", 10) == "--one-option-name-with-hyphens\n"
