"""Which program gpurun is, by the name it is called under; and the links that give it those names."""

from __future__ import annotations

import posix
import sys

from gpurun.errors import GpurunError, StepError, UsageError
from gpurun.linux.files import Fd, unlink_if_there
from gpurun.linux.procfs import stat
from gpurun.output import write_stdout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpurun.invocation import Invocation

#: Program → ``module:function`` that is it.  The function takes the words after the name and returns the exit code.
PROGRAMS = {
    "nvidia-container-runtime-hook": "gpurun.hook.prestart:main",
    "nvidia-container-toolkit": "gpurun.hook.prestart:main",
    "nvidia-cdi-hook": "gpurun.hook.cdi_hook_program:main",
    "nvidia-container-cli": "gpurun.toolkit.container_cli:main",
    "nvidia-ctk": "gpurun.toolkit.ctk:main",
    "amd-ctk": "gpurun.toolkit.amd_ctk:main",
}
#: The same as gpurun itself, with what the maker's own runtime does otherwise (:func:`runtime`); name → forced mode.
RUNTIMES = {
    "nvidia-container-runtime": "",
    "nvidia-container-runtime.cdi": "cdi",
    "nvidia-container-runtime.legacy": "legacy",
    "amd-container-runtime": "",
}
#: What the names of each maker's programs begin with.
PREFIXES = ("nvidia-", "amd-")
#: The makers whose programs these are.
MAKERS = tuple([prefix.rstrip("-") for prefix in PREFIXES])


def program(name: str) -> Callable[[list[str]], int] | None:
    """The program *name*, imported now; None for names that are not of the toolkit."""
    entry_point = PROGRAMS.get(name)
    if entry_point is None:
        return None
    module, _, function = entry_point.partition(":")
    __import__(module)
    found: Callable[[list[str]], int] = getattr(sys.modules[module], function)
    return found


def runtime(name: str) -> tuple[Any, str] | None:
    """What makes gpurun the runtime *name*, imported now, and the mode that the name forces; None for other names.

    The module has ``enter(mode, root)``, which is called first, and ``first_lines()``, which ``--version`` begins with.
    """
    if name not in RUNTIMES:
        return None
    if name.startswith("amd-"):
        from gpurun.toolkit import amd_runtime

        return amd_runtime, RUNTIMES[name]
    from gpurun.toolkit import runtime as nvidia_runtime

    return nvidia_runtime, RUNTIMES[name]


def names_of(makers: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the programs of *makers*."""
    return tuple([name for name in (*RUNTIMES, *PROGRAMS) if name.startswith(tuple([f"{maker}-" for maker in makers]))])


def install_names(invocation: Invocation) -> int:
    """``install-names DIR``: a link in DIR to this program for every name; all or none when one of them is taken.

    With ``--maker`` only for the names of that maker's programs.  Raises :class:`UsageError` for one that is not known.
    """
    maker = invocation.option("maker")
    if maker and maker not in MAKERS:
        raise UsageError(f"--maker={maker}: it must be {' or '.join(MAKERS)}")
    names = names_of((maker,) if maker else MAKERS)
    for path, target in link_names(invocation.args[0], own_path(), invocation.flag("force"), names):
        write_stdout(f"{path} -> {target}\n")
    return 0


def link_names(directory: str, target: str, force: bool, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Make the links *names* in *directory* that are missing there, and return (link, what is said of it).

    Raises :class:`GpurunError`: when a name is taken and not to be replaced by *force*, no link is made; when one cannot be
    made, those before it are there, and the next call makes the rest.
    """
    missing = missing_links(directory, target, force, names)
    _remove_strays(directory)
    made = []
    for path, replaced in missing:
        _link(path, target)
        made.append((path, f"{target}{' (replaced)' if replaced else ''}"))
    return made


def missing_links(directory: str, target: str, force: bool, names: tuple[str, ...]) -> list[tuple[str, bool]]:
    """Of the links *names* to *target* those that *directory* lacks, each with whether it replaces something.

    Raises as link_names does.
    """
    wanted = []
    for name in names:
        path = f"{directory}/{name}"
        there = _target(path)
        if there == target:
            continue
        if there is not None and not force:
            raise GpurunError(
                f"{path} exists and is not this program: --force replaces it (the package it is of may put its own back)"
            )
        wanted.append((path, there is not None))
    return wanted


def links_to(directory: str, target: str) -> list[str]:
    """The names in *directory* that are links to *target*."""
    return [path for name in (*RUNTIMES, *PROGRAMS) if _target(path := f"{directory}/{name}") == target]


def is_one_file() -> bool:
    """Whether this program is one file, which can be called by other names, and no source tree."""
    return getattr(sys, "gpurun_bundle", None) is not None


def own_path() -> str:
    """The file of this program, also where one that was compiled for another Python runs in its place.

    Raises :class:`GpurunError` when it is not one file but a source tree.
    """
    bundle = getattr(sys, "gpurun_bundle", None)
    if bundle is None:
        raise GpurunError("only the one-file program can be called by other names: `make build`, then call build/gpurun")
    called = sys._xoptions.get("gpurun-called")
    if not called:
        return posix.readlink(f"/proc/self/fd/{bundle.fd}")
    with Fd(posix.open(str(called), posix.O_RDONLY | posix.O_CLOEXEC)) as fd:
        return posix.readlink(f"/proc/self/fd/{fd}")


def _target(path: str) -> str | None:
    """The text of the link at *path*; empty for another file, None when nothing is there."""
    try:
        return posix.readlink(path)
    except FileNotFoundError:
        return None
    except OSError:
        return ""


def _remove_strays(directory: str) -> None:
    """Remove the links that a call that was killed in :func:`_link` has left, and none of a call that is still running."""
    try:
        there = posix.listdir(directory)
    except OSError:  # the next step says so
        return
    for name in there:
        base, _, pid = name.partition(".gpurun.")
        if not pid.isdigit() or base not in (*RUNTIMES, *PROGRAMS) or stat(int(pid)) is not None:
            continue
        if _target(f"{directory}/{name}"):
            unlink_if_there(f"{directory}/{name}")


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
