"""A stub of NVIDIA's management library, compiled when a test wants it: what ``nvml.h`` promises, and how it can fail."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from tests.compiled import compile_c

SOURCE = Path(__file__).with_name("stub.c")


def compile_stub(
    path: Path,
    *,
    gpus: int = 2,
    mig: bool = False,
    mode: str = "well",
    name: str = "NVIDIA Stub",
    events: Path | None = None,
    pid: int = 1000,
    limits: Path | None = None,
) -> Path:
    """Compile the stub to *path*.

    *mode* is ``well``, ``hang`` (nvmlInit_v2 never returns), ``crash``, ``unloaded`` (error 9), ``lost`` (the second GPU has
    fallen off the bus), ``noisy`` (it prints, and starts a process that stays), ``hostile`` (it tries to change the host,
    and its directory; what came of it is its error's text: see ``hostile.c``) or ``old`` (few functions).  *name* is what
    the GPUs are called, *pid* the first of a hundred processes on the first of them.  With *events*, a file, it knows what
    a node's device plugin asks as well (see ``node.c``; the recovery action of GPU 0 is in the file beside it,
    ``recovery``).  With *limits*, a datagram socket, it sets limits of memory and tells them there.  Skips the test where
    there is no C compiler.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    defines = [f"-DGPUS={gpus}", f"-DMIG={int(mig)}", f"-D{mode.upper()}", f'-DNAME="{name}"', f"-DPID={pid}"]
    if mode == "hostile":  # which alone knows where it lies
        defines.append(f'-DPLACE="{path.parent}"')
    if limits is not None:
        defines.append(f'-DLIMITS="{limits}"')
    source = SOURCE
    if events is not None:
        source = SOURCE.with_name("node.c")
        defines += [f'-DEVENTS="{events}"', f'-DRECOVERY="{events.with_name("recovery")}"']
    path.write_bytes(_compiled(source, *defines))
    path.chmod(0o755)
    return path


@functools.cache
def _compiled(source: Path, *defines: str) -> bytes:
    """Each is compiled once by a process; most tests want the same few."""
    options = ("-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1")
    with tempfile.TemporaryDirectory() as directory:
        return compile_c(source, Path(directory, "libnvidia-ml.so.1"), *options, *defines).read_bytes()


def compile_mig(path: Path, directory: Path | str, tree: Path | str, *, gpus: int = 2, unable: int = 0) -> Path:
    """Compile to *path* a library whose GPUs can be divided, all but the last *unable*; see ``mig.c``.

    *directory* is where it keeps what they are divided into, and its log; *tree* is the simulated host.  Relative ones are
    below the library's directory.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    defines = (f"-DGPUS={gpus}", f"-DUNABLE={unable}", f'-DDIRECTORY="{directory}"', f'-DTREE="{tree}"')
    path.write_bytes(_compiled(SOURCE.with_name("mig.c"), *defines))
    path.chmod(0o755)
    return path
