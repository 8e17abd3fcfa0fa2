"""Changes of a client's files made together: written, read by the client's own program, taken back if it refuses them."""

from __future__ import annotations

import shlex
import subprocess
import tempfile

from gpurun.clients import files
from gpurun.clients.files import Change
from gpurun.clients.install import Setup, check_command, places
from gpurun.errors import GpurunError, program_error_text, strerror_lower


def apply_all(setup: Setup, changes: tuple[Change, ...]) -> None:
    """Write *changes* and let the client read them.  Raises :class:`GpurunError`: then everything is as it was.

    Whoever ends us half-way (SIGINT too) leaves old files and new ones, each of them whole: the next `install` or
    `uninstall` goes on from there.
    """
    for path in {*places(setup), *[change.path for change in changes]}:
        files.remove_strays(path)
    done: list[tuple[Change, str]] = []
    try:
        for change in changes:
            done.append((change, files.make(change)))
        if changes:
            _check(check_command(setup.client, setup.file()))
    except BaseException as e:
        left = _take_back(done)
        if left:
            raise GpurunError(f"{e}; and this could not be put back: {'; '.join(left)}") from None
        raise
    for change, saved in done:
        files.settle(change, saved)


def check_beforehand(setup: Setup, changes: tuple[Change, ...]) -> str:
    """What the client's own program says against *changes* that are not made yet; empty where it can't be asked so."""
    if setup.client != "docker" or not changes or changes[0].text is None:  # the others read several files together
        return ""
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        file.write(changes[0].text)
        file.flush()
        try:
            _check(check_command(setup.client, file.name))
        except GpurunError as e:
            return str(e).replace(file.name, changes[0].path)
    return ""


def _take_back(done: list[tuple[Change, str]]) -> list[str]:
    """Put back the files of *done*; for each where that fails, where it is now and why."""
    left = []
    for change, saved in reversed(done):
        try:
            files.take_back(change, saved)
        except (OSError, GpurunError) as e:
            why = str(e) if isinstance(e, GpurunError) else strerror_lower(e.errno or 0)
            left.append(f"{change.path}{f' (it is {saved})' if saved else ''}: {why}")
    return left


def _check(command: tuple[str, ...]) -> None:
    if not command:
        return
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as e:
        raise GpurunError(f"`{shlex.join(command)}` failed, and nothing is changed: {program_error_text(e)}") from None
    if done.returncode != 0:
        why = (done.stderr.strip() or done.stdout.strip()).splitlines() or [f"exit code {done.returncode}"]
        raise GpurunError(f"`{shlex.join(command)}` rejects the new configuration, and nothing is changed: {why[-1]}")
