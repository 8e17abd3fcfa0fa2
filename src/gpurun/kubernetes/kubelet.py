"""The kubelet's directories and sockets on this node, and gRPC over Unix sockets."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import grpc

from gpurun.errors import GpurunError
from gpurun.linux.files import unlink_if_there

#: Where the kubelet keeps its state, unless its --root-dir says otherwise.
KUBELET_DIR = "/var/lib/kubelet"
#: Seconds that a call to the kubelet may take.
TIMEOUT_S = 10.0
_SUN_PATH = 107  # bytes of a Unix socket's path


def device_plugins(directory: str) -> str:
    """The directory of the sockets of device plugins below the kubelet's *directory*."""
    return f"{directory}/device-plugins"


def channel(path: str) -> grpc.Channel:
    """A channel to the Unix socket *path*; the proxies of the environment are not for it."""
    return grpc.insecure_channel(f"unix:{path}", options=[("grpc.enable_http_proxy", 0)])


def server(path: str, workers: int) -> grpc.Server:
    """A server on the Unix socket *path*, not started yet; a socket that is there is replaced.

    Raises :class:`GpurunError` when it cannot be made.
    """
    if len(path.encode()) > _SUN_PATH:
        raise GpurunError(f"{path}: the path of a Unix socket has at most {_SUN_PATH} bytes: choose a shorter --kubelet-dir")
    try:
        unlink_if_there(path)
    except OSError as e:
        raise GpurunError(f"{path}: {os.strerror(e.errno or 0)}") from None
    # SO_REUSEPORT would let two plugins share a TCP port; on Unix sockets it means nothing.
    made = grpc.server(ThreadPoolExecutor(workers), options=[("grpc.so_reuseport", 0)])
    try:
        port = made.add_insecure_port(f"unix:{path}")
    except RuntimeError:
        port = 0
    if not port:
        raise GpurunError(f"{path}: cannot listen there: is the kubelet's directory mounted and writable?")
    return made


def identity(path: str) -> tuple[int, int, int]:
    """What tells the socket *path* from one that was made later under the same name; zeros when it is not there.

    Returns (device, inode, ctime in nanoseconds).
    """
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0, 0
    return found.st_dev, found.st_ino, found.st_ctime_ns
