"""What its engine calls a container, and the labels that it has there: for sentences, and for limits by label.

An engine tells its runtime an id and little else.  Annotations have the names of Kubernetes and of nerdctl; Docker's
daemon keeps them in a file beside the one that it mounts as /etc/resolv.conf; Podman's conmon has the name in its arguments,
and its storage has it also when the container, and so conmon, has ended.
What cannot be found is empty: no container fails for that.
"""

from __future__ import annotations

import posix

from gpurun.errors import GpurunError
from gpurun.linux.files import read_file, read_regular
from gpurun.oci.annotations import CONTAINERD_NAMES, CRIO_NAMES, NERDCTL_NAME
from gpurun.oci.reader import as_object, get_object, get_string, get_string_map, parse_json
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_LIMIT = 4 << 20
_DOCKER = "/var/lib/docker/containers"
_IDS = ("docker-", "cri-containerd-", "libpod-", "crio-", "nerdctl-")
#: (annotations that together are the name, the engine)
_ANNOTATED = (
    (CONTAINERD_NAMES[:3], "containerd"),
    (CRIO_NAMES[:3], "CRI-O"),
    ((NERDCTL_NAME,), "nerdctl"),
)


class Known(Record):
    """How an engine calls a container: empty for what is not known."""

    name: str = ""
    engine: str = ""
    labels: tuple[tuple[str, str], ...] = ()


def of_container(
    container_id: str, annotations: Mapping[str, str], mounts: tuple[tuple[str, str], ...], parent: int, bundle: str = ""
) -> Known:
    """What is known of a container: *mounts* are (source, destination), *parent* is the process that called gpurun, 0
    when it has ended.

    Files beside *bundle* are read, so it is left out where another user has written it.
    """
    for keys, engine in _ANNOTATED:
        parts = [annotations[key] for key in keys if key in annotations]
        if parts:
            return Known("/".join(parts), engine, _plain(annotations))
    for source, destination in mounts:
        if destination == "/etc/resolv.conf" and source.endswith(f"/{container_id}/resolv.conf"):
            found = of_docker(source.rpartition("/")[0])
            if found.name:
                return Known(found.name, found.engine, found.labels + _plain(annotations))
    name = _of_conmon(parent) or of_podman(container_id, bundle)
    return Known(name, "Podman" if name else "", _plain(annotations))


def of_cgroup(path: str) -> Known:
    """What is known of the container in the cgroup *path*, made by any engine: its id, if not its name."""
    for part in reversed(path.split("/")):
        name = part.removesuffix(".scope")
        engine = next((prefix for prefix in _IDS if name.startswith(prefix)), "")
        container_id = name.removeprefix(engine)
        if len(container_id) == 64 and container_id.isalnum():
            found = of_docker(f"{_DOCKER}/{container_id}")
            return found if found.name else Known(container_id[:12], engine.rstrip("-"))
    return Known(path.rpartition("/")[2])


def of_docker(directory: str) -> Known:
    """The name and the labels in the directory that Docker's daemon keeps of a container."""
    path = f"{directory}/config.v2.json"
    try:
        document = as_object(parse_json(read_regular(path, _LIMIT), path), path)
        config = get_object(document, "Config", "") or {}
        labels = _plain(get_string_map(config, "Labels", "Config"))
        return Known(get_string(document, "Name", "").lstrip("/"), "Docker", labels)
    except (GpurunError, OSError, ValueError):
        return Known()


def of_podman(container_id: str, bundle: str) -> str:
    """The name in the storage that *bundle* lies in: DRIVER-containers/ID/userdata, beside the list of all containers."""
    directory, slash, rest = bundle.rpartition(f"-containers/{container_id}/")
    if not slash or rest != "userdata":
        return ""
    for file in ("containers.json", "volatile-containers.json"):  # the latter has those of `podman run --rm`
        path = f"{directory}-containers/{file}"
        try:
            listed = parse_json(read_regular(path, _LIMIT), path)
        except (GpurunError, OSError):
            continue
        for one in listed if isinstance(listed, list) else []:
            names = one.get("names") if isinstance(one, dict) and one.get("id") == container_id else None
            if isinstance(names, list) and names and isinstance(names[0], str):
                return names[0]
    return ""


def _of_conmon(pid: int) -> str:
    """The name that Podman's monitor *pid* was started with."""
    try:
        words = read_file(f"/proc/{pid}/cmdline").split(b"\0")
    except OSError:
        return ""
    if not words[0].endswith(b"conmon") or b"-n" not in words[:-1]:
        return ""
    return words[words.index(b"-n") + 1].decode("utf-8", "replace")


def parent() -> int:
    """Who has called us: a monitor of containers may be between us and its engine."""
    return posix.getppid()


def _plain(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Labels as pairs; long values are no names."""
    return tuple([(key, value) for key, value in labels.items() if len(key) + len(value) < 512][:128])
