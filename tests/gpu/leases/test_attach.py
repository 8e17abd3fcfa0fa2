"""GPUs that come to a container while it runs, and go: nodes, rules, driver files, /proc, leases and what exec sees."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from gpurun.engine.gpus.attach_view import Running
from gpurun.engine.gpus.attached import Attached
from gpurun.engine.kept import CHANGE
from gpurun.errors import NotRunning
from tests.conftest import MakeBundle
from tests.gpu.leases.box import DENIED, GPUS, NO_DRIVER, Box, MakeBox
from tests.gpu.leases.conftest import MakeHost
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.native.waiting import wait_until
from tests.simdriver import SimulatedDriver, bus_id, minor, uuid

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


def test_the_first_and_the_next_and_away_again(box: MakeBox) -> None:
    one = box()
    assert one.opens(1) == DENIED
    one.attach("1")
    one.has(1)
    one.attach(uuid(3), "0")
    one.has(0, 1, 3)
    one.detach("1")
    one.has(0, 3)
    one.attach("1")
    one.has(0, 1, 3)
    one.detach(uuid(0), "1", bus_id(3))
    one.has()
    one.attach("nvidia:2")
    one.has(2)
    one.detach("nvidia:2")
    one.has()
    assert "libcuda.so.1" in one.sh("ls /usr/lib/*/nvidia/current"), "the driver's files stay until the end"


def test_gpus_that_it_was_made_with(box: MakeBox) -> None:
    one = box("0,2")
    one.attach("1")
    one.has(0, 1, 2)
    one.detach("0")
    one.has(1, 2)
    one.attach("0")
    one.has(0, 1, 2)
    one.detach("all")
    one.has()
    assert "the container does not have all: its GPUs are none" in one.gpu("detach", "all").text


def test_free_ones(box: MakeBox, runtime: Runtime) -> None:
    one, other = box("free:2"), box()
    other.attach("free")
    one.attach("free")
    refused = other.gpu("attach", "free")
    # What it was made with is one lease, what it got later another: of another second, or not.
    assert refused.rc == 1 and re.search(rf"1 GPU wanted, 0 of 4 free: GPU 0, 2(, 3)?: leased by {one.id}", refused.text)
    leased = json.loads(runtime("gpu", "leases", "--json", env=one.env).out)["leases"]
    assert sorted(len(lease["gpus"]) for lease in leased) == [1, 1, 2]
    mine = [gpu["uuid"] for lease in leased for gpu in lease["gpus"] if lease["id"] == one.id]
    assert sorted(one.sees()["names"]) == sorted(mine)
    one.detach(mine[0])
    other.attach("free")
    assert mine[0] in other.sees()["names"] and len(one.sees()["names"]) == 2
    one.container.kill("KILL")
    one.container.wait()
    left = json.loads(runtime("gpu", "leases", "--json", env=one.env).out)["leases"]
    assert {lease["id"] for lease in left} == {other.id}


def test_what_cannot_be_attached_or_detached(box: MakeBox, runtime: Runtime) -> None:
    one = box("0")
    for words, said in (
        (("attach", "9"), "9: unknown device"),
        (("attach", "1,9"), "9: unknown device"),
        (("attach", "none"), "none names no device"),
        (("detach", "1"), f"the container does not have 1: its GPUs are GPU 0 ({uuid(0)})"),
        (("detach", "0", "GPU-x"), "the container does not have GPU-x"),
        (("detach", "0", "all"), "the container does not have all"),
    ):
        done = one.gpu(*words)
        assert done.rc == 1 and said in done.text
    assert one.sees()["nodes"] == [f"nvidia{minor(0, GPUS)}"] and one.opens(1) == DENIED
    missing = runtime("gpu", "attach", "nobody", "0", env=one.env)
    assert (
        missing.rc == 1 and "container does not exist: nobody is neither an id nor the name of a container" in missing.text
    )
    one.container.kill("KILL")
    one.container.wait()
    assert "container not running" in one.gpu("attach", "1").text


@pytest.mark.parametrize("force", [False, True])
def test_who_has_it_open(box: MakeBox, force: bool) -> None:
    """The simulated nodes cannot be opened, so the one in use is a GPU whose numbers are those of /dev/zero."""
    from gpurun.cdi.edits import DeviceNode
    from gpurun.cgroup.control import processes
    from gpurun.engine.gpus.open_devices import check_unused, openers
    from gpurun.errors import GpuError

    one = box(script="sleep 600 </dev/zero & exec sleep 600")
    cgroup = str(one.runtime.bed.cgroup(one.container.cgroup()))
    nodes = (DeviceNode("/dev/nvidia0", "", "c", 1, 5),)
    numbers = {os.makedev(1, 5): "/dev/nvidia0"}
    wait_until(lambda: [opener.command for opener in openers(processes(cgroup), numbers)] == ["sleep"])
    found = openers(processes(cgroup), numbers)
    assert found[0].pid != one.container.pid
    if force:
        check_unused(lambda: processes(cgroup), nodes, True)
        assert openers(processes(cgroup), numbers) == () and one.container.state()["status"] == "running"
    else:
        with pytest.raises(GpuError, match=rf"process {found[0].pid} \(sleep\) has /dev/nvidia0 open: end it, or detach"):
            check_unused(lambda: processes(cgroup), nodes, False)


def test_update(box: MakeBox, runtime: Runtime) -> None:
    one = box()
    for listed, indices in (("0,1", (0, 1)), ("1,3", (1, 3)), ("none", ())):
        done = runtime("update", "--gpus", listed, one.id, env=one.env)
        assert done.rc == 0, done.text
        one.has(*indices)
    done = runtime("update", "--gpus", "7", one.id, env=one.env)
    assert done.rc == 1 and "this host does not have 7" in done.text


def test_in_a_user_namespace(box: MakeBox) -> None:
    one = box(change=lambda b: b.user_namespace())
    one.attach("1")
    assert one.sees()["nodes"] == [f"nvidia{minor(1, GPUS)}"] and one.sees()["gpus"] == [bus_id(1)]
    assert NO_DRIVER in one.sh(f": <>/dev/nvidia{minor(1, GPUS)}")
    one.detach("1")
    assert one.sees()["nodes"] == [] and one.sees()["gpus"] == []


def test_in_a_user_namespace_of_a_host_without_nodes(
    runtime: Runtime, bundle: MakeBundle, make_host: MakeHost, leaks: Leaks
) -> None:
    """As create, attach makes the nodes that the host lacks on a file system of the host's, and lends them."""
    host = make_host(GPUS)
    for node in (host.path / "dev").glob("nvidia*"):
        node.unlink() if not node.is_dir() else shutil.rmtree(node)
    env = ENVIRONMENT | host.env
    one = Box(runtime, runtime.start(bundle().sh("exec sleep 600").user_namespace(), env=env), env, host.options.major)
    one.attach("1")
    assert one.sees()["nodes"] == [f"nvidia{minor(1, GPUS)}"]
    for name in (f"nvidia{minor(1, GPUS)}", "nvidiactl"):
        assert NO_DRIVER in one.sh(f": <>/dev/{name}")
    assert one.sh("grep -c ' /dev ' /proc/self/mountinfo") == "1", "what the nodes come from is not there"
    one.detach("1")
    assert one.sees()["nodes"] == []
    one.attach("1")
    assert NO_DRIVER in one.sh(f": <>/dev/nvidia{minor(1, GPUS)}")


def test_read_only_and_paused(box: MakeBox, runtime: Runtime) -> None:
    def read_only(b: Bundle) -> None:
        b.config["root"]["readonly"] = True
        (b.rootfs / "lib").mkdir()
        b.mount("/tmp", "tmpfs", kind="tmpfs")

    one = box(change=read_only)
    assert runtime("pause", one.id).rc == 0
    one.attach("1")
    assert runtime("resume", one.id).rc == 0
    one.has(1)


def test_without_proc_and_without_a_device_program(box: MakeBox) -> None:
    def privileged(b: Bundle) -> None:
        b.linux["resources"]["devices"] = [{"allow": True, "access": "rwm"}]

    one = box(change=privileged)
    assert one.opens(1) == NO_DRIVER
    one.attach("1")
    one.detach("1")
    assert one.opens(1) == DENIED and one.opens(0) == NO_DRIVER


def test_delete_leaves_the_image_as_it_was(box: MakeBox, leaks: Leaks) -> None:
    """The fixture compares the rootfs; here with a loader's cache that is given back."""

    def with_cache(b: Bundle) -> None:
        (b.rootfs / "etc/ld.so.conf.d").mkdir()
        (b.rootfs / "etc/ld.so.cache").write_bytes(b"the image's")

    one = box(change=with_cache)
    one.attach("0")
    one.attach("1")
    one.container.kill("KILL")
    one.container.wait()
    assert one.container.delete().rc == 0


def test_a_failing_attach_leaves_nothing(box: MakeBox, host: SimulatedDriver) -> None:
    """Something else has the name of a file of the driver: found out when half of it is there."""
    one = box()
    one.sh("mkdir -p /usr/bin/nvidia-smi")
    before = sorted(str(p) for p in one.container.bundle.rootfs.rglob("*"))
    failed = one.gpu("attach", "1")
    assert failed.rc == 1 and "nvidia-smi" in failed.text
    assert sorted(str(p) for p in one.container.bundle.rootfs.rglob("*")) == before
    assert one.sh("ls /dev | grep nvidia") == "" and one.opens(1) == DENIED
    one.sh("rm -r /usr/bin")
    one.attach("1")
    one.has(1)


def test_many_at_once(box: MakeBox, runtime: Runtime) -> None:
    one = box()
    files = [runtime.new_files() for _ in range(GPUS)]
    commands = [runtime.popen("gpu", "attach", one.id, str(n), files=at, env=one.env) for n, at in enumerate(files)]
    for command, at in zip(commands, files, strict=True):
        assert command.wait(120) == 0, (at / "err").read_text()
    one.has(*range(GPUS))


@pytest.mark.parametrize("when", ["at once", "the change is on record", "the node is there", "it is done"])
def test_attach_while_it_is_deleted(box: MakeBox, runtime: Runtime, when: str) -> None:
    """Whatever attach has come to: nothing of the container is left (the fixture looks), and delete does not wait for it."""
    one = box()
    come_to = {
        "the change is on record": runtime.root / one.id / CHANGE,
        "the node is there": one.container.proc(f"root/dev/nvidia{minor(1, GPUS)}"),
    }.get(when, runtime.root)
    process = runtime.popen("gpu", "attach", one.id, "1", files=runtime.new_files(), env=one.env)
    wait_until(lambda: process.poll() is not None or (when != "it is done" and come_to.exists()))
    assert when != "it is done" or process.returncode == 0
    assert runtime("delete", "--force", one.id).rc == 0
    process.wait(60)
    one.container.wait()
    assert runtime("delete", "--force", one.id).rc == 0 and not (runtime.root / one.id).exists()


def test_deleted_and_made_again_while_attach_is_at_work(box: MakeBox, runtime: Runtime) -> None:
    """What it still has to write down is not written into the directory of the next container with that id."""
    one = box()
    directory = runtime.root / one.id
    with Running(str(runtime.root), one.id) as changing:
        assert runtime("delete", "--force", one.id).rc == 0
        with pytest.raises(NotRunning):
            changing.save(Attached())
        directory.mkdir()
        with pytest.raises(NotRunning):
            changing.save(Attached())
        assert list(directory.iterdir()) == []
    directory.rmdir()
    one.container.wait()


def test_mig_devices(runtime: Runtime, bundle: MakeBundle, make_host: MakeHost) -> None:
    """A MIG device comes with its GPU's node and its own capability nodes; those of the other one stay forbidden."""
    host = make_host(2, nvml="well", mig=((0, 1, 0), (0, 2, 0)))
    env = ENVIRONMENT | host.env
    container = runtime.start(bundle().sh("exec sleep 600").capabilities("CAP_MKNOD", "CAP_DAC_OVERRIDE"), env=env)
    one = Box(runtime, container, env, host.options.major)

    def caps() -> list[str]:
        return one.sh("ls /dev/nvidia-caps 2>/dev/null").split()

    one.attach("free;profile=1g.10gb")
    first = caps()
    (name,) = one.sees()["names"]
    assert name.startswith("MIG-") and len(first) == 2 and one.sees()["nodes"] == [f"nvidia{minor(0, 2)}"]
    refused = one.gpu("attach", "free;profile=1g.10gb")
    assert refused.rc == 1 and "0 of 2 free" in refused.text, "the other one has another profile"
    one.detach(name)
    assert caps() == [] and one.sees()["nodes"] == [] and one.sees()["names"] == ["none"]
    leases = json.loads(runtime("gpu", "leases", "--json", env=env).out)["leases"]
    assert leases == []
    one.attach("free;profile=1g.10gb")
    assert caps() == first


def test_musl(box: MakeBox, leaks: Leaks) -> None:
    """The loader of a musl image looks where its path file says: attach extends that, delete puts the image's own back."""
    name = f"ld-musl-{os.uname().machine}"

    def musl(b: Bundle) -> None:
        (b.rootfs / "lib").mkdir(exist_ok=True)
        (b.rootfs / f"lib/{name}.so.1").touch()
        (b.rootfs / f"etc/{name}.path").write_text("/lib\n/usr/local/lib\n")

    one = box("", musl)
    path = one.container.bundle.rootfs / f"etc/{name}.path"
    one.attach("1")
    listed = one.sh(f"cat /etc/{name}.path").splitlines()
    assert listed[:2] == ["/lib", "/usr/local/lib"] and any("nvidia" in line for line in listed), listed
    one.attach("2")
    assert one.sh(f"cat /etc/{name}.path").splitlines() == listed, "each directory once"
    one.has(1, 2)
    assert one.container.delete("--force").rc == 0
    assert path.read_text() == "/lib\n/usr/local/lib\n"


def test_distroless(box: MakeBox, runtime: Runtime, leaks: Leaks) -> None:
    """An image without a shell, a loader's cache, /etc and a directory of libraries: one static program."""

    def distroless(b: Bundle) -> None:
        shutil.move(b.rootfs / "bin/busybox", b.rootfs / "sleep")
        for path in list(b.rootfs.iterdir()):
            if path.name not in ("sleep", "dev", "proc", "sys"):
                shutil.rmtree(path)
        b.process["args"] = ["/sleep", "600"]

    one = box("", distroless)
    rootfs = one.container.bundle.rootfs
    before = sorted(path.name for path in rootfs.iterdir())
    one.attach("1")
    assert runtime("exec", one.id, "/sleep", "0", env=one.env).rc == 0
    root = Path(f"/proc/{one.container.pid}/root")
    assert [path.name for path in (root / "dev").glob("nvidia[0-9]*")] == [f"nvidia{minor(1, GPUS)}"]
    assert [path.name for path in (root / "proc/driver/nvidia/gpus").iterdir()] == [bus_id(1)]
    assert list(root.glob("usr/lib/*/nvidia/current/libcuda.so.1")) and (root / "etc/ld.so.cache").exists()
    one.detach("1")
    assert not list((root / "dev").glob("nvidia[0-9]*"))
    assert one.container.delete("--force").rc == 0
    assert sorted(path.name for path in rootfs.iterdir()) == before


def test_errors_speak_of_what_was_typed(box: MakeBox) -> None:
    one = box()
    for words, said in (
        (("attach", "9"), "9: unknown device"),
        (("attach", "free:9"), "gpu attach 'free:9': 9 GPUs wanted"),
        (("attach", "free:x"), "gpu attach"),
    ):
        done = one.gpu(*words)
        assert done.rc == 1 and said in done.text and "process.env" not in done.text, done.text
