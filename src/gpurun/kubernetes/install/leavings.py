"""What the parts of gpurun leave on a node so that pods go on without them, and what goes when gpurun goes.

CDI files (the kubelet starts containers again by the names in them), the DRA driver's checkpoint, sockets of parts that were
killed.  NVIDIA's parts have files of the same names: what is not gpurun's stays.  This runs with the node's root
(:mod:`.host`), and each step can be done twice.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat

from gpurun import log
from gpurun.errors import GpurunError, strerror_lower
from gpurun.gpu.vendors import VENDORS
from gpurun.kubernetes.install.node_setup import is_plain_path, read_own
from gpurun.record import Record

#: The kinds of the CDI files, as specs.file_name makes their names; the DRA driver's have a claim's UID.
_PLUGINS_FILE = "k8s.device-plugin.nvidia.com-gpu.json"
#: The file's name → the kind of the devices in it, which no other program writes, of makers whose CDI files need no hooks.
_MAKERS_FILES = {
    f"k8s.device-plugin.{vendor.kind.replace('/', '-')}.json": f"k8s.device-plugin.{vendor.kind}"
    for vendor in VENDORS
    if vendor.driver
}
_OF_CLAIM = re.compile(r"k8s\.(gpu\.[a-z]+\.com)-claim_[A-Za-z0-9-]+\.json", re.ASCII)
#: What write_atomically puts beside a file, and a process that was killed leaves there.
_STRAY = re.compile(r"\.(.+)\.[0-9a-f]{16}\.new", re.ASCII)
_DRIVER = "gpu.nvidia.com"
_MAKERS_DRIVERS = tuple([vendor.driver for vendor in VENDORS if vendor.driver])
_LARGEST = 64 << 20


class Leavings(Record):
    """Where to look: the kubelet's directory and that of CDI files, paths of the node."""

    kubelet_dir: str
    cdi_dir: str


def check_places(places: Leavings) -> None:
    """Raise :class:`GpurunError` for a path that is not absolute and plain: files below it are removed."""
    for path in (places.kubelet_dir, places.cdi_dir):
        if not is_plain_path(path):
            raise GpurunError(f"{path!r} is not the absolute path of a directory, so nothing is removed there")


def running_parts(places: Leavings) -> list[str]:
    """The parts that serve the kubelet on this node now: they would write again what is removed."""
    plugins = f"{places.kubelet_dir}/device-plugins"
    found = []
    if any(_answers(f"{plugins}/{name}") for name in _names(plugins) if _is_plugins(name)):
        found.append("the device plugin")
    for driver in (_DRIVER, *_MAKERS_DRIVERS):
        if any(_answers(path) for path in _driver_sockets(places, driver)):
            found.append(f"a DRA driver called {driver}")
    return found


def remove_leavings(places: Leavings) -> list[str]:
    """Remove what is gpurun's; the paths that are gone.  Raises :class:`GpurunError` for what cannot be removed."""
    gone: list[str] = []
    for name in _names(places.cdi_dir):
        path, kind = f"{places.cdi_dir}/{name}", _whole_name(name)
        claim = _OF_CLAIM.fullmatch(kind)
        makers = f"k8s.{claim[1]}/claim" if claim and claim[1] in _MAKERS_DRIVERS else _MAKERS_FILES.get(kind, "")
        nvidias = kind == _PLUGINS_FILE or bool(claim and claim[1] == _DRIVER)
        ours = bool(makers and _is_of_kind(path, makers)) or (nvidias and _is_our_spec(path))
        if (makers or nvidias) and (kind != name or ours):
            gone += _removed(path)
    sockets = [f"{places.kubelet_dir}/device-plugins/{n}" for n in _names(f"{places.kubelet_dir}/device-plugins")]
    gone += [p for path in sockets if _is_plugins(os.path.basename(path)) for p in _removed_socket(path)]
    for driver in (_DRIVER, *_MAKERS_DRIVERS):
        gone += _remove_driver(places, driver)
    return gone


def _remove_driver(places: Leavings, driver: str) -> list[str]:
    directory = f"{places.kubelet_dir}/plugins/{driver}"
    checkpoint = f"{directory}/checkpoint.json"
    claims = _our_claims(checkpoint)
    if claims is None and os.path.lexists(checkpoint):
        log.info(f"{checkpoint} is not gpurun's and stays")
        return []
    gone: list[str] = []
    if claims:
        log.warning(
            f"{len(claims)} claims were still prepared: {', '.join(claims[:5])}; a pod that has one ends only with a DRA "
            "driver, or by force"
        )
    for name in _names(directory):
        if _whole_name(name) == "checkpoint.json":
            gone += _removed(f"{directory}/{name}")
    for path in _driver_sockets(places, driver):
        gone += _removed_socket(path)
    try:
        os.rmdir(directory)
    except OSError:  # something that is not gpurun's is in it, or it is gone
        pass
    return gone


def _our_claims(path: str) -> list[str] | None:
    """The claims (``namespace/name``) of our checkpoint; None for a file that is not ours, or none."""
    document = _document(path)
    if document is None or not {"version", "digest", "claims"} <= set(document) or not isinstance(document["claims"], dict):
        return None
    claims = [claim for claim in document["claims"].values() if isinstance(claim, dict)]
    return sorted(f"{claim.get('namespace')}/{claim.get('name')}" for claim in claims)


def _is_our_spec(path: str) -> bool:
    """Whether the hooks of the CDI file call gpurun; NVIDIA's call nvidia-cdi-hook.  A cut-off file does not count."""
    document = _document(path)
    if document is None:
        return _size(path) == 0
    edits = [document.get("containerEdits"), *[d.get("containerEdits") for d in _tables(document.get("devices"))]]
    hooks = [hook for one in _tables(edits) for hook in _tables(one.get("hooks"))]
    return any(os.path.basename(str(hook.get("path"))) == "gpurun" for hook in hooks)


def _is_of_kind(path: str, kind: str) -> bool:
    """Whether the CDI file has devices of the *kind*; a file that was cut short does not count."""
    document = _document(path)
    return _size(path) == 0 if document is None else document.get("kind") == kind


def _tables(value: object) -> list[dict[str, object]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _document(path: str) -> dict[str, object] | None:
    """The JSON object in the regular file *path*; None for anything else."""
    try:
        found = json.loads(read_own(path, _LARGEST)[0])
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _size(path: str) -> int:
    try:
        found = os.lstat(path)
    except OSError:
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


def _whole_name(name: str) -> str:
    """The name of the file that *name* is, or was to become."""
    stray = _STRAY.fullmatch(name)
    return stray[1] if stray else name


def _is_plugins(name: str) -> bool:
    return name.startswith("gpurun-") and name.endswith(".sock")


def _driver_sockets(places: Leavings, driver: str) -> tuple[str, str]:
    base = places.kubelet_dir
    return f"{base}/plugins/{driver}/dra.sock", f"{base}/plugins_registry/{driver}-reg.sock"


def _answers(path: str) -> bool:
    """Whether a process listens on the socket *path*."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
            probe.settimeout(5)
            probe.connect(path)
    except TimeoutError:
        return True
    except OSError:
        return False
    return True


def _removed_socket(path: str) -> list[str]:
    try:
        dead = stat.S_ISSOCK(os.lstat(path).st_mode) and not _answers(path)
    except OSError:
        return []
    return _removed(path) if dead else []


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:  # there is none
        return []


def _removed(path: str) -> list[str]:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return []
    except OSError as e:
        raise GpurunError(f"remove {path}: {strerror_lower(e.errno or 0)}") from None
    return [path]
