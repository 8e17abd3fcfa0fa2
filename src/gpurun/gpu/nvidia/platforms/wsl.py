"""The driver under WSL 2: Windows has it, and shows its Linux libraries in a driver store below /usr/lib/wsl.

There is one device, /dev/dxg, for all GPUs; GPUs cannot be kept apart, and nothing of /proc/driver/nvidia exists.
"""

from __future__ import annotations

from gpurun.cdi.edits import EditMount, Link
from gpurun.errors import GpuError
from gpurun.gpu.host.reads import node_as_it_is
from gpurun.gpu.nvidia.edits.files import FILE_OPTIONS, cache_entries, library_links
from gpurun.gpu.nvidia.host.file_names import BINARIES, VERSIONED, library_capabilities
from gpurun.gpu.nvidia.host.libraries import list_dir, machine_of, read_library, resolve
from gpurun.gpu.nvidia.host.roots import dev_root
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.edits import CacheEntry
    from gpurun.gpu.host.reads import HostNode
    from gpurun.gpu.nvidia.host.libraries import DriverRoot
    from gpurun.gpu.nvidia.host.roots import Roots

STORES = "/usr/lib/wsl/drivers"
DXCORE = "/usr/lib/wsl/lib/libdxcore.so"


class PlatformFiles(Record):
    """What a platform's driver brings: device nodes, and files with their links and entries in the loader's cache."""

    nodes: tuple[HostNode, ...]
    mounts: tuple[EditMount, ...]
    links: tuple[Link, ...]
    cache: tuple[CacheEntry, ...]


def find_files(roots: Roots, root: DriverRoot, capabilities: tuple[str, ...]) -> PlatformFiles:
    """The device, and the files of the driver stores that *capabilities* need.  Raises :class:`GpuError` without them.

    A store is a directory with a libcuda: after an update of the driver there may be an old and a new one, and dxcore says
    to CUDA which one is Windows's, so both are there.
    """
    node = node_as_it_is(dev_root(roots), "/dev/dxg")
    stores = [f"{STORES}/{n}" for n in sorted(list_dir(root, STORES)) if resolve(root, f"{STORES}/{n}/libcuda.so.1.1")]
    if node is None or not stores:
        raise GpuError(
            f"no NVIDIA driver under WSL: there is no {'/dev/dxg' if node is None else STORES + '/*/libcuda.so.1.1'}: "
            "install NVIDIA's driver on Windows (none in Linux) and run `wsl --shutdown`"
        )
    needed = library_capabilities(capabilities)
    mounts: list[EditMount] = []
    links: list[Link] = []
    cache: list[CacheEntry] = []
    paths = [f"{store}/{name}" for store in stores for name in sorted(list_dir(root, store)) if _is_file(name, needed)]
    for path in (DXCORE, *paths):
        real = resolve(root, path)
        if real is None:
            continue
        mounts.append(EditMount(root.path + real, real, FILE_OPTIONS, "file", f"driver of Windows, {_why(path)}"))
        if ".so" in path:
            flags, machine = machine_of(root)
            library = read_library(root, needed, real, flags, machine, False)
            if library is not None:
                links += library_links(library)
                cache += cache_entries(library)
        elif path.endswith("/nvidia-smi"):
            links.append(Link("/usr/bin/nvidia-smi", real, "where people look for it"))
    return PlatformFiles((node,), tuple(mounts), tuple(links), tuple(cache))


def _is_file(name: str, needed: tuple[str, ...]) -> bool:
    """Whether *name* is a file of the driver, and of the capabilities *needed* if its capability is known."""
    of = _capabilities(name)
    if of:
        return any(c in needed for c in of)
    return ".so" in name or name.endswith((".bin", ".dll"))


def _capabilities(name: str) -> list[str]:
    if any(name in names for names in BINARIES.values()):
        return [c for c, names in BINARIES.items() if name in names]
    stem = name[: name.find(".so")].removesuffix("_loader") if ".so" in name else ""
    return [c for c, names in VERSIONED.items() if stem in names]


def _why(path: str) -> str:
    of = _capabilities(path.rpartition("/")[2])
    return f"capability {', '.join(of)}" if of else "needed by all of it"
