"""containerd's event of an out-of-memory kill is not lost where the container is deleted at once.

The event goes from the shim's inotify(7) reader to the daemon by another way than the container's end
(src/gpurun/cgroup/oom_watch.py).  Containers here have cgroups of gpurun's own: systemd takes a scope away with its last
process, whatever the runtime does (tests/systemd/test_docker.py has one of those).

Shims before containerd 2.2 read memory.events first, and then whether the cgroup is empty: a kill between the two is lost
with any runtime, before it is called to delete (docs/conformance.md).  So the kernel's trace is asked what the shim has read
before the cgroup was removed: either of the kill, which then has to be told, or that in vain.  A shim of containerd 2.2 or
later reads of the kill last, so that it cannot miss one.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.systemd.oom_trace import parse, traced

pytestmark = [pytest.mark.native, pytest.mark.clients, pytest.mark.needs("guest", "memory")]

KERNEL = tuple(int(number) for number in os.uname().release.split("-")[0].split(".")[:2])
CONTAINERS = 20
IMAGE = "test/busybox:1"
TOO_MUCH = ("dd", "if=/dev/zero", "of=/dev/null", "bs=100M")


@pytest.fixture(params=["gpurun", "gpurun-fast"])
def program(request: pytest.FixtureRequest) -> Path:
    """Both launchers, whatever RUNTIME says: how fast delete is decides what is told."""
    path = REPOSITORY / "build" / str(request.param)
    if not path.exists():
        pytest.skip(f"there is no {path}: it needs a C compiler")
    return path


@pytest.fixture
def events(tmp_path: Path) -> Iterator[Path]:
    """A file with the daemon's events from now on, a line each."""
    path = tmp_path / "events"
    with path.open("wb") as out, subprocess.Popen(["ctr", "-n", "test", "events"], stdout=out) as process:
        end = time.monotonic() + 60
        while not path.stat().st_size:  # nothing but an event says that it has subscribed
            assert time.monotonic() < end
            label = ["ctr", "-n", "test", "images", "label", f"docker.io/{IMAGE}", f"seen={time.monotonic_ns()}"]
            subprocess.run(label, check=True, stdout=subprocess.DEVNULL, timeout=60)
        yield path
        process.kill()


def killed(events: Path) -> list[str]:
    """The containers for which containerd has told of a kill, with repetitions."""
    lines = [line for line in events.read_text().splitlines() if " /tasks/oom " in line]
    return [json.loads(line[line.index("{") :])["container_id"] for line in lines]


@pytest.mark.skipif(KERNEL < (6, 9), reason="the kernel cannot tell what was read")
def test_containerd_tells_of_each(program: Path, events: Path) -> None:
    names = [f"t{os.urandom(4).hex()}" for _ in range(CONTAINERS)]
    with traced() as trace:
        for name in names:
            options = ["--rm", "--runc-binary", str(program), "--memory-limit", str(32 << 20)]
            argv = ["ctr", "-n", "test", "run", *options, f"docker.io/{IMAGE}", name, *TOO_MUCH]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
            assert done.returncode == 137, done
        found = parse(trace.text(), "test")
    assert sorted(found) == sorted(names)
    assert all(one.killed and one.removed for one in found.values()), found
    assert not {name: one for name, one in found.items() if not (one.known_to_the_shim or one.given_up_by_the_shim)}
    due = {name for name in names if found[name].known_to_the_shim}
    end = time.monotonic() + 60
    while not due <= set(killed(events)) and time.monotonic() < end:
        time.sleep(0.2)
    assert not {name: found[name] for name in due - set(killed(events))}
