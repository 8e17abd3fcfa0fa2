"""The launch as a timeline: strace's record → steps → text, picture, page."""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gpurun.formats.strace import Call, parse_calls
from gpurun.library.timeline import as_text, timeline
from gpurun.library.timeline_svg import as_html, as_svg
from tests.conftest import MakeBundle
from tests.native.runtime import Runtime

RECORD = """\
100 1000.000000 execve("/usr/bin/python3", ["python3"], 0x7ffe /* 3 vars */) = 0 <0.001000>
100 1000.001000 openat(AT_FDCWD, "/b/config.json", O_RDONLY) = 3 <0.000010>
101 1000.001500 execve("/proc/self/fd/5", ["python3"], 0x7ffe /* 0 vars */ <unfinished ...>
100 1000.002000 read(3, "{}", 4096) = 2 <0.000010>
101 1000.002500 <... execve resumed>) = 0 <0.001000>
101 1000.003000 clone3({flags=CLONE_PARENT|CLONE_NEWNS|CLONE_NEWPID}, 88) = 102 <0.000100>
102 1000.003200 setsid() = 102 <0.000010>
102 1000.003500 pivot_root(".", ".") = 0 <0.000010>
102 1000.003600 openat(4, "nothing", O_RDONLY) = -1 ENOENT (No such file or directory) <0.000020>
--- a line that is no call
102 1000.004000 capset({version=_LINUX_CAPABILITY_VERSION_3, pid=0}, {effective=0}) = 0 <0.000010>
102 1000.004500 execve("/bin/true", ["true"], 0x7ffe /* 1 var */) = 0 <0.000500>
102 1000.005000 write(1, "of the program", 14) = 14 <0.000010>
102 1000.005500 exit_group(0) = ?
100 1000.006000 wait4(102, 0x7ffe, 0, NULL) = 102 <0.000010>
"""


def test_calls() -> None:
    calls = parse_calls(RECORD.splitlines(keepends=True))
    assert len(calls) == 13
    assert calls[2] == Call(101, 1000.0015, "execve", '"/proc/self/fd/5", ["python3"], 0x7ffe /* 0 vars */', "0", 0.001)
    assert [call.result for call in calls if call.name in ("openat", "exit_group")] == ["3", "-1 ENOENT", "?"]
    assert parse_calls(["", "x", "1 2", "1 2 3", "1 2 +++ exited with 0 +++", "1 2 --- SIGCHLD ---"]) == []


def test_steps() -> None:
    steps = timeline(parse_calls(RECORD.splitlines()))
    told = [(step.process, step.name, step.calls) for step in steps]
    assert told == [
        ("caller", "start the interpreter, import modules", 1),
        ("caller", "read config.json, plan", 2),
        ("starter", "start the interpreter, import modules", 1),
        ("starter", "clone the init into its namespaces and its cgroup", 1),
        ("init", "begin a session", 1),
        ("init", "pivot_root: leave the host's tree", 2),
        ("init", "give up capabilities", 1),
        ("init", "execve the program", 1),
        ("caller", "wait for the container", 1),
    ]
    assert steps[1].start == pytest.approx(1.0) and steps[1].length == pytest.approx(5.0)
    assert "write" not in as_text(steps), "what the program does is not of the launch"
    assert timeline([]) == []


def test_pictures_are_whole_documents() -> None:
    steps = timeline(parse_calls(RECORD.splitlines()))
    root = ElementTree.fromstring(as_svg(steps, "gpurun run <web>"))
    assert root.tag.endswith("svg") and len([e for e in root.iter() if e.tag.endswith("rect")]) == 1 + len(steps)
    page = as_html(steps, "gpurun run <web>")
    assert "&lt;web&gt;" in page and "<web>" not in page and page.count("<tr>") == 1 + len(steps)
    marks = [e.text or "" for e in root.iter() if e.get("text-anchor") == "middle"]
    assert len(marks) == 11 and all(mark.endswith(" ms") for mark in marks), "the axis says its unit"
    assert ElementTree.fromstring(as_svg([], "nothing")) is not None


@pytest.mark.native
@pytest.mark.gpurun_only
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("ending", ["svg", "html", "txt"])
def test_a_real_launch(runtime: Runtime, bundle: MakeBundle, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"launch.{ending}"
    done = runtime.run(bundle().sh("echo from inside; exit 7"), "--trace", str(file))
    assert (done.rc, done.out, done.err) == (7, "from inside\n", "")
    text = file.read_text()
    places = [text.index(step) for step in ("read config.json", "clone the init", "pivot_root", "execve the program")]
    assert places == sorted(places)


@pytest.mark.native
@pytest.mark.gpurun_only
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_launch_that_fails_is_traced_as_well(runtime: Runtime, bundle: MakeBundle) -> None:
    done = runtime.run(bundle().args("/nothing"), "--trace", "-")
    assert done.rc == 1 and "stat /nothing: no such file" in done.err and "read config.json, plan" in done.err
