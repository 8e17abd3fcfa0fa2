"""The GPUs of a host divided as a configuration says: checked, recorded, changed, and taken back if it fails."""

from __future__ import annotations

import posix
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from gpurun import log
from gpurun.errors import GpuError, GpurunError, clean, program_error_text
from gpurun.gpu.nvidia.host.nvml import change_mig
from gpurun.gpu.nvidia.mig.change_record import ChangeRecord, ChangeStore
from gpurun.gpu.nvidia.mig.config import MigEntry
from gpurun.gpu.nvidia.mig.plan import MigChange, plan_config, plan_restore
from gpurun.gpu.nvidia.mig.state import MigGpu, read_state
from gpurun.gpu.nvidia.mps.programs import Program, call
from gpurun.record import Record

#: Seconds that nvidia-smi may take to reset all GPUs.
RESET_S = 300.0
_NO_PERMISSION, _IN_USE = 4, 19
_HINTS = {
    _IN_USE: "a program has it open, such as nvidia-persistenced, DCGM or a monitor: end it (`gpurun gpu list --processes`)",
    _NO_PERMISSION: "it takes root with CAP_SYS_ADMIN",
}


class MigPending(GpuError):
    """A mode has been set and waits for a reset of the GPU, or a reboot: then the change goes on."""


def _no_hold(_: tuple[MigChange, ...]) -> AbstractContextManager[None]:
    return nullcontext()


class MigHost(Record):
    """Where GPUs are divided: NVML's *library*, the *directory* of the record, *nvidia_smi* (None: there is none).

    *hold* has the GPUs to itself while they are changed, or raises :class:`GpuError` where they are in use.
    """

    library: str
    directory: str
    nvidia_smi: Program | None = None
    hold: Callable[[tuple[MigChange, ...]], AbstractContextManager[None]] = _no_hold


def apply_config(
    host: MigHost, name: str, entries: tuple[MigEntry, ...], mode_only: bool = False, reset: bool = True
) -> tuple[MigChange, ...]:
    """Have the GPUs be as the configuration *name* says, its *entries*; what had to be done, nothing if they were so.

    With *reset* GPUs whose mode waits for it are reset.  Raises :class:`GpurunError`: nothing was done, or all was taken
    back, as the sentence says; :class:`MigPending` where a mode waits, and the same call goes on after a reboot.
    """
    if posix.geteuid():
        raise GpuError("only root divides GPUs")
    with ChangeStore(host.directory) as store:
        gpus = read_state(host.library)
        changes = plan_config(gpus, entries, mode_only)
        cut_off = store.read()
        if not changes:
            store.remove()
            return ()
        with host.hold(changes):
            if cut_off is not None:
                log.warning(f'a change to the MIG configuration "{clean(cut_off.config)}" was interrupted: it is continued')
            record = ChangeRecord(name, _before(gpus, cut_off))
            store.write(record)
            try:
                _change(host, entries, changes, mode_only, reset)
            except MigPending:
                raise
            except GpurunError as e:
                raise GpuError(f"{e}; {_back(host, store, record)}") from None
            store.remove()
        return changes


def _before(gpus: tuple[MigGpu, ...], cut_off: ChangeRecord | None) -> tuple[MigGpu, ...]:
    """The GPUs as they are to be again after a failure: of those left in between, as before that."""
    known = {gpu.uuid: gpu for gpu in cut_off.before} if cut_off is not None else {}
    return tuple([known.get(gpu.uuid, gpu) for gpu in gpus if not gpu.problem])


def _change(
    host: MigHost, entries: tuple[MigEntry, ...], changes: tuple[MigChange, ...], mode_only: bool, reset: bool
) -> None:
    modes = tuple([change for change in changes if change.mode is not None])
    if modes:
        _set_modes(host, modes, reset)
        changes = plan_config(read_state(host.library), entries, mode_only)
        _refuse_waiting(changes, "")
    _run(host, changes)
    if plan_config(read_state(host.library), entries, mode_only):
        raise GpuError("the driver has done all that it was asked, and the GPUs are not divided as they should be")


def _set_modes(host: MigHost, changes: tuple[MigChange, ...], reset: bool) -> None:
    waiting = []
    for change in changes:
        done = _ask(host, change, change.words(True))
        if done and done[-1]["mode"] != done[-1]["pending"]:
            waiting.append(change)
    if waiting and not reset:
        _refuse_waiting(tuple(waiting), "")
    if waiting:
        problem = _reset(host, [change.bus_id for change in waiting])
        now = {gpu.uuid: gpu for gpu in read_state(host.library)}
        left = [c for c in waiting if c.uuid not in now or now[c.uuid].mode != c.mode]
        _refuse_waiting(tuple(left), problem)


def _refuse_waiting(changes: tuple[MigChange, ...], problem: str) -> None:
    names = [f"GPU {change.index} ({change.bus_id})" for change in changes if change.mode is not None]
    if names:
        why = f", which has failed ({problem})" if problem else ""
        raise MigPending(
            f"the MIG mode of {', '.join(names)} is set and waits for a reset{why}: end what has the GPU open and reset it "
            "(`nvidia-smi --gpu-reset`), or reboot, and call this again: it goes on from there"
        )


def _reset(host: MigHost, bus_ids: list[str]) -> str:
    """Reset the GPUs; why that has failed, empty if it has not."""
    if host.nvidia_smi is None:
        return "there is no nvidia-smi"
    words = (*host.nvidia_smi.words, "--gpu-reset", "-i", ",".join(bus_ids))
    log.info(f"resetting {', '.join(bus_ids)}")
    try:
        done = call(words, RESET_S)
    except (OSError, subprocess.SubprocessError) as e:
        return f"nvidia-smi: {program_error_text(e)}"
    said = clean(" ".join((done.stdout + done.stderr).split()))
    return said or f"exit code {done.returncode}" if done.returncode else ""


def _run(host: MigHost, changes: tuple[MigChange, ...]) -> None:
    for change in changes:
        _ask(host, change, (*change.words(True), *change.words(False)))


def _ask(host: MigHost, change: MigChange, words: tuple[str, ...]) -> list[dict[str, int]]:
    if not words:
        return []
    log.debug(f"GPU {change.index}: {'; '.join([word.partition(' ')[2] for word in words])}")
    answer = change_mig(host.library, words)
    if answer["failed"]:
        what = words[len(answer["done"])].split(" ")[1]
        doing = {"mode": "setting the MIG mode", "destroy": "removing MIG devices", "create": "making MIG devices"}[what]
        hint = _HINTS.get(answer["code"], "")
        raise GpuError(f"GPU {change.index}: {doing} has failed: {answer['failed']}{f': {hint}' if hint else ''}")
    done: list[dict[str, int]] = answer["done"]
    return done


def _back(host: MigHost, store: ChangeStore, record: ChangeRecord) -> str:
    """Have the GPUs be as they were; in words what has become of that.  Raises nothing but for the record's disk."""
    try:
        changes = plan_restore(read_state(host.library), record.before)
        _run(host, changes)
        left = plan_restore(read_state(host.library), record.before)
    except GpurunError as e:
        return f"and going back has failed as well: {e}: the same call goes on when that is mended"
    if left:
        return "and the GPUs are not yet as they were: the same call goes on when that is mended"
    store.remove()
    return "the GPUs are divided as they were before"
