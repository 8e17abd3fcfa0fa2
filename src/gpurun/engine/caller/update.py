"""update: new limits for a container that is there.

What is asked for is merged with what the container was made with (or last updated to), checked as a whole, and written;
if the kernel refuses a value, those written before it are put back.  Devices are never touched: programs that others have
attached stay, and so does access that the container has been given since.
"""

from __future__ import annotations

import posix

from gpurun import log
from gpurun.cgroup import manager, tree
from gpurun.cgroup.resources import CgroupWrite, plan_resources
from gpurun.engine import kept
from gpurun.engine import state as store
from gpurun.errors import GpurunError, NotRunning, StepError
from gpurun.formats.jsontext import dumps
from gpurun.linux.files import Fd, read_fd, read_file, write_atomically
from gpurun.linux.fs import RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV, openat2
from gpurun.oci.reader import as_object, get_object, get_string_map, parse_json
from gpurun.oci.resources import BlockIO, Cpu, Memory, Resources, read_resources
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpurun.engine.plan.resctrl import RdtPlan

_BENEATH = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
_THROTTLES = {
    "read_bps": "throttleReadBpsDevice",
    "write_bps": "throttleWriteBpsDevice",
    "read_iops": "throttleReadIOPSDevice",
    "write_iops": "throttleWriteIOPSDevice",
}
_UNITS = "bkmgtp"
_MAX_DIGITS = 20  # of 2^64, beyond which nothing is a size


def parse_bytes(text: str, option: str) -> int:
    """A number of bytes as Docker's tools take it: ``512m``, ``1.5GiB``, ``-1`` for no limit; units are powers of 1024.

    Raises :class:`GpurunError` for any other text.
    """
    if text == "-1":
        return -1
    number = text.strip().lower()
    number = number.removesuffix("b").removesuffix("i") or number
    unit = number[-1:]
    power = _UNITS.find(unit) if unit and unit in _UNITS else 0
    number = number.removesuffix(unit).rstrip(" ") if power else number
    whole, dot, fraction = number.partition(".")
    good = whole.isascii() and whole.isdigit() and (not dot or (fraction.isascii() and fraction.isdigit()))
    if not good or len(whole) > _MAX_DIGITS or len(fraction) > _MAX_DIGITS:
        raise GpurunError(f'invalid value for {option}: "{text}" is not a size like 536870912, 512m or 1g')
    scale = 1 << (10 * power)
    return int(whole) * scale + (int(fraction) * scale // 10 ** len(fraction) if dot else 0)


def read_update(document: bytes | dict[str, Any], source: str) -> Resources:
    """The resources asked for, from the text of a JSON document or as an object already; *source* names it in errors."""
    obj = as_object(parse_json(document, source), source) if isinstance(document, bytes) else document
    return read_resources(obj, "")


def merge(old: Resources, new: Resources) -> Resources:
    """*old* with what *new* gives.  Devices, huge pages and RDMA are not for update: they stay as they are."""
    return replace(
        old,
        memory=_merge_memory(old.memory, new.memory),
        cpu=_merge_cpu(old.cpu, new.cpu),
        pids_limit=old.pids_limit if new.pids_limit is None else new.pids_limit,
        block_io=_merge_block_io(old.block_io, new.block_io),
        unified={**old.unified, **new.unified},
    )


def _merge_memory(old: Memory | None, new: Memory | None) -> Memory | None:
    if old is None or new is None:
        return new or old
    swap = new.swap or old.swap
    if new.limit == -1 and not new.swap:
        swap = 0  # no limit of memory and swap together either
    return Memory(
        limit=new.limit or old.limit,
        reservation=new.reservation or old.reservation,
        swap=swap,
        check_before_update=new.check_before_update,
    )


def _merge_cpu(old: Cpu | None, new: Cpu | None) -> Cpu | None:
    if old is None or new is None:
        return new or old
    shares = new.shares or old.shares
    if new.idle is not None and not new.shares:
        shares = 0  # the kernel has a weight of its own for idle cgroups, and sets the default when they are no longer
    return Cpu(
        shares=shares,
        quota=new.quota or old.quota,
        period=new.period or old.period,
        burst=old.burst if new.burst is None else new.burst,
        idle=old.idle if new.idle is None else new.idle,
        cpus=new.cpus or old.cpus,
        mems=new.mems or old.mems,
    )


def _merge_block_io(old: BlockIO | None, new: BlockIO | None) -> BlockIO | None:
    if old is None or new is None:
        return new or old
    changes: dict[str, Any] = {
        name: _by_device(getattr(old, name), getattr(new, name)) for name in ("weight_devices", *_THROTTLES)
    }
    return BlockIO(weight=new.weight or old.weight, **changes)


def _by_device(old: tuple[Any, ...], new: tuple[Any, ...]) -> tuple[Any, ...]:
    devices = {(entry.major, entry.minor): entry for entry in (*old, *new)}
    return tuple(devices.values())


def to_write(new: Resources, merged: Resources) -> Resources:
    """What is written for *new*: what it gives, and of *merged* what goes into the same file or limits the same thing.

    All else stays as the kernel has it, which others (systemd, a person) may have changed with good reason.
    """
    memory, cpu = None, None
    if new.memory is not None and merged.memory is not None:
        both = bool(new.memory.limit or new.memory.swap)
        memory = Memory(
            limit=merged.memory.limit if both else 0,
            reservation=new.memory.reservation,
            swap=merged.memory.swap if both else 0,
        )
    if new.cpu is not None and merged.cpu is not None:
        both = bool(new.cpu.quota or new.cpu.period)
        cpu = Cpu(
            shares=new.cpu.shares,
            quota=merged.cpu.quota if both else 0,
            period=merged.cpu.period if both else 0,
            burst=merged.cpu.burst if both else new.cpu.burst,
            idle=merged.cpu.idle if new.cpu.shares else new.cpu.idle,
            cpus=new.cpu.cpus,
            mems=new.cpu.mems,
        )
    return Resources(memory=memory, cpu=cpu, pids_limit=new.pids_limit, block_io=new.block_io, unified=new.unified)


def update_container(root: str, container_id: str, new: Resources, schemata: dict[str, str] | None = None) -> None:
    """Give the container the limits *new*, and *schemata* of Intel RDT (members of ``linux.intelRdt``, as far as given).

    Raises :class:`GpurunError`, and then it has the limits it had.
    """
    state = store.load(root, container_id)
    if store.status(root, state) == "stopped":
        raise NotRunning
    if kept.is_changing(root, container_id):
        from gpurun.engine.gpus.attach_steps import settle

        settle(root, container_id)
    path = f"{root}/{container_id}/config.json"
    document = as_object(parse_json(read_file(path, store.MAX_SAVED_CONFIG), path), path)
    linux = get_object(document, "linux", "") or {}
    old_obj = get_object(linux, "resources", "linux") or {}
    merged = merge(read_resources(old_obj, "linux.resources"), new)
    found = tree.find_tree()
    writes = plan_resources(to_write(new, merged), found.controllers, found.bound_to_v1, json_path="resources")
    writes += _follow_limit(root, document, merged, writes)
    if state.unit:
        from gpurun.cgroup.scope import as_systemd_rounds

        writes = as_systemd_rounds(writes)
    rdt = get_object(linux, "intelRdt", "linux")
    rdt_plan = _plan_rdt(rdt, schemata, container_id) if schemata else None
    with Fd(manager.open_dir(state.cgroup)) as fd:
        if merged.memory is not None and new.memory is not None and new.memory.check_before_update:
            manager.check_memory_before_update(fd, merged.memory.limit, merged.memory.swap)
        before = contents(fd, writes)
        try:
            apply(fd, state, writes)
            changed: dict[str, Any] = {"resources": {**old_obj, **to_document(merged, old_obj)}}
            if rdt_plan is not None and schemata:
                from gpurun.engine.caller.resctrl import update_rdt

                pids = manager.processes(state.cgroup)
                update_rdt(rdt_plan, tuple(schemata.values()), pids, f"{root}/{container_id}/resctrl")
                changed["intelRdt"] = {**(rdt or {}), **schemata}
            text = dumps({**document, "linux": {**linux, **changed}})
            write_atomically(path, text.encode("utf-8", "surrogateescape"), 0o600)
        except (GpurunError, OSError) as e:
            put_back(fd, state, before)
            if isinstance(e, OSError):
                raise StepError("save the config", path, e.errno) from None
            raise


def _plan_rdt(obj: dict[str, Any] | None, schemata: dict[str, str], container_id: str) -> RdtPlan:
    from gpurun.engine.caller import resctrl as rdt
    from gpurun.engine.plan import resctrl

    if obj is None:
        raise GpurunError("linux.intelRdt: updating a non-existent Intel RDT configuration is not supported")
    return resctrl.plan_rdt({**obj, **schemata}, container_id, rdt.resctrl_mounted(resctrl.RESCTRL), resctrl.RESCTRL)


def _follow_limit(
    root: str, document: dict[str, Any], merged: Resources, writes: tuple[CgroupWrite, ...]
) -> tuple[CgroupWrite, ...]:
    """What a new memory limit entails: ``memory.high``, where a placement policy makes it a share of the limit."""
    limit = next((write for write in writes if write.file == "memory.max"), None)
    if limit is None:
        return ()
    from gpurun.cgroup.placement import Site, high_after_update, read_policies
    from gpurun.document_cache import keep_documents
    from gpurun.engine.site_config import read_site, site_path

    keep_documents(root)
    policies = read_policies(get_string_map(document, "annotations", ""), read_site(site_path(posix.environ)) or Site())
    high = high_after_update(policies, limit, merged.unified)
    return (high,) if high is not None else ()


def apply(fd: int, state: store.State, writes: tuple[CgroupWrite, ...]) -> None:
    """Make all *writes* in the cgroup that *fd* is, until one fails.

    systemd, where it has made the cgroup, gets them first, or it would take them back when it next has a reason to: what it
    writes, rounded its way, is then written as it was asked for.
    """
    if state.unit:
        from gpurun.cgroup.scope import limit_properties
        from gpurun.cgroup.systemd import set_properties

        set_properties(state.unit, limit_properties(writes), state.manager)
    manager.write_resources(fd, writes)
    manager.check_dmem(fd, writes)


def contents(fd: int, writes: tuple[CgroupWrite, ...]) -> tuple[tuple[str, str], ...]:
    """(file, content now) of all that *writes* would change, for :func:`put_back`."""
    files = [w.file for w in writes] + [w.otherwise.file for w in writes if w.otherwise]
    found = [(file, _read(fd, file)) for file in dict.fromkeys(files)]
    return tuple([(file, text) for file, text in found if text is not None])


def put_back(fd: int, state: store.State, before: tuple[tuple[str, str], ...]) -> None:
    """Give the files their old contents again, last first; best effort, for the error that led here is the one to tell."""
    if state.unit:
        try:
            single = [(file, text.strip()) for file, text in before if file not in _BY_DEVICE]
            apply(fd, state, tuple([CgroupWrite(file, text, file) for file, text in single if text]))
        except GpurunError as e:
            log.warning(f"the limits of the systemd unit {state.unit} are no longer the container's: {e}")
    for file, text in reversed(before):
        for line in restoring_lines(file, text, _read(fd, file) or ""):
            try:
                manager.write_resources(fd, (CgroupWrite(file, line, file),))
            except GpurunError:
                continue  # the kernel took it once and does no longer: what is there now stays


#: Files with a line for each device → what a device without a line has.
_BY_DEVICE = {
    "io.max": "rbps=max wbps=max riops=max wiops=max",
    "dmem.max": "max",
    "dmem.low": "0",
    "dmem.min": "0",
    **dict.fromkeys(("io.weight", "io.bfq.weight", "io.latency", "io.cost.qos", "rdma.max"), "default"),
}


def restoring_lines(file: str, before: str, now: str) -> tuple[str, ...]:
    """What to write to *file*, which says *now*, so that it says *before* again: files with a line for each device take one
    device in a write, and a device that had no line is given the default."""
    if file not in _BY_DEVICE:
        return (before.strip() or "\n",)
    lines = before.split("\n")
    devices = [line.split()[0] for line in lines if line]
    default = _BY_DEVICE[file]
    new = [line.split()[0] for line in now.split("\n") if line and line.split()[0] not in devices]
    return tuple([line for line in lines if line] + [f"{device} {default}" for device in new])


def _read(fd: int, name: str) -> str | None:
    """The content of a file of the cgroup; None where it cannot be read (missing, or write-only)."""
    try:
        file = openat2(fd, name, posix.O_RDONLY, _BENEATH)
    except OSError:
        return None
    with Fd(file):
        try:
            return read_fd(file).decode()
        except OSError:
            return None


def to_document(resources: Resources, old: dict[str, Any]) -> dict[str, Any]:
    """The members of a resources object that update may have changed; what is only in *old* of each stays in it."""
    made: dict[str, Any] = {}
    if resources.memory is not None:
        m = resources.memory
        made["memory"] = _members(old, "memory", limit=m.limit, reservation=m.reservation, swap=m.swap)
    if resources.cpu is not None:
        c = resources.cpu
        made["cpu"] = _members(
            old, "cpu", shares=c.shares, quota=c.quota, period=c.period, burst=c.burst, idle=c.idle, cpus=c.cpus, mems=c.mems
        )
    if resources.pids_limit is not None:
        made["pids"] = {"limit": resources.pids_limit}
    if resources.block_io is not None:
        b = resources.block_io
        weights = [{"major": d.major, "minor": d.minor, "weight": d.weight} for d in b.weight_devices]
        members: dict[str, Any] = {"weight": b.weight, "weightDevice": weights}
        for field, name in _THROTTLES.items():
            members[name] = [{"major": d.major, "minor": d.minor, "rate": d.rate} for d in getattr(b, field)]
        made["blockIO"] = _members(old, "blockIO", **members)
    if resources.unified:
        made["unified"] = dict(resources.unified)
    return made


def _members(old: dict[str, Any], name: str, **values: Any) -> dict[str, Any]:
    """The object *name* of *old* with *values*; those that say nothing (0, None, empty) are left out."""
    kept = {k: v for k, v in (old.get(name) or {}).items() if k not in values}
    given = {k: v for k, v in values.items() if v not in (None, "", []) and (v != 0 or k in ("burst", "idle"))}
    return {**kept, **given}
