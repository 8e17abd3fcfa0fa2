"""Placement policies: cgroup settings that a container asks for by annotation, computed from its limits and its GPUs.  Pure.

All are off unless asked for, and what the config itself sets in the same file stays as it is.  In ``annotations``:

    dev.gpurun.memory.high        "true", or a share like "0.8": memory.high at 87 % (or that share) of the memory limit, so
                                  that a container near its limit is slowed down and reclaimed before it is killed
    dev.gpurun.memory.swap        "off": no swap, whatever the host has (pinned memory of a GPU job must not wait for a disk)
    dev.gpurun.memory.oom.group   "true": out of memory ends all of the container, never a part of it
    dev.gpurun.cpu.exclusive      "true" or "root": its CPUs (of the config, or local to its GPUs) are its own;
                                  "isolated": without the scheduler's load balancing too
    dev.gpurun.gpu.local          "true": CPUs and memory of the NUMA nodes that its GPUs are on; "cpus", "memory": only one
    dev.gpurun.io.weight          1 to 10000: its share of a busy disk, 100 being the default

Reference: admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

from errno import ENOENT

from gpurun.cgroup.resources import CgroupWrite, missing_controller
from gpurun.errors import ConfigError
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpurun.cgroup.tree import Tree

PREFIX = "dev.gpurun."
MEMORY_HIGH_SHARE = 0.87
_PARTITIONS = {"true": "root", "root": "root", "isolated": "isolated"}
_LOCAL = {"true": ("cpuset.cpus", "cpuset.mems"), "cpus": ("cpuset.cpus",), "memory": ("cpuset.mems",)}


class Topology(Record):
    """The NUMA nodes of the host: (number, its CPUs as the kernel lists them)."""

    nodes: tuple[tuple[int, str], ...] = ()


class Asked(Record):
    """What a policy works with: *given* are the writes that the config itself asks for."""

    given: tuple[CgroupWrite, ...]
    gpu_nodes: tuple[int, ...]  # the NUMA node of each GPU of the container; -1 where the host does not say
    topology: Topology
    path: str  # of the cgroup, below the root of the tree


def place(annotations: Mapping[str, str], asked: Asked, tree: Tree) -> tuple[tuple[CgroupWrite, ...], tuple[str, ...]]:
    """(writes to make after those of the config, warnings); raises :class:`ConfigError` naming the annotation."""
    writes: list[CgroupWrite] = []
    warnings: list[str] = []
    unknown = [key for key in annotations if key.startswith(PREFIX) and key[len(PREFIX) :] not in _POLICIES]
    if unknown:
        known = ", ".join([PREFIX + name for name in _POLICIES])
        raise ConfigError(f"annotations.{unknown[0]}", f"there is no such policy; there are {known}")
    given = {write.file for write in asked.given}
    for name, policy in _POLICIES.items():
        value = annotations.get(PREFIX + name)
        if value is None or value == "false":
            continue
        where = f"annotations.{PREFIX}{name}"
        for write in policy(value, where, Asked((*asked.given, *writes), asked.gpu_nodes, asked.topology, asked.path)):
            if isinstance(write, str):
                warnings.append(f"{PREFIX}{name}: {write}")
            elif write.file in given:
                warnings.append(f"{PREFIX}{name}: the config sets {write.file} itself, which stays")
            else:
                controller = write.file.partition(".")[0]
                if controller not in tree.controllers:
                    text = missing_controller(write, controller, tree.bound_to_v1, "linux.resources", tree.hint)
                    raise ConfigError(where, text)
                writes.append(write)
    return tuple(writes), tuple(warnings)


def _value_of(asked: Asked, file: str) -> str:
    return next((write.value for write in reversed(asked.given) if write.file == file), "")


def _memory_high(value: str, where: str, asked: Asked) -> Iterator[CgroupWrite | str]:
    share = MEMORY_HIGH_SHARE
    if value != "true":
        whole, dot, fraction = value.partition(".")
        if whole != "0" or not dot or not (fraction.isascii() and fraction.isdigit()) or not int(fraction):
            raise ConfigError(where, f'"{value}" must be "true" ({MEMORY_HIGH_SHARE}) or a share between 0 and 1 like 0.8')
        share = float(value)
    limit = _value_of(asked, "memory.max")
    if limit in ("", "max"):
        raise ConfigError(where, "is a share of the memory limit: set linux.resources.memory.limit")
    yield CgroupWrite("memory.high", str(int(int(limit) * share) & ~4095), where)


def _memory_swap(value: str, where: str, asked: Asked) -> Iterator[CgroupWrite | str]:
    if value != "off":
        raise ConfigError(where, f'"{value}" must be "off"')
    yield CgroupWrite("memory.swap.max", "0", where, (ENOENT,))  # a kernel without swap has no such file


def _oom_group(value: str, where: str, asked: Asked) -> Iterator[CgroupWrite | str]:
    if value != "true":
        raise ConfigError(where, f'"{value}" must be "true" or "false"')
    yield CgroupWrite("memory.oom.group", "1", where)


def _gpu_local(value: str, where: str, asked: Asked) -> Iterator[CgroupWrite | str]:
    if value not in _LOCAL:
        raise ConfigError(where, f'"{value}" must be one of true, cpus, memory, false')
    if not asked.gpu_nodes:
        raise ConfigError(where, "the container has no GPUs to be near to: let it ask for some, or leave this out")
    cpus = dict(asked.topology.nodes)
    nodes = sorted({node for node in asked.gpu_nodes if node >= 0})
    if not nodes or -1 in asked.gpu_nodes:
        yield "the host does not say which NUMA node its GPUs are on (a machine with one node has nothing to say)"
        return
    lost = [node for node in nodes if node not in cpus]
    if lost:
        yield f"a GPU is on NUMA node {lost[0]}, which this host does not have"
        return
    if len(nodes) > 1:
        yield f"the GPUs are on different NUMA nodes ({', '.join([str(n) for n in nodes])}): all of these are used"
    values = {"cpuset.cpus": ",".join([cpus[n] for n in nodes if cpus[n]]), "cpuset.mems": ",".join([str(n) for n in nodes])}
    for file in _LOCAL[value]:
        if values[file]:
            yield CgroupWrite(file, values[file], where)


def _exclusive(value: str, where: str, asked: Asked) -> Iterator[CgroupWrite | str]:
    if value not in _PARTITIONS:
        raise ConfigError(where, f'"{value}" must be one of true, root, isolated, false')
    cpus = _value_of(asked, "cpuset.cpus")
    if not cpus:
        raise ConfigError(where, f"which CPUs? set linux.resources.cpu.cpus, or {PREFIX}gpu.local")
    if asked.path.count("/") != 1:
        # The kernel wants the parent to be a partition too; only the root of the tree is one without our doing.
        raise ConfigError(
            where,
            f"a cgroup with CPUs of its own must be directly below the root of the tree, and this one is {asked.path}: "
            'set linux.cgroupsPath to "/NAME" (with systemd "-.slice:gpurun:NAME")',
        )
    yield CgroupWrite("cpuset.cpus.exclusive", cpus, where, (ENOENT,))  # Linux 6.7; before, a partition's are all of its own
    yield CgroupWrite("cpuset.cpus.partition", _PARTITIONS[value], where)


def _io_weight(value: str, where: str, asked: Asked) -> Iterator[CgroupWrite | str]:
    if not (value.isascii() and value.isdigit()) or not 1 <= int(value[:6]) <= 10000:
        raise ConfigError(where, f'"{value}" must be a number from 1 to 10000')
    yield CgroupWrite("io.weight", f"default {value}", where)


#: In this order: exclusive CPUs may be those that are local to the GPUs.
_POLICIES: dict[str, Callable[[str, str, Asked], Iterator[CgroupWrite | str]]] = {
    "memory.high": _memory_high,
    "memory.swap": _memory_swap,
    "memory.oom.group": _oom_group,
    "gpu.local": _gpu_local,
    "cpu.exclusive": _exclusive,
    "io.weight": _io_weight,
}
