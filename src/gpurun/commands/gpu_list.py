"""gpu list: the GPUs of this host, what they are divided into, and who uses them.

The JSON form is for programs and only ever grows: ``driverVersion``, and ``gpus``, each with ``index``, ``uuid``, ``busId``,
``minor``, ``numaNode`` (-1: the host does not say), ``model``, ``node``, ``migDevices`` (``gpuInstance``,
``computeInstance``, ``uuid``, ``index``, ``profile``, ``nodes``, ``containers``, ``holders``), ``containers`` (ids of
gpurun's), ``holders`` (all containers that have it, of any runtime: ``id``, ``name``, ``engine``, ``pid``) and ``leases``
(as ``gpu leases --json`` has them, of it and of its MIG devices).  Those of other makers follow, with more
(:mod:`gpurun.commands.gpu_list_makers`).  With
``--processes`` NVML is asked as well (within a time limit): then ``memory`` (``total``, ``used``: bytes), ``utilization``
(percent) and ``processes`` (``pid``, ``command``, ``container``, ``memory``) are there, and ``nvml`` says why NVML said
nothing.  What is not known is null.
"""

from __future__ import annotations

from gpurun.cli.terminal import fold, width
from gpurun.commands.all_containers import of_gpurun, short_id
from gpurun.commands.gpu_leases import row as lease_row
from gpurun.commands.gpu_list_makers import add_readings, maker_row, other_makers
from gpurun.commands.gpu_use import Held, Holder, containers_of, holders, other_containers
from gpurun.commands.tables import align
from gpurun.engine.gpus.leases import open_store
from gpurun.errors import GpurunError, clean
from gpurun.formats.jsontext import dumps
from gpurun.gpu.device import Survey
from gpurun.gpu.doctor_host import other_cards
from gpurun.gpu.leases.container_nodes import cgroup_of
from gpurun.gpu.leases.names import of_cgroup
from gpurun.gpu.nvidia.host.driver import module_version
from gpurun.gpu.nvidia.host.gpus import read_gpus
from gpurun.gpu.nvidia.host.health import unwell
from gpurun.gpu.nvidia.host.nvml import USAGE, find_nvml, query
from gpurun.gpu.nvidia.host.roots import PROC
from gpurun.gpu.nvidia.platforms.platform import TEGRA, WSL, detect
from gpurun.gpu.nvidia.request.settings import Settings, roots_of, site_settings
from gpurun.gpu.nvidia.survey import survey_below
from gpurun.gpu.offers import cards, none_of_any
from gpurun.gpu.request.share import share_text
from gpurun.gpu.vendors import VENDORS
from gpurun.output import one_line, write_stderr, write_stdout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gpurun.gpu.host.reads import HostNode
    from gpurun.gpu.leases.lease import Lease
    from gpurun.gpu.nvidia.host.gpus import Gpu
    from gpurun.gpu.nvidia.host.mig import MigDevice
    from gpurun.gpu.nvidia.host.roots import Roots

    Row = dict[str, Any]

#: The second is UUID where all GPUs have one.
_COLUMNS = ("INDEX", "NAME", "BUS ID", "NODE", "NUMA", "MODEL", "CONTAINERS")
_MIB = 1 << 20
_NO_OTHERS = Survey(())


def list_gpus(env: Mapping[str, str], form: str, roots: tuple[str, ...], processes: bool) -> int:
    """``gpu list``: *roots* are the state directories whose containers are looked at; returns the exit code, which is 1
    where a driver does not tell which GPUs it has."""
    gpu_roots = site_roots(env)
    others = other_makers(env)
    if others.problem:
        write_stderr(f"gpurun: {others.problem}")
    answer = describe(gpu_roots, roots, processes, _leases(env), others)
    if processes:
        add_readings(answer["gpus"], env, lambda text: write_stderr(f"gpurun: {text}"))
    if form == "json":
        write_stdout(dumps(answer, 2) + "\n")
    elif answer["gpus"]:
        write_stdout(fitting(answer, width()))
    elif not others.problem:
        write_stderr(f"gpurun: {why_none(gpu_roots, answer['driverVersion'])}")
    return 1 if others.problem else 0


def _leases(env: Mapping[str, str]) -> tuple[Lease, ...]:
    """All leases; none, and a sentence that says so, where they cannot be read."""
    try:
        return open_store(env).leases()
    except GpurunError as e:
        write_stderr(f"gpurun: leases are not shown: {e}")
        return ()


def why_none(gpu_roots: Roots, version: str) -> str:
    """Why there is no GPU to list, where was looked for one, and what to do."""
    platform = detect(gpu_roots)
    if platform == WSL:
        return (
            "no GPU to list: this is WSL 2, whose GPUs are one device, /dev/dxg: ask for it with NVIDIA_VISIBLE_DEVICES=all"
        )
    if platform == TEGRA and not version:
        return "no GPU to list: this is a Tegra, whose GPU is no PCI card: ask for it with NVIDIA_VISIBLE_DEVICES=0 or all"
    proc = f"{gpu_roots.sysroot}{PROC}"
    others = "; ".join([finding.text for finding in other_cards(gpu_roots)])
    if not version and not cards(gpu_roots.sysroot, VENDORS[:1]):
        return none_of_any({"GPURUN_SYSROOT": gpu_roots.sysroot})
    if not version:
        text = f"no GPU: the driver's kernel module is not loaded, there is no {proc}/version: `modprobe nvidia`"
    else:
        text = f"no GPU: the driver {version} is loaded and has none in {proc}/gpus"
        text += ": look whether one is in the machine (`lspci -d 10de:`)"
    return f"{text}{f'; {others}' if others else ''}; `gpurun gpu doctor` looks further"


def site_roots(env: Mapping[str, str]) -> Roots:
    """Where the site's settings say the driver is; a file that cannot be read is the doctor's business."""
    try:
        settings = site_settings(env)
    except GpurunError:
        settings = Settings()
    return roots_of(env, settings)


def describe(
    gpu_roots: Roots,
    roots: tuple[str, ...],
    processes: bool,
    leases: tuple[Lease, ...] = (),
    others: Survey = _NO_OTHERS,
) -> Row:
    """The document of the JSON form; *others* are the GPUs of other makers than NVIDIA."""
    gpus = read_gpus(gpu_roots)
    held = containers_of(roots)
    every = Survey((*survey_below(gpu_roots, ask=False).units, *others.units))
    having = [(one, _holder(one)) for one in (*held, *other_containers(every, held))]
    answer: Row = {"driverVersion": module_version(gpu_roots), "gpus": [_gpu(gpu, held, having, leases) for gpu in gpus]}
    _add_nvml(answer, gpu_roots, gpus, held, processes)
    answer["gpus"] += [
        maker_row(unit, lambda nodes: _ids(held, nodes), lambda nodes: _holders(having, nodes), leases)
        for unit in others.units
    ]
    if others.units and not gpus:
        answer.pop("nvml", None)
    return answer


def _add_nvml(answer: Row, gpu_roots: Roots, gpus: tuple[Gpu, ...], held: tuple[Held, ...], processes: bool) -> None:
    """Put into *answer* which of NVIDIA's GPUs are not well, and if *processes* are wanted what NVML says of them."""
    said, problem = _usage(gpu_roots) if processes else (None, None)
    ill = unwell(gpu_roots, gpus, said, silent=processes and said is None)
    for row, gpu in zip(answer["gpus"], gpus, strict=True):
        row["problem"] = ill.get(gpu.bus_id.lower())
    if not processes:
        return
    usage = {str(gpu["busId"]).lower(): gpu for gpu in said["gpus"] if gpu.get("busId")} if said else {}
    using = holders(tuple([(g.node.major, g.node.minor) for g in gpus]), held)
    for row, gpu in zip(answer["gpus"], gpus, strict=True):
        _add_usage(row, usage.get(gpu.bus_id.lower(), {}), using.get((gpu.node.major, gpu.node.minor), ()))
    answer["nvml"] = problem


def _gpu(gpu: Gpu, held: tuple[Held, ...], having: list[tuple[Held, Row]], leases: tuple[Lease, ...]) -> Row:
    keys = {lease.file: [unit.key.partition("/")[0] for unit in lease.units] for lease in leases}
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "busId": gpu.bus_id,
        "minor": gpu.minor,
        "numaNode": gpu.numa_node,
        "model": gpu.model,
        "node": gpu.node.host_path,
        "migDevices": [_mig(mig, held, having) for mig in gpu.mig],
        "containers": _ids(held, (gpu.node,)),
        "holders": _holders(having, (gpu.node,)),
        "leases": [lease_row(lease) for lease in leases if gpu.bus_id.lower() in keys[lease.file]],
    }


def _mig(mig: MigDevice, held: tuple[Held, ...], having: list[tuple[Held, Row]]) -> Row:
    return {
        "gpuInstance": mig.gi,
        "computeInstance": mig.ci,
        "uuid": mig.uuid or None,
        "index": mig.index if mig.index >= 0 else None,
        "profile": mig.profile or None,
        "nodes": [node.host_path for node in mig.nodes],
        "containers": _ids(held, mig.nodes),
        "holders": _holders(having, mig.nodes),
    }


def _ids(held: tuple[Held, ...], nodes: tuple[HostNode, ...]) -> list[str]:
    """The containers that have all of *nodes*."""
    wanted = {(node.major, node.minor) for node in nodes}
    return [h.id for h in held if wanted and wanted <= set(h.devices)]


def _holders(having: list[tuple[Held, Row]], nodes: tuple[HostNode, ...]) -> list[Row]:
    wanted = {(node.major, node.minor) for node in nodes}
    return [row for one, row in having if wanted and wanted <= set(one.devices)]


def _holder(one: Held) -> Row:
    """What is printed of a container: its id, as far as it has one, what its engine calls it, and its first process."""
    known = of_cgroup(cgroup_of(one.pid))
    name, engine = ("" if known.name == one.id[:12] else known.name), known.engine
    if one.root:
        try:
            listed = of_gpurun(one.root, one.id)
            name, engine = listed.name, listed.engine
        except (GpurunError, OSError, ValueError):
            pass  # just being deleted
    return {"id": one.id or None, "name": name or None, "engine": engine or None, "pid": one.pid}


def _container_names(holders: list[Row]) -> str:
    """The names of containers, for people: by name, else by as much of the id as engines show."""
    names = [one["name"] or short_id(one["id"] or "") or f"process {one['pid']}" for one in holders]
    return ",".join([clean(name) for name in names])


def _usage(gpu_roots: Roots) -> tuple[Row | None, str | None]:
    """NVML's answer, or what kept it from answering."""
    try:
        return query(find_nvml(gpu_roots), USAGE), None
    except GpurunError as e:
        return None, str(e)


def _add_usage(row: Row, details: Row, using: tuple[Holder, ...]) -> None:
    total, used = details.get("memoryTotal"), details.get("memoryUsed")
    row["memory"] = None if total is None else {"total": total, "used": used}
    row["utilization"] = details.get("utilization")
    memory = {p["pid"]: p.get("memory") for p in details.get("processes") or ()}
    row["processes"] = [
        {"pid": h.pid, "command": h.command, "container": h.container or None, "memory": memory.get(h.pid)} for h in using
    ]
    seen = {h.pid for h in using}
    row["processes"] += [  # whose open files are not ours to see
        {"pid": pid, "command": None, "container": None, "memory": size} for pid, size in memory.items() if pid not in seen
    ]
    identities = {(m["gpuInstance"], m["computeInstance"]): m for m in details.get("migDevices") or ()}
    for mig in row["migDevices"]:
        known = identities.get((mig["gpuInstance"], mig["computeInstance"]), {})
        mig |= {name: known.get(name) for name in ("uuid", "index", "profile")}


def fitting(answer: Row, columns: int) -> str:
    """The document for people: a table where it fits into *columns* (0: any number), else a few lines for each GPU."""
    text = table(answer)
    if not columns or all(len(line) <= columns for line in text.splitlines()):
        return text
    return fold(blocks(answer), columns)


def blocks(answer: Row) -> str:
    """Each GPU in lines of its own: the index and the model, then what the columns of the table have."""
    text = ""
    names = [name.lower() for name in _columns(answer)]
    for row in answer["gpus"]:
        cells = dict(zip(names, _cells(row), strict=True))
        text += f"{cells.pop('index')}   {cells.pop('model')}\n"
        text += "".join([f"    {name:10}  {cell}\n" for name, cell in cells.items() if cell])
        text += "".join([f"    {note}\n" for note in _notes(row)])
    return text + _nvml_line(answer)


def _columns(answer: Row) -> tuple[str, ...]:
    """The heads of the columns: the word for NVIDIA's GPUs is UUID, and those of other makers have none."""
    others = any("vendor" in row for row in answer["gpus"])
    return tuple(["UUID" if name == "NAME" and not others else name for name in _COLUMNS])


def _cells(row: Row) -> tuple[str, ...]:
    """What stands below :data:`_COLUMNS`."""
    numa = str(row["numaNode"]) if row["numaNode"] != -1 else "-"
    index = f"{row['vendor']}:{row['index']}" if "vendor" in row else str(row["index"])
    cells = (index, row["uuid"], row["busId"], row["node"], numa, row["model"], _container_names(row["holders"]))
    return tuple([one_line(cell) for cell in cells])


def _notes(row: Row) -> list[str]:
    ill = [f"not well: {one_line(row['problem'])}"] if row.get("problem") else []
    notes = [*ill, *[_lease_line(lease) for lease in row["leases"]], *[_mig_line(mig) for mig in row["migDevices"]]]
    return [one_line(note) for note in (*notes, *_usage_lines(row))]


def _lease_line(lease: Row) -> str:
    how = {"named": "in", "released": "still in"}.get(lease["kind"], "leased by")
    if lease["kind"] == "share":
        how = f"{share_text(lease['memory'] or 0, lease['threads'] or 0)} of it for"
    engine = f" of {lease['engine']}" if lease["engine"] else ""
    return f"{how} {lease['name'] or lease['id']}{engine} since {lease['since']}"


def _nvml_line(answer: Row) -> str:
    return f"memory and load are not known: {one_line(answer['nvml'])}\n" if answer.get("nvml") else ""


def table(answer: Row) -> str:
    """A line for each GPU, below it its MIG devices and processes."""
    head, *lines = align([_columns(answer), *[_cells(row) for row in answer["gpus"]]], 0)
    text = f"{head}\n"
    for row, line in zip(answer["gpus"], lines, strict=True):
        text += "".join([f"{line}\n", *[f"        {note}\n" for note in _notes(row)]])
    return text + _nvml_line(answer)


def _mig_line(mig: Row) -> str:
    name = " ".join([str(mig[k]) for k in ("profile", "uuid") if mig[k]])
    used = f"   {_container_names(mig['holders'])}" if mig["holders"] else ""
    return f"MIG device {mig['gpuInstance']}/{mig['computeInstance']}{f' {name}' if name else ''}{used}"


def _usage_lines(row: Row) -> list[str]:
    lines = []
    if row.get("memory"):
        used, total = [row["memory"][k] for k in ("used", "total")]
        load = row.get("utilization")
        in_use = "?" if used is None else str(used // _MIB)
        lines.append(f"{in_use} of {total // _MIB} MiB in use" + (f", load {load['gpu']} %" if load else ""))
    for process in row.get("processes", ()):
        size = f" {process['memory'] // _MIB} MiB" if process["memory"] is not None else ""
        in_container = f" in {process['container']}" if process["container"] else ""
        lines.append(f"process {process['pid']} {process['command'] or '?'}{in_container}{size}")
    return lines
