"""A running container as attach, detach and checkpoint see it: which GPUs it has, by what the container cannot change.

A container can rename the nodes in its /dev, or make others.  So its leases, the record in its state directory and the
device programs of its cgroup are asked, and the names in /dev count beside them, as far as the programs let them be opened.
"""

from __future__ import annotations

import fcntl
import posix
import time
from errno import EACCES, EAGAIN, EINTR

from gpurun.cdi.edits import DeviceNode
from gpurun.cgroup import control
from gpurun.cgroup.device_access import device_programs, granted_numbers, openable
from gpurun.engine import kept
from gpurun.engine import state as store
from gpurun.engine.gpus.attached import Attached, load_attached, save_attached
from gpurun.engine.gpus.device_edits import own_environment
from gpurun.engine.gpus.leases import leased_keys
from gpurun.errors import GpuError, GpurunError, NotRunning, StepError, clean
from gpurun.gpu.device import GpuDevice, units_of, whole_keys
from gpurun.gpu.leases.container_nodes import mount_namespace, nodes_of
from gpurun.gpu.leases.survey import survey
from gpurun.gpu.nvidia.host.roots import bus_order
from gpurun.gpu.nvidia.request.settings import site_settings
from gpurun.hook.device_verdicts import set_verdicts
from gpurun.linux.files import O_CLOEXEC, read_file
from gpurun.linux.fs import O_DIRECTORY
from gpurun.linux.procfs import in_user_namespace, open_pidfd
from gpurun.oci.config import read_config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.gpu.vendors import GivenGpu

    Numbers = tuple[int, int]

#: Seconds that another change of the same container may take.
LOCK_S = 60.0


class Busy(GpurunError):
    """Another process changes the GPUs of the container, and takes longer than this one may wait."""


class Running:
    """``with Running(root, id) as one``: a container that runs, whose GPUs no other process changes meanwhile.

    The lock is on the open state directory (flock(2)).  A child that is at work in the container has it too, so it is held
    until that one has ended, also where the command itself was killed.
    """

    def __init__(self, root: str, container_id: str, wait_s: float = LOCK_S) -> None:
        self.root, self.id = root, container_id
        self._wait_s = wait_s  # seconds
        self._lock = self._init = -1

    def __enter__(self) -> Running:
        """Raises :class:`GpurunError` for a container that is not there, or has stopped; :class:`Busy`."""
        path = store.directory(self.root, self.id)
        store.load(self.root, self.id)
        if posix.geteuid() != 0:
            raise GpurunError(
                f"only root can change the GPUs of {self.id}: root of the host, or of a rootless engine's user namespace"
                " (podman unshare gpurun gpu ...)"
            )
        self._lock = posix.open(path, posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        try:
            self._take_lock(path)
            self.own_env = own_environment()
            self.settings = site_settings(self.own_env)
            self.state = store.load(self.root, self.id)  # as it is now: it may have been deleted, and made again
            pidfd = open_pidfd(self.state.pid, self.state.start_time)
            if pidfd is None or not self.state.created:
                raise NotRunning
            self._init = pidfd
            self.config = read_config(read_file(f"{path}/config.json", store.MAX_SAVED_CONFIG))
            self.attached = load_attached(self.root, self.id)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _take_lock(self, path: str) -> None:
        deadline = time.monotonic() + self._wait_s
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as e:
                if e.errno not in (EAGAIN, EACCES, EINTR):
                    raise StepError("lock", path, e.errno) from None
                if time.monotonic() > deadline:
                    raise Busy(f"another change of the GPUs of {self.id} takes longer than {self._wait_s:g} s") from None
            time.sleep(0.01)

    def __exit__(self, _kind: object = None, error: BaseException | None = None, _trace: object = None) -> None:
        """Raises :class:`NotRunning` in the place of an error that says that the container's process has ended meanwhile."""
        for fd in (self._init, self._lock):
            if fd >= 0:
                posix.close(fd)
        path = str(error.filename) if isinstance(error, (FileNotFoundError, ProcessLookupError)) else ""
        if path and path.startswith(f"/proc/{self.state.pid}/"):
            raise NotRunning from None

    def env(self) -> dict[str, str]:
        """The variables of the container's process, with those of its devices."""
        added, _ = kept.load_edits(self.root, self.id)
        pairs = [entry.partition("=") for entry in (*self.config.process.env, *added)]
        return {name: value for name, equals, value in pairs if equals}

    def units(self, numbers: frozenset[Numbers]) -> tuple[GpuDevice, ...]:
        """The GPUs and MIG devices that device nodes with these *numbers* open, as far as the host has them."""
        return units_of(survey(self.own_env, ask=False).units, numbers)

    def units_named(self, words: tuple[str, ...]) -> tuple[GpuDevice, ...]:
        """The units of this host that *words* name; raises :class:`GpuError` for one that it does not have."""
        found = survey(self.own_env, ask=False).units
        divided = whole_keys(found)
        units = tuple([unit for unit in found if unit.key not in divided])
        return units if words == ("all",) else tuple([find_unit(word, units, "this host") for word in words])

    def having(self) -> tuple[GpuDevice, ...]:
        """The GPUs and MIG devices that the container has.  Raises :class:`GpurunError` where that cannot be seen."""
        return units_had(self.root, self.state, self.attached, survey(self.own_env, ask=False).units, self.own_env)

    def nodes_of_units(self, units: tuple[GpuDevice, ...]) -> tuple[DeviceNode, ...]:
        """The device nodes that open *units*, those for graphics as well."""
        keys = {unit.key for unit in units} | {unit.gpu_key for unit in units}
        mine = [unit for unit in survey(self.own_env, ask=False, more=True).units if unit.key in keys]
        nodes = [node for unit in mine for node in (*unit.nodes, *unit.more_nodes)]
        return tuple([DeviceNode(node.path, "", "c", node.major, node.minor) for node in nodes])

    def set_rules(self, code: bytes, before: tuple[bytes, ...]) -> None:
        """Put *code* first in the device program, in the place of whichever of *before* stands there; in a user namespace,
        and without a cgroup, create has made none."""
        if self.state.cgroup and not in_user_namespace():
            set_verdicts(self.state.cgroup, code, before)

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


def units_had(
    root: str, state: store.State, attached: Attached, units: tuple[GpuDevice, ...], own_env: Mapping[str, str]
) -> tuple[GpuDevice, ...]:
    """Those of *units* that the container *state* has.

    Raises :class:`StepError` where that cannot be seen; a container that has ended has none.
    """
    known = frozenset([number for unit in units for number in unit.numbers])
    programs = device_programs(state.cgroup) if state.cgroup else ()
    numbers = granted_numbers(programs, known)
    numbers |= frozenset([(node.major, node.minor) for node in attached.nodes])
    keys = leased_keys(state, own_env)
    numbers |= frozenset([number for unit in units if unit.key in keys for number in unit.numbers])
    divided = whole_keys(units)
    given = kept.load_given(root, state.id)
    recorded = [unit for unit in recorded_units(given, units) if unit.key not in divided]
    numbers |= frozenset([number for unit in recorded for number in unit.numbers])
    numbers |= nodes_of(state.pid, computes=True)
    return units_of(units, openable(programs, numbers & known))


def recorded_units(given: tuple[GivenGpu, ...], units: tuple[GpuDevice, ...]) -> tuple[GpuDevice, ...]:
    """Those of *units* with nodes that are in the record *given*.

    The numbers say what a container can open.  The key counts beside them for a MIG device: the node of its GPU instance is
    that of others as well and has none.
    """
    numbers = {one.number for one in given}
    keys = {(one.number, one.gpu) for one in given}
    return tuple(
        [
            unit
            for unit in units
            if unit.nodes
            and (numbers.issuperset(unit.numbers) or any((number, unit.qualified) in keys for number in unit.numbers))
        ]
    )


def is_called(unit: GpuDevice, word: str) -> bool:
    """Whether *word* names *unit*: by index, UUID or PCI address."""
    word = word.lower()
    known = word in (unit.key, *[name.lower() for name in unit.names])
    return known or (":" in word and not unit.parent and bus_order(word) == bus_order(unit.key))


def find_unit(device: str, have: tuple[GpuDevice, ...], who: str = "the container") -> GpuDevice:
    """The unit of those that *who* has that *device* names: by index, UUID or PCI bus id.  Raises :class:`GpuError`."""
    for unit in have:
        if is_called(unit, device):
            return unit
    listed = ", ".join([f"{unit.label} ({unit.name})" for unit in have]) or "none"
    raise GpuError(f"{who} does not have {clean(device)}: its GPUs are {listed}")
