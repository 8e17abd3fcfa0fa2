"""create, start, run, kill, delete: the life of a container, as runc's callers drive it."""

from __future__ import annotations

from gpurun import log
from gpurun.paths import absolute_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine.create import Created, CreateOptions
    from gpurun.invocation import Invocation

INIT_ENTRY = "gpurun.engine.init:main"


def create_options(invocation: Invocation) -> CreateOptions:
    """The options of create and run."""
    from gpurun.engine.create import CreateOptions

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
        preserve_fds=invocation.number("preserve-fds"),
        cgroup_manager=invocation.globals.driver,
        rootless=invocation.globals.rootless,
    )


def _make(invocation: Invocation) -> Created:
    """Create the container; the child that is to make its init is started before anything else is even read."""
    from gpurun.engine.child import check_preserved_fds, dismiss, listen_fds, start_child

    count = invocation.number("preserve-fds") + listen_fds()
    check_preserved_fds(count)
    started = start_child(INIT_ENTRY, count)
    from gpurun.engine.create import create as make

    try:
        options = create_options(invocation)
    except BaseException:
        dismiss(started)
        raise
    return make(options, started)


def create(invocation: Invocation) -> int:
    """``create``: returns when the container waits for ``start``."""
    _tell(_make(invocation).plan.warnings)
    return 0


def _tell_oom(created: Created) -> None:
    """Say so when memory ran out: all that is left of it otherwise is an exit code of 137."""
    state = created.state
    if not state.cgroup:
        return
    from gpurun.cgroup.oom import describe_oom
    from gpurun.engine.cgroup import release
    from gpurun.engine.oom import how_memory_ended

    facts = how_memory_ended(state)
    if created.keeper and not release(created.keeper) and facts.get("kills", 0) > 1:
        facts["kills"] -= 1  # that one was ours
    text = describe_oom(facts)
    if text:
        log.warning(text)


def _tell(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        log.warning(warning)


def start(invocation: Invocation) -> int:
    """``start``: returns when the process has been released."""
    from gpurun.engine.lifecycle import start as release

    _tell(release(invocation.globals.root, invocation.args[0]))
    return 0


def run(invocation: Invocation) -> int:
    """``run``: create and start; in the foreground wait, delete, and return the container's exit code."""
    created = _make(invocation)
    from gpurun.engine import lifecycle
    from gpurun.engine.signals import block_signals

    options = create_options(invocation)
    _tell(created.plan.warnings)
    if not options.detached:
        block_signals()  # from now on they are the container's
    try:
        _tell(lifecycle.start(options.root, options.id))
        if options.detached:
            return 0
        code = lifecycle.wait_foreground(created.state.pid, created.pidfd, created.master)
        _tell_oom(created)
    except BaseException:
        lifecycle.delete(options.root, options.id, force=True)
        raise
    if not invocation.flag("keep"):
        _tell(lifecycle.delete(options.root, options.id, force=True, told=True))
    return code


def kill(invocation: Invocation) -> int:
    """``kill ID [SIGNAL]``; with --regex, each running container whose id matches."""
    from gpurun.engine.lifecycle import kill as send
    from gpurun.engine.signals import parse_signal
    from gpurun.errors import NotRunning

    root = invocation.globals.root
    signal = parse_signal(invocation.args[1]) if len(invocation.args) > 1 else 15
    if not invocation.flag("regex"):
        send(root, invocation.args[0], signal, invocation.flag("all"))
        return 0
    from gpurun.commands.matching import matching_ids

    for container_id in matching_ids(root, invocation.args[0]):
        try:
            send(root, container_id, signal, invocation.flag("all"))
        except NotRunning:
            continue  # a pattern means those that can be meant
    return 0


def delete(invocation: Invocation) -> int:
    """``delete [--force] ID``; with --regex, each container whose id matches."""
    from gpurun.engine.lifecycle import delete as remove

    root, name, force = invocation.globals.root, invocation.args[0], invocation.flag("force")
    if not invocation.flag("regex"):
        _tell(remove(root, name, force))
        return 0
    from gpurun.commands.matching import matching_ids

    for container_id in matching_ids(root, name):
        _tell(remove(root, container_id, force))
    return 0
