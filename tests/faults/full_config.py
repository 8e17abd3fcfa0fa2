"""A config.json that uses every field gpurun reads, for tests that spoil one field after the other.

It need not be runnable (no machine has all of it): reading comes before everything else, so a wrong type is found first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.native.bundle import Config, base_config

HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")

Path = tuple[str | int, ...]


def full_config() -> Config:
    config = base_config()
    config["domainname"] = "example"
    config["annotations"] = {"key": "value"}
    config["hooks"] = {kind: [{"path": "/bin/true", "args": ["true"], "env": ["A=b"], "timeout": 5}] for kind in HOOKS}
    process = config["process"]
    process["user"] = {"uid": 0, "gid": 0, "umask": 18, "additionalGids": [5]}
    process["consoleSize"] = {"height": 24, "width": 80}
    process["oomScoreAdj"] = 100
    process["capabilities"] |= {"inheritable": ["CAP_KILL"], "ambient": ["CAP_KILL"]}
    linux = config["linux"]
    linux["namespaces"] = [*linux["namespaces"], {"type": "user"}, {"type": "time"}]
    linux["namespaces"][1]["path"] = "/proc/self/ns/net"
    for kind in ("uidMappings", "gidMappings"):
        linux[kind] = [{"containerID": 0, "hostID": 100000, "size": 65536}]
    linux["timeOffsets"] = {"monotonic": {"secs": 1, "nanosecs": 2}}
    linux["devices"] = [
        {"path": "/dev/x", "type": "c", "major": 1, "minor": 3, "fileMode": 438, "uid": 0, "gid": 0},
    ]
    linux["cgroupsPath"] = "/never/made"
    linux["rootfsPropagation"] = "private"
    linux["sysctl"] = {"net.ipv4.ip_forward": "1"}
    linux["resources"] = {
        "devices": [{"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm"}],
        "memory": {"limit": 1 << 26, "reservation": 1 << 25, "swap": 1 << 27},
        "cpu": {"shares": 512, "quota": 1000, "period": 100000, "burst": 0, "idle": 0, "cpus": "0", "mems": "0"},
        "pids": {"limit": 10},
        "blockIO": {
            "weight": 100,
            "throttleReadBpsDevice": [{"major": 8, "minor": 0, "rate": 1000}],
        },
        "hugepageLimits": [{"pageSize": "2MB", "limit": 1 << 21}],
        "rdma": {"mlx5_0": {"hcaHandles": 3, "hcaObjects": 100}},
        "unified": {"memory.high": "1000000"},
    }
    return config


def walk(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value of a document with its path, the document itself first; of an array only the first element."""
    yield path, value
    if isinstance(value, dict):
        for key, member in value.items():
            yield from walk(member, (*path, key))
    elif isinstance(value, list) and value:
        yield from walk(value[0], (*path, 0))


def json_path(path: Path) -> str:
    """``("linux", "namespaces", 0)`` → ``linux.namespaces[0]``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def replaced(config: Config, path: Path, value: Any) -> Config:
    """*config* (changed in place) with *value* at *path*."""
    target: Any = config
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return config


def wrong_values(value: Any) -> list[Any]:
    """Values of every JSON type that is not the type of *value*; null is absent, which is another matter."""
    candidates: list[Any] = [True, 7, 1.5, "text", [7], {"a": 7}]
    return [c for c in candidates if type(c) is not type(value)]


PATHS = [path for path, _ in walk(full_config()) if path]

#: Objects whose keys are free names: a null in them is no absent field.
MAPS = (
    ("annotations",),
    ("linux", "sysctl"),
    ("linux", "resources", "unified"),
    ("linux", "resources", "rdma"),
    ("linux", "timeOffsets"),
)
