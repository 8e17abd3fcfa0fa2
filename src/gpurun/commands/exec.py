"""exec: another process in a container."""

from __future__ import annotations

from gpurun.errors import GpurunError, UnsupportedError, error_text
from gpurun.launcher.fresh_interpreter import EXEC_ENTRY
from gpurun.launcher.sealed import is_sealed
from gpurun.paths import absolute_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine.plan.exec import ExecOptions
    from gpurun.invocation import Invocation

#: What exec exits with when it is exec that failed: the codes below are the process' own.
FAILURE = 255
_MAX_PROCESS = 64 << 20  # bytes of process.json


class ExecError(GpurunError):
    """The process was not started."""

    exit_code = FAILURE

    def __init__(self, text: str) -> None:
        super().__init__(f"exec failed: {text}")


def execute(invocation: Invocation) -> int:
    """``exec ID COMMAND...`` or ``exec --process FILE ID``: the exit code of the process, or 255.

    Raises :class:`ExecError` for what goes wrong before the process runs.
    """
    try:
        from gpurun.engine.caller.preserved import preserved_fds

        count = invocation.number("preserve-fds")
        if count < 0:
            raise GpurunError("--preserve-fds must not be negative")
        preserved = preserved_fds(count)
        if is_sealed():
            from gpurun.engine.caller.exec import exec_process

            return exec_process(exec_options(invocation, preserved), None)
        from gpurun.engine.caller.start_init import dismiss, start_child

        started = start_child(EXEC_ENTRY, preserved)
        from gpurun.engine.caller.exec import exec_process  # read while the starter reads its own modules

        try:
            options = exec_options(invocation, preserved)
        except BaseException:
            dismiss(started)
            raise
        return exec_process(options, started)
    except GpurunError as e:
        raise ExecError(str(e)) from None
    except (OSError, ImportError, MemoryError) as e:
        raise ExecError(error_text(e)) from None


def exec_options(invocation: Invocation, preserved: tuple[int, ...] = ()) -> ExecOptions:
    """The options of exec, with the descriptors that are *preserved*.

    Raises :class:`GpurunError` when the file of the process cannot be read.
    """
    from gpurun.engine.caller.exec import read_process_file
    from gpurun.engine.plan.exec import ExecOptions

    container_id, *args = invocation.args
    process, text = None, b""
    path = invocation.option("process")
    if path:
        from gpurun.linux.files import read_file

        text = read_file(path, _MAX_PROCESS)
        process = read_process_file(text, path)
    paths = [invocation.option(name) for name in ("pid-file", "console-socket", "pidfd-socket")]
    pid_file, console_socket, pidfd_socket = [absolute_path(path) if path else "" for path in paths]
    return ExecOptions(
        id=container_id,
        root=invocation.globals.root,
        process=process,
        process_text=text,
        args=tuple(args),
        cwd=invocation.option("cwd"),
        env=invocation.texts("env"),
        user=invocation.option("user"),
        additional_gids=invocation.texts("additional-gids"),
        capabilities=invocation.texts("cap"),
        tty=invocation.flag("tty"),
        apparmor_profile=invocation.option("apparmor"),
        selinux_label=invocation.option("process-label"),
        no_new_privileges=invocation.flag("no-new-privs") if "no-new-privs" in invocation.options else None,
        detach=invocation.flag("detach"),
        pid_file=pid_file,
        console_socket=console_socket,
        pidfd_socket=pidfd_socket,
        preserved=preserved,
        cgroup=_sub_cgroup(invocation.texts("cgroup")),
        ignore_paused=invocation.flag("ignore-paused"),
    )


def _sub_cgroup(given: tuple[str, ...]) -> str:
    if not given:
        return ""
    if len(given) > 1:
        raise GpurunError("--cgroup can be given once: cgroup v2 has one hierarchy")
    controllers, colon, _ = given[0].partition(":")
    if colon and "/" not in controllers:
        raise UnsupportedError("--cgroup", f'"{given[0]}" names controllers of cgroup v1; on cgroup v2 give only the path')
    if not given[0]:
        raise GpurunError("--cgroup must not be empty")
    return given[0]
