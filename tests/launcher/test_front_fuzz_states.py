"""Odd and damaged states for the compiled front: what it does with one itself, the launcher does too, with the same words,
exit code and effect; all else it leaves to the launcher and has changed nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

hypothesis = pytest.importorskip("hypothesis")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from gpurun.builder.front import compiler  # noqa: E402
from gpurun.engine.state import State  # noqa: E402
from tests.attacks.fuzzing import damaged, fuzzed_more  # noqa: E402
from tests.launcher.front import FALLS_BACK  # noqa: E402
from tests.launcher.test_front_fuzz_words import Container, compare  # noqa: E402

pytestmark = pytest.mark.skipif(not compiler(), reason="there is no C compiler here")

Draw = Callable[..., Any]
GOOD = State("c", "/bundle", "/bundle/rootfs", "CGROUP", True, created="2026-01-02T03:04:05.6Z", owner="root")
COMMANDS = (["state"], ["state"], ["kill"], ["start"], ["delete"], ["delete", "--force"], ["pause"], ["resume"])
TEXTS = (
    *("", "0", "1", "-1", "00", "007", "+1", " 1", "1 ", "2147483647", "2147483648", "4294967296", "9" * 18, "9" * 19),
    *("9223372036854775807", "9223372036854775808", "18446744073709551616", "\u0661", "0x1", "1_0", "1.0", "c", "d", "../c"),
    *(
        "a=b",
        '"',
        "\\",
        "\t",
        "\x7f",
        "\r",
        "\v",
        "\u00fc",
        "\udcff",
        "{}",
        "{ }",
        '{"a":"b"}',
        '{"a":"\u00fc"}',
        "[]",
        "root",
    ),
)
#: Where a damaged cgroup may be: nowhere that is somebody else's.
CGROUPS = ("", "/nowhere/at/all", "nowhere", "/dev/null/x")
EVENTS = st.sampled_from(
    [None, b"", b"populated 1\nfrozen 1\n", b"populated 1\nfrozen 0\n", b"frozen 1", b"frozen 10\n", b"frozen 1\0" * 900]
)
MEMORY = st.sampled_from(
    [
        *(
            None,
            b"",
            b"oom 0\noom_kill 0\n",
            b"oom 1\noom_kill 1\n",
            b"oom_kill 0\n",
            b"oom 0\noom_kill 00\n",
            b"x\noom_kill 0\n",
        ),
        *(b"oom 0\noom_kill 0", b"oom 0\noom_kill\n", b"oom 0\noom_kill 0\n" * 40, b"a" * 600),
    ]
)
CONFIGS = st.sampled_from(
    [
        *(b"{}", b"", b"{", b'{"hooks":{}}', b'{"hooks":{"poststop":[]}}', b'{"hooks":{"x":"poststop"}}', b"{}\xff", b"[]"),
        *(b'{"a":"}{"}', b'{"a":"\\u0041"}', b"{}" * 3, None),
    ]
)


@st.composite
def states(draw: Draw) -> bytes:
    """The text of a state, some of it another one; PID, START and CGROUP stand for what the container has."""
    values: dict[str, object] = {name: getattr(GOOD, name) for name in State._fields}
    values.update(private_pid="1", pid="PID", start_time="START", cgroup="CGROUP")
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(State._fields))
        values[name] = draw(st.sampled_from(CGROUPS if name == "cgroup" else TEXTS))
    lines = [f"{name}={value}\n" for name, value in values.items()]
    text = "".join(draw(st.sampled_from([lines, lines, lines[::-1]]))).encode("utf-8", "surrogateescape")
    made: bytes = draw(damaged(text)) if draw(st.integers(0, 3)) == 0 else text
    return made


@st.composite
def files(draw: Draw) -> dict[str, bytes | None]:
    """Of files in the state directory and the cgroup what is in them; None for one that is not there."""
    found = {"cgroup/cgroup.events": draw(EVENTS), "cgroup/memory.events": draw(MEMORY), "root/c/config.json": draw(CONFIGS)}
    for name in ("root/c/edits", "root/c/gpus", "root/c/exec-plan", "root/c/exec.fifo"):
        found[name] = draw(st.sampled_from([None, None, b""]))
    return found


def _place(made: Container, state: bytes, given_files: dict[str, bytes | None]) -> None:
    own = made.store.state
    for word, value in ((b"PID", own.pid), (b"START", own.start_time), (b"CGROUP", own.cgroup)):
        state = state.replace(b"=" + word + b"\n", b"=%s\n" % str(value).encode())
    (made.store.container / "state").write_bytes(state)
    for name, data in given_files.items():
        path = made.store.root.parent / name
        if data is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(data)


@fuzzed_more
@given(states(), files(), st.sampled_from(COMMANDS), st.booleans())
def test_the_front_and_the_launcher(
    places: Path,
    tmp_path_factory: pytest.TempPathFactory,
    state: bytes,
    given_files: dict[str, bytes | None],
    command: list[str],
    alive: bool,
) -> None:
    directory = tmp_path_factory.getbasetemp() / "front-states"
    container = Container(directory, alive)
    _place(container, state, given_files)
    words = ("--root", str(container.store.root), *command, "c")
    try:
        done = subprocess.run([places / "bare", *words], capture_output=True, env={}, timeout=30)
    finally:
        ended = container.end()
    if done.stderr.decode("utf-8", "replace").startswith(FALLS_BACK):
        assert done.returncode == 1 and done.stdout == b""
        return
    other = Container(directory, alive)
    _place(other, state, given_files)
    compare(done, container, ended, other, words)
