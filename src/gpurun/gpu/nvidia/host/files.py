"""The driver's files that are no libraries: programs, configuration, X modules, firmware, under a driver root."""

from __future__ import annotations

from gpurun.gpu.nvidia.host.file_names import (
    BINARIES,
    BINARY_DIRS,
    CONFIG_DIRS,
    CONFIG_PLACES,
    CONFIGS,
    DEBIAN_DIR,
    X_DIRS,
    X_MODULES,
)
from gpurun.gpu.nvidia.host.libraries import DriverRoot, HostFile, library_dirs, list_dir, resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def find_binaries(root: DriverRoot, capabilities: Iterable[str]) -> tuple[HostFile, ...]:
    """Programs, mounted under the name by which the host's PATH finds them (the real file may be an alternative)."""
    found = []
    dirs = dict.fromkeys([real for d in BINARY_DIRS if (real := resolve(root, d)) is not None])
    for capability in capabilities:
        for name in BINARIES.get(capability, ()):
            for directory in (*dirs, DEBIAN_DIR):
                real = resolve(root, f"{directory}/{name}")
                if real is not None:
                    # A directory that no image has on its PATH (Debian's alternatives, NixOS's store) is not shown.
                    public = f"{directory if directory in BINARY_DIRS else '/usr/bin'}/{name}"
                    found.append(HostFile("binary", capability, root.path + real, public))
                    break
    return tuple(found)


def find_configs(
    root: DriverRoot, version: str, capabilities: Iterable[str], first_dirs: tuple[str, ...] = ()
) -> tuple[HostFile, ...]:
    """Configuration files; the first directory that has a file wins, as for the programs that read them.

    *first_dirs* stand before the usual ones (/etc, /usr/share).
    """
    found = []
    wanted = tuple(capabilities)
    # Which of them there are at all, so that not every file is looked for in each.
    below_of = dict.fromkeys([below for c, _, below, _ in CONFIGS if c in wanted])
    bases = {below: [d for b in (*first_dirs, *CONFIG_DIRS) if (d := resolve(root, f"{b}/{below}"))] for below in below_of}
    for capability, target, below, names in CONFIGS:
        if capability not in wanted:
            continue
        for pattern in names:
            name = pattern.replace("VERSION", version)
            dirs = (*bases[below], *([CONFIG_PLACES[name]] if name in CONFIG_PLACES else ()))
            real = next((r for d in dirs if (r := resolve(root, f"{d}/{name}")) is not None), None)
            if real is not None:
                found.append(HostFile("config", capability, root.path + real, f"{target}/{name}"))
    return tuple(found)


def find_graphics(root: DriverRoot, version: str) -> tuple[HostFile, ...]:
    """The modules of the X server, where the host has them, and the weights of the OptiX denoiser beside libnvoptix."""
    found = []
    libraries = library_dirs(root)
    dirs = [(d, "") for lib in libraries for d in (f"{lib}/nvidia/xorg",)]
    for base in (*X_DIRS, *[f"{lib}/xorg/modules" for lib in libraries]):
        for sub in ("drivers", "extensions", "updates/drivers", "updates/extensions", "updates"):
            dirs.append((f"{base}/{sub}", ""))
    dirs.append((DEBIAN_DIR, X_DIRS[0]))
    present = [(real, public) for d, public in dirs if (real := resolve(root, d)) is not None]
    for pattern, kind, link in X_MODULES:
        name = pattern.replace("VERSION", version)
        for directory, public in dict.fromkeys(present):
            real = resolve(root, f"{directory}/{name}")
            if real is not None:
                place = f"{public}/{kind}" if public else directory
                found.append(HostFile("module", "graphics", root.path + real, f"{place}/{name}", link))
                break
    for directory in libraries:
        real = resolve(root, f"{directory}/nvoptix.bin")
        if real is not None:
            found.append(HostFile("config", "graphics", root.path + real, real))
            break
    return tuple(found)


def find_firmware(root: DriverRoot, version: str, prefixes: tuple[str, ...]) -> tuple[HostFile, ...]:
    """GSP firmware ``gsp*.bin`` of that version, from the first of *prefixes* that has any."""
    for prefix in prefixes:
        directory = resolve(root, f"{prefix}/nvidia/{version}")
        if directory is None:
            continue
        names = sorted(n for n in list_dir(root, directory) if n.startswith("gsp") and n.endswith(".bin"))
        if names:
            public = f"{prefix}/nvidia/{version}"
            real = [(n, resolve(root, f"{directory}/{n}")) for n in names]
            return tuple([HostFile("firmware", "", root.path + r, f"{public}/{n}") for n, r in real if r is not None])
    return ()
