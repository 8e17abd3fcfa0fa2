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
    from collections.abc import Callable

    from gpurun.engine.caller.rollback import Rollback
    from gpurun.engine.plan.container import Plan
    from gpurun.oci.config import OciHook


def serve_init(plan: Plan, state: store.State, channel: int, directory: str, rollback: Rollback) -> None:
    """Answer the init of *state* until it has said ``created``; *directory* is the container's state directory.

    Raises :class:`GpurunError` with what the init says went wrong, or with how it ended.
    """
    program_fd = cgroup.load_devices(plan)
    if plan.hooks.poststop:
        stopped = store.state_json(state, "stopped")
        rollback.add(POSTSTOP_HOOKS, lambda: _run_hooks("poststop", plan.hooks.poststop, plan, stopped))
    _Conversation(plan, state, channel).hold(lambda: cgroup.restrict(plan, program_fd, directory, rollback))


class _Conversation:
    """What the init says on *channel*, and the answers: a method for each word."""

    def __init__(self, plan: Plan, state: store.State, channel: int) -> None:
        self.plan, self.state, self.channel = plan, state, channel
        self.heard: set[str] = set()  # each word is said once, whoever may control the init by now
        self.uncovered: set[int] = set()  # the trees that were warned of

    def hold(self, restrict: Callable[[], None]) -> None:
        """Answer until ``created``; *restrict* is called before the first answer: it limits the cgroup."""
        while True:
            said = messages.receive_report(self.channel, (self.state.pid,))
            if said is None:
                raise GpurunError(_how_it_ended(self.state.pid, self.plan))
            if said.word == "failed":
                raise GpurunError(self._failure(said.text))
            if said.word == "created" and "ready" in self.heard:  # else it would have neither limits nor a device program
                self._send_listener(said)
                return
            if said.word == "source" and not self.heard:  # the mounts come before the first word of the others
                self._send_source(said)
                continue
            if said.word == "uncovered" and not self.heard and self._warn_of_uncovered(said):
                continue
            if said.word in self.heard or "ready" in self.heard or said.word not in ("hooks", "ready"):
                raise GpurunError(f'the container\'s init sent "{said.word}" at the wrong time')
            if not self.heard:
                restrict()
            self.heard.add(said.word)
            if said.word == "hooks":
                self._run_create_hooks()
            else:
                self._set_process_limits()
            messages.let_go(self.channel)

    def _failure(self, said: str) -> str:
        text = f"unable to start container process: error during container init: {said}"
        if "error mounting" in said:
            from gpurun.engine.caller.mount_hint import mount_hint

            text += mount_hint(said, self.plan.init.mounts, self.plan.init.user_namespace)
        return text

    def _send_listener(self, said: messages.Report) -> None:
        """Give the seccomp agent the init's listener, if the profile names an agent."""
        if self.plan.seccomp is not None and self.plan.seccomp.listener_path:
            from gpurun.engine.caller.seccomp import send_listener

            text = store.state_json(self.state, "creating")
            send_listener(self.plan.seccomp, self.state.pid, _one_of(said), text)

    def _send_source(self, said: messages.Report) -> None:
        """Send the source of the mount whose number the init says."""
        number = _one_of(said, len(self.plan.init.mounts))
        source = host_resources.open_late_source(self.plan, self.state.pid, number)
        with Fd(source):
            try:
                messages.send_files(self.channel, (source,) if source >= 0 else (), "source")
            except BrokenPipeError:
                messages.hang_up(self.channel)  # it has ended; its last message, if any, says why

    def _warn_of_uncovered(self, said: messages.Report) -> bool:
        """Warn that a tree of /proc could not be covered; False for one of which the init has said so before."""
        number = _one_of(said, len(self.plan.init.edits.proc_trees))
        if number in self.uncovered:
            return False
        from gpurun import log
        from gpurun.hook.rootfs_target import uncovered_text

        self.uncovered.add(number)
        log.warning(uncovered_text(self.plan.init.edits.proc_trees[number].path, said.numbers[1]))
        return True

    def _run_create_hooks(self) -> None:
        text = store.state_json(self.state, "creating")
        _run_hooks("prestart", self.plan.hooks.prestart, self.plan, text)
        _run_hooks("createRuntime", self.plan.hooks.create_runtime, self.plan, text)

    def _set_process_limits(self) -> None:
        """The owner of the streams and the resource limits of the program."""
        if self.plan.namespaces.uids:
            from gpurun.engine.caller.streams import give_streams

            give_streams(self.plan.namespaces.uids, self.plan.init.process.uid)
        for resource, soft, hard in self.plan.init.process.rlimits:
            lp.set_limit(self.state.pid, resource, soft, hard)


def _run_hooks(name: str, hooks: tuple[OciHook, ...], plan: Plan, text: str) -> None:
    run_host_hooks(name, hooks, text, plan.bundle, plan.hook_outputs)


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
