"""Every system call of every command fails, one at a time: what the command says, what it does, what is left.

``make test`` takes a few of the calls of each command, the same ones each time; ``make test-faults`` all of them, and says
what it counted.  A call that fails may cost a command its success, but never more: it says in a sentence what was being done
when which error came, or has done all that it should; it does not hang; and ``delete --force`` then leaves nothing.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.gpu.amd.host import amd_gpus
from gpurun.gpu.host.facts import SETTLED
from tests.conftest import MakeBundle
from tests.faults.sweep import FAULTS, Call, calls_made, chosen
from tests.native.bed import Bed
from tests.native.bundle import Bundle
from tests.native.inject import Injection
from tests.native.leaks import Leaks
from tests.native.listing import tree_listing
from tests.native.runtime import ENVIRONMENT, Container, Result, Runtime
from tests.simcards import Host, amd
from tests.simcards.machines import LATER
from tests.simdriver import Options, SimulatedDriver, minor

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

COMMANDS = (
    "create",
    "run",
    "run --detach",
    "start",
    "state",
    "exec",
    "exec again",  # by the plan that the first has left: the compiled front's own
    "pause",
    "resume",
    "update",
    "kill",
    "delete",
    "delete --force",
    "ps",
    "list",
)
#: Those of a container with the first GPU: what they do is another GPU's.
GPU_COMMANDS = ("gpu attach", "gpu detach", "update --gpus")
#: Those that do something else for GPUs of AMD's than for NVIDIA's.
AMD_COMMANDS = ("create", "run", "exec", "delete", "delete --force", *GPU_COMMANDS)
SECONDS = 180.0  # a command that takes longer hangs
#: How many calls of each command `make test` takes, without GPURUN_FAULTS (:mod:`tests.faults.sweep`).
SHORT = 3


class Sweep:
    """One command, with a container of its own for each call that fails; *node* is that of the second GPU."""

    def __init__(
        self, command: str, runtime: Runtime, bundle: Bundle, env: dict[str, str], directory: Path, node: str
    ) -> None:
        self.command, self.runtime, self.bundle, self.env, self.node = command, runtime, bundle, env, node
        self.log = directory / "strace"
        self.argv = command.removesuffix(" again").split()
        if self.argv[0] == "run" and "--detach" not in self.argv:
            bundle.args("echo", "done")
        else:
            bundle.args("sleep", "1000")
        bundle.rootfs_before = tree_listing(bundle.rootfs)

    def prepare(self) -> Container:
        """The container as the command is to find it."""
        self.bundle.linux.pop("cgroupsPath", None)
        if self.argv[0] in ("create", "run"):
            return Container(self.runtime, self.runtime.new_id(), self.bundle, Result(0, "", ""), self.runtime.new_files())
        container = self.runtime.create(self.bundle, env=self.env)
        if self.command != "start":
            container.start()
        if self.command == "gpu detach":
            attached = self.runtime("gpu", "attach", container.id, "1", env=self.env)
            assert attached.rc == 0, attached
        if self.command == "exec again":
            assert self.runtime("exec", container.id, "true", env=self.env).rc == 0
        if self.command == "resume":
            assert self.runtime("pause", container.id).rc == 0
        if self.command == "delete":
            container.kill("KILL")
            container.wait()
        return container

    def run(self, container: Container, tracer: list[str]) -> Result:
        options = {"tracer": tracer, "env": self.env, "timeout": SECONDS}
        if self.argv[0] in ("create", "run"):
            self.runtime.prepare(self.bundle, container.id)
            words = ["--bundle", str(self.bundle.directory), "--pid-file", str(container.files / "pid")]
            return self.runtime(*self.argv, *words, container.id, **options)  # type: ignore[arg-type]
        if self.argv[0] == "list":
            return self.runtime("list", **options)  # type: ignore[arg-type]
        if self.command in GPU_COMMANDS:
            words = (
                ["update", "--gpus", "0,1", container.id]
                if self.command == "update --gpus"
                else [*self.argv, container.id, "1"]
            )
            return self.runtime(*words, **options)  # type: ignore[arg-type]
        more = {"exec": ["echo", "done"], "kill": ["KILL"], "update": ["--resources", "-"]}.get(self.argv[0], [])
        if self.argv[0] == "update":
            options["stdin"] = b'{"unified": {"cgroup.max.descendants": "100"}}'
        return self.runtime(*self.argv, container.id, *more, **options)  # type: ignore[arg-type]

    def is_done(self, container: Container, result: Result) -> str:
        """What a command that says that it has succeeded has not done; "" for nothing."""
        directory = self.runtime.root / container.id
        if self.argv[0] == "delete":
            return "the state is still there" if directory.exists() else ""
        if (self.command == "run" or self.argv[0] == "exec") and result.out != "done\n":
            return f"its output is {result.out!r}"
        if self.command == "run":
            return "the state is still there" if directory.exists() else ""
        if self.command == "kill":
            end = time.monotonic() + SECONDS
            while self.runtime("state", container.id).out.count('"stopped"') == 0:
                if time.monotonic() > end:
                    return "the container runs"
            return ""
        if self.argv[0] in ("ps", "list"):
            wanted = container.id if self.argv[0] == "list" else container.pid_text
            # runc's list passes over a container that it cannot read as well, and says so.
            return (
                "" if wanted in result.out or f"load container {wanted}: " in result.err else f"its output is {result.out!r}"
            )
        if self.command in GPU_COMMANDS:
            there = os.path.lexists(f"/proc/{container.pid}/root{self.node}")
            return (
                "" if there is (self.command != "gpu detach") else "the GPU's node is there" if there else "it has no node"
            )
        expected = {"create": "created", "pause": "paused"}.get(self.command, "running")
        try:
            status = container.state()["status"]
        except AssertionError as e:
            return f"there is no state: {e}"
        if self.command == "create" and status == "created":
            expected = "running"
            status = container.state()["status"] if container.start().rc == 0 else "not to be started"
        return "" if status == expected else f"the container is {status}"


def fault(result: Result, injected: list[str]) -> str:
    """What is wrong with what a command that has failed said; "" for nothing."""
    lines = [line for line in result.err.splitlines() if line]
    if (
        "Traceback" in result.err
        or "Fatal Python" in result.err
        or 'File "' in result.err
        or "Exception ignored" in result.err
    ):
        return "a traceback"
    if not lines and not any(" write(" in line for line in injected):
        return "nothing was said"
    more = [line for line in lines if not any(text in line for text in ("while undoing", "left half made", "level=warning"))]
    if len(more) > 1:
        return f"{len(more)} sentences"
    if "internal error" in result.err:
        return "an internal error"
    return "it names no step" if more and not named(more[0]) else ""


def named(line: str) -> bool:
    """Whether a message says what failed, and not the kernel's answer alone."""
    said = re.fullmatch(r'time="[^"]*" level=error msg="(.*)"', line)
    text = said[1] if said else line
    return text.strip(" :.").lower() not in {os.strerror(number).lower() for number in errno.errorcode}


def left_behind(sweep: Sweep, container: Container, leaks: Leaks) -> str:
    """Delete the container; what is there of it all the same."""
    result = sweep.runtime("delete", "--force", container.id, env=sweep.env)
    if result.rc != 0 and "does not exist" not in result.text:
        return f"delete --force: {result.text}"
    try:
        leaks.check()
    except AssertionError as e:
        return str(e)
    return ""


def unfinished(sweep: Sweep, container: Container) -> str:
    """A change of GPUs that has failed was not made, or the same command makes it now; what is wrong with that."""
    again = sweep.run(container, [])
    if again.rc != 0 and "has GPU 1" not in again.text and "does not have 1" not in again.text:
        return f"the same command again: {again}"
    return sweep.is_done(container, again)


def inject(sweep: Sweep, call: Call, leaks: Callable[[], Leaks]) -> tuple[str, str]:
    """Have *call* fail; ("not met" | "failed" | "succeeded", what is wrong with that)."""
    before = leaks()
    before.watch(sweep.bundle)
    container = sweep.prepare()
    injection = Injection(sweep.log, call.name, call.error, str(call.number), children=call.child)
    injection.log.write_text("")  # strace makes none where it is ended before it has begun
    try:
        with injection as tracer:
            result = sweep.run(container, tracer)
    except subprocess.TimeoutExpired:
        wrong = left_behind(sweep, container, before)
        return "failed", f"{sweep.command}, {call}: it hangs; {wrong}\n    {injection.injected}"
    injected = injection.injected
    if result.rc == 0:
        wrong = sweep.is_done(container, result)
        if "Traceback" in result.err:
            wrong = "a traceback"
    else:
        wrong = fault(result, injected)
        if sweep.command in GPU_COMMANDS:
            wrong = wrong or unfinished(sweep, container)
    left = left_behind(sweep, container, before)
    text = "; ".join([part for part in (wrong, left) if part])
    if text:
        text = f"{sweep.command}, {call}: {text}\n    {' | '.join(injected)}\n    rc {result.rc}: {result.err!r}"
    return ("not met" if not injected else "failed" if result.rc else "succeeded"), text


def report(text: str) -> None:
    """Tell of a sweep that takes long, as it goes."""
    if FAULTS:
        print(text)
        with open(os.environ.get("GPURUN_FAULTS_REPORT", os.devnull), "a") as file:
            file.write(f"{text}\n")


CASES = [
    *[(command, maker) for command in COMMANDS for maker in ("plain", "gpu")],
    *[(command, "gpu") for command in GPU_COMMANDS],
    *[(command, "amd") for command in AMD_COMMANDS],
]


def second_amd(host: Host) -> str:
    """The node by which AMD's second GPU computes."""
    node = amd_gpus(str(host.path))[1].drm.render
    assert node is not None
    return node.path


@pytest.mark.sweep(12)
@pytest.mark.parametrize(("command", "maker"), CASES, ids=[f"{command}-{maker}" for command, maker in CASES])
def test_every_call(
    runtime: Runtime,
    bundle: MakeBundle,
    bed: Bed,
    host: SimulatedDriver,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    command: str,
    maker: str,
) -> None:
    made = bundle()
    wanted = 0 if command in GPU_COMMANDS else "all"
    env, node = host.env, f"/dev/nvidia{minor(1, Options().gpus)}"
    if maker == "gpu":
        made.process["env"] += [f"NVIDIA_VISIBLE_DEVICES={wanted}"]
        (made.rootfs / "etc/ld.so.cache").write_bytes(b"the image's")
    elif maker == "amd":
        made.process["env"] += [f"AMD_VISIBLE_DEVICES={wanted}"]
        cards = amd.mi210(tmp_path / "amd", count=2, later=LATER)
        env, node = cards.env, second_amd(cards)
    sweep = Sweep(command, runtime, made, ENVIRONMENT | env, tmp_path, node)
    before = Leaks(bed, runtime)
    if maker == "gpu":
        time.sleep(1.1 * SETTLED / 1e9)  # what has just been installed is not remembered
    first = sweep.prepare()
    sweep.run(first, [])  # what is remembered from one container to the next is there for all that count
    assert not left_behind(sweep, first, before)
    container = sweep.prepare()
    # -s: gpurun's own path is looked for in what execve(2) is given, and may be longer than the 32 bytes that strace shows.
    tracer = ["strace", "-f", "-qq", "-D", "-I", "2", "-s", "4096", "-o", str(sweep.log), "-e", "signal=none"]
    result = sweep.run(container, tracer)
    assert result.rc == 0, result
    assert not sweep.is_done(container, result)
    assert not left_behind(sweep, container, before)
    calls = calls_made(sweep.log, Path(runtime.path))
    assert len(calls) > 4
    calls = chosen(calls, SHORT)
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for call in calls:
        outcome, text = inject(sweep, call, lambda: Leaks(bed, runtime))
        counts[outcome] += 1
        if text:
            wrong.append(text)
            report(text)
    report(f"{command}, {maker}: {len(calls)} calls, {dict(counts)}, {len(wrong)} wrong")
    assert not wrong, f"{len(wrong)} of {len(calls)}:\n" + "\n".join(wrong)
