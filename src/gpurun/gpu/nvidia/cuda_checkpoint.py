"""Programs that compute: can CRIU save and restore them here?

A process whose GPU is in use has state that only NVIDIA's driver can save.  ``cuda-checkpoint`` has the driver do that, and
CRIU's CUDA plugin calls it at the right moments: it locks the process before it is frozen, empties its GPUs when it is, and
after a restore fills them again and unlocks it.  The plugin needs ``cuda-checkpoint --action``, which drivers from 570 on
serve (https://github.com/NVIDIA/cuda-checkpoint).
"""

from __future__ import annotations

import posix

from gpurun.linux.files import read_file

PROGRAM = "cuda-checkpoint"
PLUGIN = "cuda_plugin.so"
FIRST_DRIVER = 570
#: Where CRIU looks for plugins, which is said when it is built; its option libdir says otherwise.
_DIRECTORIES = ("/usr/lib/criu", "/usr/local/lib/criu", "/usr/lib64/criu", "/usr/local/lib64/criu")
_DEFAULT_CONFIG = "/etc/criu/default.conf"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LIMIT = 1 << 20


def missing(driver: str, config_file: str = "") -> tuple[str, ...]:
    """What this host lacks for programs that compute; *driver* is the version of NVIDIA's, *config_file* that of CRIU's
    settings which names the directory of its plugins, if any does."""
    found = []
    major = driver.partition(".")[0]
    if not major.isdigit():
        found.append("NVIDIA's driver, whose version cannot be read")
    elif int(major) < FIRST_DRIVER:
        found.append(f"a driver from {FIRST_DRIVER} on (this one is {driver})")
    places = posix.environ.get(b"PATH", b"").decode("utf-8", "surrogateescape") or _PATH
    if not any(posix.access(f"{directory}/{PROGRAM}", posix.X_OK) for directory in places.split(":") if directory):
        found.append(f"NVIDIA's {PROGRAM} in $PATH")
    directories = plugin_directories(config_file)
    if not any(posix.access(f"{directory}/{PLUGIN}", posix.R_OK) for directory in directories):
        found.append(f"CRIU's {PLUGIN} in {directories[0]}")
    return tuple(found)


def obstacle(driver: str, config_file: str = "") -> str:
    """Why a process that uses a GPU can be neither saved nor restored here, as the end of a sentence; "" where it can."""
    lacks = missing(driver, config_file)
    return f"only CRIU's CUDA plugin saves and restores that, and this host lacks {', '.join(lacks)}" if lacks else ""


def plugin_directories(config_file: str) -> tuple[str, ...]:
    """Where CRIU looks for its plugins: the last ``libdir`` of its settings, else the usual places."""
    named = ""
    for path in (_DEFAULT_CONFIG, config_file):
        try:
            text = read_file(path, _LIMIT).decode("utf-8", "surrogateescape") if path else ""
        except OSError:
            continue  # CRIU says so, if it matters
        for line in text.splitlines():
            word, _, value = line.partition("#")[0].strip().partition(" ")
            if word.removeprefix("--") in ("libdir", "L") or word == "-L":
                named = value.strip()
    return (named,) if named else _DIRECTORIES
