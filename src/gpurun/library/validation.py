"""What is wrong with a config.json, all mistakes at once; nothing is made, and no root is needed."""

from __future__ import annotations

import os
from typing import Any

from gpurun.cdi.edits import ContainerEdits
from gpurun.cgroup.tree import Tree
from gpurun.engine.caller.bundle import read_document
from gpurun.engine.plan.container import Host, make_plan
from gpurun.errors import ConfigError, GpurunError
from gpurun.oci.config import read_config
from gpurun.oci.problems import problems
from gpurun.oci.reader import parse_json, type_name
from gpurun.oci.schema import Problem, likely
from gpurun.security.capabilities import NAMES

#: A host that can do everything: what this one lacks is `gpurun explain`'s and create's to say.
_HOST = Host(
    tree=Tree("/sys/fs/cgroup", ("cpu", "cpuset", "hugetlb", "io", "memory", "misc", "pids", "rdma")),
    own_cgroup="/",
    last_cap=63,
    apparmor=True,
    selinux=True,
    resctrl=True,
)


def check_file(path: str, bundle: str, named: bool = False) -> tuple[Problem, ...]:
    """What is wrong with the config.json at *path*; raises :class:`GpurunError` when it cannot be read.

    *named* is as for :func:`gpurun.engine.caller.bundle.read_document`.
    """
    try:
        data = read_document(path, named)
    except OSError as e:
        raise GpurunError(f"{path}: {(e.strerror or '').lower()}") from None
    return check_text(data, path, bundle)


def check_text(data: bytes, path: str, bundle: str) -> tuple[Problem, ...]:
    """What is wrong with *data*, the text of a config.json called *path*, whose other paths begin at *bundle*."""
    try:
        document = parse_json(data, path)
    except ConfigError as e:
        return (Problem(path, e.what),)
    if not isinstance(document, dict):
        return (Problem(path, f"must be an object, not {type_name(document)}"),)
    found = (*problems(document), *_capabilities(document))
    if any(problem.fatal for problem in found):
        return found
    try:
        plan = make_plan(read_config(data), "ID", bundle, _HOST, ContainerEdits())
    except ConfigError as e:  # what no single field shows: contradictions
        return (Problem(e.where, e.what), *found)
    if not os.path.isdir(plan.rootfs):
        return (Problem("root.path", f'"{plan.rootfs}" is not a directory'), *found)
    return (*found, *[Problem("", warning, fatal=False) for warning in plan.warnings])


def _capabilities(document: Any) -> tuple[Problem, ...]:
    """Names of capabilities that there are not; create leaves them out with a warning."""
    process = document.get("process") if isinstance(document, dict) else None
    sets = process.get("capabilities") if isinstance(process, dict) else None
    found = []
    for kind, names in sets.items() if isinstance(sets, dict) else ():
        for i, name in enumerate(names if isinstance(names, list) else ()):
            if isinstance(name, str) and name not in NAMES:
                what = f'"{name}" is not a capability and is ignored{likely(name, tuple(NAMES))}'
                found.append(Problem(f"process.capabilities.{kind}[{i}]", what, fatal=False))
    return tuple(found)
