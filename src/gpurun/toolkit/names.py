"""Which program gpurun is, by the name it is called under; and the links that give it those names."""

from __future__ import annotations

import posix
import sys

from gpurun.cli.output import write_stdout
from gpurun.errors import GpurunError, StepError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.invocation import Invocation

#: Program → ``module:function`` that is it.  The function takes the words after the name and returns the exit code.
PROGRAMS = {
    "nvidia-container-runtime-hook": "gpurun.hook.prestart:main",
    "nvidia-container-toolkit": "gpurun.hook.prestart:main",
    "nvidia-cdi-hook": "gpurun.hook.cdihook:main",
    "nvidia-container-cli": "gpurun.toolkit.container_cli:main",
    "nvidia-ctk": "gpurun.toolkit.ctk:main",
}
#: The same as gpurun itself, under the site's settings for the runtime (:mod:`gpurun.toolkit.runtime`); name → forced mode.
RUNTIMES = {
    "nvidia-container-runtime": "",
    "nvidia-container-runtime.cdi": "cdi",
    "nvidia-container-runtime.legacy": "legacy",
}


def program(name: str) -> Callable[[list[str]], int] | None:
    """The program *name*, imported now; None for names that are not of the toolkit."""
    where = PROGRAMS.get(name)
    if where is None:
        return None
    module, _, function = where.partition(":")
    __import__(module)
    found: Callable[[list[str]], int] = getattr(sys.modules[module], function)
    return found


def install_names(invocation: Invocation) -> int:
    """``install-names DIR``: a link in DIR to this program for every name; all or none when one of them is taken."""
    directory = invocation.args[0]
    target = own_path()
    wanted = []
    for name in (*RUNTIMES, *PROGRAMS):
        path = f"{directory}/{name}"
        there = _target(path)
        if there == target:
            continue
        if there is not None and not invocation.flag("force"):
            raise GpurunError(
                f"{path} exists and is not this program: --force replaces it (the package it is of may put its own back)"
            )
        wanted.append((path, there is not None))
    for path, replaced in wanted:
        _link(path, target)
        write_stdout(f"{path} -> {target}{' (replaced)' if replaced else ''}\n")
    return 0


def own_path() -> str:
    """The file of this program.  Raises :class:`GpurunError` when it is not one file but a source tree."""
    bundle = getattr(sys, "gpurun_bundle", None)
    if bundle is None:
        raise GpurunError("only the one-file program can be called by other names: `make build`, then call build/gpurun")
    return posix.readlink(f"/proc/self/fd/{bundle.fd}")


def _target(path: str) -> str | None:
    """The text of the link at *path*; empty for another file, None when nothing is there."""
    try:
        return posix.readlink(path)
    except FileNotFoundError:
        return None
    except OSError:
        return ""


def _link(path: str, target: str) -> None:
    made = f"{path}.gpurun.{posix.getpid()}"  # renamed over what was there: never a moment without the program
    try:
        posix.symlink(target, made)
        try:
            posix.rename(made, path)
        except OSError:
            posix.unlink(made)
            raise
    except OSError as e:
        raise StepError("link", path, e.errno or 0) from None
