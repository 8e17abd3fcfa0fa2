"""attach and detach: GPUs that come to a container while it runs, and go again.

A change is recorded before its first step (:mod:`gpurun.engine.gpus.attached`).  One that fails is undone; one that is
killed is completed or undone by the next attach, detach, update, exec or checkpoint of the container
(:mod:`gpurun.engine.gpus.attach_steps`), or goes with the container.  The device program is changed last when a GPU comes
and first when one goes.
"""

from __future__ import annotations

from gpurun.cdi.edits import ContainerEdits, DeviceNode
from gpurun.cgroup.tree import find_tree
from gpurun.engine import state as store
from gpurun.engine.gpus import attach_steps as steps
from gpurun.engine.gpus import leases
from gpurun.engine.gpus.attach_view import Running, find_unit
from gpurun.engine.gpus.attached import Attached, AttachedGpu, ExecFacts, GpuChange
from gpurun.engine.gpus.leases import GrantedLease
from gpurun.engine.gpus.open_devices import check_unused
from gpurun.errors import ConfigError, GpuError, GpurunError, clean
from gpurun.gpu.leases.choice import Unit
from gpurun.gpu.leases.store import Store
from gpurun.gpu.nvidia.request.records import DEVICES, DRIVER_CAPABILITIES, place
from gpurun.gpu.request.share import read_share
from gpurun.gpu.resolve import Inquiry, gpu_edits, may_share, no_check
from gpurun.hook.running import not_there
from gpurun.linux.files import Fd
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.nvidia.request.records import GpuRequest
    from gpurun.gpu.nvidia.request.settings import Settings


def attach(root: str, container_id: str, devices: tuple[str, ...], capabilities: str = "") -> tuple[str, ...]:
    """Give the running container *devices*, all of them or none; returns warnings.  Raises :class:`GpurunError`."""
    with Running(root, container_id) as one:
        steps.finish_killed(one)
        return _attach(one, devices, capabilities)


def detach(root: str, container_id: str, devices: tuple[str, ...], force: bool = False) -> tuple[str, ...]:
    """Take *devices* from the running container; with *force* the processes that have one open are ended.

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
    granted: list[GrantedLease] = []
    try:
        edits = _edits(one, devices, capabilities, granted)
        numbers = frozenset([(node.major, node.minor) for node in edits.device_nodes])
        warnings = edits.warnings
        if not granted:
            text, made = leases.note_more(tuple(numbers), one.settings, one.own_env, one.config, one.state, one.root)
            granted += [made] if made is not None else []
            warnings += (_as_typed(text),) if text else ()
        _attach_edits(one, edits, one.units(numbers), granted)
    except BaseException as e:
        for lease in granted:
            Store(lease.path).remove(lease.lease)
        if isinstance(e, GpurunError):
            e.args = (_as_typed(str(e)),)
        raise
    return warnings


def _attach_edits(one: Running, edits: ContainerEdits, units: tuple[Unit, ...], granted: list[GrantedLease]) -> None:
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
            tuple([(lease.path, lease.lease.file) for lease in granted]),
        )
        steps.begin(one, begun)
        try:
            for lease in granted:  # until here it ends with this process, from here on detach can give it back
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
    leaving = tuple([find_unit(device, have) for device in devices])
    staying = tuple([unit for unit in have if unit not in leaving])
    kept = {number for unit in staying for number in unit.nodes} | _of_mig_parents(staying, have)
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
    asking = replace(begun, nodes=(), entries=())  # until it is known that nobody uses them, nothing is taken out
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


def _edits(one: Running, devices: tuple[str, ...], capabilities: str, granted: list[GrantedLease]) -> ContainerEdits:
    """What *devices* bring into the container; a lease of free ones is put into *granted*."""
    env = one.env()
    if may_share(one.config.process.env, one.config.annotations) and read_share(
        one.config.process.env, one.config.annotations
    ):
        raise ConfigError("gpu attach", f"{one.id} has a share of a GPU: its programs see the GPU of their MPS daemon alone")
    wanted = capabilities or env.get(DRIVER_CAPABILITIES, "")
    others = [f"{name}={value}" for name, value in env.items() if name not in (DEVICES, DRIVER_CAPABILITIES)]
    asked = (f"{DEVICES}={','.join(devices)}", *([f"{DRIVER_CAPABILITIES}={wanted}"] if wanted else []))

    def allocate(request: GpuRequest, settings: Settings) -> GpuRequest:
        request, made = leases.grant_more(request, settings, one.own_env, one.config, one.state, one.root)
        granted.append(made)
        return request

    sets = one.config.process.capabilities
    privileged = sets is not None and "CAP_SYS_ADMIN" in sets.bounding
    edits = gpu_edits(
        Inquiry((*others, *asked), {}, privileged, one.own_env, one.settings, prepare=no_check, allocate=allocate)
    )
    numbers = frozenset([(node.major, node.minor) for node in edits.device_nodes]) if edits is not None else frozenset()
    if edits is None or not one.units(numbers):
        raise ConfigError("gpu attach", f"{clean(','.join(devices))} names no device")
    if edits.hooks or edits.config_mounts or edits.net_devices or edits.intel_rdt:
        raise GpuError(f"{clean(','.join(devices))} brings hooks or devices that only a new container can have")
    return edits


def _as_typed(text: str) -> str:
    """An error of create, whose request is a variable of config.json, for somebody who has typed it."""
    text = text.replace(f" ({place(DEVICES)})", "")
    return text.replace(place(DEVICES), "gpu attach").replace(place(DRIVER_CAPABILITIES), "--capabilities")


def _with_units(before: Attached, units: tuple[Unit, ...], nodes: tuple[DeviceNode, ...]) -> Attached:
    """*before* with *units* and the *nodes* that come with them; nodes of no unit (nvidiactl, UVM) come with each."""
    own = {number for unit in units for number in unit.nodes}
    shared = tuple([node for node in nodes if (node.major, node.minor) not in own])
    gpus = {gpu.key: gpu for gpu in before.gpus}
    for unit in units:
        mine = tuple([node for node in nodes if (node.major, node.minor) in unit.nodes])
        gpus[unit.key] = AttachedGpu(unit.key, unit.name, (*mine, *shared))
    come = {(node.major, node.minor) for node in nodes}
    denied = tuple([node for node in before.denied if (node.major, node.minor) not in come])
    return replace(before, gpus=tuple(gpus.values()), denied=denied)


def _of_mig_parents(staying: tuple[Unit, ...], have: tuple[Unit, ...]) -> set[tuple[int, int]]:
    """The node of a GPU stays for as long as the container has one of its MIG devices."""
    keys = {unit.gpu_key for unit in staying if unit.mig}
    return {number for unit in have if unit.key in keys for number in unit.nodes}


def _each_once(nodes: tuple[DeviceNode, ...]) -> tuple[DeviceNode, ...]:
    return tuple({(node.major, node.minor): node for node in nodes}.values())


def _facts(one: Running) -> ExecFacts:
    env, gids = store.load_edits(one.root, one.id)
    return ExecFacts(env, gids, store.load_gpus(one.root, one.id))


def _facts_after(
    one: Running,
    before: ExecFacts,
    having: tuple[Unit, ...],
    came: tuple[Unit, ...],
    went: tuple[Unit, ...],
    edits: ContainerEdits | None = None,
) -> ExecFacts:
    """*before* of a container that is *having* these after *came* have come and *went* have gone."""
    listed = one.env().get(DEVICES, "")
    known = [unit.name for unit in (*having, *went)]
    names = listed.split(",")
    if listed == "all" or any(name not in known for name in names):
        names = [unit.name for unit in having]  # what was said by index, or by all, is not true any more
    gone = [unit.name for unit in went]
    names = list(dict.fromkeys([*[name for name in names if name not in gone], *[unit.name for unit in came]]))
    others = [entry for entry in before.env if not entry.startswith(f"{DEVICES}=")]
    gids = {*before.gids, *(edits.additional_gids if edits is not None else ())}
    minors = tuple(dict.fromkeys([unit.minor for unit in having]))
    return ExecFacts((*others, f"{DEVICES}={','.join(names) or 'none'}"), tuple(sorted(gids)), minors)
