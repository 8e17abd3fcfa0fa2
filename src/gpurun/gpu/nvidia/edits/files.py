"""A library or another file of the driver → its mount, its links, its names for the loader.  Pure."""

from __future__ import annotations

from gpurun.cdi.edits import CacheEntry, EditMount, Link
from gpurun.gpu.nvidia.host.file_names import MPS_REASON

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.nvidia.host.libraries import HostFile, Library

FILE_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
#: Links beside a library that programs expect although no SONAME says so: library → (link, target or "" for the file).
_EXTRA_LINKS = {
    "libcuda": ("libcuda.so", "libcuda.so.1"),
    "libnvidia-opticalflow": ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
    "libGLX_nvidia": ("libGLX_indirect.so.0", ""),
    "libnvidia-vulkan-producer": ("libnvidia-vulkan-producer.so", ""),
    "libnvidia-allocator": ("gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),
}


def library_mount(library: Library, needed: tuple[str, ...]) -> EditMount:
    """The read-only bind mount of *library*, with those of its capabilities that are *needed* as its reason."""
    bits = "32-bit " if library.compat32 else ""
    reason = f"{bits}library of capability {', '.join([c for c in library.capabilities if c in needed])}"
    return EditMount(library.host_path, library.path, FILE_OPTIONS, "file", reason)


def file_mount(file: HostFile) -> EditMount:
    """The bind mount of *file*, with the options that its kind takes."""
    if file.kind == "firmware":
        return EditMount(file.host_path, file.path, FILE_OPTIONS, "file", "firmware of the driver")
    if file.kind == "mps":
        return EditMount(file.host_path, file.path, SOCKET_OPTIONS, "dir", MPS_REASON)
    if file.kind == "socket":
        return EditMount(file.host_path, file.path, SOCKET_OPTIONS, "file", f"service of capability {file.capability}")
    return EditMount(file.host_path, file.path, FILE_OPTIONS, "file", f"{file.kind} of capability {file.capability}")


def file_link(file: HostFile) -> Link:
    """The link that programs expect beside *file*, for a file that has one."""
    directory, _, name = file.path.rpartition("/")
    return Link(f"{directory}/{file.link}", name, f"expected beside {name}")


def library_links(library: Library) -> list[Link]:
    """The links to *library*: its SONAME, the name for linking, and others that programs open."""
    directory = library.path.rpartition("/")[0]
    stem = library.name[: library.name.find(".so")]
    links = []
    if library.soname != library.name:
        links.append(Link(f"{directory}/{library.soname}", library.name, f"SONAME of {library.name}"))
    if library.dev_link:
        links.append(Link(f"{directory}/{stem}.so", library.soname, f"link for linking with {library.name}"))
    if stem in _EXTRA_LINKS:
        name, target = _EXTRA_LINKS[stem]
        links.append(Link(f"{directory}/{name}", target or library.name, f"expected beside {library.name}"))
    return links


def cache_entries(library: Library) -> list[CacheEntry]:
    """The loader's names for *library*: its SONAME and, as ldconfig has it, the link for linking."""
    directory = library.path.rpartition("/")[0]
    names = [library.soname]
    stem = library.name[: library.name.find(".so")]
    if library.dev_link or stem in ("libcuda", "libnvidia-opticalflow"):
        names.append(f"{stem}.so")
    return [CacheEntry(name, f"{directory}/{name}", library.flags) for name in dict.fromkeys(names)]
