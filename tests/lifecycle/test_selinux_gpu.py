"""What gpurun makes for GPUs in a container with SELinux labels: by create, by the hooks of another runtime, while it runs,
and when it is restored.  A confined process may read all of it.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.checkpoint import COUNT, restored, saved, wait_count
from tests.native.leaks import Leaks
from tests.native.runtime import ENVIRONMENT, Container, Runtime
from tests.native.selinux import FILES, PROCESS, label, labelled, needs_selinux
from tests.simdriver import Options, SimulatedDriver, make

pytestmark = [*needs_selinux, pytest.mark.gpurun_only]

MADE = ("etc/ld.so.cache", "proc/driver/nvidia", "proc/driver/nvidia/params", "dev/nvidia0")


def wants_gpus(b: Bundle, devices: str = "all", kind: str = "plain") -> Bundle:
    """Read-only, so that what the image has is covered and not replaced."""
    b.config["root"]["readonly"] = True
    if devices:
        b.process["env"].append(f"NVIDIA_VISIBLE_DEVICES={devices}")
    (b.rootfs / "lib").mkdir(exist_ok=True)
    if kind == "user namespace":
        b.user_namespace()
    b.write()
    return b


def check(container: Container, *more: str, nodes: bool = True) -> None:
    """*nodes*: they are the container's own."""
    root = container.proc("root")
    for name in (*MADE, *more):
        if nodes or not name.startswith("dev/"):
            assert label(root / name) == FILES, name
    assert label(next((root / "usr").rglob("libcuda.so.*.*"))) != FILES  # the host's own


@pytest.fixture(params=["plain", "user namespace", "user namespace, and the host has no nodes"])
def kind(request: pytest.FixtureRequest) -> str:
    """Of container.  In a user namespace no nodes can be made: the host's are bound, with their own label, as runc does it;
    those that the host lacks are lent.
    """
    return str(request.param)


@pytest.fixture
def host(place: Path, request: pytest.FixtureRequest) -> Iterator[SimulatedDriver]:
    kind = str(request.getfixturevalue("kind")) if "kind" in request.fixturenames else ""
    directory = Path(tempfile.mkdtemp(dir=place))
    directory.chmod(0o755)
    yield make(directory, Options(nodes=not kind.endswith("no nodes")))
    shutil.rmtree(directory)


@pytest.mark.short
@pytest.mark.parametrize("is_sealed", [False, True])
def test_create(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, sealed: Callable[[Bundle], None], is_sealed: bool
) -> None:
    """The loader's cache, the tree in /proc, and the room that a rootfs lacks."""
    b = wants_gpus(labelled(bundle()))
    if is_sealed:
        sealed(b)
    container = runtime.start(b, env=ENVIRONMENT | host.env)
    container.wait_for("up")
    check(container, *["lib", "etc"] * is_sealed)


@pytest.mark.short
def test_create_kinds(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, kind: str) -> None:
    container = runtime.start(wants_gpus(labelled(bundle()), kind=kind.partition(",")[0]), env=ENVIRONMENT | host.env)
    container.wait_for("up")
    check(container, nodes=kind != "user namespace")


@pytest.fixture
def names(runtime: Runtime) -> Path:
    """A directory with the links that ``gpurun install-names`` makes."""
    directory = runtime.directory / "names"
    directory.mkdir()
    subprocess.run([runtime.path, "install-names", str(directory)], check=True, capture_output=True, timeout=60)
    return directory


@pytest.mark.short
def test_the_prestart_hook_of_another_runtime(
    runtime: Runtime,
    peer: Runtime,
    bundle: MakeBundle,
    host: SimulatedDriver,
    leaks: Leaks,
    names: Path,
    kind: str,
) -> None:
    leaks.allow_rootfs_changes()  # there is no poststop hook
    b = wants_gpus(labelled(bundle()), kind=kind.partition(",")[0])
    words = ["nvidia-container-runtime-hook", "prestart"]
    path = str(names / words[0])
    if kind == "plain":
        words, path = ["gpurun", "hook", "prestart"], runtime.path
    hook = {"path": path, "args": words, "env": [f"GPURUN_SYSROOT={host.path}"]}
    b.config["hooks"] = {"prestart": [hook]}
    container = peer.start(b, stdin=b"")  # crun gives its streams to the user namespace: not the host's /dev/null
    container.wait_for("up")
    check(container, nodes=kind != "user namespace")
    assert container.kill("KILL").rc == 0 and container.wait() == 137 and container.delete().rc == 0


def test_a_cdi_hook_of_another_runtime(
    peer: Runtime, bundle: MakeBundle, host: SimulatedDriver, leaks: Leaks, names: Path
) -> None:
    """``update-ldcache`` as a createContainer hook: the cache is covered."""
    leaks.allow_rootfs_changes()
    b = wants_gpus(labelled(bundle()), "")
    folder = next(host.path.rglob("libcuda.so.*.*")).parent
    inside = "/usr/lib/driver"
    (b.rootfs / inside[1:]).mkdir(parents=True)
    (b.rootfs / "etc/ld.so.cache").write_text("of the image")
    b.mount(inside, str(folder), "rbind", "ro")
    words = ["nvidia-cdi-hook", "update-ldcache", "--folder", inside]
    b.config["hooks"] = {"createContainer": [{"path": str(names / words[0]), "args": words}]}
    container = peer.start(b)
    container.wait_for("up")
    assert label(container.proc("root") / "etc/ld.so.cache") == FILES
    assert container.kill("KILL").rc == 0 and container.wait() == 137 and container.delete().rc == 0


@pytest.mark.short
@pytest.mark.parametrize("kind", ["plain", "user namespace"])
def test_attach_to_one_that_runs(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, kind: str) -> None:
    env = ENVIRONMENT | host.env
    container = runtime.start(wants_gpus(labelled(bundle()), "", kind.partition(",")[0]), env=env)
    container.wait_for("up")
    done = runtime("gpu", "attach", container.id, "0", "1", env=env)
    assert done.rc == 0, done.text
    check(container, nodes=kind != "user namespace")


def test_restore(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, leaks: Leaks, image: Path) -> None:
    env = ENVIRONMENT | host.env
    b = labelled(bundle())
    b.config["mounts"] = [mount for mount in b.config["mounts"] if mount["destination"] != "/tmp"]
    b.mount("/tmp", str(b.rootfs / "tmp"), "bind", "rw")
    first = runtime.start(wants_gpus(b.sh(COUNT)), env=env)
    wait_count(b, 3)
    check(first)
    cgroup = runtime.bed.cgroup(first.cgroup())
    saved(first, image, env=env)
    if restores_labels():
        second = restored(first, image, env=env)
        assert second.proc("attr/current").read_text().rstrip("\0\n") == PROCESS
        check(second)
        return
    words = ("restore", "--detach", "--bundle", str(b.directory), "--image-path", str(image), first.id)
    refused = runtime(*words, env=env)
    assert refused.rc == 1 and "restore it with a criu that was built with libselinux" in refused.text, refused
    assert not (runtime.root / first.id).exists()
    assert not cgroup.exists(), "something of it runs"


def restores_labels() -> bool:
    """Whether this criu was built with libselinux; Debian's is not."""
    linked = subprocess.run(["ldd", shutil.which("criu") or ""], capture_output=True, text=True, timeout=60)
    return "libselinux" in linked.stdout
