"""Device nodes, FIFOs and sockets where an image is expected to have files: nothing opens them.

To open one may be enough: a watchdog begins to run, a tape is wound back, a terminal becomes the one that controls the
process that opens it, which can then type into the host's.  Whoever makes the container is not held by its device rules.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attacks.tools import LOOP_CONTROL, exchanged, opens
from tests.conftest import MakeBundle
from tests.forms import rounds
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.simdriver import SimulatedDriver

pytestmark = [
    pytest.mark.native,
    pytest.mark.attack("device nodes of an image", "a node in the place of a file is opened as root"),
]

FOREVER = "while :; do sleep 0.02; done"
COMPAT = "usr/local/cuda/compat/libcuda.so.999.99.9"
#: The files of an image that are read for the container's process, and for its GPUs.
FILES = (
    "etc/passwd",
    "dev/null",
    COMPAT,
    "etc/ld.so.cache",
    "etc/ld-musl-{machine}.path",
    "etc/ld.so.conf.d/00-gpurun.conf",
)


@pytest.fixture(autouse=True)
def _rootfs_may_change(leaks: Leaks) -> None:
    leaks.allow_rootfs_changes()


def with_gpus(b: Bundle) -> Bundle:
    """*b* asks for GPUs, and its image has all that is looked at for them."""
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=all"]
    machine = os.uname().machine
    for name in (f"lib/ld-musl-{machine}.so.1", f"etc/ld-musl-{machine}.path", "lib64/ld-linux-x86-64.so.2", COMPAT):
        (b.rootfs / name).parent.mkdir(parents=True, exist_ok=True)
        (b.rootfs / name).touch()
    (b.rootfs / "etc/ld.so.conf.d").mkdir()
    return b


def place_of(b: Bundle, name: str) -> Path:
    """Where the image has *name*; for a /dev of its own, a volume is mounted there."""
    if name.startswith("dev/"):
        b.config["mounts"] = [m for m in b.config["mounts"] if not m["destination"].startswith("/dev")]
        volume = b.directory / "volume"
        volume.mkdir()
        b.mount("/dev", str(volume), "bind")
        return volume / name.removeprefix("dev/")
    path = b.rootfs / name.format(machine=os.uname().machine)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return path


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", FILES)
def test_a_node_is_not_opened(runtime: Runtime, bundle: MakeBundle, sim: SimulatedDriver, name: str) -> None:
    b = with_gpus(bundle().sh(FOREVER))
    node = place_of(b, name)
    os.mknod(node, stat.S_IFCHR | 0o666, LOOP_CONTROL)
    with opens(node) as events:
        os.close(os.open(node, os.O_RDONLY))
    assert events, "an open of the node is seen"
    with opens(node) as events:
        runtime.create(b, check=False, env=ENVIRONMENT | sim.env)
    assert events == []


def a_terminal(directory: Path) -> tuple[Path, int] | None:
    """The node of a terminal of this host that nobody's session has, and it opened as a daemon has it; if there is one."""
    for number, (major, minor) in enumerate(((4, 1), (4, 2), (4, 64), (229, 0), (204, 64))):
        node = directory / f"terminal.{number}"
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        try:
            fd = os.open(node, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError:
            continue
        if os.isatty(fd) and not any(
            _terminal_of(int(pid)) == os.makedev(major, minor) for pid in os.listdir("/proc") if pid.isdigit()
        ):
            return node, fd
        os.close(fd)
    return None


def _terminal_of(pid: int) -> int:
    """The device number of the controlling terminal of *pid* (tty_nr in proc_pid_stat(5)), 0 for none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[4])
    except OSError:
        return 0


@pytest.mark.parametrize("name", ["etc/passwd", COMPAT])
def test_no_terminal_of_the_host_becomes_the_containers(
    runtime: Runtime, bundle: MakeBundle, sim: SimulatedDriver, name: str
) -> None:
    """With Docker's capabilities and rules that allow no device, TIOCSTI typed into what a daemon of the host read."""
    b = with_gpus(bundle().sh(FOREVER))
    terminal = a_terminal(b.directory)
    if terminal is None:
        pytest.skip("this host has no terminal that is free")
    node, daemons = terminal
    os.rename(node, place_of(b, name))
    try:
        container = runtime.create(b, env=ENVIRONMENT | sim.env)
        assert _terminal_of(container.pid) == 0
    finally:
        os.close(daemons)


@pytest.mark.parametrize("name", ["etc/passwd", "etc/ld.so.cache", COMPAT])
def test_a_node_that_changes_places_with_a_file(
    runtime: Runtime, bundle: MakeBundle, sim: SimulatedDriver, name: str
) -> None:
    """Whoever shares the rootfs exchanges them between the look and the open."""
    b = with_gpus(bundle().sh(FOREVER))
    file = place_of(b, name)
    file.write_text("root:x:0:0::/:/bin/sh\n")
    node = file.with_name("other")
    os.mknod(node, stat.S_IFCHR | 0o666, LOOP_CONTROL)
    b.write()  # looks at the whole rootfs, once
    with opens(node) as events, exchanged(file, node):
        for _ in range(rounds(20)):
            runtime.create(b, check=False, env=ENVIRONMENT | sim.env).delete("--force")
    assert events == []


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    with open(path, "wb") as f:
        f.truncate(1 << 40)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", [fifo, endless], ids=lambda kind: kind.__name__)
@pytest.mark.gpurun_only  # runc waits at a FIFO for ever
def test_nothing_waits_for_an_image(
    runtime: Runtime, bundle: MakeBundle, sim: SimulatedDriver, name: str, kind: Callable[[Path], None]
) -> None:
    b = with_gpus(bundle().sh(FOREVER))
    kind(place_of(b, name))
    runtime.create(b, check=False, env=ENVIRONMENT | sim.env, timeout=30)
