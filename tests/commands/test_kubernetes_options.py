"""How the commands that run on a node until a signal are ended."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

#: The signal comes while the main thread holds the lock of the event that ends it.
HELD = """
import os, signal, sys, threading
from gpurun.commands.kubernetes_options import until_signal
stop = threading.Event()
until_signal(stop.set)
with stop._cond:
    os.kill(os.getpid(), int(sys.argv[1]))
    for _ in range(1000):
        pass
stop.wait()
print("ends")
"""


@pytest.mark.parametrize("number", [2, 15])
def test_a_signal_that_comes_at_the_wrong_moment(number: int) -> None:
    env = {"PYTHONPATH": str(REPOSITORY / "src"), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", HELD, str(number)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr
