"""Directories that a container has from outside (the host's /dev, /dev/dri, a volume): no device node is made in them.

A tmpfs that looks like the host's /dev stands for it; the machine's own is never bound.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.gpu.leases.conftest import MakeHost, make_host  # noqa: F401
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.needs_nodes import needs_nodes
from tests.simdriver import SimulatedDriver, minor

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

GPUS = 2
FIRST = f"nvidia{minor(0, GPUS)}"  # the node of GPU 0
Nodes = dict[str, tuple[int, int]]


@pytest.fixture
def host(make_host: MakeHost) -> SimulatedDriver:  # noqa: F811
    return make_host(GPUS)


@pytest.fixture
def dev() -> Iterator[Path]:
    """A directory of a tmpfs of the host, as its /dev is one, without a GPU's nodes."""
    directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    directory.chmod(0o755)
    for name, number in (("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)):
        node(directory / name, 1, number)
    for name in ("pts", "shm", "mqueue", "dri"):
        (directory / name).mkdir()
    os.symlink("pts/ptmx", directory / "ptmx")
    yield directory
    shutil.rmtree(directory)


def node(path: Path, major: int, minor: int) -> None:
    path.parent.mkdir(exist_ok=True)
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))


def listing(directory: Path) -> list[tuple[str, int, int]]:
    return sorted((str(p.relative_to(directory)), p.lstat().st_mode, p.lstat().st_rdev) for p in directory.rglob("*"))


def with_bound(bundle: Bundle, destination: str, source: Path) -> Bundle:
    """*bundle* with *source* bound at *destination*, and nothing else at or below it."""
    if destination == "/dev":
        bundle.config["mounts"] = [m for m in bundle.config["mounts"] if not m["destination"].startswith("/dev")]
    return bundle.mount(destination, str(source), "rbind", "rslave").capabilities("CAP_MKNOD", "CAP_DAC_OVERRIDE")


@pytest.fixture
def wanted(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> Nodes:
    """The device nodes that a container with GPU 0 gets, below its /dev."""
    made = bundle().sh("find /dev -type c -exec stat -c '%n %t %T' {} +")
    plain = runtime.output(made, env=ENVIRONMENT | host.env).splitlines()
    made.process["env"] += ASKS
    found = runtime.output(made, env=ENVIRONMENT | host.env).splitlines()
    nodes = {
        line.split()[0].removeprefix("/dev/"): (int(line.split()[1], 16), int(line.split()[2], 16))
        for line in set(found) - set(plain)
    }
    assert FIRST in nodes and any(name.startswith("dri/") for name in nodes)
    return nodes


ASKS = ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all"]
SETUPS: dict[str, Callable[[Bundle], object]] = {
    "as root": lambda bundle: None,
    "in a user namespace": lambda bundle: bundle.user_namespace(),
}


@needs_nodes
@pytest.mark.parametrize("how", SETUPS)
@pytest.mark.parametrize("destination", ["/dev", "/dev/dri"])
def test_nodes_that_the_host_lacks_are_not_made_there(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, dev: Path, destination: str, how: str
) -> None:
    source = dev if destination == "/dev" else dev / "dri"
    made = with_bound(bundle().args("true"), destination, source)
    SETUPS[how](made)
    made.process["env"] += ASKS
    before = listing(dev)
    said = runtime.refused(made, env=ENVIRONMENT | host.env)
    assert f"{destination} of the container is a bind mount of the host" in said and "cannot make the device node" in said, (
        said
    )
    assert listing(dev) == before


@needs_nodes
@pytest.mark.parametrize("how", SETUPS)
@pytest.mark.parametrize("destination", ["/dev", "/dev/dri"])
def test_nodes_that_are_there_are_used(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, dev: Path, wanted: Nodes, destination: str, how: str
) -> None:
    for name, numbers in wanted.items():
        node(dev / name, *numbers)
    source = dev if destination == "/dev" else dev / "dri"
    made = with_bound(bundle().sh(f"ls /dev/{FIRST} && ls -A /dev/dri"), destination, source)
    SETUPS[how](made)
    made.process["env"] += ASKS
    before = listing(dev)
    out = runtime.output(made, env=ENVIRONMENT | host.env).split()
    assert out[0] == f"/dev/{FIRST}" and {name.removeprefix("dri/") for name in wanted if name.startswith("dri/")} <= set(
        out
    )
    assert listing(dev) == before, "nor is a link made there"


@needs_nodes
def test_another_device_of_that_name_is_refused(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, dev: Path, wanted: Nodes
) -> None:
    for name, numbers in wanted.items():
        node(dev / name, *(numbers if name != FIRST else (1, 3)))
    made = with_bound(bundle().args("true"), "/dev", dev)
    made.process["env"] += ASKS
    before = listing(dev)
    assert f'"/dev/{FIRST}"' in runtime.refused(made, env=ENVIRONMENT | host.env)
    assert listing(dev) == before


@needs_nodes
@pytest.mark.parametrize("path", ["/dev/vendor0", "/data/below/vendor0", "/dev/link/vendor0"])
def test_nodes_of_cdi_devices(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, dev: Path, path: str, leaks: Leaks
) -> None:
    """Below any directory from outside, also by a link of the image."""
    leaks.rootfs_may_change = True  # mount points of the config's own mounts stay, as under every runtime
    directory = host.env["GPURUN_SYSROOT"] + "/etc/cdi"
    os.makedirs(directory, exist_ok=True)
    Path(directory, "v.yaml").write_text(
        'cdiVersion: "0.6.0"\nkind: vendor.com/device\ndevices:\n- name: d0\n  containerEdits:\n    deviceNodes:\n'
        f"    - {{path: {path}, type: c, major: 10, minor: 229}}\n"
    )
    volume = dev if path.startswith("/dev/v") else dev / "dri"
    made = with_bound(bundle().args("ls", "/dev/vendor0"), "/dev" if volume == dev else "/data", volume)
    if "link" in path:
        made.config["mounts"] = [m for m in made.config["mounts"] if not m["destination"].startswith("/dev")]
        (made.rootfs / "dev/link").parent.mkdir(exist_ok=True)
        (made.rootfs / "dev/link").symlink_to("/data")
    made.process["env"].append("NVIDIA_VISIBLE_DEVICES=vendor.com/device=d0")
    before = listing(dev)
    assert "is a bind mount of the host" in runtime.refused(made, env=ENVIRONMENT | host.env)
    assert listing(dev) == before
    if volume == dev:
        node(dev / "vendor0", 10, 229)
        assert runtime.output(made, env=ENVIRONMENT | host.env) == "/dev/vendor0\n"


@needs_nodes
@pytest.mark.parametrize("how", SETUPS)
def test_gpu_attach_and_detach(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, dev: Path, wanted: Nodes, how: str
) -> None:
    made = with_bound(bundle().args("sleep", "600"), "/dev", dev)
    SETUPS[how](made)
    env = ENVIRONMENT | host.env
    container = runtime.start(made, env=env)
    before = listing(dev)
    refused = runtime("gpu", "attach", container.id, "0", env=env)
    assert refused.rc == 1 and "is a bind mount of the host" in refused.text, refused.text
    assert listing(dev) == before
    for name, numbers in wanted.items():
        node(dev / name, *numbers)
    before = listing(dev)
    attached = runtime("gpu", "attach", container.id, "0", env=env)
    assert attached.rc == 0, attached.text
    assert listing(dev) == before
    detached = runtime("gpu", "detach", container.id, "0", env=env)
    assert listing(dev) == before, "what the host has stays"
    assert detached.rc == 0, detached.text
