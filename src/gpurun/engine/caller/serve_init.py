"""create, once there is an init: answering it until the container is made, from outside and with the host's privileges."""

from __future__ import annotations

import posix

from gpurun.cgroup import manager
from gpurun.engine import messages
from gpurun.engine import state as store
from gpurun.engine.caller import cgroup, host_resources
from gpurun.engine.caller.rollback import POSTSTOP_HOOKS
from gpurun.engine.host_hooks import run_host_hooks
from gpurun.errors import GpurunError
from gpurun.linux import process as lp
from gpurun.linux import procfs
from gpurun.linux.files import Fd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine.caller.rollback import Rollback
    from gpurun.engine.plan.container import Plan
    from gpurun.oci.config import OciHook


def serve_init(plan: Plan, state: store.State, channel: int, directory: str, rollback: Rollback) -> None:
    """Answer the init of *state* until it has said ``created``; *directory* is the container's state directory.

    Raises :class:`GpurunError` with what the init says went wrong, or with how it ended.
    """
    pid = state.pid
    program_fd = cgroup.load_devices(plan)
    heard: set[str] = set()  # each is said once, whoever may have the init in hand by now
    uncovered: set[int] = set()
    if plan.hooks.poststop:
        stopped = store.state_json(state, "stopped")
        rollback.add(POSTSTOP_HOOKS, lambda: _run_hooks("poststop", plan.hooks.poststop, plan, stopped))
    while True:
        said = messages.receive_report(channel, (pid,))
        if said is None:
            raise GpurunError(_how_it_ended(pid, plan))
        if said.word == "failed":
            text = f"unable to start container process: error during container init: {said.text}"
            if "error mounting" in said.text:
                from gpurun.engine.caller.mount_hint import mount_hint

                text += mount_hint(said.text, plan.init.mounts, plan.init.user_namespace)
            raise GpurunError(text)
        if said.word == "created" and "ready" in heard:  # else it would have neither limits nor a device program
            if plan.seccomp is not None and plan.seccomp.listener_path:
                from gpurun.engine.caller.seccomp import send_listener

                send_listener(plan.seccomp, pid, _one_of(said), store.state_json(state, "creating"))
            return
        if said.word == "source" and not heard:  # the mounts come before the first word of the others
            source = host_resources.open_late_source(plan, pid, _one_of(said, len(plan.init.mounts)))
            with Fd(source):
                try:
                    messages.send_files(channel, (source,) if source >= 0 else (), "source")
                except BrokenPipeError:
                    messages.hang_up(channel)  # it has ended; its last message, if any, says why
            continue
        if said.word == "uncovered" and not heard and _one_of(said, len(plan.init.edits.proc_trees)) not in uncovered:
            uncovered.add(said.numbers[0])
            _warn_of_uncovered(plan.init.edits.proc_trees[said.numbers[0]].path, said.numbers[1])
            continue
        if said.word in heard or "ready" in heard or said.word not in ("hooks", "ready"):
            raise GpurunError(f'the container\'s init sent "{said.word}" at the wrong time')
        if not heard:
            cgroup.restrict(plan, program_fd, directory, rollback)
        heard.add(said.word)
        if said.word == "hooks":
            text = store.state_json(state, "creating")
            _run_hooks("prestart", plan.hooks.prestart, plan, text)
            _run_hooks("createRuntime", plan.hooks.create_runtime, plan, text)
        elif said.word == "ready":
            if plan.namespaces.uids:
                from gpurun.engine.caller.streams import give_streams

                give_streams(plan.namespaces.uids, plan.init.process.uid)
            for resource, soft, hard in plan.init.process.rlimits:
                lp.set_limit(pid, resource, soft, hard)
        messages.let_go(channel)


def _run_hooks(name: str, hooks: tuple[OciHook, ...], plan: Plan, text: str) -> None:
    run_host_hooks(name, hooks, text, plan.bundle, plan.hook_outputs)


def _warn_of_uncovered(path: str, number: int) -> None:
    from gpurun import log
    from gpurun.hook.rootfs_target import uncovered_text

    log.warning(uncovered_text(path, number))


def _one_of(said: messages.Report, end: int = 1 << 31) -> int:
    """The number that was said, below *end*."""
    if not said.numbers or said.numbers[0] >= end:
        raise GpurunError(f'the container\'s init sent "{said.word}" without a valid number')
    return said.numbers[0]


def _how_it_ended(pid: int, plan: Plan) -> str:
    """Why the init closed its pipe without a word."""
    if plan.cgroup.path and manager.oom_kill_count(plan.cgroup.path):
        return "container init was OOM-killed (memory limit too low?)"
    found = procfs.stat(pid)
    if found is None or found[0] != "Z":
        return "the container's init went away without a word"
    status = posix.waitpid(pid, 0)[1]
    code = posix.waitstatus_to_exitcode(status)
    how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
    return f"the container's init {how} before the container was made"
