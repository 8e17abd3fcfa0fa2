"""The driver on a Tegra system (Jetson): lists of files, because it is part of the system and not a driver of its own.

``/etc/nvidia-container-runtime/host-files-for-container.d/*.csv`` have lines ``dev|dir|lib|sym, path``, where a path may be
a pattern (``/dev/nvhost-*``).  What a line names and the system lacks is left out: the lists are the same for all boards.
A board with a graphics card beside its own GPU has two devices, which the lists do not tell apart (:func:`device_nodes`).
"""

from __future__ import annotations

import posix
from _stat import S_ISDIR, S_ISREG

from gpurun.cdi.edits import CacheEntry, EditMount, ForwardCompat, Link
from gpurun.errors import ConfigError, GpuError
from gpurun.formats.globs import expand, is_pattern, matches_path
from gpurun.gpu.host.reads import names_in, node_as_it_is, read_bytes
from gpurun.gpu.nvidia.edits.files import FILE_OPTIONS, cache_entries, library_links
from gpurun.gpu.nvidia.host.file_names import COMPAT_ROOT
from gpurun.gpu.nvidia.host.gpus import is_integrated
from gpurun.gpu.nvidia.host.libraries import library_dirs, list_dir, machine_of, read_library, resolve
from gpurun.gpu.nvidia.host.roots import dev_root
from gpurun.gpu.nvidia.platforms.wsl import PlatformFiles
from gpurun.gpu.nvidia.request.selection import select
from gpurun.linux.files import Fd
from gpurun.ns.path import open_in_root
from gpurun.paths import clean_path
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.host.reads import HostNode
    from gpurun.gpu.nvidia.host.gpus import Gpu
    from gpurun.gpu.nvidia.host.libraries import DriverRoot
    from gpurun.gpu.nvidia.host.roots import Roots
    from gpurun.gpu.nvidia.request.records import GpuRequest

#: The lists that a container gets unless it asks for all (NVIDIA_REQUIRE_JETPACK=csv-mounts=all).
LISTS = ("devices.csv", "drivers.csv", "l4t.csv")
KINDS = ("dev", "dir", "lib", "sym")
#: Where images for an Orin have their newer CUDA libraries, unless the site says otherwise.
ORIN_COMPAT_ROOT = "/usr/local/cuda/compat_orin"
_LIMIT = 1 << 20
_RELEASE = "/etc/nv_tegra_release"
_MAX_LINKS = 40
#: What a graphics card needs beside its own node; no Tegra's own.
_CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
#: The display of a Thor that has a graphics card beside it.
_DISPLAY_NODE = "/dev/nvidia2"


def lists_in(roots: Roots, directory: str, all_lists: bool) -> tuple[str, ...]:
    """The lists in *directory* of the site's configuration.  Raises :class:`GpuError` when there are none."""
    place = roots.sysroot + directory
    names = [n for n in names_in(place) if n.endswith(".csv") and (all_lists or n in LISTS)]
    if not names:
        raise GpuError(
            f"the files of a Tegra's driver are listed in {', '.join(LISTS)}, and {place} has none of them: "
            "install nvidia-l4t-init (JetPack)"
        )
    return tuple([f"{place}/{name}" for name in names])


def find_files(roots: Roots, root: DriverRoot, lists: tuple[str, ...], ignored: tuple[str, ...] = ()) -> PlatformFiles:
    """What the files *lists* name and this system has, but for the links (``sym``) that one of the patterns *ignored* fits.

    Raises :class:`ConfigError` for a line that cannot be read.
    """
    nodes: dict[str, HostNode] = {}
    mounts: dict[str, EditMount] = {}
    links: dict[str, Link] = {}
    linked: dict[str, str] = {}  # real file that a link leads to → the list
    for file in lists:
        name = file.rpartition("/")[2]
        for kind, path in [one for line in read_list(file) for one in _expand(roots, root, *line)]:
            reason = f"{kind} of {name}"
            if kind == "dev":
                node = node_as_it_is(dev_root(roots), path)
                if node is not None:
                    nodes.setdefault(path, node)
            elif kind == "sym":
                if not any(matches_path(path, pattern) for pattern in ignored):
                    chain, real = _chain(root, path)
                    for place, target in chain:
                        links.setdefault(place, Link(place, target, reason))
                    if chain and is_directory(root.path + real) is False:
                        linked.setdefault(real, reason)
            else:
                real_path = resolve(root, path)
                if real_path is not None and is_directory(root.path + real_path) is (kind == "dir"):
                    mounts.setdefault(path, EditMount(root.path + real_path, path, FILE_OPTIONS, _kind(kind), reason))
    release = resolve(root, _RELEASE)
    if release is not None and is_directory(root.path + release) is False:
        mounts.setdefault(_RELEASE, EditMount(root.path + release, _RELEASE, FILE_OPTIONS, "file", "the system's release"))
    for real, reason in linked.items():
        mounts.setdefault(real, EditMount(root.path + real, real, FILE_OPTIONS, "file", f"where a link leads: {reason}"))
    more, cache = _beside_libraries(root, mounts, links)
    links = {**more, **links}
    # A directory brings what is below it, and a link into one is there already.
    whole = tuple([path.rstrip("/") + "/" for path, m in mounts.items() if m.kind == "dir"])
    kept = [m for path, m in mounts.items() if not path.startswith(whole)] if whole else list(mounts.values())
    made = [link for path, link in links.items() if not path.startswith(whole)] if whole else list(links.values())
    return PlatformFiles(tuple(nodes.values()), tuple(kept), tuple(made), cache)


def cards(gpus: tuple[Gpu, ...], one_device: bool) -> tuple[Gpu, ...]:
    """All of *gpus*, where there are graphics cards beside the board's own GPU; none on a board that is one device."""
    own = [gpu for gpu in gpus if is_integrated(gpu.model)]
    return () if one_device or not own or len(own) == len(gpus) else gpus


def device_nodes(
    request: GpuRequest, roots: Roots, listed: tuple[HostNode, ...], gpus: tuple[Gpu, ...]
) -> tuple[HostNode, ...]:
    """The device nodes for *request* on a board with graphics cards: *listed* are those of the lists.

    The board's own GPU has all of them but the cards' and, on top, the node of its display; a card has its own, the control
    nodes, and from the lists everything but the nodes of GPUs.  Raises :class:`GpuError` for a device that is not there.
    """
    dev = dev_root(roots)
    of_cards = {gpu.node.path for gpu in gpus if not is_integrated(gpu.model)}
    found: dict[str, HostNode] = {}
    for selected in select(request, gpus):
        gpu = selected.gpu
        if is_integrated(gpu.model):
            extra = [] if _DISPLAY_NODE in of_cards else [node_as_it_is(dev, _DISPLAY_NODE)]
            wanted = [node for node in listed if node.path not in of_cards] + extra
        else:
            control = [node_as_it_is(dev, path) for path in _CONTROL_NODES]
            board = [node for node in listed if node.path not in _CONTROL_NODES and not _is_gpu(node.path)]
            wanted = [gpu.node, *gpu.drm, *control, *board]
        found.update({node.path: node for node in wanted if node is not None})
    return tuple(found.values())


def forward_compat(root: DriverRoot, files: PlatformFiles, compat_root: str) -> ForwardCompat | None:
    """What to look for in an image of newer CUDA libraries; ``None`` on a board whose driver has no NVML (before an Orin).

    The driver's version says nothing on a Tegra; NVML tells that of CUDA.  Raises :class:`GpuError` when it does not answer.
    """
    library = _nvml(root, files)
    if not library:
        return None
    from gpurun.gpu.nvidia.host.nvml import query

    answer = query(library)
    names = [str(gpu.get("name") or "") for gpu in answer["gpus"]]
    orin = any("Orin (nvgpu)" in name for name in names)
    directory = (compat_root or ORIN_COMPAT_ROOT) if orin else COMPAT_ROOT
    version = str(answer.get("cudaVersion") or "")
    reason = "the image may bring newer CUDA libraries than the board's"
    return ForwardCompat(directory, "", reason, version) if version else None


def read_list(file: str) -> list[tuple[str, str]]:
    """The (kind, path) of every line of *file*.

    Raises :class:`ConfigError` for a file that is missing and for a line of another form.
    """
    data = read_bytes(file, _LIMIT)
    if data is None:
        raise ConfigError(file, "is not there")
    found = []
    for number, line in enumerate(data.decode("utf-8", "surrogateescape").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        kind, comma, path = text.partition(",")
        kind, path = kind.strip(), path.strip()
        if not comma or kind not in KINDS or not path.startswith("/") or "/../" in path + "/":
            raise ConfigError(f"{file}: line {number}", f"is not one of {', '.join(KINDS)}, a comma and an absolute path")
        found.append((kind, path))
    return found


def _expand(roots: Roots, root: DriverRoot, kind: str, path: str) -> list[tuple[str, str]]:
    """The line (*kind*, *path*) for each path that a pattern stands for."""
    if not is_pattern(path):
        return [(kind, path)]
    if kind == "dev":
        return [(kind, found) for found in expand(path, lambda directory: names_in(dev_root(roots) + directory))]
    return [(kind, found) for found in expand(path, lambda directory: list_dir(root, directory))]


def is_directory(path: str) -> bool | None:
    """Whether the host's *path* is a directory, or else a regular file; ``None`` for what is neither."""
    mode = posix.stat(path).st_mode
    return S_ISDIR(mode) if S_ISDIR(mode) or S_ISREG(mode) else None


def _kind(kind: str) -> str:
    return "dir" if kind == "dir" else "file"


def _is_gpu(path: str) -> bool:
    number = path.removeprefix("/dev/nvidia")
    return number != path and number.isascii() and number.isdigit()


def _chain(root: DriverRoot, path: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """The links from *path* on, (path, text) of each, and the real file at their end.

    None, and an empty path, where *path* is no link or leads nowhere.
    """
    real = resolve(root, path)
    found: list[tuple[str, str]] = []
    while real is not None and len(found) < _MAX_LINKS:
        text = _link_target(root, path)
        if text is None:
            break
        found.append((path, text))
        path = clean_path(text if text.startswith("/") else f"{path.rpartition('/')[0]}/{text}")
    return tuple(found), real or ""


def _link_target(root: DriverRoot, path: str) -> str | None:
    """What the symbolic link *path* of the driver root says; ``None`` when it is not there, or no link."""
    directory, _, name = path.rpartition("/")
    try:
        parent = open_in_root(root.fd, directory or "/")
    except OSError:
        return None
    with Fd(parent):
        try:
            return posix.readlink(name, dir_fd=parent)
        except OSError:
            return None


def _beside_libraries(
    root: DriverRoot, mounts: dict[str, EditMount], listed: dict[str, Link]
) -> tuple[dict[str, Link], tuple[CacheEntry, ...]]:
    """Links that ldconfig or programs want beside the libraries among *mounts*, and the loader's names of these.

    The lists name few links, ``libcuda.so`` not among them.
    """
    flags, machine = machine_of(root)
    links: dict[str, Link] = {}
    cache: dict[str, CacheEntry] = {}
    for path, mount in mounts.items():
        directory, _, name = path.rpartition("/")
        if mount.kind == "dir" or ".so" not in name:
            continue
        library = read_library(root, (), mount.host_path[len(root.path) :], flags, machine, False)
        if library is None:
            continue
        library = replace(library, path=path, name=name)
        cache.setdefault(path, CacheEntry(library.soname, path, library.flags))
        made = [link for link in library_links(library) if link.path.rpartition("/")[0] == directory]
        links.update({link.path: link for link in made if link.path not in mounts})
        there = {*links, *listed}
        cache.update({e.path: e for e in cache_entries(library) if e.soname != library.soname and e.path in there})
    return links, tuple(cache.values())


def _nvml(root: DriverRoot, files: PlatformFiles) -> str:
    """The board's NVML library on the host, empty when it has none."""
    name = "/libnvidia-ml.so.1"
    for mount in files.mounts:
        if mount.container_path.endswith(name):
            return mount.host_path
    dirs = library_dirs(root)
    for directory in (*dirs, *[f"{d}/{sub}" for d in dirs for sub in ("nvidia", "tegra")]):
        real = resolve(root, directory + name)
        if real is not None:
            return root.path + real
    return ""
