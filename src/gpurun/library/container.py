"""A container as a program sees it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal as signals
import subprocess
import tempfile
from typing import Literal, overload

from gpurun.cgroup.manager import oom_kill_count
from gpurun.cgroup.stats import read_stats
from gpurun.engine import state as store
from gpurun.engine.signals import parse_signal
from gpurun.errors import ConfigError, ContainerNotFound, GpuError, GpurunError, UnsupportedError
from gpurun.launcher.fresh_interpreter import MAIN_ENTRY, MONITOR_ENTRY, child_command
from gpurun.library.arguments import ArgumentError, words
from gpurun.library.bundle import PATH, Bundle
from gpurun.library.stats import Stats, stats_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import IO, Any, Self

#: The errors of commands that come out of the library as they are; every other one is a :class:`gpurun.GpurunError`.
_DOCUMENT_ERRORS = {one.__name__: one for one in (ConfigError, UnsupportedError)}


class Container:
    """One container, from a bundle to its end; a context manager that leaves nothing behind.

    *bundle* is a directory or a :class:`gpurun.Bundle` (which is read from its file: save what was changed).  *root* is the
    state directory, which ``gpurun --root`` and the engines need as an option to see the container.  *environ* is the
    environment of gpurun itself (not of the container); by default it has a PATH and nothing else.  *runtime* is the command
    to run; by default this package's own program.  *systemd_cgroup* takes the cgroup from systemd.

    Every method raises :class:`gpurun.GpurunError` with the sentence that the command would print.  The methods may be
    called from any thread, one at a time.  Root is needed, as for the commands, or a rootless bundle.

        with gpurun.Container("bundle") as container:
            container.create(stdout=subprocess.PIPE)
            container.start()
            output = container.stdout.read()
            code = container.wait(timeout=10)
    """

    def __init__(
        self,
        bundle: Bundle | str | os.PathLike[str],
        container_id: str | None = None,
        *,
        root: str = "/run/gpurun",
        environ: Mapping[str, str] | None = None,
        runtime: Sequence[str] | None = None,
        systemd_cgroup: bool = False,
    ) -> None:
        self.bundle = bundle.path if isinstance(bundle, Bundle) else os.path.abspath(bundle)
        self.id = container_id or f"gpurun-{secrets.token_hex(6)}"
        self.root = os.path.abspath(root)
        self.environ = {"PATH": PATH} if environ is None else dict(environ)
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        self._runtime = tuple(runtime or _own_program())
        self._globals = ("--root", self.root, *(("--systemd-cgroup",) if systemd_cgroup else ()))
        self._monitor: subprocess.Popen[Any] | None = None
        self._directory = ""

    def __repr__(self) -> str:
        return f"<gpurun.Container {self.id!r} of {self.bundle!r}>"

    def create(
        self,
        *,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = False,
    ) -> None:
        """Make the container, up to the moment before its program starts.

        The streams are what :class:`subprocess.Popen` takes: None for this process's own, ``subprocess.DEVNULL``, a file, or
        ``subprocess.PIPE``, whose other end is :attr:`stdin`, :attr:`stdout` or :attr:`stderr` then.  They are of bytes, or
        with *text* of strings in UTF-8, with U+FFFD for other bytes.  Raises :class:`GpurunError` when the container
        cannot be made, or was made already.
        """
        if self._monitor is not None:
            raise GpurunError(f"container {self.id} has been created already: make another Container")
        self._directory = tempfile.mkdtemp(prefix="gpurun-")
        pid_file = f"{self._directory}/pid"
        read_end, write_end = os.pipe()
        create = self._words(self._directory, "create", "--bundle", self.bundle, "--pid-file", pid_file, self.id)
        child = child_command(MONITOR_ENTRY)
        kept = (write_end,) if child.fd is None else (write_end, child.fd)
        words = (*child.argv, pid_file, str(write_end), *create)
        try:
            monitor = subprocess.Popen(
                words,
                executable=child.executable,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=self._environ(),
                pass_fds=kept,
                **_streams(text),
                start_new_session=True,  # Ctrl-C at this program's terminal is not the container's
            )
        finally:
            os.close(write_end)
        with os.fdopen(read_end, "rb") as said:
            made = said.read(1)
        if not made:
            monitor.wait()
            for stream in (monitor.stdin, monitor.stdout, monitor.stderr):
                if stream is not None:
                    stream.close()
            error = _last_error(self._directory)
            self._forget()
            raise error or _error("")
        self._monitor = monitor
        self.stdin, self.stdout, self.stderr = monitor.stdin, monitor.stdout, monitor.stderr

    def start(self) -> None:
        """Let the program begin."""
        self._call("start", self.id)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status of the program, once it has ended: 128 and the signal's number when a signal ended it.

        Raises :class:`TimeoutError` when it has not ended after *timeout* seconds.
        """
        if self._monitor is None:
            raise GpurunError(f"container {self.id} was not created by this program: its parent learns how it ends")
        try:
            return self._monitor.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"container {self.id} has not ended after {timeout} s") from None

    @overload
    def exec(
        self, args: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = "", user: str = "",
        input: bytes | None = None, timeout: float | None = None, text: Literal[False] = False,
    ) -> subprocess.CompletedProcess[bytes]: ...  # fmt: skip

    @overload
    def exec(
        self, args: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = "", user: str = "",
        input: str | None = None, timeout: float | None = None, text: Literal[True],
    ) -> subprocess.CompletedProcess[str]: ...  # fmt: skip

    def exec(
        self,
        args: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str = "",
        input: bytes | str | None = None,
        timeout: float | None = None,
        text: bool = False,
    ) -> subprocess.CompletedProcess[Any]:
        """Run another program in the container and wait for it; its output and its exit status are in the result.

        *args* is a sequence of strings: one string is refused.  Input and output are bytes, or with *text* strings in
        UTF-8, with U+FFFD for other bytes.  *env* comes on top of the container's, *user* is ``uid[:gid]``.  A program
        that cannot be run raises, as does *timeout* (:class:`TimeoutError`; the program is killed then).
        """
        args = words(args, "args")
        if input is not None and isinstance(input, str) is not text:
            raise ArgumentError(f"input must be {'a string' if text else 'bytes'}: text={text}")
        options = [word for name, value in (env or {}).items() for word in ("--env", f"{name}={value}")]
        options += [*(("--cwd", cwd) if cwd else ()), *(("--user", user) if user else ())]
        with tempfile.TemporaryDirectory(prefix="gpurun-") as directory:
            pid_file = f"{directory}/pid"
            command = self._words(directory, "exec", *options, "--pid-file", pid_file, self.id, *args)
            running: subprocess.Popen[Any] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self._environ(),
                **_streams(text),
            )  # fmt: skip
            late = False
            try:
                out, err = running.communicate(input, timeout)
            except subprocess.TimeoutExpired:
                late = True
                _end(pid_file, running)
                running.communicate()
            if late:
                raise TimeoutError(f"{args[0]} in container {self.id} has not ended after {timeout} s")
            error = _last_error(directory) if running.returncode else None
        if error is not None:
            raise error
        return subprocess.CompletedProcess(list(args), running.returncode, out, err)

    def kill(self, signal: int | str = signals.SIGTERM) -> None:
        """Send the container's first process *signal*: a number, or a name such as ``"SIGKILL"`` or ``"term"``.

        Raises :class:`ArgumentError` for what is neither, :class:`GpurunError` for a signal that there is not, and when the
        container has ended.
        """
        if isinstance(signal, bool) or not isinstance(signal, int | str):
            raise ArgumentError("signal must be a number, or a name such as SIGTERM")
        number = parse_signal(signal) if isinstance(signal, str) else parse_signal(str(int(signal)))
        self._call("kill", self.id, str(number))

    def pause(self) -> None:
        """Stop all processes of the container, until :meth:`resume`."""
        self._call("pause", self.id)

    def resume(self) -> None:
        """Let them go on."""
        self._call("resume", self.id)

    def state(self) -> dict[str, Any]:
        """The state of the container (OCI runtime specification, "State"): ``id``, ``status``, ``pid``, ``bundle``, …"""
        document: dict[str, Any] = json.loads(self._call("state", self.id))
        return document

    def stats(self) -> Stats:
        """What the container uses now; raises :class:`gpurun.GpurunError` when it does not run."""
        found = store.load(self.root, self.id)
        try:
            data = read_stats(found.cgroup) if found.cgroup else None
        except OSError:
            data = None
        if data is None:
            raise GpurunError(f"container {self.id} has no cgroup, or has ended")
        return stats_of(data, oom_kill_count(found.cgroup))

    def delete(self, *, force: bool = False) -> None:
        """Remove what is left of the container; with *force* it is killed first, and may be gone already."""
        self._call("delete", *(("--force",) if force else ()), self.id)
        if self._monitor is not None:
            self._monitor.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self._forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.delete(force=True)
        except ContainerNotFound:
            pass

    def _forget(self) -> None:
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = ""

    def _environ(self) -> dict[str, str]:
        """The environment of a command: its errors go only to the log, because stderr is the container's."""
        return {**self.environ, "GPURUN_LIBRARY": "1"}

    def _words(self, directory: str, *words: str) -> list[str]:
        """The command line for *words*, whose errors go to a log in *directory*."""
        return [*self._runtime, *self._globals, "--log", f"{directory}/log", "--log-format", "json", *words]

    def _call(self, *words: str) -> str:
        """Standard output of one command, which must succeed."""
        with tempfile.TemporaryDirectory(prefix="gpurun-") as directory:
            done = subprocess.run(
                self._words(directory, *words),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=self._environ(),
                check=False,
            )
            if done.returncode:
                raise _last_error(directory) or _error("")
        return done.stdout.decode()


def _end(pid_file: str, running: subprocess.Popen[bytes]) -> None:
    """Kill the program whose pid is in *pid_file*, or what was about to start it."""
    try:
        with open(pid_file, encoding="ascii") as file:
            os.kill(int(file.read()), signals.SIGKILL)  # a child of *running*, which reaps it only now
    except (OSError, ValueError):
        running.kill()  # before it has made the program


def _own_program() -> tuple[str, ...]:
    """The command line of this package's own program, run by this interpreter."""
    child = child_command(MAIN_ENTRY)
    return (child.executable, *child.argv[1:])


def _streams(text: bool) -> dict[str, Any]:
    """The arguments of :class:`subprocess.Popen` for the streams."""
    return {"encoding": "utf-8", "errors": "replace"} if text else {}


def _error(text: str, kind: str = "") -> GpurunError:
    """The error with the sentence *text* of a command, of the class *kind*."""
    missing = ContainerNotFound()
    if text == str(missing):
        return missing
    if kind in _DOCUMENT_ERRORS:
        source, colon, what = text.partition(": ")
        return _DOCUMENT_ERRORS[kind](source if colon else "", what if colon else text)
    if kind == GpuError.__name__:
        return GpuError(text)
    return GpurunError(text or "gpurun failed and did not say why")


def _last_error(directory: str) -> GpurunError | None:
    """The last error in the log in *directory*; None when there is none."""
    found = None
    try:
        with open(f"{directory}/log", encoding="utf-8", errors="replace") as log:
            for line in log:
                record = json.loads(line)
                if record.get("level") == "error":
                    found = _error(str(record["msg"]), str(record.get("kind", "")))
    except (OSError, ValueError):
        pass  # nothing was written, or not all of it
    return found
