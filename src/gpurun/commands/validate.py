"""validate: every mistake in a bundle's config.json at once, for people; nothing is made, and no root is needed."""

from __future__ import annotations

import json
import os
import site
import sys
from typing import Any

from gpurun.cgroup.tree import Tree
from gpurun.cli.output import write_stdout
from gpurun.engine.plan import Host, make_plan
from gpurun.errors import ConfigError, GpurunError
from gpurun.hook.edits import ContainerEdits
from gpurun.invocation import Invocation
from gpurun.oci.config import read_config
from gpurun.oci.problem import Problem
from gpurun.paths import absolute_path

#: A host that can do everything: what this one lacks is `gpurun explain`'s and create's to say.
_HOST = Host(
    tree=Tree("/sys/fs/cgroup", ("cpu", "cpuset", "hugetlb", "io", "memory", "misc", "pids", "rdma")),
    own_cgroup="/",
    last_cap=63,
    apparmor=True,
    selinux=True,
    resctrl=True,
)


def validate(invocation: Invocation) -> int:
    """``validate [BUNDLE]``: 0 when the config can be used, 1 with a line for each mistake when it cannot."""
    bundle = absolute_path(invocation.args[0] if invocation.args else invocation.option("bundle", "."))
    name = invocation.option("config") or "config.json"
    path = name if name.startswith("/") else f"{bundle}/{name}"
    found = check_file(path, bundle)
    wrong = [problem for problem in found if problem.fatal]
    lines = [("" if p.fatal else "note: ") + (f"{p.where}: {p.what}" if p.where else p.what) for p in found]
    if not wrong:
        lines.append(f"{path}: valid")
    write_stdout("".join([f"{line}\n" for line in lines]))
    return 1 if wrong else 0


def check_file(path: str, bundle: str) -> tuple[Problem, ...]:
    """What is wrong with the config.json at *path*; raises :class:`GpurunError` when it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as e:
        raise GpurunError(f"{path}: {(e.strerror or '').lower()}") from None
    try:
        document = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as e:
        return (Problem(path, f"is not UTF-8 text (byte {e.start})"),)
    except (json.JSONDecodeError, RecursionError) as e:
        return (Problem(path, f"is not valid JSON: {e}"),)
    found = _by_the_models(document)
    if any(problem.fatal for problem in found):
        return found
    try:
        plan = make_plan(read_config(data), "ID", bundle, _HOST, ContainerEdits())
    except ConfigError as e:  # without models anything, with them what no field alone shows: contradictions
        return (Problem(e.where, e.what), *found)
    if not os.path.isdir(plan.rootfs):
        return (Problem("root.path", f'"{plan.rootfs}" is not a directory'), *found)
    return (*found, *[Problem("", warning, fatal=False) for warning in plan.warnings])


def _by_the_models(document: Any) -> tuple[Problem, ...]:
    """Every mistake that the models find; where they cannot be had, the engine's readers find the first one."""
    try:
        from gpurun.oci.problems import problems
    except ImportError:
        site.main()  # an isolated interpreter (the installed launcher's) has not looked there
        try:
            from gpurun.oci.problems import problems
        except ImportError:
            what = "only the first mistake is told: for all of them, install pydantic 2 for this Python"
            return (Problem("", f"{what} ({sys.executable or 'python3'})", fatal=False),)
    return problems(document)
