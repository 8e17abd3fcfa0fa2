"""Placement policies: cgroup settings that a container asks for by annotation, or the site for all of its containers,
computed from limits and GPUs.  Pure.

All are off unless asked for, and what the config itself sets in the same file stays as it is.  In ``annotations``:

    dev.gpurun.memory.high        "true", or a share like "0.8": memory.high at 87 % (or that share) of the memory limit, so
                                  that a container near its limit is slowed down and reclaimed before it is killed
    dev.gpurun.memory.swap        "off": no swap, whatever the host has (pinned memory of a GPU job must not wait for a disk)
    dev.gpurun.memory.oom.group   "true": out of memory ends all of the container, never a part of it
    dev.gpurun.cpu.exclusive      "true" or "root": its CPUs (of the config, or local to its GPUs) are its own;
                                  "isolated": without the scheduler's load balancing too
    dev.gpurun.gpu.local          "true": CPUs and memory of the NUMA nodes that its GPUs are on; "cpus", "memory": only one
    dev.gpurun.io.weight          1 to 10000: its share of a busy disk, 100 being the default

The site's file has the same names and values in its table ``[placement]`` (:mod:`gpurun.engine.site_config`).  An
annotation goes before it, "false" included.  What a container asks for and cannot have is an error; what only the site
wants, and a container gives no ground for (a share of a memory limit that it does not have), is left out, and a note says
why.

Reference: admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

from errno import ENOENT

from gpurun.cgroup.resources import CgroupWrite, missing_controller
from gpurun.errors import ConfigError
from gpurun.oci.annotations import GPU_MEMORY, GPU_RESTORE, GPU_THREADS, GPURUN
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpurun.cgroup.tree import Tree

#: Annotations with that prefix that are read by :mod:`gpurun.gpu.request.share` and
#: :mod:`gpurun.gpu.nvidia.request.restore`.
_ELSEWHERE = tuple([name[len(GPURUN) :] for name in (GPU_MEMORY, GPU_THREADS, GPU_RESTORE)])
MEMORY_HIGH_SHARE = 0.87
_PARTITIONS = {"true": "root", "root": "root", "isolated": "isolated"}
_LOCAL = {"true": ("cpuset.cpus", "cpuset.mems"), "cpus": ("cpuset.cpus",), "memory": ("cpuset.mems",)}


class Topology(Record):
    """The NUMA nodes of the host: (number, its CPUs as the kernel lists them)."""

    nodes: tuple[tuple[int, str], ...] = ()


class Unmet(ConfigError):
    """The policy is good, but this container or this host is not one for it."""


class Site(Record):
    """What the site asks for: (policy, value) as its file *path* has them."""

    path: str = ""
    policies: tuple[tuple[str, str], ...] = ()


class Wanted(Record):
    """A policy, and *where* it was asked for; *by_site*: only by the site."""

    policy: str
    value: str
    where: str
    by_site: bool = False


class Asked(Record):
    """What a policy works with: *given* are the writes that the config itself asks for."""

    given: tuple[CgroupWrite, ...]
    gpu_nodes: tuple[int, ...]  # the NUMA node of each GPU of the container; -1 where the host does not say
    topology: Topology


def read_policies(annotations: Mapping[str, str], site: Site) -> tuple[Wanted, ...]:
    """The policies that are asked for, in the order in which they work; raises :class:`ConfigError` for unknown ones."""
    for key in annotations:
        if key.startswith(GPURUN) and key[len(GPURUN) :] not in (*POLICIES, *_ELSEWHERE):
            known = ", ".join([GPURUN + name for name in (*POLICIES, *_ELSEWHERE)])
            raise ConfigError(f"annotations.{key}", f"is an unknown policy, it must be one of {known}")
    by_site = dict(site.policies)
    for name in by_site:
        if name not in POLICIES:
            raise ConfigError(
                f"{site.path}: placement.{name}", f"is an unknown policy, it must be one of {', '.join(POLICIES)}"
            )
    found = []
    for name in POLICIES:
        if GPURUN + name in annotations:
            found.append(Wanted(name, annotations[GPURUN + name], f"annotations.{GPURUN}{name}"))
        elif name in by_site:
            found.append(Wanted(name, by_site[name], f"{site.path}: placement.{name}", by_site=True))
    return tuple([one for one in found if one.value != "false"])


class Placed(Record):
    """*writes* to make after those of the config; *warnings* for the log; *notes* on what the site wants and is left out."""

    writes: tuple[CgroupWrite, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def place(policies: tuple[Wanted, ...], asked: Asked, tree: Tree) -> Placed:
    """What *policies* come to; raises :class:`ConfigError` naming the annotation, or the line of the site's file."""
    made = Placed()
    for one in policies:
        try:
            made = _with(made, one, asked, tree)
        except Unmet as e:
            if not one.by_site:
                raise
            made = replace(made, notes=(*made.notes, f"{one.where} is left out: {e.what}"))
    return made


def _with(made: Placed, one: Wanted, asked: Asked, tree: Tree) -> Placed:
    """*made* with what the policy *one* adds."""
    writes, said = list(made.writes), []
    so_far = replace(asked, given=(*asked.given, *made.writes))
    for write in POLICIES[one.policy](one.value, one.where, so_far):
        if isinstance(write, str):
            said.append(f"{GPURUN}{one.policy}: {write}")
        elif any(write.file == given.file for given in asked.given):
            said.append(f"{GPURUN}{one.policy}: the config sets {write.file} itself, which stays")
        else:
            controller = write.file.partition(".")[0]
            if controller not in tree.controllers:
                raise Unmet(one.where, missing_controller(write, controller, tree.bound_to_v1, "linux.resources", tree.hint))
            writes.append(write)
    if one.by_site:  # the container did not ask for it: explain shows it, the log does not
        return replace(made, writes=tuple(writes), notes=(*made.notes, *said))
    return replace(made, writes=tuple(writes), warnings=(*made.warnings, *said))


def high_after_update(policies: tuple[Wanted, ...], limit: CgroupWrite, unified: Mapping[str, str]) -> CgroupWrite | None:
    """``memory.high`` for a new memory *limit*, where a policy makes it a share of that; None where none does."""
    found = [one for one in policies if one.policy == "memory.high"]
    if not found or "memory.high" in unified:
        return None
    if limit.value == "max":
        return CgroupWrite("memory.high", "max", found[0].where)
    (write,) = _memory_high(found[0].value, found[0].where, Asked((limit,), (), Topology()))
    return write if isinstance(write, CgroupWrite) else None


def _value_of(asked: Asked, file: str) -> str:
    return next((write.value for write in reversed(asked.given) if write.file == file), "")


def _memory_high(value: str, json_path: str, asked: Asked) -> Iterator[CgroupWrite | str]:
    share = MEMORY_HIGH_SHARE
    if value != "true":
        whole, dot, fraction = value.partition(".")
        if whole != "0" or not dot or not (fraction.isascii() and fraction.isdigit()) or not int(fraction):
            raise ConfigError(
                json_path, f'"{value}" must be "true" ({MEMORY_HIGH_SHARE}) or a share between 0 and 1 like 0.8'
            )
        share = float(value)
    limit = _value_of(asked, "memory.max")
    if limit in ("", "max"):
        raise Unmet(json_path, "is a fraction of the memory limit, and there is no limit: set linux.resources.memory.limit")
    yield CgroupWrite("memory.high", str(int(int(limit) * share) & ~4095), json_path)


def _memory_swap(value: str, json_path: str, asked: Asked) -> Iterator[CgroupWrite | str]:
    if value != "off":
        raise ConfigError(json_path, f'"{value}" must be "off"')
    yield CgroupWrite("memory.swap.max", "0", json_path, (ENOENT,))  # a kernel without swap has no such file


def _oom_group(value: str, json_path: str, asked: Asked) -> Iterator[CgroupWrite | str]:
    if value != "true":
        raise ConfigError(json_path, f'"{value}" must be "true" or "false"')
    yield CgroupWrite("memory.oom.group", "1", json_path)


def _gpu_local(value: str, json_path: str, asked: Asked) -> Iterator[CgroupWrite | str]:
    if value not in _LOCAL:
        raise ConfigError(json_path, f'"{value}" must be one of true, cpus, memory, false')
    if not asked.gpu_nodes:
        raise Unmet(json_path, "the container has no GPUs: request some, or remove this annotation")
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
            yield CgroupWrite(file, values[file], json_path)


def _exclusive(value: str, json_path: str, asked: Asked) -> Iterator[CgroupWrite | str]:
    if value not in _PARTITIONS:
        raise ConfigError(json_path, f'"{value}" must be one of true, root, isolated, false')
    cpus = _value_of(asked, "cpuset.cpus")
    if not cpus:
        raise Unmet(json_path, f"does not say which CPUs: set linux.resources.cpu.cpus, or {GPURUN}gpu.local")
    # Linux 6.7; before, the CPUs of a partition are all of its own
    yield CgroupWrite("cpuset.cpus.exclusive", cpus, json_path, (ENOENT,))
    yield CgroupWrite("cpuset.cpus.partition", _PARTITIONS[value], json_path)


def _io_weight(value: str, json_path: str, asked: Asked) -> Iterator[CgroupWrite | str]:
    if not (value.isascii() and value.isdigit()) or not 1 <= int(value[:6]) <= 10000:
        raise ConfigError(json_path, f'"{value}" must be a number from 1 to 10000')
    yield CgroupWrite("io.weight", f"default {value}", json_path)


#: In this order: exclusive CPUs may be those that are local to the GPUs.
POLICIES: dict[str, Callable[[str, str, Asked], Iterator[CgroupWrite | str]]] = {
    "memory.high": _memory_high,
    "memory.swap": _memory_swap,
    "memory.oom.group": _oom_group,
    "gpu.local": _gpu_local,
    "cpu.exclusive": _exclusive,
    "io.weight": _io_weight,
}
