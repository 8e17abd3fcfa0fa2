"""Claims made ready for containers, and taken back: sharing set up, a CDI file written, all of it noted before.

Every step can be done twice and undone at any point, so it does not matter where a driver was killed.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence

from gpurun import log
from gpurun.cdi.document import CdiEdits, CdiSpec
from gpurun.errors import GpurunError, program_error_text
from gpurun.gpu.nvidia.mps.daemon import MpsLimits
from gpurun.gpu.nvidia.mps.node_service import NodeService, end, ensure, is_served, keep
from gpurun.gpu.nvidia.mps.programs import call
from gpurun.kubernetes.dra.checkpoint import (
    COMPLETED,
    STARTED,
    Checkpoint,
    PreparedClaim,
    PreparedDevice,
    as_completed,
)
from gpurun.kubernetes.dra.claim import Allocated, Claim, DeviceConfig
from gpurun.kubernetes.dra.share import limit_edits, limit_of
from gpurun.kubernetes.dra.slices import DRIVER, Allocatable
from gpurun.kubernetes.node_programs import driver_root_of, nvidia_smi, own_program
from gpurun.kubernetes.specs import (
    NodeHost,
    device_spec,
    file_name,
    is_spec,
    mps_edits,
    remove,
    with_devices,
    with_edits,
    write,
)
from gpurun.linux.procfs import boot_id

CLASS = "claim"  # of the CDI devices; their vendor is k8s. and the driver's name
_TIMEOUT_S = 10.0
_MIB = 1 << 20
_CLAIM = "claim-"  # the beginning of the name of an MPS daemon's directory; others there are the device plugin's

#: From UUIDs to the specification of these devices, which are called so in it.
MakeSpec = Callable[[tuple[str, ...]], CdiSpec]


class StillPreparedError(GpurunError):
    """A device is still prepared for the claim *other*."""

    def __init__(self, where: str, device: str, other: PreparedClaim) -> None:
        super().__init__(f"{where}: {device} is still prepared for claim {other.namespace}/{other.name}")
        self.other = other


class Preparer:
    """Prepares and unprepares claims of *driver*.  *devices* is asked for what the node has now (name → device).

    *spec* makes the CDI specification of devices by their UUIDs, of NVIDIA's GPUs where it is None; *mps_root* is where MPS
    daemons are, empty for a driver that has none.

    Methods may be called from any thread; one claim is worked on at a time.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        host: NodeHost,
        cdi_dir: str,
        mps_root: str,
        devices: Callable[[], Mapping[str, Allocatable]],
        env: Mapping[str, str],
        programs: str = "",
        driver: str = DRIVER,
        spec: MakeSpec | None = None,
    ) -> None:
        self._vendor = f"k8s.{driver}"
        self._spec = spec or (lambda uuids: device_spec(host, self._vendor, CLASS, uuids, "uuid", env))
        self._checkpoint, self._host, self._cdi_dir, self._mps_root = checkpoint, host, cdi_dir, mps_root
        self._devices, self._programs = devices, programs
        self._lock = threading.Lock()
        self._boot = boot_id()

    @property
    def claims(self) -> tuple[PreparedClaim, ...]:
        """What is prepared, or was begun."""
        with self._lock:
            return tuple(self._checkpoint.claims.values())

    def prepare(self, claim: Claim) -> PreparedClaim:
        """Make *claim* ready; the same answer when it is already.  Raises :class:`GpurunError`, with nothing left done."""
        with self._lock:
            known = self._checkpoint.claims.get(claim.uid)
            if known is not None and known.state == COMPLETED and self._still_there(known):
                return known
            made, limits = self._planned(claim)
            self._checkpoint.put(made)
            try:
                spec = self._share(claim, made, self._spec(self._uuids(made)))
                write(self._file(claim.uid), with_devices(spec, self._cdi_devices(made, limits)))
            except GpurunError:
                if known is not None and known.state == COMPLETED and known.boot == self._boot:
                    self._checkpoint.put(known)  # pods that run have it: what they have is not taken away
                    raise
                self._undo(made)
                self._checkpoint.remove(claim.uid)
                raise
            done = as_completed(made)
            self._checkpoint.put(done)
            log.info(f"claim {claim.namespace}/{claim.name}: prepared {', '.join(d.device for d in done.devices)}")
            return done

    def unprepare(self, uid: str) -> None:
        """Take the claim *uid* back; one that is not known is none.  Raises :class:`GpurunError`: then try again."""
        with self._lock:
            claim = self._checkpoint.claims.get(uid)
            if claim is None:
                remove(self._file(uid))
                return
            self._undo(claim)
            self._checkpoint.remove(uid)
            log.info(f"claim {claim.namespace}/{claim.name}: unprepared")

    def start_again(self) -> None:
        """After a start of this process: files and MPS daemons of no claim go.  Those of claims have gone on without it."""
        with self._lock:
            self._remove_strays()
            self._end_stray_daemons()

    def keep_daemons(self) -> None:
        """Have the MPS daemon of each prepared claim run: one that has died is started again where it was.

        Raises :class:`GpurunError` with what went wrong with the last one; the others are seen to all the same.
        """
        problem: GpurunError | None = None
        for claim in self.claims:
            if claim.state != COMPLETED or claim.boot != self._boot or not _has_mps(claim):
                continue
            try:
                with self._lock:
                    if claim.uid in self._checkpoint.claims:
                        keep(self._mps_directory(claim.uid), own_program(self._host))
            except GpurunError as e:
                problem = GpurunError(f"claim {claim.namespace}/{claim.name}: {e}")
        if problem is not None:
            raise problem

    def _planned(self, claim: Claim) -> tuple[PreparedClaim, list[int]]:
        """All that is going to be done for *claim*.  Raises :class:`GpurunError` when it cannot be.

        Returns (what is noted of it, the bytes of memory that each of its devices is limited to, 0: no limit).
        """
        where = f"claim {claim.namespace}/{claim.name}"
        if not claim.devices:
            raise GpurunError(f"{where} is not allocated any device of this node")
        here = self._devices()
        made, limits = [], []
        for device in claim.devices:
            found = here.get(device.device)
            if found is None:
                raise GpurunError(f"{where}: there is no device {device.device} on this node (any more)")
            if found.mig and device.config.strategy == "TimeSlicing" and device.config.interval:
                raise GpurunError(f"{where}: {device.device} is a MIG device, whose time slice cannot be set")
            if not device.admin:
                self._check_free(where, claim.uid, found, device.share)
            cdi = (f"{self._vendor}/{CLASS}={_device_name(claim.uid, device)}",)
            strategy = "" if device.admin else device.config.strategy
            made.append(
                PreparedDevice(
                    device.request, device.pool, device.device, found.uuid, found.gpu_uuid, cdi, device.admin, device.share,
                    strategy,
                )
            )  # fmt: skip
            limits.append(limit_of(where, device, found))
        _limits(where, _shared_by_mps(claim, made))
        return PreparedClaim(claim.uid, claim.namespace, claim.name, STARTED, self._boot, tuple(made)), limits

    def _check_free(self, where: str, uid: str, wanted: Allocatable, share: str) -> None:
        for other in self._checkpoint.claims.values():
            for device in other.devices:
                if other.uid == uid or device.admin or device.uuid != wanted.uuid:
                    continue
                if not (share and device.share and share != device.share):
                    raise StillPreparedError(where, wanted.name, other)

    def _cdi_devices(self, made: PreparedClaim, limits: list[int]) -> dict[str, tuple[str, CdiEdits]]:
        """The CDI devices of a claim as :func:`with_devices` has them: each GPU with the limit of its share."""
        return {
            device.cdi[0].partition("=")[2]: (
                device.uuid, limit_edits(self._host, device.uuid, limit) if limit else CdiEdits()
            )
            for device, limit in zip(made.devices, limits, strict=True)
        }  # fmt: skip

    def _share(self, claim: Claim, made: PreparedClaim, spec: CdiSpec) -> CdiSpec:
        """Set up how the devices are shared; *spec* with what its clients need.  Raises :class:`GpurunError`."""
        for device, prepared in zip(claim.devices, made.devices, strict=True):
            if prepared.strategy == "TimeSlicing" and prepared.uuid == prepared.gpu_uuid:
                self._time_slice(prepared.uuid, device.config.interval)
        mps = _shared_by_mps(claim, made.devices)
        if not mps:
            return spec
        uuids, directory = _each_once(mps), self._mps_directory(claim.uid)
        limits, root = _limits(f"claim {claim.namespace}/{claim.name}", mps), driver_root_of(self._host)
        service = NodeService(uuids, limits.threads, limits.memory, root, "" if root else self._programs)
        ensure(directory, service, own_program(self._host))
        return with_edits(spec, mps_edits(f"{directory}/pipe", f"{directory}/shm"))

    def _time_slice(self, uuid: str, interval: int) -> None:
        program = nvidia_smi(self._host, self._programs)
        if program is None:
            where = driver_root_of(self._host) or "PATH"
            raise GpurunError(f"a time slice is set with nvidia-smi, which is not in {where}: install the driver's programs")
        words = [*program.words, "compute-policy", "-i", uuid, f"--set-timeslice={interval}"]
        try:
            done = call(words, _TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as e:
            raise GpurunError(f"{' '.join(words)}: {program_error_text(e)}") from None
        if done.returncode:
            raise GpurunError(f"{' '.join(words)}: {' '.join((done.stdout + done.stderr).split())}")

    def _undo(self, claim: PreparedClaim) -> None:
        """Take back what has been done for *claim*, however much that is.  Raises :class:`GpurunError`."""
        remove(self._file(claim.uid))
        if _has_mps(claim):
            end(self._mps_directory(claim.uid), own_program(self._host))
        for device in claim.devices:
            if device.strategy == "TimeSlicing" and device.uuid == device.gpu_uuid:
                try:
                    self._time_slice(device.uuid, 0)
                except GpurunError as e:  # a GPU that is gone has no time slice
                    log.warning(str(e))

    def _still_there(self, claim: PreparedClaim) -> bool:
        """Whether what was prepared is still so: /run goes with a boot, an MPS daemon can die."""
        if claim.boot != self._boot or not is_spec(self._file(claim.uid)):
            return False
        return not _has_mps(claim) or is_served(self._mps_directory(claim.uid))

    def _remove_strays(self) -> None:
        known = {os.path.basename(self._file(uid)) for uid in self._checkpoint.claims}
        prefix = os.path.basename(file_name(self._cdi_dir, self._vendor, CLASS, "x"))[: -len("x.json")]
        try:
            names = os.listdir(self._cdi_dir)
        except FileNotFoundError:
            return
        for name in names:
            if name.lstrip(".").startswith(prefix) and name not in known:
                log.warning(f"{self._cdi_dir}/{name} belongs to no claim and is removed")
                remove(f"{self._cdi_dir}/{name}")

    def _end_stray_daemons(self) -> None:
        known = {os.path.basename(self._mps_directory(uid)) for uid in self._checkpoint.claims}
        for name in os.listdir(self._mps_root) if os.path.isdir(self._mps_root) else ():
            if name.startswith(_CLAIM) and name not in known:
                log.warning(f"{self._mps_root}/{name} belongs to no claim: its MPS daemon is ended")
                try:
                    end(f"{self._mps_root}/{name}", own_program(self._host))
                except GpurunError as e:
                    log.warning(str(e))

    def _uuids(self, claim: PreparedClaim) -> tuple[str, ...]:
        return tuple(dict.fromkeys([device.uuid for device in claim.devices]))

    def _file(self, uid: str) -> str:
        if not uid or not all(c.isalnum() or c == "-" for c in uid):
            raise GpurunError(f"claim UID {uid!r} is invalid")
        return file_name(self._cdi_dir, self._vendor, CLASS, uid)

    def _mps_directory(self, uid: str) -> str:
        return f"{self._mps_root}/{_CLAIM}{uid}"


def _has_mps(claim: PreparedClaim) -> bool:
    return any(device.strategy == "MPS" for device in claim.devices)


def _device_name(uid: str, device: Allocated) -> str:
    # A claim may have two shares of a GPU, each for another container.
    return f"{uid}-{device.device}" + (f"-{device.share}" if device.share else "")


def _shared_by_mps(claim: Claim, made: Sequence[PreparedDevice]) -> list[tuple[str, DeviceConfig]]:
    """(UUID, configuration) of the devices of *claim* that MPS shares."""
    return [
        (prepared.uuid, device.config)
        for device, prepared in zip(claim.devices, made, strict=True)
        if prepared.strategy == "MPS"
    ]


def _each_once(mps: list[tuple[str, DeviceConfig]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([uuid for uuid, _ in mps]))


def _limits(where: str, mps: list[tuple[str, DeviceConfig]]) -> MpsLimits:
    """The limits of one daemon for all devices of a claim that are shared so.

    Raises :class:`GpurunError` for a limit below 1Mi, which the daemon would take for 0, and for one of a GPU that the claim
    has not.
    """
    uuids = _each_once(mps)
    threads = max((config.threads for _, config in mps), default=0)
    memory: dict[str, int] = {}
    for uuid, config in mps:
        number = str(uuids.index(uuid))
        own = dict(config.memory_of)
        for name in own:
            if name not in uuids and not (name.isascii() and name.isdigit() and int(name) < len(uuids)):
                numbers = "0" if len(uuids) == 1 else f"0 to {len(uuids) - 1}"
                raise GpurunError(
                    f"{where}: {name[:60]!r} in its memory limits is no GPU that it has: use a UUID, or {numbers}"
                )
        for limit in (config.memory, *own.values()):
            if 0 < limit < _MIB:
                raise GpurunError(f"{where}: a memory limit of {limit} bytes is too low: MPS counts in Mi")
        size = own.get(uuid, own.get(number, config.memory))
        if size:
            memory[number] = size
    return MpsLimits(threads, tuple(sorted(memory.items())))
