"""attach and detach: GPUs that come to a container while it runs, and go again.

A change is recorded before its first step (:mod:`gpurun.engine.gpus.attached`).  One that fails is undone; one that is
killed is completed or undone by the next attach, detach, update, exec or checkpoint of the container
(:mod:`gpurun.engine.gpus.attach_steps`), or goes with the container.  The device program is changed last when a GPU comes
and first when one goes.
"""

from __future__ import annotations

import posix

from gpurun.cdi.edits import ContainerEdits, DeviceNode
from gpurun.cgroup.tree import find_tree
from gpurun.engine import kept
from gpurun.engine.gpus import attach_steps as steps
from gpurun.engine.gpus import leases
from gpurun.engine.gpus.attach_view import Running, find_unit, is_called
from gpurun.engine.gpus.attached import Attached, AttachedGpu, ExecFacts, GpuChange
from gpurun.engine.gpus.groups import group_map, groups_inside, overflow_group
from gpurun.engine.gpus.leases import StoredLease
from gpurun.engine.gpus.open_devices import check_unused, openers
from gpurun.errors import ConfigError, GpuError, GpurunError, clean
from gpurun.gpu.device import GpuDevice
from gpurun.gpu.host.access import is_confined
from gpurun.gpu.leases.store import Store
from gpurun.gpu.leases.survey import survey
from gpurun.gpu.nvidia.request.records import DRIVER_CAPABILITIES
from gpurun.gpu.request.free import read_free_request
from gpurun.gpu.request.share import read_share
from gpurun.gpu.resolve import Inquiry, gpu_edits, may_share, no_check
from gpurun.gpu.vendors import EVERY_MAKER, VENDORS, Vendor, find_vendor, given_gpus, is_free, place
from gpurun.hook.running import not_there
from gpurun.linux.files import Fd
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.request.free import FreeRequest


def attach(root: str, container_id: str, devices: tuple[str, ...], capabilities: str = "") -> tuple[str, ...]:
    """Give the running container *devices*, all of them or none; returns warnings.  Raises :class:`GpurunError`."""
    with Running(root, container_id) as one:
        steps.finish_killed(one)
        return _attach(one, devices, capabilities)


def detach(root: str, container_id: str, devices: tuple[str, ...], force: bool = False) -> tuple[str, ...]:
    """Take *devices* (``all``: all that it has) from the running container; *force* ends the processes that have one open.

    Returns warnings.  Raises :class:`GpurunError`: a device that it does not have, or that one of its processes uses.
    """
    with Running(root, container_id) as one:
        steps.finish_killed(one)
        return _detach(one, devices, force)


def set_gpus(root: str, container_id: str, listed: str) -> tuple[str, ...]:
    """``update --gpus LIST``: the container has these GPUs and no others afterwards (``none``: none); returns warnings.

    Raises :class:`GpurunError`, and then it has those that it had.
    """
    wanted = [word.strip() for word in listed.split(",") if word.strip() not in ("", "none")]
    with Running(root, container_id) as one:
        steps.finish_killed(one)
        have = one.having()
        here = one.units_named(tuple(wanted))
        coming = tuple([unit.name for unit in here if unit not in have])
        going = tuple([unit.name for unit in have if unit not in here])
        warnings = _attach(one, coming) if coming else ()
        try:
            return warnings + (_detach(one, going) if going else ())
        except GpurunError:
            if coming:
                _detach(one, coming)
            raise


def _attach(one: Running, devices: tuple[str, ...], capabilities: str = "") -> tuple[str, ...]:
    own_leases: list[StoredLease] = []
    try:
        edits = _edits(one, devices, capabilities, own_leases)
        numbers = frozenset([(node.major, node.minor) for node in edits.device_nodes])
        warnings = edits.warnings
        if not own_leases:
            text, made = leases.note_more(tuple(numbers), one.own_env, one.config, one.state, one.root)
            own_leases += [made] if made is not None else []
            warnings += (_as_typed(text),) if text else ()
        units = one.units(numbers)
        _attach_edits(one, edits, units, own_leases)
    except BaseException as e:
        for lease in own_leases:
            Store(lease.path).remove(lease.lease)
        if isinstance(e, GpurunError):
            e.args = (_as_typed(str(e)),)
        raise
    return warnings + _late(one, units)


def _late(one: Running, units: tuple[GpuDevice, ...]) -> tuple[str, ...]:
    """A warning about processes of the container that have listed its GPUs already, and do not find those that have come."""
    listing = {unit.vendor: find_vendor(unit.vendor).listing for unit in units}
    common = {
        posix.makedev(node.major, node.minor): node.path for u in units if listing[u.vendor] for node in u.common_nodes
    }
    try:
        found = openers(one.processes(), common) if common else ()
    except (GpurunError, OSError):
        return ()  # the GPU has come: what only informs fails nothing
    if not found:
        return ()
    who = ", ".join([f"process {opener.pid} ({clean(opener.command)})" for opener in found])
    names = " and ".join(sorted({name for name in listing.values() if name}))
    return (f"{who} of {one.id}: {names} has listed the GPUs already, and finds the new one in processes that start now",)


def _attach_edits(one: Running, edits: ContainerEdits, units: tuple[GpuDevice, ...], own_leases: list[StoredLease]) -> None:
    """Make the change that *edits* with *units* are, all of it or nothing.  Raises :class:`GpurunError`."""
    before = one.attached
    have = one.having()
    facts = _facts(one)
    after = replace(_with_units(before, units, edits.device_nodes), again=False)
    after = replace(after, verdicts=(steps.first_code(after),))
    nodes, entries = not_there(one.state.pid, edits)
    journal, size = steps.open_journal(one)
    with Fd(journal):
        begun = GpuChange(
            before,
            after,
            facts,
            _facts_after(one, facts, (*have, *[unit for unit in units if unit not in have]), units, (), edits),
            nodes,
            entries,
            size,
            tuple([(lease.path, lease.lease.file) for lease in own_leases]),
        )
        steps.begin(one, begun)
        try:
            for lease in own_leases:  # until here it ends with this process, from here on detach can give it back
                leases.bind(lease, one.state)
            steps.put_in(one, edits, journal)
            steps.tell_systemd(one, edits.device_nodes)
            if edits.memory_limits:
                from gpurun.engine.gpus.memory_limits import set_limits

                set_limits(find_tree().root, one.state.cgroup, edits.memory_limits, f"{one.root}/{one.id}")
            one.set_rules(steps.first_code(after), steps.known_codes(begun))
            steps.end(one, after, begun.facts_after)
        except BaseException:
            steps.undo_failed(one, begun, journal)
            raise


def _detach(one: Running, devices: tuple[str, ...], force: bool = False) -> tuple[str, ...]:
    have = one.having()
    leaving = have if have and devices == ("all",) else tuple([find_unit(device, have) for device in devices])
    staying = tuple([unit for unit in have if unit not in leaving])
    kept = {number for unit in staying for number in unit.numbers} | _of_mig_parents(staying, have)
    nodes = tuple([n for n in one.nodes_of_units(leaving) if (n.major, n.minor) not in kept])
    keys = tuple(dict.fromkeys([unit.key for unit in leaving]))
    before = one.attached
    gpus = tuple([gpu for gpu in before.gpus if gpu.key not in keys])
    after = replace(before, gpus=gpus, denied=_each_once((*before.denied, *nodes)))
    after = replace(after, verdicts=(steps.first_code(after),))
    facts = _facts(one)
    staying_on = [unit.gpu_key for unit in staying]
    begun = GpuChange(
        before,
        after,
        facts,
        _facts_after(one, facts, staying, (), leaving),
        nodes,
        tuple([f"gpus/{unit.gpu_key}" for unit in leaving if unit.gpu_key not in staying_on]),
        keys=keys,
    )
    asking = replace(begun, nodes=(), entries=())  # until it is known that no process uses them, nothing is taken out
    steps.begin(one, asking)
    try:
        one.set_rules(steps.first_code(after), steps.known_codes(begun))
        check_unused(one.processes, nodes, force)
        begun = replace(begun, going=True)
        steps.begin(one, begun)
    except BaseException:
        steps.undo_failed(one, asking)
        raise
    steps.complete(one, begun)
    return ()


def _edits(one: Running, devices: tuple[str, ...], capabilities: str, own_leases: list[StoredLease]) -> ContainerEdits:
    """What *devices* bring into the container; a lease of free ones is put into *own_leases*."""
    env = one.env()
    if may_share(one.config.process.env, one.config.annotations) and read_share(
        one.config.process.env, one.config.annotations
    ):
        raise ConfigError("gpu attach", f"{one.id} has a share of a GPU: its programs see only the GPU of their MPS daemon")
    wanted = capabilities or env.get(DRIVER_CAPABILITIES, "")
    variables = [vendor.variable for vendor in VENDORS]
    others = [f"{name}={value}" for name, value in env.items() if name not in (*variables, DRIVER_CAPABILITIES)]
    variable = _vendor_of(one, devices).variable
    asked = (
        f"{variable}={','.join(devices)}",
        *([f"{DRIVER_CAPABILITIES}={wanted}"] if wanted else []),
    )

    def allocate(request: FreeRequest) -> tuple[tuple[str, ...], tuple[str, ...]]:
        names, made = leases.grant_more(request, one.own_env, one.config, one.state, one.root)
        own_leases.append(made)
        return names, ()

    sets = one.config.process.capabilities
    privileged = sets is not None and "CAP_SYS_ADMIN" in sets.bounding
    edits = gpu_edits(
        Inquiry(
            (*others, *asked),
            {},
            privileged,
            one.own_env,
            one.settings,
            prepare=no_check,
            allocate=allocate,
            running=True,
        )
    )
    numbers = frozenset([(node.major, node.minor) for node in edits.device_nodes]) if edits is not None else frozenset()
    if edits is None or not one.units(numbers):
        raise ConfigError("gpu attach", f"{clean(','.join(devices))} names no device")
    if edits.hooks or edits.config_mounts or edits.net_devices or edits.intel_rdt:
        raise GpuError(f"{clean(','.join(devices))} brings hooks or devices that only a new container can have")
    return edits


def _vendor_of(one: Running, devices: tuple[str, ...]) -> Vendor:
    """Whose GPUs *devices* are: what they say themselves; else those that the container has; else the first of this host.

    Raises :class:`ConfigError` for GPUs of several makers: each is a change of its own.
    """
    if is_free(devices[0]):
        asked = read_free_request(devices[0], VENDORS[0].variable).vendor
        if asked:
            return find_vendor(asked)
    units = survey(one.own_env, ask=False).units
    makers = {unit.vendor for unit in units for word in devices if not word.isdecimal() and is_called(unit, word)}
    if len(makers) > 1:
        raise ConfigError(
            "gpu attach", f"{clean(','.join(devices))}: GPUs of different makers are attached one after the other"
        )
    makers = makers or {unit.vendor for unit in one.having()} or {unit.vendor for unit in units}
    return next((vendor for vendor in VENDORS if vendor.name in makers), VENDORS[0])


def _as_typed(text: str) -> str:
    """An error of create, whose request is a variable of config.json, in words for the user who typed the request."""
    for vendor in VENDORS:
        text = text.replace(f" ({place(vendor.variable)})", "").replace(place(vendor.variable), "gpu attach")
    return text.replace(place(DRIVER_CAPABILITIES), "--capabilities")


def _with_units(before: Attached, units: tuple[GpuDevice, ...], nodes: tuple[DeviceNode, ...]) -> Attached:
    """*before* with *units* and the *nodes* that come with them; nodes of no unit (nvidiactl, UVM) come with each."""
    own = {number for unit in units for number in unit.numbers}
    shared = tuple([node for node in nodes if (node.major, node.minor) not in own])
    gpus = {gpu.key: gpu for gpu in before.gpus}
    for unit in units:
        mine = tuple([node for node in nodes if (node.major, node.minor) in unit.numbers])
        gpus[unit.key] = AttachedGpu(unit.key, unit.name, (*mine, *shared))
    come = {(node.major, node.minor) for node in nodes}
    denied = tuple([node for node in before.denied if (node.major, node.minor) not in come])
    return replace(before, gpus=tuple(gpus.values()), denied=denied)


def _of_mig_parents(staying: tuple[GpuDevice, ...], have: tuple[GpuDevice, ...]) -> set[tuple[int, int]]:
    """The node of a GPU stays for as long as the container has one of its MIG devices."""
    keys = {unit.parent for unit in staying}
    return {number for unit in have if unit.key in keys for number in unit.numbers}


def _each_once(nodes: tuple[DeviceNode, ...]) -> tuple[DeviceNode, ...]:
    return tuple({(node.major, node.minor): node for node in nodes}.values())


def _facts(one: Running) -> ExecFacts:
    env, gids = kept.load_edits(one.root, one.id)
    return ExecFacts(env, gids, kept.load_given(one.root, one.id))


def _facts_after(
    one: Running,
    before: ExecFacts,
    having: tuple[GpuDevice, ...],
    came: tuple[GpuDevice, ...],
    went: tuple[GpuDevice, ...],
    edits: ContainerEdits | None = None,
) -> ExecFacts:
    """*before* of a container that is *having* these after *came* have come and *went* have gone."""
    env, entries = one.env(), before.env
    for vendor in VENDORS:
        every = vendor.variable == EVERY_MAKER
        if (every and EVERY_MAKER in env) or any(unit.vendor == vendor.name for unit in (*having, *came, *went)):
            listed = _listed_after(env.get(vendor.variable, ""), "" if every else vendor.name, having, came, went)
            entries = (*[e for e in entries if not e.startswith(f"{vendor.variable}=")], f"{vendor.variable}={listed}")
    gids = {*before.gids, *_groups_of(one, edits)}
    keys = {unit.gpu_key for unit in having}
    mine = [unit for unit in survey(one.own_env, ask=False).units if unit.key in keys or unit in having]
    nodes = [DeviceNode(n.path, "", "c", n.major, n.minor, gpu=unit.qualified) for unit in mine for n in unit.nodes[-1:]]
    return ExecFacts(entries, tuple(sorted(gids)), given_gpus(nodes))


def _groups_of(one: Running, edits: ContainerEdits | None) -> tuple[int, ...]:
    """The groups of *edits* as processes of the container can have them."""
    gids = edits.additional_gids if edits is not None else ()
    return groups_inside(gids, group_map(one.config), overflow_group()) if gids and is_confined() else gids


def _listed_after(
    listed: str, vendor: str, having: tuple[GpuDevice, ...], came: tuple[GpuDevice, ...], went: tuple[GpuDevice, ...]
) -> str:
    """The value of the variable of *vendor*, which was *listed*, after *came* have come and *went* have gone.

    *vendor* is empty for the variable that names GPUs of every maker.
    """
    known = [unit.name for unit in (*having, *went)]
    names = listed.split(",")
    if listed == "all" or any(name not in known for name in names):
        names = [
            unit.name for unit in having if vendor in ("", unit.vendor)
        ]  # what was said by index, or by all, is not true now
    gone = [unit.name for unit in went]
    come = [unit.name for unit in came if vendor in ("", unit.vendor)]
    return ",".join(dict.fromkeys([*[name for name in names if name not in gone], *come])) or "none"
