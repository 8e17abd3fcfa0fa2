"""One program prints all that a process can see of itself; under gpurun, runc and crun it prints the same, or the
difference is allowed by a line of ``allowed.txt`` with its reason.

It runs as a container's first process and by exec, in a bed whose mounts are all shared; what the host sees of the waiting
container, and what is left of it, is compared as well.  The short form (a config of each kind) is part of ``make test``,
``make test-differences`` has all configs, and fails for lines of ``allowed.txt`` that nothing needs any more.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.compiled import compile_c
from tests.conftest import runtime_path
from tests.differences import allowed, configs
from tests.differences.seen import Names, Seen, on_the_host, seen
from tests.native.bed import Bed
from tests.native.bundle import Bundle
from tests.native.listing import tree_listing
from tests.native.others import new_bundle
from tests.native.runtime import Container, Runtime
from tests.native.terminal import Listener, read_all

pytestmark = pytest.mark.native

LINES = allowed.read(allowed.FILE.read_text())
#: Other runtimes can be named: PEERS="path ...".
PEERS = os.environ.get("PEERS", "").split() or [path for name in ("runc", "crun") if (path := shutil.which(name))]
_used: set[int] = set()
_ran: set[str] = set()
_compared: dict[str, set[str]] = {}


@pytest.fixture(scope="module")
def probe(place: Path) -> Path:
    return compile_c(Path(__file__).with_name("probe.c"), place / "probe", "-static", "-O1", "-Wall", "-Wextra")


@pytest.fixture(scope="module")
def runtimes(bed: Bed, place: Path) -> Iterator[dict[str, Runtime]]:
    """gpurun first, then its peers by name and version, each with a state directory of its own."""
    if not PEERS:
        pytest.skip("there is neither runc nor crun to compare with")
    made: dict[str, Runtime] = {}
    for path in (runtime_path(), *PEERS):
        directory = Path(tempfile.mkdtemp(dir=place))
        directory.chmod(0o711)
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
        made[said.partition("\n")[0].replace(" version", "")] = Runtime(path, bed, directory)
    yield made
    for runtime in made.values():
        runtime.cleanup()
        shutil.rmtree(runtime.directory)


def make_bundle(runtime: Runtime, busybox: Path, probe: Path, change: configs.Change) -> Bundle:
    b = new_bundle(runtime, busybox)
    shutil.copy(probe, b.rootfs / "bin/probe")
    b.process["args"] = ["/bin/probe", "hold"]
    change(b)
    return b


def observe(runtime: Runtime, b: Bundle) -> dict[str, Seen] | str:
    """What is seen by the first process, by one of exec and by the host; or why the runtime refuses the config."""
    b.write()
    before = tree_listing(b.rootfs)
    listener: Listener | None = None
    options: list[str] = []
    if b.process["terminal"]:
        socket = runtime.directory / "console.sock"
        socket.unlink(missing_ok=True)
        listener = Listener(socket)
        options = ["--console-socket", str(socket)]
    # No runtime is to have the host's /dev/null as a stream: runc 1.1 gives it to the user of the container.
    stdin, writer = os.pipe()
    try:
        container = runtime.create(b, *options, check=False, stdin=stdin)
        if container.result.rc:
            return container.result.text
        return _observe(container, b, before, listener, stdin)
    finally:
        os.close(stdin)
        os.close(writer)
        if listener:
            listener.socket.close()


def _observe(
    container: Container, b: Bundle, before: dict[str, tuple[object, ...]], listener: Listener | None, stdin: int
) -> dict[str, Seen]:
    runtime = container.runtime
    master = listener.message()[1][0] if listener else -1
    names = Names(container)
    host = on_the_host(container, names)
    started = container.start()
    assert started.rc == 0, started.text
    text = read_all(master, "end\r\n") if listener else container.wait_for("\nend\n")
    found = {"init": seen(text, names, True)}
    state = container.state()
    host |= {f"running state {key}": names(str(state[key])) for key in ("status", "bundle", "rootfs") if key in state}
    if b.process["terminal"]:
        (runtime.directory / "console.sock").unlink()
        second = Listener(runtime.directory / "console.sock")
        options = [
            "--detach",
            "--tty",
            "--console-socket",
            str(second.path),
            "--pid-file",
            str(container.files / "exec.pid"),
        ]
        result = runtime("exec", *options, container.id, "/bin/probe", stdin=stdin)
        assert result.rc == 0, result.text
        end = second.message()[1][0]
        text = read_all(end, "end\r\n")
        second.socket.close()
        os.close(end)
        os.waitpid(int((container.files / "exec.pid").read_text()), 0)  # the namespace ends after it has
    else:
        result = runtime("exec", container.id, "/bin/probe", stdin=stdin)
        assert result.rc == 0, result.text
        text = result.out
    found["exec"] = seen(text, names, False)
    container.kill("KILL")
    container.wait()
    deleted = container.delete()
    host["delete"] = f"{deleted.rc} {deleted.text}".strip()
    if master >= 0:
        os.close(master)
    after = tree_listing(b.rootfs)
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            host[f"left in the rootfs /{path}"] = "gone" if path not in after else oct(int(str(after[path][0])))
    host["left in the state directory"] = str((runtime.root / container.id).exists())
    host["left of the cgroup"] = str(runtime.bed.cgroup(f"{runtime.bed.subtree}/{container.id}").exists())
    found["host"] = host
    return found


#: Interfaces that engines make on the host, and take away, while other tests run.
_OF_OTHERS = re.compile(r"(interface |stat /sys/class/net/)(veth|br-|docker|cni|podman)")


def differences(ours: Seen, theirs: Seen) -> Iterator[tuple[str, str, str]]:
    """(key, our value, their value) where they are not the same; "(absent)" for none."""
    for key in sorted(ours.keys() | theirs.keys()):
        a, b = ours.get(key, "(absent)"), theirs.get(key, "(absent)")
        if a != b and not _OF_OTHERS.match(key):
            yield key, a, b


CASES = [
    pytest.param(name, change, id=name, marks=() if short else pytest.mark.slow)
    for name, change, short in configs.with_kind()
]


@pytest.mark.parametrize(("name", "change"), CASES)
def test_what_a_process_sees(
    runtimes: dict[str, Runtime], busybox: Path, probe: Path, name: str, change: Callable[[Bundle], object]
) -> None:
    found = {peer: observe(runtime, make_bundle(runtime, busybox, probe, change)) for peer, runtime in runtimes.items()}
    own = next(iter(found))
    ours = found.pop(own)
    wrong = []
    _ran.add(name)
    if all(isinstance(theirs, str) for theirs in found.values()):
        pytest.skip(f"no other runtime makes this container: {found}"[:300])
    assert not isinstance(ours, str), f"{own} refuses it: {ours}; others do not"
    for peer, theirs in found.items():
        if isinstance(theirs, str):
            continue  # what it refuses it cannot be compared in
        _compared.setdefault(peer, set()).add(name)
        for where in ours:
            for key, a, b in differences(ours[where], theirs[where]):
                lines = allowed.allowing(LINES, peer, where, name, key, a)
                _used.update(lines)
                if not lines:
                    wrong.append(f"{peer} | {where} | {name} | {key} | {a} |     {peer} has: {b}")
    assert not wrong, f"{len(wrong)} differences that no line allows:\n" + "\n".join(wrong)


def test_every_line_is_needed(runtimes: dict[str, Runtime]) -> None:
    if len(_ran) < len(CASES):
        pytest.skip("not all configs were tried")
    # One that may make few of the containers here (crun where it may not raise RLIMIT_MEMLOCK) says nothing of its lines.
    peers = [peer for peer, names in _compared.items() if len(names) > len(CASES) / 2]
    unused = [
        f"{allowed.FILE.name}:{line.number}: {line.reason}"
        for line in LINES
        if line.number not in _used
        and not line.reason.endswith("(now and then)")
        and any(map(line.patterns[0].fullmatch, peers))
    ]
    assert not unused, "\n".join(unused)


def test_a_difference_is_found() -> None:
    """The comparison sees what is other, missing, or more."""
    assert list(differences({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "3", "d": "4"})) == [
        ("b", "2", "3"),
        ("c", "3", "(absent)"),
        ("d", "(absent)", "4"),
    ]
    lines = allowed.read("runc | init | * | limit * | * | because a test needs a line\n")
    assert allowed.allowing(lines, "runc", "init", "plain", "limit core", "0 0") == [1]
    assert not allowed.allowing(lines, "crun", "init", "plain", "limit core", "0 0")
    assert not allowed.allowing(lines, "runc", "init", "plain", "status Umask", "22")
