"""^C at any moment of any command: no traceback, and the exit status of a command that SIGINT has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.faults.sweep import calls_made, chosen
from tests.native.inject import Injection
from tests.native.runtime import Runtime

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

SHORT = 5
COMMANDS = (
    ("gpu", "attach", "nobody", "0"),
    ("gpu", "list"),
    ("gpu", "leases"),
    ("gpu", "doctor"),
    ("list", "--all"),
    ("stats", "--once"),
    ("cdi", "list"),
    ("features",),
    ("state", "nobody"),
    ("kill", "nobody"),
    ("delete", "nobody"),
    ("exec", "nobody", "true"),
    ("create", "--bundle", "/nonexistent", "nobody"),
    ("explain", "--bundle", "/nonexistent"),
    ("--help",),
)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: "-".join(words[:2]).strip("-"))
def test_interrupted(runtime: Runtime, bundle: MakeBundle, tmp_path: Path, words: tuple[str, ...]) -> None:
    log = tmp_path / "strace"
    runtime(*words, tracer=["strace", "-f", "-qq", "-D", "-I", "2", "-o", str(log), "-e", "signal=none"])
    calls = [call for call in calls_made(log, Path(runtime.path)) if not call.child]
    first = [call for call in calls if call.name in ("pread64", "openat")][:2]  # while the modules are read
    interrupted = 0
    for call in dict.fromkeys([*first, *chosen(calls, SHORT)]):
        with Injection(log, call.name, "", str(call.number), children=False, signal="INT") as tracer:
            log.write_text("")
            result = runtime(*words, tracer=tracer)
        where = f"SIGINT at {call.name} #{call.number}: {result}"
        assert "Traceback" not in result.text and "KeyboardInterrupt" not in result.text, where
        interrupted += result.rc in (130, -2)
    assert interrupted, "none of these was met"
