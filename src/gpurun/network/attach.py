"""`run --network NAME`: the network of a container, from before its program starts until it is deleted.

NAME is a network of /etc/cni/net.d, which CNI plugins make.
``<root>/<id>/network`` says what is to be taken back, written before it is made.  For plugins, which want the container's
network namespace once more when its last process has ended, a bind mount in the state directory keeps that.
"""

from __future__ import annotations

import json
import posix
from typing import Any

from gpurun.errors import GpurunError, Step, clean, oserror_text
from gpurun.linux.files import O_CLOEXEC, read_file, write_all
from gpurun.linux.mount import MNT_DETACH, MS_BIND, mount, umount2
from gpurun.network import cni

RECORD = "network"
_NAMESPACE = "netns"


def attach(root: str, container_id: str, pid: int, name: str) -> None:
    """Give the container whose init is *pid* the network *name*.

    Raises :class:`GpurunError`; :func:`detach` then takes back what was made.
    """
    if not cni.has_plugins():
        raise GpurunError(
            f"--network: it needs CNI plugins, and there are none in {', '.join(cni.PLUGINS)} "
            "(`apt-get install containernetworking-plugins`)"
        )
    configured = cni.networks()
    network = next((one for one in configured if one.name == name), None)
    if network is None:
        names = ", ".join([clean(one.name) for one in configured]) or "none"
        raise GpurunError(f'--network: no network "{clean(name)}" in {cni.CONFIGURATIONS}: there are {names}')
    directory = f"{root}/{container_id}"
    namespace = f"{directory}/{_NAMESPACE}"
    _write(f"{directory}/{RECORD}", {"name": name, "namespace": namespace, "cni": network.document, "file": network.file})
    with Step("keep the network namespace at", namespace):
        posix.close(posix.open(namespace, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | O_CLOEXEC, 0o600))
        mount(f"/proc/{pid}/ns/net", namespace, "", MS_BIND)
    cni.add(network, cni.Attachment(container_id, namespace))


def detach(root: str, container_id: str) -> tuple[str, ...]:
    """Take back what :func:`attach` has made; what cannot be is a warning.  Nothing to be done is fine."""
    directory = f"{root}/{container_id}"
    try:
        record = json.loads(read_file(f"{directory}/{RECORD}", 1 << 22))
        name, namespace = str(record["name"]), str(record["namespace"])
        network = cni.Network(name, str(record.get("file", "")), record["cni"])
    except (OSError, ValueError, KeyError, TypeError) as e:
        reason = oserror_text(e) if isinstance(e, OSError) else "it is damaged"
        return (f"the network of container {container_id} is not taken back: {directory}/{RECORD}: {reason}",)
    except GpurunError as e:
        return (f"the network of container {container_id} is not taken back: {e}",)
    warnings = cni.remove(network, cni.Attachment(container_id, namespace))
    try:
        umount2(namespace, MNT_DETACH)
    except OSError:
        pass  # never mounted, or in another mount namespace, which is gone with it
    return warnings


def _write(path: str, record: dict[str, Any]) -> None:
    with Step("write", path):
        fd = posix.open(path, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | O_CLOEXEC, 0o600)
        try:
            write_all(fd, json.dumps(record).encode())
        finally:
            posix.close(fd)
