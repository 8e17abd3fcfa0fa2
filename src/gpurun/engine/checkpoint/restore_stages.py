"""What gpurun does at each stage that CRIU tells of while it restores a container, and what comes of it."""

from __future__ import annotations

import posix

from gpurun.criu import rpc
from gpurun.engine import state as store
from gpurun.engine.caller import cgroup, host_resources
from gpurun.engine.caller.children import end_child
from gpurun.engine.caller.rollback import POSTSTOP_HOOKS, PROCESSES, Rollback
from gpurun.engine.checkpoint.restore_devices import (
    renew_devices,
)
from gpurun.engine.checkpoint.restore_mounts import repair_mounts
from gpurun.engine.checkpoint.saved_devices import SavedDevices
from gpurun.engine.host_hooks import run_host_hooks
from gpurun.errors import GpurunError
from gpurun.formats.jsontext import dumps
from gpurun.linux import process as lp
from gpurun.linux import procfs
from gpurun.linux.files import O_CLOEXEC, read_file, write_atomically
from gpurun.ns.helper_process import run_in_child
from gpurun.ns.loopback import loopback_up
from gpurun.oci.reader import as_object, parse_json
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine.checkpoint.criu_options import RestoreOptions
    from gpurun.engine.gpus.leases import StoredLease
    from gpurun.engine.plan.container import Plan


class RestoredDevices:
    """What is known of a container's devices: what its images say of them, and what has been leased to it now."""

    def __init__(self, saved: SavedDevices | None, own_leases: tuple[StoredLease, ...]) -> None:
        self.saved, self.own_leases = saved, own_leases
        self.stale: tuple[str, ...] = ()  # mount points of placeholders


class Stages:
    """What is done at CRIU's notifications, and what comes of it."""

    def __init__(
        self,
        options: RestoreOptions,
        plan: Plan,
        state: store.State,
        program_fd: int,
        rollback: Rollback,
        devices: RestoredDevices | None = None,
    ) -> None:
        self.options, self.plan, self.state, self.program_fd, self.rollback = options, plan, state, program_fd, rollback
        self.devices = devices or RestoredDevices(None, ())
        self.pidfd = self.master = -1

    def notified(self, answer: rpc.Answer, passed: tuple[int, ...]) -> None:
        """Do what belongs to the stage ``answer.script``."""
        if answer.script == "setup-namespaces":
            self._set_up(answer.pid)
        elif answer.script == "orphan-pts-master" and passed:
            self._hand_over_terminal(passed[0])
        elif answer.script == "post-restore":
            self._note(answer.pid)
        elif answer.script == "pre-resume":
            self.check_label()

    def check_label(self) -> None:
        """The processes have their credentials, and none runs yet: see :func:`check_restored_context`."""
        asked = self.options.lsm_profile
        label = asked.removeprefix("selinux:") if asked.startswith("selinux:") else self.plan.init.process.selinux_label
        if label:
            from gpurun.security.lsm import check_restored_context

            check_restored_context(self.state.pid, label)

    def reap(self) -> None:
        """The first process is our child even if CRIU has given up and killed it."""
        if self.state.pid:
            return  # then the rollback ends it
        try:
            while posix.waitpid(-1, posix.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass

    def _set_up(self, pid: int) -> None:
        plan = self.plan
        if plan.namespaces.new & lp.CLONE_NEWNET:
            _loopback_of(pid)
            host_resources.lend_network_devices(plan, pid)
        host_resources.lend_resctrl(
            plan, pid, f"{store.directory(self.options.create.root, plan.id)}/resctrl", self.rollback
        )
        hooks = plan.hooks
        if hooks.poststop:
            self.rollback.add(
                POSTSTOP_HOOKS,
                lambda: run_host_hooks(
                    "poststop", hooks.poststop, store.state_json(self.state, "stopped"), plan.bundle, plan.hook_outputs
                ),
            )
        if hooks.prestart or hooks.create_runtime:
            text = store.state_json(self.state, "creating", pid=pid)
            run_host_hooks("prestart", hooks.prestart, text, plan.bundle, plan.hook_outputs)
            run_host_hooks("createRuntime", hooks.create_runtime, text, plan.bundle, plan.hook_outputs)

    def _hand_over_terminal(self, master: int) -> None:
        from gpurun.engine.terminal import connect_socket, send_master

        if self.options.create.console_socket:
            send_master(connect_socket(self.options.create.console_socket), posix.dup(master))
        else:
            self.master = posix.dup(master)

    def _note(self, pid: int) -> None:
        """All processes are there, and none runs yet: from now on it is a container like any other."""
        self.pidfd = posix.pidfd_open(pid, 0)
        self.rollback.add(PROCESSES, lambda: end_child(pid, self.pidfd))
        found = procfs.stat(pid)
        if found is None:
            raise GpurunError("the restored process ended at once")
        root = self.options.create.root
        self.state = replace(self.state, pid=pid, start_time=found[1], created=store.rfc3339_now())
        _save_config(root, self.plan.id, pid)
        for one in self.devices.own_leases:
            from gpurun.engine.gpus.leases import bind

            bind(one, self.state)
        cgroup.restrict(self.plan, self.program_fd, store.directory(root, self.plan.id), self.rollback)
        if self.devices.saved is not None:
            renew_devices(root, self.plan, pid, self.devices.saved, self.devices.stale)
        repair_mounts(pid, self.plan.init)
        store.save(root, self.state)


def _save_config(root: str, container_id: str, pid: int) -> None:
    """CRIU restores into a new time namespace, for the clocks to go on from where they stood: exec must join that too."""
    if posix.stat("/proc/self/ns/time").st_ino == posix.stat(f"/proc/{pid}/ns/time").st_ino:
        return
    path = f"{store.directory(root, container_id)}/config.json"
    config = as_object(parse_json(read_file(path, store.MAX_SAVED_CONFIG), path), path)
    namespaces = config["linux"]["namespaces"]
    if not any(namespace["type"] == "time" for namespace in namespaces):
        namespaces.append({"type": "time"})
        write_atomically(path, dumps(config).encode("utf-8", "surrogateescape"), 0o600)


def _loopback_of(pid: int) -> None:
    """Bring up ``lo`` in the network namespace of *pid*: CRIU leaves a network that is not its own as the kernel made it."""

    def in_container() -> None:
        lp.setns(posix.open(f"/proc/{pid}/ns/net", posix.O_RDONLY | O_CLOEXEC), lp.CLONE_NEWNET)
        loopback_up()

    try:
        run_in_child(in_container)
    except GpurunError as e:
        raise GpurunError(f"cannot bring up the loopback device of the restored container: {e}") from None
