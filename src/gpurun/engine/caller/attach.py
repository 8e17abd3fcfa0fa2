"""attach and detach: GPUs that come to a container while it runs, and go again.

One change at a time: the container's state directory is locked (flock(2)), which delete and the compiled front need not
know, for they remove what they find.  The record (:mod:`gpurun.engine.caller.attached`) is written before anything is
changed, and the device program is changed last when a GPU comes and first when one goes: what a killed change has left
gives no access that is not recorded, and is taken up by the next one, or taken away with the container.
"""

from __future__ import annotations

import fcntl
import posix
import time
from errno import EACCES, EAGAIN

from gpurun import log
from gpurun.cdi.edits import ContainerEdits, DeviceNode
from gpurun.cgroup import control
from gpurun.engine import state as store
from gpurun.engine.caller import leases
from gpurun.engine.caller.attached import Attached, AttachedGpu, load_attached, save_attached
from gpurun.engine.caller.device_edits import own_environment
from gpurun.engine.caller.leases import GrantedLease
from gpurun.engine.caller.lifecycle import open_init
from gpurun.engine.caller.open_devices import check_unused
from gpurun.errors import ConfigError, GpuError, GpurunError, NotRunning, StepError, oserror_text, shown
from gpurun.gpu.host.gpus import read_gpus
from gpurun.gpu.host.roots import bus_order
from gpurun.gpu.leases.choice import Unit, units_of
from gpurun.gpu.leases.seen import mount_namespace, nodes_of
from gpurun.gpu.leases.store import Store
from gpurun.gpu.leases.survey import survey
from gpurun.gpu.request.records import DEVICES, DRIVER_CAPABILITIES
from gpurun.gpu.request.settings import roots_of, site_settings
from gpurun.gpu.request.share import read_share
from gpurun.gpu.resolve import Inquiry, gpu_edits, may_share, no_check
from gpurun.hook.device_verdicts import set_verdicts, verdicts
from gpurun.hook.running import DeviceChange, change
from gpurun.linux.files import O_CLOEXEC, Fd, read_file, write_atomically
from gpurun.linux.fs import O_DIRECTORY
from gpurun.linux.procfs import in_user_namespace
from gpurun.oci.config import read_config
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.request.records import GpuRequest
    from gpurun.gpu.request.settings import Settings

#: Seconds that another change of the same container may take.
_LOCK_S = 60.0


class Running:
    """``with Running(root, id) as one``: a container that runs, whose GPUs nobody else changes meanwhile."""

    def __init__(self, root: str, container_id: str) -> None:
        self.root, self.id = root, container_id
        self._lock = self._init = -1

    def __enter__(self) -> Running:
        """Raises :class:`GpurunError` for a container that is not there, or has stopped."""
        path = store.directory(self.root, self.id)
        store.load(self.root, self.id)
        if posix.geteuid() != 0:
            raise GpurunError(
                f"only root can change the GPUs of {self.id}: root of the host, or of a rootless engine's user namespace"
                " (podman unshare gpurun gpu ...)"
            )
        self._lock = posix.open(path, posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        deadline = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as e:
                if e.errno not in (EAGAIN, EACCES) or time.monotonic() > deadline:
                    posix.close(self._lock)
                    raise GpurunError(f"another change of the GPUs of {self.id} takes longer than {_LOCK_S:g} s") from None
            time.sleep(0.01)
        self.own_env = own_environment()
        try:
            self.settings = site_settings(self.own_env)
            self.state = store.load(self.root, self.id)  # as it is now: it may have been deleted, and made again
            pidfd = open_init(self.state)
            if pidfd is None or not self.state.created:
                raise NotRunning
            self._init = pidfd
            self.config = read_config(read_file(f"{path}/config.json", store.MAX_SAVED_CONFIG))
            self.attached = load_attached(self.root, self.id)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self._init, self._lock):
            if fd >= 0:
                posix.close(fd)

    def env(self) -> dict[str, str]:
        """The variables of the container's process, with those of its devices."""
        added, _ = store.load_edits(self.root, self.id)
        pairs = [entry.partition("=") for entry in (*self.config.process.env, *added)]
        return {name: value for name, equals, value in pairs if equals}

    def units(self, numbers: frozenset[tuple[int, int]]) -> tuple[Unit, ...]:
        """The GPUs and MIG devices that device nodes with these *numbers* open, as far as the host has them."""
        return units_of(survey(roots_of(self.own_env, self.settings), ask_nvml=False).units, numbers)

    def units_named(self, words: tuple[str, ...]) -> tuple[Unit, ...]:
        """The units of this host that *words* name; raises :class:`GpuError` for one that it does not have."""
        found = survey(roots_of(self.own_env, self.settings), ask_nvml=False).units
        divided = {unit.gpu_key for unit in found if unit.mig}
        units = tuple([unit for unit in found if unit.mig or unit.key not in divided])
        return units if words == ("all",) else tuple([_named(word, units, "this host") for word in words])

    def having(self) -> tuple[Unit, ...]:
        """What the container has, and what an attach that was killed had begun to give it."""
        begun = {(node.major, node.minor) for gpu in self.attached.gpus for node in gpu.nodes}
        return self.units(nodes_of(self.state.pid, computes=True) | begun)

    def nodes_of_units(self, units: tuple[Unit, ...]) -> tuple[DeviceNode, ...]:
        """The device nodes that open *units*, those for graphics as well."""
        keys = {unit.key for unit in units} | {unit.gpu_key for unit in units}
        made = []
        for gpu in read_gpus(roots_of(self.own_env, self.settings)):
            key = gpu.bus_id.lower()
            nodes = [gpu.node, *gpu.drm] if key in keys else []
            nodes += [node for mig in gpu.mig if f"{key}/{mig.gi}/{mig.ci}" in keys for node in mig.nodes]
            made += [DeviceNode(node.path, "", "c", node.major, node.minor) for node in nodes]
        return tuple(made)

    def set_rules(self, code: bytes) -> None:
        """Put *code* first in the device program; in a user namespace, and without a cgroup, create has made none."""
        if self.state.cgroup and not in_user_namespace():
            set_verdicts(self.state.cgroup, code, self.attached.verdicts)

    def processes(self) -> tuple[int, ...]:
        """Those of the cgroup; without one, those of the mount namespace."""
        if self.state.cgroup:
            return control.processes(self.state.cgroup)
        own = mount_namespace(str(self.state.pid))
        return tuple([int(pid) for pid in posix.listdir("/proc") if pid.isdecimal() and mount_namespace(pid) == own])

    def check_not_deleted(self) -> None:
        """Raises :class:`NotRunning` if the container has been deleted, also where another one has its id by now."""
        try:
            found, ours = posix.stat(f"{self.root}/{self.id}"), posix.fstat(self._lock)
        except FileNotFoundError:
            raise NotRunning from None
        if (found.st_dev, found.st_ino) != (ours.st_dev, ours.st_ino):
            raise NotRunning

    def save(self, attached: Attached) -> None:
        """Record *attached*.  Raises :class:`StepError`; :class:`NotRunning` if the container has been deleted."""
        self.check_not_deleted()
        try:
            save_attached(self.root, self.id, attached)
        except OSError as e:
            raise StepError("write down the GPUs of the container in", f"{self.root}/{self.id}", e.errno) from None
        self.attached = attached


def attach(root: str, container_id: str, devices: tuple[str, ...], capabilities: str = "") -> tuple[str, ...]:
    """Give the running container *devices*, all of them or none; returns warnings.  Raises :class:`GpurunError`."""
    with Running(root, container_id) as one:
        granted: list[GrantedLease] = []
        try:
            return _attach(one, _edits(one, devices, capabilities, granted), granted)
        except BaseException:
            for lease in granted:
                Store(lease.path).remove(lease.lease)
            raise


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

    def lessor(request: GpuRequest, settings: Settings) -> GpuRequest:
        request, made = leases.grant_more(request, settings, one.own_env, one.config, one.state, one.root)
        granted.append(made)
        return request

    sets = one.config.process.capabilities
    privileged = sets is not None and "CAP_SYS_ADMIN" in sets.bounding
    edits = gpu_edits(Inquiry((*others, *asked), {}, privileged, one.own_env, one.settings, prepare=no_check, lessor=lessor))
    numbers = frozenset([(node.major, node.minor) for node in edits.device_nodes]) if edits is not None else frozenset()
    if edits is None or not one.units(numbers):
        raise ConfigError("gpu attach", f"{shown(','.join(devices))} names no device")
    if edits.hooks or edits.config_mounts or edits.net_devices or edits.intel_rdt:
        raise GpuError(f"{shown(','.join(devices))} brings hooks or devices that only a new container can have")
    return edits


def _attach(one: Running, edits: ContainerEdits, granted: list[GrantedLease]) -> tuple[str, ...]:
    before = one.attached
    numbers = frozenset([(node.major, node.minor) for node in edits.device_nodes])
    units = one.units(numbers)
    warnings = edits.warnings
    if not granted:
        text, made = leases.note_more(tuple(numbers), one.settings, one.own_env, one.config, one.state, one.root)
        granted += [made] if made is not None else []
        warnings += (text,) if text else ()
    after = replace(_with_units(before, units, edits.device_nodes), verdicts=before.verdicts)
    code = verdicts(_allowed(after), after.denied)
    one.save(replace(after, verdicts=(*before.verdicts, code)))
    for lease in granted:  # until here it ends with this process, from here on detach can give it back
        leases.bind(lease, one.state)
    try:
        _put_in(one, edits)
        _tell_systemd(one, edits.device_nodes)
        one.set_rules(code)
    except BaseException:
        _as_before(one, before, code)
        raise
    one.save(replace(after, verdicts=(code,)))
    _remember(one, tuple([unit.name for unit in units]), (), edits.additional_gids)
    return warnings


def _as_before(one: Running, before: Attached, code: bytes) -> None:
    """Put the record and the device program back to *before*, from a change whose program is *code*.

    The error that led here is the one to be told: what fails here is a warning, and most likely the container is gone.
    """
    try:
        one.save(replace(before, verdicts=(*before.verdicts, code)))
        one.set_rules(verdicts(_allowed(before), before.denied))
    except (GpurunError, OSError) as e:
        log.warning(
            f"the devices of {one.id} are not as they were before: {oserror_text(e) if isinstance(e, OSError) else e}"
        )


def _with_units(before: Attached, units: tuple[Unit, ...], nodes: tuple[DeviceNode, ...]) -> Attached:
    """*before* with *units* and the *nodes* that come with them; nodes of no unit (nvidiactl, UVM) come with each."""
    own = {number for unit in units for number in unit.nodes}
    shared = tuple([node for node in nodes if (node.major, node.minor) not in own])
    gpus = {gpu.key: gpu for gpu in before.gpus}
    for unit in units:
        mine = tuple([node for node in nodes if (node.major, node.minor) in unit.nodes])
        gpus[unit.key] = AttachedGpu(unit.key, unit.name, (*mine, *shared))
    come = {(node.major, node.minor) for node in nodes}
    return Attached(tuple(gpus.values()), tuple([node for node in before.denied if (node.major, node.minor) not in come]))


def _allowed(attached: Attached) -> tuple[DeviceNode, ...]:
    """The nodes to be allowed: reading and writing, which is what GPUs always have."""
    return tuple([replace(node, permissions="rw") for node in attached.nodes])


def detach(root: str, container_id: str, devices: tuple[str, ...], force: bool = False) -> tuple[str, ...]:
    """Take *devices* from the running container; with *force* the processes that have one open are ended.

    Returns warnings.  Raises :class:`GpurunError`: a device that it does not have, or that one of its processes uses.
    """
    with Running(root, container_id) as one:
        have = one.having()
        leaving = tuple([_named(device, have) for device in devices])
        staying = [unit for unit in have if unit not in leaving]
        kept = {number for unit in staying for number in unit.nodes} | _of_mig_parents(staying, have)
        nodes = tuple([n for n in one.nodes_of_units(leaving) if (n.major, n.minor) not in kept])
        keys = frozenset([unit.key for unit in leaving])
        before = one.attached
        gpus = tuple([gpu for gpu in before.gpus if gpu.key not in keys])
        after = Attached(gpus, _each_once((*before.denied, *nodes)))
        code = verdicts(_allowed(after), after.denied)
        # On record it has them until it cannot open them any more; and not any more before the lease is given back.
        one.save(replace(before, verdicts=(*before.verdicts, code)))
        one.set_rules(code)
        try:
            check_unused(one.processes, nodes, force)
        except BaseException:
            _as_before(one, before, code)
            raise
        one.save(replace(after, verdicts=one.attached.verdicts))
        # The access is gone.  The nodes go last: by them, another detach finds what one that was killed has left.
        leases.give_back(one.state, keys, one.own_env)
        _remember(one, (), tuple([unit.name for unit in leaving]), ())
        entries = tuple([f"gpus/{unit.gpu_key}" for unit in leaving if unit.gpu_key not in [s.gpu_key for s in staying]])
        change(one.state.pid, DeviceChange(nodes=nodes, entries=entries))
        one.save(replace(after, verdicts=(code,)))
        return ()


def set_gpus(root: str, container_id: str, listed: str) -> tuple[str, ...]:
    """``update --gpus LIST``: the container has these GPUs and no others afterwards (``none``: none); returns warnings.

    Raises :class:`GpurunError`, and then it has those that it had.
    """
    wanted = [word.strip() for word in listed.split(",") if word.strip() not in ("", "none")]
    with Running(root, container_id) as one:
        have = one.units(nodes_of(one.state.pid, computes=True))
        begun = one.having()
        here = one.units_named(tuple(wanted))
    coming = tuple([unit.name for unit in here if unit not in have])
    going = tuple([unit.name for unit in begun if unit not in here])
    warnings = attach(root, container_id, coming) if coming else ()
    try:
        return warnings + (detach(root, container_id, going) if going else ())
    except GpurunError:
        if coming:
            detach(root, container_id, coming)
        raise


def _of_mig_parents(staying: list[Unit], have: tuple[Unit, ...]) -> set[tuple[int, int]]:
    """The node of a GPU stays for as long as the container has one of its MIG devices."""
    keys = {unit.gpu_key for unit in staying if unit.mig}
    return {number for unit in have if unit.key in keys for number in unit.nodes}


def _each_once(nodes: tuple[DeviceNode, ...]) -> tuple[DeviceNode, ...]:
    return tuple({(node.major, node.minor): node for node in nodes}.values())


def _named(device: str, have: tuple[Unit, ...], who: str = "the container") -> Unit:
    """The unit of those that *who* has that *device* names: by index, UUID or PCI bus id."""
    word = device.lower()
    for unit in have:
        names = {unit.name.lower(), unit.key, f"mig-{unit.name.lower()}", "" if unit.mig else str(unit.index)}
        if word in names or (":" in word and not unit.mig and bus_order(word) == bus_order(unit.key)):
            return unit
    listed = ", ".join([f"{unit.shown} ({unit.name})" for unit in have]) or "none"
    raise GpuError(f"{who} does not have {shown(device)}: its GPUs are {listed}")


def _put_in(one: Running, edits: ContainerEdits) -> None:
    """Make the change in the container; when it fails the image is as it was before.

    delete does not wait for us.  It takes back what the journal says at that moment, and the journal with it: what was made
    after that is ours to take back.
    """
    from gpurun.ns.journal_store import is_taken

    journal, size = _open_journal(one)
    with Fd(journal):
        try:
            wanted = DeviceChange(edits, readonly=one.config.root_readonly, label=one.config.linux.mount_label)
            change(one.state.pid, wanted, journal)
            if is_taken(one.root, journal):
                raise NotRunning
        except GpurunError:
            _undo_since(one, size, journal)
            raise


def _open_journal(one: Running) -> tuple[int, int]:
    """The container's journal for reading and appending, made where it has none, and how long it is."""
    from gpurun.ns.journal_store import open_journal

    path = f"{one.root}/{one.id}/created"
    flags = posix.O_RDWR | posix.O_APPEND | O_CLOEXEC
    try:
        fd = posix.open(path, flags)
    except FileNotFoundError:
        posix.close(open_journal(one.root, one.id, one.state.rootfs))
        fd = posix.open(path, flags)
    return fd, posix.fstat(fd).st_size


def _undo_since(one: Running, size: int, journal: int) -> None:
    """Take back what the open *journal* says after its first *size* bytes; what cannot be is left to delete."""
    from gpurun.ns.journal_store import undo_after

    try:
        undo_after(one.root, one.id, size, journal)
    except (GpurunError, OSError) as e:
        log.warning(f"delete takes the rest away: {oserror_text(e) if isinstance(e, OSError) else e}")


def _tell_systemd(one: Running, nodes: tuple[DeviceNode, ...]) -> None:
    """Let systemd allow *nodes* too, whose own program stands beside ours and comes back with each daemon-reload."""
    state = one.state
    if not state.unit or state.manager:
        return  # a user's manager is told of no devices
    from gpurun.cgroup.devices import container_rules, emulate
    from gpurun.cgroup.scope import Property, device_properties
    from gpurun.cgroup.systemd import set_properties

    resources = one.config.linux.resources
    rules = container_rules(resources.devices if resources is not None else (), [d.path for d in one.config.linux.devices])
    if device_properties(emulate(rules))[0].value != "strict":
        return  # systemd restricts nothing
    allowed = tuple([(f"/dev/char/{node.major}:{node.minor}", node.permissions) for node in nodes if node.permissions])
    set_properties(state.unit, (Property("DeviceAllow", "a(ss)", allowed, "gpu attach"),))


def _remember(one: Running, came: tuple[str, ...], went: tuple[str, ...], groups: tuple[int, ...]) -> None:
    """What later commands ask: the variables and groups of each exec, the minors for events."""
    one.check_not_deleted()
    env, gids = store.load_edits(one.root, one.id)
    listed = one.env().get(DEVICES, "")
    have = tuple([unit for unit in one.units(nodes_of(one.state.pid, computes=True)) if unit.name not in went])
    if listed == "all" or any(name not in [unit.name for unit in have] for name in listed.split(",")):
        names = [unit.name for unit in have]  # what was said by index, or by all, is not true any more
    else:
        names = listed.split(",")
    names = list(dict.fromkeys([*[name for name in names if name not in went], *came]))
    others = [entry for entry in env if not entry.startswith(f"{DEVICES}=")]
    new_env = (*others, f"{DEVICES}={','.join(names) or 'none'}")
    store.save_edits(one.root, one.id, new_env, tuple(sorted({*gids, *groups})))
    path = f"{one.root}/{one.id}/gpus"
    minors = tuple(dict.fromkeys([unit.minor for unit in have]))
    write_atomically(path, " ".join([str(minor) for minor in minors]).encode(), 0o600)
