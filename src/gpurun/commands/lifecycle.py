"""create, start, run, kill, delete: the life of a container, as runc's callers drive it."""

from __future__ import annotations

from gpurun import log
from gpurun.errors import UnsupportedError
from gpurun.paths import absolute_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine.create import CreateOptions
    from gpurun.invocation import Invocation


def check_globals(invocation: Invocation) -> None:
    """What is asked for before the command and not built yet is refused, never ignored."""
    options = invocation.globals
    if options.cgroup_manager == "disabled":
        raise UnsupportedError("--cgroup-manager", "running without a cgroup is not supported yet")


def create_options(invocation: Invocation) -> CreateOptions:
    """The options of create and run; raises :class:`UnsupportedError` for those that are not built yet."""
    from gpurun.engine.create import CreateOptions

    check_globals(invocation)
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
        systemd_cgroup=invocation.globals.systemd_cgroup,
    )


def create(invocation: Invocation) -> int:
    """``create``: returns when the container waits for ``start``."""
    from gpurun.engine.create import create as make

    _tell(make(create_options(invocation)).plan.warnings)
    return 0


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
    from gpurun.engine import lifecycle
    from gpurun.engine.create import create as make
    from gpurun.engine.signals import block_signals

    options = create_options(invocation)
    created = make(options)
    _tell(created.plan.warnings)
    if not options.detached:
        block_signals()  # from now on they are the container's
    try:
        _tell(lifecycle.start(options.root, options.id))
        if options.detached:
            return 0
        code = lifecycle.wait_foreground(created.state.pid, created.pidfd, created.master)
    except BaseException:
        lifecycle.delete(options.root, options.id, force=True)
        raise
    if not invocation.flag("keep"):
        _tell(lifecycle.delete(options.root, options.id, force=True))
    return code


def kill(invocation: Invocation) -> int:
    """``kill ID [SIGNAL]``."""
    from gpurun.engine.lifecycle import kill as send
    from gpurun.engine.signals import parse_signal

    signal = parse_signal(invocation.args[1]) if len(invocation.args) > 1 else 15
    send(invocation.globals.root, invocation.args[0], signal, invocation.flag("all"))
    return 0


def delete(invocation: Invocation) -> int:
    """``delete [--force] ID``."""
    from gpurun.engine.lifecycle import delete as remove

    _tell(remove(invocation.globals.root, invocation.args[0], invocation.flag("force")))
    return 0
