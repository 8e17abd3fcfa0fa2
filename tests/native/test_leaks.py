"""What the tests' look for leaks makes of processes that are not theirs."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.native.leaks import _processes_named


def test_a_process_with_odd_bytes_in_its_command_line_is_read() -> None:
    command = [sys.executable.encode(), b"-c", b"input()", b"leak-\xff-0123456789"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert _processes_named((f"-{os.getpid()}-none",)) == []
        assert _processes_named(("0123456789",)) == [process.pid]
        process.communicate(b"\n")
