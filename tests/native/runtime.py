"""Calling a runtime the way a shim does: one process for each command, output in files, containers as our children."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from errno import ENOSYS, EPERM
from pathlib import Path
from typing import Any, NamedTuple

from tests.native.bed import Bed
from tests.native.bundle import Bundle

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
#: System calls that a filter refuses to the runtime and all that it starts, in any test: REFUSED=clone3,mount_setattr, with
#: ENOSYS, or REFUSED_WITH=EPERM.
REFUSED_WITH = {"ENOSYS": ENOSYS, "EPERM": EPERM}[os.environ.get("REFUSED_WITH", "ENOSYS")]
REFUSED = tuple(os.environ["REFUSED"].split(",")) if os.environ.get("REFUSED") else ()
#: Before each exec one that does nothing, so that the compiled front does it itself by the plan of that (prime.py).
PRIMED = os.environ.get("PRIMED", "") == "1"
TIMEOUT = 60.0  # seconds; only a hang gets there


class Result(NamedTuple):
    """What a command did; ``out`` and ``err`` are decoded leniently."""

    rc: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """All that was said, without the escapes of a log record."""
        return (self.out + self.err).replace('\\"', '"')


class Container:
    """A container that was asked for by ``create`` or ``run --detach``; its output goes to files as it comes."""

    def __init__(self, runtime: Runtime, container_id: str, bundle: Bundle, result: Result, files: Path) -> None:
        self.runtime, self.id, self.bundle, self.result, self.files = runtime, container_id, bundle, result, files
        self._status: int | None = None

    @property
    def pid_text(self) -> str:
        return (self.files / "pid").read_text()

    @property
    def pid(self) -> int:
        return int(self.pid_text)

    @property
    def out(self) -> str:
        return (self.files / "out").read_text(errors="replace")

    @property
    def err(self) -> str:
        return (self.files / "err").read_text(errors="replace")

    def start(self) -> Result:
        return self.runtime("start", self.id)

    def state(self) -> dict[str, Any]:
        result = self.runtime("state", self.id)
        assert result.rc == 0, result
        return json.loads(result.out)  # type: ignore[no-any-return]

    def kill(self, *args: str) -> Result:
        return self.runtime("kill", self.id, *args)

    def delete(self, *options: str) -> Result:
        return self.runtime("delete", *options, self.id)

    def wait(self, timeout: float = TIMEOUT) -> int:
        """Reap the container's first process as a shim does; its exit code as a shell would say it."""
        if self._status is None:
            end = time.monotonic() + timeout
            while True:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    break
                if time.monotonic() > end:
                    raise TimeoutError(f"{self.id} is still running: {self.out}{self.err}")
                time.sleep(0.002)
            code = os.waitstatus_to_exitcode(status)
            self._status = code if code >= 0 else 128 - code
        return self._status

    def wait_for(self, text: str, timeout: float = TIMEOUT) -> str:
        """Wait until the container has written *text*; what it has written."""
        end = time.monotonic() + timeout
        while text not in self.out:
            if time.monotonic() > end:
                raise TimeoutError(f"{self.id} never wrote {text!r}: {self.out}{self.err}")
            time.sleep(0.002)
        return self.out

    def proc(self, name: str) -> Path:
        """``/proc/<pid>/<name>`` of the container's first process, on the host."""
        return Path(f"/proc/{self.pid}/{name}")

    def cgroup(self) -> str:
        """The container's cgroup2 path as the host sees it."""
        lines = self.proc("cgroup").read_text().splitlines()
        return next(line[3:] for line in lines if line.startswith("0::"))


class Runtime:
    """A runtime under test.

    Calling the object runs any command; :meth:`create` and :meth:`run` add a unique id, a pid file and the session's
    cgroup.  Everything made through it is removed by :meth:`cleanup`.
    """

    def __init__(self, path: str, bed: Bed, directory: Path) -> None:
        self.path, self.bed, self.directory = path, bed, directory
        self.name = os.path.basename(path)
        self.root = directory / "state"
        self.ids: list[str] = []
        self.containers: list[Container] = []

    @property
    def argv(self) -> list[str]:
        return [self.path, "--root", str(self.root)]

    def new_id(self) -> str:
        container_id = f"t{secrets.token_hex(6)}"
        self.ids.append(container_id)
        return container_id

    def __call__(
        self,
        *args: str,
        stdin: int | bytes = subprocess.DEVNULL,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        files: Path | None = None,
        pass_fds: Sequence[int] = (),
        globals_: Sequence[str] = (),
        timeout: float = TIMEOUT,
        preexec: Callable[[], None] | None = None,
        tracer: Sequence[str] = (),
    ) -> Result:
        """Run ``[tracer] RUNTIME --root ROOT [globals_] args``; output in files, for a container may outlive the command."""
        files = files or self.new_files()
        process = self.popen(
            *args,
            stdin=stdin,
            env=env,
            cwd=cwd,
            files=files,
            pass_fds=pass_fds,
            globals_=globals_,
            preexec=preexec,
            tracer=tracer,
        )
        try:
            rc = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            raise
        out, err = [(files / name).read_bytes().decode(errors="replace") for name in ("out", "err")]
        return Result(rc, out, err)

    def popen(
        self,
        *args: str,
        files: Path,
        stdin: int | bytes = subprocess.DEVNULL,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        pass_fds: Sequence[int] = (),
        globals_: Sequence[str] = (),
        preexec: Callable[[], None] | None = None,
        tracer: Sequence[str] = (),
    ) -> subprocess.Popen[bytes]:
        if PRIMED and args[:1] == ("exec",):
            from tests.native.prime import prime  # of gpurun's own modules as well

            prime(self.path, [*self.argv[1:], *args], self.new_files(), lambda argv: self.bed.command(argv, cwd))
        argv = [*tracer, *self.argv, *globals_, *args]
        if preexec is None and not REFUSED:
            argv, before_exec = self.bed.command(argv, cwd)
        elif preexec is None:
            from tests.native.refusing import refuse  # of gpurun's own modules, which documents are made without

            before_exec = self._before_exec(self.bed.enter(cwd), refuse(REFUSED, REFUSED_WITH))
        else:
            before_exec = self._before_exec(self.bed.enter(cwd), preexec)
        if isinstance(stdin, bytes):
            (files / "in").write_bytes(stdin)
            stdin = os.open(files / "in", os.O_RDONLY)
        else:
            stdin = os.dup(stdin) if stdin >= 0 else os.open(os.devnull, os.O_RDWR)

        with open(files / "out", "ab") as out, open(files / "err", "ab") as err:
            try:
                return subprocess.Popen(
                    argv,
                    stdin=stdin,
                    stdout=out,
                    stderr=err,
                    cwd=cwd,
                    env=dict(ENVIRONMENT if env is None else env),
                    pass_fds=pass_fds,
                    preexec_fn=before_exec,
                )
            except subprocess.SubprocessError as e:  # which of the steps, Python does not say
                raise AssertionError(f"{e} {(files / 'err').read_text()}") from None
            finally:
                os.close(stdin)

    @staticmethod
    def _before_exec(*steps: Callable[[], None]) -> Callable[[], None]:
        def before_exec() -> None:
            try:
                for step in steps:
                    step()
            except BaseException as e:
                os.write(2, f"{e!r}\n".encode())
                raise

        return before_exec

    def create(self, bundle: Bundle, *options: str, detach: bool = False, check: bool = True, **how: Any) -> Container:
        """``create`` (or ``run --detach``); with *check*, a failure fails the test with what the runtime said."""
        container_id = how.pop("container_id", None) or self.new_id()
        files = self.new_files()
        self.prepare(bundle, container_id)
        command = ["run", "--detach"] if detach else ["create"]
        command += ["--bundle", str(bundle.directory), "--pid-file", str(files / "pid"), *options, container_id]
        result = self(*command, files=files, **how)
        container = Container(self, container_id, bundle, result, files)
        self.containers.append(container)
        if check:
            assert result.rc == 0, result.text
        return container

    def start(self, bundle: Bundle, *options: str, **how: Any) -> Container:
        """``create`` and ``start``, both of which must succeed."""
        container = self.create(bundle, *options, **how)
        started = container.start()
        assert started.rc == 0, started.text
        return container

    def run(self, bundle: Bundle, *options: str, **how: Any) -> Result:
        """Foreground ``run``: the container's output and exit code; nothing of the container may be left after it."""
        container_id = how.pop("container_id", None) or self.new_id()
        self.prepare(bundle, container_id)
        result = self("run", "--bundle", str(bundle.directory), *options, container_id, **how)
        assert not (self.root / container_id).exists(), f"run left its state directory: {result.text}"
        return result

    def output(self, bundle: Bundle, *options: str, **how: Any) -> str:
        """Standard output of a ``run`` that must succeed."""
        result = self.run(bundle, *options, **how)
        assert result.rc == 0, result.text
        return result.out

    def refused(self, bundle: Bundle, *options: str, **how: Any) -> str:
        """The text with which ``create`` refuses; it must have made nothing."""
        container = self.create(bundle, *options, check=False, **how)
        assert container.result.rc == 1, container.result
        assert not (self.root / container.id).exists(), f"a refused create left its state directory: {container.err}"
        return container.result.text

    def cleanup(self) -> None:
        """Delete every container this object knows and reap what became our child."""
        for container_id in reversed(self.ids):  # who joined a namespace goes before who made it
            if (self.root / container_id).exists():  # without a state what is left is found by tests.native.leaks
                result = self("delete", "--force", container_id)
                assert result.rc == 0 or "does not exist" in result.text, f"delete --force {container_id}: {result.text}"
            self.reap()  # the first process of a pid namespace cannot end before those of it that are ours are reaped
        self.ids.clear()
        self.containers.clear()

    def reap(self) -> None:
        """Wait for the dead among our children that no test waited for."""
        for pid in Path("/proc/thread-self/children").read_text().split():
            if int(pid) not in self.bed.own_pids and ") Z " in Path(f"/proc/{pid}/stat").read_text():
                os.waitpid(int(pid), os.WNOHANG)

    def new_files(self) -> Path:
        directory = self.directory / "io" / secrets.token_hex(6)
        directory.mkdir(parents=True)
        return directory

    def prepare(self, bundle: Bundle, container_id: str) -> None:
        if isinstance(bundle.config.get("linux"), dict) and "cgroupsPath" not in bundle.linux:
            bundle.linux["cgroupsPath"] = f"{self.bed.subtree}/{container_id}"
        bundle.write()
