"""Files for what hooks write, named by annotations: `run.oci.hooks.stdout` and `run.oci.hooks.stderr`, as with crun."""

from __future__ import annotations

import posix

from gpurun.errors import ConfigError, StepError
from gpurun.linux.files import O_CLOEXEC
from gpurun.oci.annotations import CRUN_HOOK_OUTPUTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def output_files(annotations: Mapping[str, str]) -> tuple[str, str]:
    """(file for stdout, file for stderr) of the hooks, "" for none; raises :class:`ConfigError`."""
    for name in CRUN_HOOK_OUTPUTS:
        path = annotations.get(name)
        if path is not None and (not path.startswith("/") or "\0" in path):
            raise ConfigError(f'annotations["{name}"]', f'"{path}" is not an absolute path on the host')
    stdout, stderr = [annotations.get(name, "") for name in CRUN_HOOK_OUTPUTS]
    return stdout, stderr


def open_outputs(files: tuple[str, str]) -> tuple[int, int]:
    """Open *files* for appending, and make those that are not there; -1 where there is no name.

    Raises :class:`StepError`.  The descriptors are the caller's to close (:func:`close_outputs`).  Returns (stdout, stderr).
    """
    made = []
    for path in files:
        try:
            made.append(posix.open(path, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | O_CLOEXEC, 0o600) if path else -1)
        except OSError as e:
            close_outputs(tuple(made))
            raise StepError("open the hooks' output", path, e.errno) from None
    return made[0], made[1]


def close_outputs(descriptors: tuple[int, ...]) -> None:
    """Close those of *descriptors* that are there."""
    for fd in descriptors:
        if fd >= 0:
            posix.close(fd)
