"""create, once there is an init: answering it until the container is made, from outside and with the host's privileges."""

from __future__ import annotations

import posix

from gpurun.cgroup import manager
from gpurun.engine import cgroup, place, sync
from gpurun.engine import state as store
from gpurun.engine.hooks import in_directory, run_hooks
from gpurun.errors import GpurunError, StepError
from gpurun.linux import proc
from gpurun.linux import process as lp
from gpurun.ns.namespaces import host_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.engine.plan import Plan


def serve_init(plan: Plan, state: store.State, channel: int, exclusive: str, undo: list[Callable[[], None]]) -> None:
    """Answer the init of *state* until it has said ``created``; *exclusive* is where CPUs of its own are noted.

    Raises :class:`GpurunError` with what the init says went wrong, or with how it ended.
    """
    pid = state.pid
    program_fd = cgroup.load_devices(plan)
    limited = False
    if plan.hooks.poststop:
        undo.insert(0, lambda: run_hooks("poststop", plan.hooks.poststop, store.state_json(state, "stopped")))
    while True:
        message = sync.receive(channel)
        if message is None:
            raise GpurunError(_how_it_ended(pid, plan))
        word, *rest = message
        if word == "failed":
            raise GpurunError(f"unable to start container process: error during container init: {rest[0]}")
        if word == "created":
            if plan.seccomp is not None and plan.seccomp.listener_path:
                from gpurun.engine.seccomp import send_listener

                send_listener(plan.seccomp, pid, rest[0], store.state_json(state, "creating"))
            return
        if word == "source":
            source = place.open_late_source(plan, pid, rest[0])
            sync.send_files(channel, (source,), "source")
            posix.close(source)
            continue
        if not limited:
            cgroup.restrict(plan, program_fd, exclusive)
            limited = True
        if word == "hooks":
            text = store.state_json(state, "creating")
            in_bundle = in_directory(plan.bundle)
            run_hooks("prestart", plan.hooks.prestart, text, in_bundle)
            run_hooks("createRuntime", plan.hooks.create_runtime, text, in_bundle)
        elif word == "ready":
            if plan.namespaces.uids:
                _own_streams(plan)
            for resource, soft, hard in plan.init.process.rlimits:
                try:
                    lp.prlimit(pid, resource, soft, hard)
                except OSError as e:
                    raise StepError("set the limit", f"{resource} to {soft}:{hard}", e.errno) from None
        sync.send(channel, "go")


def _own_streams(plan: Plan) -> None:
    """Give the container's user the standard streams it inherits: from inside a user namespace it could not take them."""
    uid = host_id(plan.namespaces.uids, plan.init.process.uid)
    for fd in (0, 1, 2):
        found = posix.fstat(fd)
        if uid in (-1, found.st_uid) or found.st_rdev == posix.makedev(1, 3):  # never the host's /dev/null
            continue
        try:
            posix.fchown(fd, uid, -1)
        except PermissionError:
            if posix.geteuid() == 0:
                raise


def _how_it_ended(pid: int, plan: Plan) -> str:
    """Why the init closed its pipe without a word."""
    if plan.cgroup.path and manager.oom_kill_count(plan.cgroup.path):
        return "container init was OOM-killed (memory limit too low?)"
    found = proc.stat(pid)
    if found is None or found[0] != "Z":
        return "the container's init went away without a word"
    status = posix.waitpid(pid, 0)[1]
    code = posix.waitstatus_to_exitcode(status)
    how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
    return f"the container's init {how} before the container was made"
