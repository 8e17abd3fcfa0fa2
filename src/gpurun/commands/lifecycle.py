"""create, start, run, kill, delete: the life of a container, as runc's callers drive it."""

from __future__ import annotations

from gpurun import log
from gpurun.errors import GpurunError, error_text
from gpurun.launcher.fresh_interpreter import INIT_ENTRY
from gpurun.launcher.sealed import is_sealed
from gpurun.paths import absolute_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine.caller.bundle import CreateOptions
    from gpurun.engine.caller.create import Created
    from gpurun.invocation import Invocation


def create_options(invocation: Invocation, preserved: tuple[int, ...] = ()) -> CreateOptions:
    """The options of create and run, with the descriptors that are *preserved*."""
    from gpurun.engine.caller.bundle import CreateOptions

    paths = {name: invocation.option(name) for name in ("pid-file", "console-socket", "pidfd-socket")}
    pid_file, console_socket, pidfd_socket = [absolute_path(path) if path else "" for path in paths.values()]
    return CreateOptions(
        id=invocation.args[0],
        root=invocation.globals.root,
        bundle=absolute_path(invocation.option("bundle", ".")),
        pid_file=pid_file,
        no_pivot=invocation.flag("no-pivot"),
        new_keyring=not invocation.flag("no-new-keyring"),
        config=invocation.option("config"),
        detached=invocation.command == "create" or invocation.flag("detach"),
        console_socket=console_socket,
        pidfd_socket=pidfd_socket,
        preserved=preserved,
        cgroup_manager=invocation.globals.driver,
        rootless=invocation.globals.rootless,
    )


def _make(invocation: Invocation) -> Created:
    """Create the container.  The starter that is to make its init is started before anything else is even read; in a sealed
    interpreter most containers need none."""
    from gpurun.engine.caller.preserved import listen_fds, preserved_fds

    preserved = preserved_fds(invocation.number("preserve-fds") + listen_fds())
    if is_sealed():
        from gpurun.engine.caller.create import create as make

        return make(create_options(invocation, preserved), None)
    from gpurun.engine.caller.start_init import dismiss, start_child

    started = start_child(INIT_ENTRY, preserved)
    from gpurun.engine.caller.create import create as make

    try:
        options = create_options(invocation, preserved)
    except BaseException:
        dismiss(started)
        raise
    return make(options, started)


def create(invocation: Invocation) -> int:
    """``create``: returns when the container waits for ``start``."""
    log.warnings(_make(invocation).plan.warnings)
    return 0


def _tell_oom(created: Created) -> None:
    """Say so when memory ran out: all that is left of it otherwise is an exit code of 137."""
    state = created.state
    if not state.cgroup:
        return
    from gpurun.cgroup.oom import describe_oom
    from gpurun.engine.caller.cgroup import release
    from gpurun.engine.caller.oom import how_memory_ended

    facts = how_memory_ended(state)
    if created.placeholder and not release(created.placeholder) and facts.get("kills", 0) > 1:
        facts["kills"] -= 1  # that one was ours
    text = describe_oom(facts)
    if text:
        log.warning(text)


def start(invocation: Invocation) -> int:
    """``start``: returns when the process has been released."""
    from gpurun.engine.caller.lifecycle import start as release

    release(invocation.globals.root, invocation.args[0])
    return 0


def run(invocation: Invocation) -> int:
    """``run``: create and start; in the foreground wait, delete, and return the container's exit code."""
    if invocation.option("trace"):
        from gpurun.commands.trace import traced_run

        return traced_run(invocation.option("trace"), invocation.args[0])
    created = _make(invocation)
    from gpurun.engine.caller import lifecycle
    from gpurun.engine.caller.delete import delete_own
    from gpurun.engine.signals import block_signals

    options = create_options(invocation)
    log.warnings(created.plan.warnings)
    if not options.detached:
        block_signals()  # from now on they are the container's
    try:
        if invocation.option("network"):
            _connect(created, options, invocation.option("network"))
        lifecycle.start(options.root, options.id)
        if options.detached:
            return 0
        code = lifecycle.wait_foreground(created.state.pid, created.pidfd, created.master)
        _tell_oom(created)
    except BaseException:
        try:
            log.warnings(delete_own(options.root, created.state))
        except (GpurunError, OSError) as e:
            log.warning(f"container {options.id} could not be removed (`gpurun delete --force` removes it): {_reason(e)}")
        raise
    if not invocation.flag("keep"):
        try:
            log.warnings(delete_own(options.root, created.state, oom_reported=True))
        except (GpurunError, OSError) as e:
            if not code:
                raise
            log.error(f"container {options.id} could not be removed (`gpurun delete --force` removes it): {_reason(e)}")
    return code


def _connect(created: Created, options: CreateOptions, network: str) -> None:
    """Give the container *network* before its program starts."""
    from gpurun.linux.process import CLONE_NEWNET
    from gpurun.network.attach import attach

    if not created.plan.namespaces.new & CLONE_NEWNET:
        raise GpurunError(
            '--network: the container has no network namespace of its own: add {"type": "network"} to linux.namespaces'
        )
    attach(options.root, options.id, created.state.pid, network)


def _reason(error: GpurunError | OSError) -> str:
    return error_text(error)


def kill(invocation: Invocation) -> int:
    """``kill ID [SIGNAL]``; with --regex, each running container whose id matches."""
    from gpurun.engine.caller.lifecycle import kill as send
    from gpurun.engine.signals import parse_signal
    from gpurun.errors import NotRunning

    root = invocation.globals.root
    signal = parse_signal(invocation.args[1]) if len(invocation.args) > 1 else 15
    if not invocation.flag("regex"):
        send(root, invocation.args[0], signal, invocation.flag("all"))
        return 0

    for container_id in matching_ids(root, invocation.args[0]):
        try:
            send(root, container_id, signal, invocation.flag("all"))
        except NotRunning:
            continue  # a pattern means those that can be meant
    return 0


def delete(invocation: Invocation) -> int:
    """``delete [--force] ID``; with --regex, each container whose id matches."""
    from gpurun.engine.caller.delete import delete as remove

    root, name, force = invocation.globals.root, invocation.args[0], invocation.flag("force")
    if not invocation.flag("regex"):
        log.warnings(remove(root, name, force))
        return 0

    for container_id in matching_ids(root, name):
        log.warnings(remove(root, container_id, force))
    return 0


def matching_ids(root: str, pattern: str) -> tuple[str, ...]:
    """The ids of the containers under *root* that the regular expression *pattern* matches somewhere (crun's --regex).

    Raises :class:`GpurunError` for a pattern that is not a regular expression.
    """
    import re  # for people only

    from gpurun.engine.state import listed_ids

    try:
        matches = re.compile(pattern).search
    except re.error as e:
        raise GpurunError(f'--regex: "{pattern}" is not a regular expression: {e}') from None
    try:
        return tuple([name for name in listed_ids(root) if matches(name)])
    except FileNotFoundError:
        return ()
