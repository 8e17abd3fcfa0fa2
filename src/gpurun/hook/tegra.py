"""The driver on a Tegra system (Jetson): lists of files, because it is part of the system and not a driver of its own.

``/etc/nvidia-container-runtime/host-files-for-container.d/*.csv`` have lines ``dev|dir|lib|sym, path``, where a path may be
a pattern (``/dev/nvhost-*``).  What a line names and the system lacks is left out: the lists are the same for all boards.
"""

from __future__ import annotations

import posix

from gpurun.errors import ConfigError, GpuError
from gpurun.hook.edits import CacheEntry, EditMount, Link
from gpurun.hook.globs import expand, is_pattern, matches
from gpurun.hook.host import dev_root, names_in, node_as_it_is, read_bytes
from gpurun.hook.libraries import list_dir, machine_of, read_library, resolve
from gpurun.hook.nvidia import FILE_OPTIONS
from gpurun.hook.wsl import PlatformFiles
from gpurun.ns.path import open_in_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.hook.host import HostNode, Roots
    from gpurun.hook.libraries import DriverRoot

#: The lists that a container gets unless it asks for all (NVIDIA_REQUIRE_JETPACK=csv-mounts=all).
LISTS = ("devices.csv", "drivers.csv", "l4t.csv")
KINDS = ("dev", "dir", "lib", "sym")
_LIMIT = 1 << 20


def lists_in(roots: Roots, directory: str, all_lists: bool) -> tuple[str, ...]:
    """The lists in *directory* of the site's configuration.  Raises :class:`GpuError` when there are none."""
    place = roots.sysroot + directory
    names = [n for n in names_in(place) if n.endswith(".csv") and (all_lists or n in LISTS)]
    if not names:
        raise GpuError(
            f"the files of a Tegra's driver are told by {', '.join(LISTS)}, and {place} has none of them: "
            "install nvidia-l4t-init (JetPack)"
        )
    return tuple([f"{place}/{name}" for name in names])


def find_files(roots: Roots, root: DriverRoot, lists: tuple[str, ...], ignored: tuple[str, ...] = ()) -> PlatformFiles:
    """What the files *lists* name and this system has, but for the paths that one of the patterns *ignored* fits.

    Raises :class:`ConfigError` for a line that is none of a list.
    """
    nodes: dict[str, HostNode] = {}
    mounts: dict[str, EditMount] = {}
    links: dict[str, Link] = {}
    cache: dict[str, CacheEntry] = {}
    for file in lists:
        name = file.rpartition("/")[2]
        for kind, path in [one for line in read_list(file) for one in _expanded(roots, root, *line)]:
            if any(matches(path, pattern) for pattern in ignored):
                continue
            reason = f"{kind} of {name}"
            if kind == "dev":
                node = node_as_it_is(dev_root(roots), path)
                if node is not None:
                    nodes.setdefault(path, node)
            elif kind == "sym":
                target = _link_target(root, path)
                if target is not None:
                    links.setdefault(path, Link(path, target, reason))
            else:
                real = resolve(root, path)
                if real is not None and is_directory(root.path + real) is (kind == "dir"):
                    mounts.setdefault(path, EditMount(root.path + real, path, FILE_OPTIONS, _kind(kind), reason))
                    if kind == "lib" and ".so" in path:
                        entry = _cache_entry(root, real, path)
                        if entry is not None:
                            cache.setdefault(entry.path, entry)
    # A directory brings what is below it, and a link into one is there already.
    whole = tuple([path.rstrip("/") + "/" for path, m in mounts.items() if m.kind == "dir"])
    kept = [m for path, m in mounts.items() if not path.startswith(whole)] if whole else list(mounts.values())
    made = [link for path, link in links.items() if not path.startswith(whole)] if whole else list(links.values())
    return PlatformFiles(tuple(nodes.values()), tuple(kept), tuple(made), tuple(cache.values()))


def read_list(file: str) -> list[tuple[str, str]]:
    """The (kind, path) of every line of *file*."""
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


def _expanded(roots: Roots, root: DriverRoot, kind: str, path: str) -> list[tuple[str, str]]:
    """The line (*kind*, *path*) for each path that a pattern stands for."""
    if not is_pattern(path):
        return [(kind, path)]
    if kind == "dev":
        return [(kind, found) for found in expand(path, lambda directory: names_in(dev_root(roots) + directory))]
    return [(kind, found) for found in expand(path, lambda directory: list_dir(root, directory))]


def is_directory(path: str) -> bool | None:
    """Whether the host's *path* is a directory, or else a regular file; ``None`` for what is neither."""
    kind = posix.stat(path).st_mode & 0o170000
    return kind == 0o040000 if kind in (0o040000, 0o100000) else None


def _kind(kind: str) -> str:
    return "dir" if kind == "dir" else "file"


def _link_target(root: DriverRoot, path: str) -> str | None:
    """What the symbolic link *path* of the driver root says; ``None`` when it is not there, or no link."""
    directory, _, name = path.rpartition("/")
    try:
        parent = open_in_root(root.fd, directory or "/")
    except OSError:
        return None
    try:
        return posix.readlink(name, dir_fd=parent)
    except OSError:
        return None
    finally:
        posix.close(parent)


def _cache_entry(root: DriverRoot, real: str, path: str) -> CacheEntry | None:
    flags, machine = machine_of(root)
    library = read_library(root, (), real, flags, machine, False)
    return None if library is None else CacheEntry(library.soname, path, flags)
