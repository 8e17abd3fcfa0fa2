"""Foreground ``run``: exit codes, standard streams, and that nothing stays."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.conftest import MakeBundle
from tests.native.runtime import Runtime
from tests.native.waiting import wait_until

pytestmark = pytest.mark.native


@pytest.mark.parametrize("code", [0, 1, 3, 42, 127, 255])
def test_exit_code_is_the_containers(runtime: Runtime, bundle: MakeBundle, code: int) -> None:
    assert runtime.run(bundle().sh(f"exit {code}")).rc == code


@pytest.mark.parametrize(("name", "number"), [("KILL", 9), ("USR1", 10)])
def test_death_by_signal_is_128_and_the_number(runtime: Runtime, bundle: MakeBundle, name: str, number: int) -> None:
    # Process 1 of a pid namespace is only killed from outside, so the container here shares the host's.
    b = bundle().without_namespace("pid").sh(f"kill -{name} $$; sleep 5")
    assert runtime.run(b).rc == 128 + number


def test_output_goes_to_the_callers_streams(runtime: Runtime, bundle: MakeBundle) -> None:
    result = runtime.run(bundle().sh("echo out; echo err >&2"))
    assert result == (0, "out\n", "err\n")


def test_input_comes_from_the_caller(runtime: Runtime, bundle: MakeBundle) -> None:
    assert runtime.output(bundle().args("cat"), stdin=b"hello from outside") == "hello from outside"


def test_streams_of_create_are_those_of_the_container(runtime: Runtime, bundle: MakeBundle) -> None:
    """Whoever starts it: a shim hands its pipes to ``create``, and reads end-of-file when the container is gone."""
    container = runtime.create(bundle().sh("cat; echo done >&2"), stdin=b"given at create")
    assert container.out == ""
    assert container.start() == (0, "", "")
    assert container.wait() == 0
    assert (container.out, container.err) == ("given at create", "done\n")


def test_pipe_reaches_end_of_file_when_the_container_ends(runtime: Runtime, bundle: MakeBundle) -> None:
    """Nothing else may hold the container's streams: no monitor, no helper (the shim would wait for it)."""
    b = bundle().sh("echo hello")
    container_id = runtime.new_id()
    runtime.prepare(b, container_id)
    argv = [*runtime.argv, "create", "--bundle", str(b.directory), container_id]
    enter = runtime.bed.enter()
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=enter
    )
    assert process.wait(30) == 0
    assert runtime("start", container_id).rc == 0
    out, _ = process.communicate(timeout=30)
    assert out == b"hello\n"


def test_without_an_environment(runtime: Runtime, bundle: MakeBundle) -> None:
    """Podman runs kill and delete with nothing but XDG_RUNTIME_DIR set."""
    container = runtime.start(bundle().sh("trap 'exit 7' TERM; echo up; while :; do sleep 0.01; done"))
    container.wait_for("up")
    assert runtime("kill", container.id, "15", env={"XDG_RUNTIME_DIR": ""}).rc == 0
    assert container.wait() == 7
    assert runtime("delete", container.id, env={}).rc == 0


def test_detached_run(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.create(bundle().sh("echo up; exit 5"), detach=True)
    assert container.wait() == 5
    assert container.out == "up\n"
    assert container.state()["status"] == "stopped"


def test_from_the_bundle_directory(runtime: Runtime, bundle: MakeBundle) -> None:
    """Without --bundle the bundle is the current directory."""
    b = bundle().args("echo", "here")
    container_id = runtime.new_id()
    runtime.prepare(b, container_id)
    assert runtime("run", container_id, cwd=str(b.directory)) == (0, "here\n", "")


def test_absolute_rootfs_path(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().args("echo", "here")
    b.config["root"]["path"] = str(b.rootfs)
    assert runtime.output(b) == "here\n"


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_streams_are_no_reason_to_fail(runtime: Runtime, bundle: MakeBundle, closed: tuple[int, ...]) -> None:
    """A closed stream must not become a descriptor of something else."""

    def close() -> None:
        for fd in closed:
            os.close(fd)

    b = bundle().sh("ls -l /proc/self/fd >/tmp/fds; exit 3").mount("/tmp", "tmpfs", kind="tmpfs")
    assert runtime.run(b, preexec=close).rc == 3


def test_signals_sent_to_run_reach_the_container(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh("trap 'echo got; exit 9' TERM; echo up; while :; do sleep 0.01; done")
    container_id = runtime.new_id()
    runtime.prepare(b, container_id)
    files = runtime.new_files()
    process = runtime.popen("run", "--bundle", str(b.directory), container_id, files=files)
    wait_until(
        lambda: "up" in (files / "out").read_text(),
        meanwhile=lambda: None if process.poll() is None else (files / "err").read_text(),
    )
    process.terminate()
    assert process.wait(30) == 9
    assert (files / "out").read_text() == "up\ngot\n"
