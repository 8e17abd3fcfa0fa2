"""Plans for tests: of any config, on a host that is always the same, without root and without touching anything."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from gpurun.cdi.edits import ContainerEdits
from gpurun.cgroup.tree import Tree
from gpurun.engine.plan.container import Host, Plan, PlanOptions, make_plan
from gpurun.errors import ConfigError
from gpurun.oci.config import read_config
from tests.native.bundle import BASE

CONTROLLERS = ("cpu", "cpuset", "hugetlb", "io", "memory", "pids", "rdma")
HOST = Host(Tree("/sys/fs/cgroup", CONTROLLERS, ()), "/system.slice/caller.service", 40)


def base() -> dict[str, Any]:
    return copy.deepcopy(BASE)


def plan(config: dict[str, Any], host: Host = HOST, **options: Any) -> Plan:
    read = read_config(json.dumps(config).encode())
    return make_plan(read, "c1", "/bundle", host, ContainerEdits(), PlanOptions(**options))


def set_path(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """*config* with *value* at the dotted *path*; a value of ``...`` removes it."""
    *parents, last = path.split(".")
    place = config
    for name in parents:
        place = place.setdefault(name, {})
    if value is ...:
        place.pop(last, None)
    else:
        place[last] = value
    return config


def refusal(config: dict[str, Any], host: Host = HOST, **options: Any) -> str:
    """The text with which *config* is refused."""
    with pytest.raises(ConfigError) as raised:
        plan(config, host, **options)
    return str(raised.value)
