"""gpurun as a library makes real containers: a program of its own for each test, in the bed, as a user would write it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, MakeBundle
from tests.native.bed import Bed
from tests.native.bundle import Bundle
from tests.native.runtime import Runtime

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

HEAD = """
import subprocess, sys, time, threading
import gpurun
BUNDLE, ROOT = sys.argv[1:]
"""


def program(text: str, bundle: Bundle, runtime: Runtime, bed: Bed) -> str:
    """Standard output of the Python program *text*, which must succeed and leave nothing of its containers."""
    bundle.write()
    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(text), str(bundle.directory), str(runtime.root)],
        env={"PYTHONPATH": str(REPOSITORY / "src"), "LISTEN_FDS": "3", "NOTIFY_SOCKET": "/nowhere"},
        preexec_fn=bed.enter(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not runtime.root.exists() or [p.name for p in runtime.root.iterdir() if not p.name.startswith(".")] == []
    return done.stdout


def test_a_life(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    b = bundle()
    b.linux["cgroupsPath"] = f"{bed.subtree}/library-life"
    b.args("sh", "-c", "read word; echo got $word; echo oops >&2; exit 7")
    said = program(
        """
        with gpurun.Container(BUNDLE, "life", root=ROOT) as c:
            c.create(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            print(c.state()["status"])
            c.start()
            print(c.state()["status"], c.stats().pids >= 0)
            done = c.exec(["sh", "-c", "cat; echo $WORD; exit 3"], env={"WORD": "there"}, input=b"hello ")
            print(done.returncode, done.stdout)
            c.stdin.write(b"it\\n"); c.stdin.close()
            print(c.stdout.read(), c.stderr.read(), c.wait(timeout=30))
            print(c.state()["status"])
        """,
        b,
        runtime,
        bed,
    )
    assert said.splitlines() == ["created", "running True", "3 b'hello there\\n'", "b'got it\\n' b'oops\\n' 7", "stopped"]
    assert not bed.cgroup(b.linux["cgroupsPath"]).exists()


def test_errors_are_the_commands_sentences(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    b = bundle()
    b.linux["cgroupsPath"] = f"{bed.subtree}/library-errors"
    b.args("sleep", "60")
    said = program(
        """
        def tell(call, *args, **named):
            try:
                call(*args, **named)
            except (gpurun.GpurunError, TimeoutError) as e:
                print(type(e).__name__, e)
        with gpurun.Container(BUNDLE, "e", root=ROOT) as c:
            tell(c.start)
            c.create()
            tell(c.create)
            tell(gpurun.Container(BUNDLE, "e", root=ROOT).create)
            tell(c.wait, timeout=0.1)
            tell(c.exec, ["nothing-of-that-name"])
            c.start()
            tell(c.exec, ["sleep", "60"], timeout=0.5)
            c.kill(9)
            print(c.wait(timeout=30))
            tell(c.kill)
        tell(gpurun.Container("/nonexistent", root=ROOT).create)
        """,
        b,
        runtime,
        bed,
    )
    lines = said.splitlines()
    assert lines[0] == "ContainerNotFound container does not exist"
    assert lines[1] == "GpurunError container e has been created already: make another Container"
    assert lines[2] == "GpurunError container with given ID already exists"
    assert lines[3] == "TimeoutError container e has not ended after 0.1 s"
    assert "nothing-of-that-name" in lines[4] and lines[4].startswith("GpurunError")
    assert lines[5] == "TimeoutError sleep in container e has not ended after 0.5 s"
    assert lines[6:8] == ["137", "GpurunError container not running"]
    assert lines[8] == "ConfigError JSON specification file config.json not found in /nonexistent"


def test_an_exception_leaves_nothing(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    b = bundle()
    b.linux["cgroupsPath"] = f"{bed.subtree}/library-left"
    b.args("sleep", "60")
    said = program(
        """
        try:
            with gpurun.Container(BUNDLE, root=ROOT) as c:
                c.create()
                c.start()
                raise KeyError("mine")
        except KeyError as e:
            print("left", e)
        """,
        b,
        runtime,
        bed,
    )
    assert said == "left 'mine'\n"
    assert not bed.cgroup(b.linux["cgroupsPath"]).exists()


def test_pause_and_threads(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    b = bundle()
    b.linux["cgroupsPath"] = f"{bed.subtree}/library-pause"
    b.args("sleep", "60")
    said = program(
        """
        with gpurun.Container(BUNDLE, root=ROOT) as c:
            c.create(); c.start()
            codes = []
            waiter = threading.Thread(target=lambda: codes.append(c.wait()))
            waiter.start()
            c.pause(); print(c.state()["status"])
            c.resume(); print(c.state()["status"])
            c.kill(15); c.kill(9)
            waiter.join(30); print(codes)
        """,
        b,
        runtime,
        bed,
    )
    assert said.splitlines() == ["paused", "running", "[137]"]


def test_the_example(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    b = bundle()
    b.write()
    done = subprocess.run(
        [sys.executable, REPOSITORY / "examples/library/twenty.py", b.directory, runtime.root],
        env={"PYTHONPATH": str(REPOSITORY / "src"), "PATH": os.environ["PATH"]},
        preexec_fn=bed.enter(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 22 and all(float(line.split()[1]) >= 0 for line in lines[1:21])
    assert lines[21] == "ended with " + " ".join(str(number % 3) for number in range(20))
    assert [p.name for p in Path(runtime.root).iterdir() if not p.name.startswith(".")] == []


def test_the_document_runs(bed: Bed) -> None:
    """Each block of docs/library.md, in the repository's directory, as a reader would try it."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (REPOSITORY / "docs/library.md").read_text(), re.MULTILINE | re.DOTALL)
    said = []
    for block in blocks:
        done = subprocess.run(
            [sys.executable, "-c", block],
            env={"PYTHONPATH": str(REPOSITORY / "src")},
            preexec_fn=bed.enter(str(REPOSITORY)),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        said.append(done.stdout)
    assert len(said) == 3 and "hostname  hello" in said[1]


def test_signals_by_name(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    b = bundle()
    b.linux["cgroupsPath"] = f"{bed.subtree}/library-signals"
    b.args("sleep", "60")
    said = program(
        """
        for signal in ("SIGKILL", "kill", 9):
            with gpurun.Container(BUNDLE, root=ROOT) as c:
                c.create(); c.start()
                for wrong in ("SIGNONE", "", 65, -1, 10**400, 1.5, None, True):
                    try:
                        c.kill(wrong)
                        print("sent", wrong)
                    except gpurun.GpurunError as e:
                        assert not isinstance(e, ValueError), e
                c.kill(signal)
                print(c.wait(timeout=30))
        """,
        b,
        runtime,
        bed,
    )
    assert said.split() == ["137", "137", "137"]


def test_a_command_line_is_no_string(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    b = bundle()
    b.linux["cgroupsPath"] = f"{bed.subtree}/library-strings"
    b.args("sleep", "60")
    said = program(
        """
        with gpurun.Container(BUNDLE, "s", root=ROOT) as c:
            c.create(); c.start()
            for args in ("echo hi", b"echo", [], [b"echo"], ["echo", 1], ["a\\0b"]):
                try:
                    c.exec(args)
                    print("ran", args)
                except gpurun.GpurunError as e:
                    print(isinstance(e, TypeError), e)
            try:
                c.exec(["cat"], input="text")
            except gpurun.GpurunError as e:
                print(e)
            done = c.exec(["sh", "-c", "cat; printf '\\\\377'"], input="h\u00e9", text=True)
            print(ascii(done.stdout))
            print(repr(c) == f"<gpurun.Container 's' of {BUNDLE!r}>")
            print(repr(gpurun.Bundle.load(BUNDLE)) == f"<gpurun.Bundle {BUNDLE!r}>")
        """,
        b,
        runtime,
        bed,
    )
    lines = said.splitlines()
    assert lines[0] == "True args is one string, and must be a sequence of them: shlex.split() makes one"
    assert all(line.startswith("True args ") for line in lines[:6])
    assert lines[6] == "input must be bytes: text=False"
    assert lines[7:] == [r"'h\xe9\ufffd'", "True", "True"]


def test_streams_of_text(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    b = bundle()
    b.linux["cgroupsPath"] = f"{bed.subtree}/library-text"
    b.args("sh", "-c", "read word; echo got $word")
    said = program(
        """
        with gpurun.Container(BUNDLE, root=ROOT) as c:
            c.create(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            c.start()
            c.stdin.write("it\\n"); c.stdin.close()
            print(repr(c.stdout.read()), c.wait(timeout=30))
        """,
        b,
        runtime,
        bed,
    )
    assert said == "'got it\\n' 0\n"


def test_errors_have_their_classes_and_stderr_stays_empty(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    b = bundle()
    b.config["process"]["cwd"] = "relative"
    b.write()
    text = """
        try:
            gpurun.Container(BUNDLE, root=ROOT).create()
        except gpurun.ConfigError as e:
            print(e.where)
        bundle = gpurun.Bundle.load(BUNDLE)
        bundle.config["process"]["cwd"] = "/"
        bundle.config["process"]["env"] = ["NVIDIA_VISIBLE_DEVICES=all"]
        bundle.save()
        try:
            gpurun.Container(BUNDLE, root=ROOT, environ={"PATH": "/bin", "GPURUN_SYSROOT": "/nonexistent"}).create()
        except gpurun.GpuError as e:
            print("gpu")
        try:
            gpurun.Container(BUNDLE, root=ROOT).state()
        except gpurun.ContainerNotFound as e:
            print(e)
    """
    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(text), str(b.directory), str(runtime.root)],
        env={"PYTHONPATH": str(REPOSITORY / "src")},
        preexec_fn=bed.enter(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("process.cwd\ngpu\ncontainer does not exist\n", "")
