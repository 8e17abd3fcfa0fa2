"""Changes of a client's files made together: written, read by the client's own program, taken back if it refuses them."""

from __future__ import annotations

import os
import shlex
import subprocess

from gpurun.clients import files
from gpurun.clients.files import Change
from gpurun.clients.install import Wish, check_command
from gpurun.errors import GpurunError


def apply_all(wish: Wish, changes: tuple[Change, ...]) -> None:
    """Write *changes* and let the client read them.  Raises :class:`GpurunError`, OSError: then everything is as it was."""
    command = check_command(wish.client, wish.file()) if changes else ()
    done: list[Change] = []
    try:
        for change in changes:
            files.apply(change)
            done.append(change)
        if command:
            _check(command)
    except (OSError, GpurunError):
        for change in reversed(done):
            files.take_back(change)
        raise


def forget_kept(changes: tuple[Change, ...]) -> None:
    """After an uninstall: what was kept of a file goes once the file is that again.  Raises OSError."""
    for change in changes:
        kept = files.read(change.path + files.KEPT)
        if kept is not None and kept == change.text:
            os.unlink(change.path + files.KEPT)


def _check(command: tuple[str, ...]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as e:
        raise GpurunError(f"`{shlex.join(command)}` failed, and nothing is changed: {e}") from None
    if done.returncode != 0:
        why = (done.stderr.strip() or done.stdout.strip()).splitlines() or [f"exit code {done.returncode}"]
        raise GpurunError(f"`{shlex.join(command)}` does not take it, and nothing is changed: {why[-1]}")
