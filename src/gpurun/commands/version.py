"""``gpurun --version``."""

from __future__ import annotations

from gpurun import __version__
from gpurun.invocation import Invocation
from gpurun.oci import SPEC_VERSION
from gpurun.output import write_stdout

#: The commit that was built; ``make build`` fills it in.
COMMIT = ""


def version(invocation: Invocation, before: str = "") -> int:
    """Print the lines that clients parse: go-runc looks for ``commit: `` and ``spec: `` at the start of a line, dockerd
    takes the name and the version from any line with the word ``version``, so there is one such line only.

    *before* is what a program says first that gpurun is called in the place of.
    """
    from gpurun.linux.libseccomp import Library, find

    try:
        libseccomp = f"libseccomp: {Library(find()[0]).version()}\n"
    except OSError:  # not installed
        libseccomp = ""
    commit = f"commit: {COMMIT}\n" if COMMIT else ""
    write_stdout(f"{before}gpurun version {__version__}\n{commit}spec: {SPEC_VERSION}\n{libseccomp}")
    return 0
