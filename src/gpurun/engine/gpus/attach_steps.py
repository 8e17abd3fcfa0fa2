"""The steps of an attach and of a detach, and how a change is completed or undone that came to no end.

Each of them can be made once more: what is as it should be already stays.  So a change is completed and undone alike by the
command that has begun it and fails, and by a later one that finds its record (:mod:`gpurun.engine.gpus.attached`).
"""

from __future__ import annotations

import posix

from gpurun import log
from gpurun.cdi.edits import ContainerEdits
from gpurun.engine import kept
from gpurun.engine.gpus import leases
from gpurun.engine.gpus.attach_view import Busy, Running
from gpurun.engine.gpus.attached import Attached, ExecFacts, GpuChange, forget_change, load_change, save_change
from gpurun.errors import GpurunError, NotRunning, StepError, oserror_text
from gpurun.hook.device_verdicts import verdicts
from gpurun.hook.running import DeviceChange, change
from gpurun.linux.files import O_CLOEXEC, Fd, unlink_if_there
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.edits import DeviceNode


def finish_killed(one: Running) -> None:
    """Complete or undo a change of *one* whose process was killed.  Raises :class:`GpurunError` where that fails."""
    begun = load_change(one.root, one.id)
    if begun is None:
        return
    log.debug(f"a killed change of the GPUs of {one.id} is {'completed' if begun.going else 'undone'}")
    if begun.going:
        complete(one, begun)
    else:
        undo(one, begun)


def settle(root: str, container_id: str, wait_s: float = 1.0) -> None:
    """Complete or undo what a killed attach or detach of that container has left; nothing where there is nothing, where
    the container has ended, and where the caller may not.

    A change that is being made is waited for, *wait_s* seconds at most.  Failures are warnings.
    """
    if not kept.is_changing(root, container_id) or posix.geteuid() != 0:
        return
    try:
        with Running(root, container_id, wait_s) as one:
            finish_killed(one)
    except (NotRunning, Busy):
        pass  # whoever is at work comes to an end of it
    except (GpurunError, OSError) as e:
        text = oserror_text(e) if isinstance(e, OSError) else str(e)
        log.warning(
            f"a change of the GPUs of {container_id} was interrupted and can be neither completed nor undone: {text}"
        )


def begin(one: Running, begun: GpuChange) -> None:
    """Record *begun* before anything is changed.  Raises :class:`GpurunError`."""
    one.check_not_deleted()
    try:
        save_change(one.root, one.id, begun)
    except OSError as e:
        raise StepError("write down the change in", f"{one.root}/{one.id}", e.errno) from None


def end(one: Running, attached: Attached, facts: ExecFacts) -> None:
    """Record that the container has what *attached* and *facts* say, and no change is being made any more."""
    one.save(attached)
    write_facts(one, facts)
    forget_change(one.root, one.id)


def undo(one: Running, begun: GpuChange, journal: int = -1) -> None:
    """Take *begun* back: the container has what it had.  *journal* is its journal, if it is open already.

    Raises :class:`GpurunError`, :class:`OSError`; then the record stays, for whoever comes next.
    """
    before = begun.before
    one.set_rules(first_code(before), known_codes(begun))
    if begun.nodes or begun.entries:
        change(one.state.pid, DeviceChange(nodes=begun.nodes, entries=begun.entries))
    attached_before = before
    if begun.journal >= 0:
        attached_before = replace(before, again=True)  # of the driver's files some may be gone, and some not
        if journal >= 0:
            undo_since(one, begun.journal, journal)
        else:
            with Fd(open_journal(one)[0]) as opened:
                undo_since(one, begun.journal, opened)
    leases.remove_leases(begun.leases)
    end(one, replace(attached_before, verdicts=(first_code(before),)), begun.facts_before)


def complete(one: Running, begun: GpuChange) -> None:
    """Go on with the detach *begun*, whose devices are no longer used.  Raises :class:`GpurunError`."""
    code = first_code(begun.after)
    one.set_rules(code, known_codes(begun))
    # On record the container has the GPUs until it cannot open them, and has them no more before the lease is given back.
    one.save(replace(begun.after, verdicts=known_codes(begun)))
    leases.give_back(one.state, frozenset(begun.keys), one.own_env)
    write_facts(one, begun.facts_after)
    change(one.state.pid, DeviceChange(nodes=begun.nodes, entries=begun.entries))
    end(one, begun.after, begun.facts_after)


def undo_failed(one: Running, begun: GpuChange, journal: int = -1) -> None:
    """:func:`undo` after an error, which is the one to report: what fails here is a warning, and most likely the container
    is gone."""
    try:
        undo(one, begun, journal)
    except (GpurunError, OSError) as e:
        if journal >= 0:
            undo_since(one, begun.journal, journal)  # a delete has taken back what was there when it came
        try:
            one.check_not_deleted()
        except NotRunning:
            return
        text = oserror_text(e) if isinstance(e, OSError) else str(e)
        log.warning(f"the devices of {one.id} could not be put back: {text}: the next attach or detach tries again")


def first_code(attached: Attached) -> bytes:
    """The instructions that stand first in the device program of a container with that record."""
    return verdicts(allowed_nodes(attached), attached.denied)


def known_codes(begun: GpuChange) -> tuple[bytes, ...]:
    """What may stand first in the device program while *begun* is made."""
    return (*begun.before.verdicts, first_code(begun.before), first_code(begun.after))


def allowed_nodes(attached: Attached) -> tuple[DeviceNode, ...]:
    """The nodes to be allowed: reading and writing, which is what GPUs always have."""
    return tuple([replace(node, permissions="rw") for node in attached.nodes])


def write_facts(one: Running, facts: ExecFacts) -> None:
    """Keep *facts* for later commands.  Raises :class:`GpurunError`."""
    one.check_not_deleted()
    path = f"{one.root}/{one.id}"
    try:
        if facts.env or facts.gids:
            kept.save_edits(one.root, one.id, facts.env, facts.gids)
        else:
            unlink_if_there(f"{path}/edits")
        if facts.given:
            kept.save_gpus(one.root, one.id, facts.given)
        else:
            unlink_if_there(f"{path}/gpus")
    except OSError as e:
        raise StepError("write down the GPUs of the container in", path, e.errno) from None


def put_in(one: Running, edits: ContainerEdits, journal: int) -> None:
    """Make what *edits* bring in the container; what is made in its image is written in the open *journal* first.

    delete does not wait for us.  It takes back what the journal says at that moment, and the journal with it: what was made
    after that is ours to take back (:func:`undo_failed`).  Raises :class:`GpurunError`.
    """
    from gpurun.ns.journal_store import is_taken

    wanted = DeviceChange(
        edits, readonly=one.config.root_readonly, label=one.config.linux.mount_label, again=one.attached.again
    )
    change(one.state.pid, wanted, journal)
    if is_taken(one.root, journal):
        raise NotRunning


def open_journal(one: Running) -> tuple[int, int]:
    """The container's journal for reading and appending, made where it has none, and how long it is.

    Returns (descriptor, bytes).
    """
    from gpurun.ns.journal_store import open_journal as make

    path = f"{one.root}/{one.id}/created"
    flags = posix.O_RDWR | posix.O_APPEND | O_CLOEXEC
    try:
        fd = posix.open(path, flags)
    except FileNotFoundError:
        posix.close(make(one.root, one.id, one.state.rootfs))
        fd = posix.open(path, flags)
    return fd, posix.fstat(fd).st_size


def undo_since(one: Running, size: int, journal: int) -> None:
    """Take back what the open *journal* says after its first *size* bytes; what cannot be is left to delete."""
    from gpurun.ns.journal_store import undo_after

    try:
        undo_after(one.root, one.id, size, journal)
    except (GpurunError, OSError) as e:
        log.warning(f"the rest is removed when the container is deleted: {oserror_text(e) if isinstance(e, OSError) else e}")


def tell_systemd(one: Running, nodes: tuple[DeviceNode, ...]) -> None:
    """Let systemd allow *nodes* too, whose own program stands beside ours and comes back with each daemon-reload."""
    state = one.state
    if not state.unit or state.manager:
        return  # a user's manager gets no device rules
    from gpurun.cgroup.devices import container_rules, emulate
    from gpurun.cgroup.scope import Property, device_properties
    from gpurun.cgroup.systemd import set_properties

    resources = one.config.linux.resources
    rules = container_rules(resources.devices if resources is not None else (), [d.path for d in one.config.linux.devices])
    if device_properties(emulate(rules))[0].value != "strict":
        return  # systemd restricts nothing
    permitted = tuple([(f"/dev/char/{node.major}:{node.minor}", node.permissions) for node in nodes if node.permissions])
    set_properties(state.unit, (Property("DeviceAllow", "a(ss)", permitted, "gpu attach"),))
