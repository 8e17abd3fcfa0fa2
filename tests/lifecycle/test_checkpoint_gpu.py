"""Containers with (simulated) GPUs through checkpoint and restore, with the real CRIU: on the same GPUs and on others."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.checkpoint import COUNT, counted, restored, save, saved, wait_count
from tests.native.leaks import Leaks
from tests.native.listing import tree_listing
from tests.native.runtime import ENVIRONMENT, Container, Runtime
from tests.simdriver import MULTIARCH, Options, SimulatedDriver, bus_id, make, minor, uuid

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

LIB = f"/usr/lib/{MULTIARCH[os.uname().machine]}/nvidia/current"
LOOK = (
    "nvidia-smi -L; ls /proc/driver/nvidia/gpus; cd /dev; ls -d nvidia[0-9]*; for n in nvidia[0-9]*; do (: <>$n) 2>&1; done"
)

#: Of its own: who else on this machine has a GPU of that number would be seen.
MAJOR = 3500 + os.getpid() % 500
HOLD = f"exec 5<{LIB}/libcuda.so.999.88.77; {COUNT}"


@pytest.fixture
def host(place: Path, leaks: Leaks) -> Iterator[SimulatedDriver]:
    leaks.allow_rootfs_changes()
    directory = Path(tempfile.mkdtemp(dir=place))
    directory.chmod(0o755)
    yield make(directory, Options(major=MAJOR))
    shutil.rmtree(directory)


@pytest.fixture
def gpu(bundle: MakeBundle) -> Callable[..., Bundle]:
    def build(devices: str, *env: str) -> Bundle:
        made = bundle().sh(COUNT)
        made.process["env"] += [f"NVIDIA_VISIBLE_DEVICES={devices}", *env]
        return made.capabilities("CAP_MKNOD", "CAP_DAC_OVERRIDE")

    return build


def start(runtime: Runtime, host: SimulatedDriver, b: Bundle) -> Container:
    container = runtime.start(b, env=ENVIRONMENT | host.env)
    wait_count(b, 3)
    return container


def seen(container: Container, index: int) -> None:
    """The container has the simulated GPU *index* and no other, and counts on."""
    done = container.runtime("exec", container.id, "sh", "-c", LOOK)
    out = done.text.splitlines()
    assert len(out) == 4 and uuid(index) in out[0] and out[1] == bus_id(index), out
    assert out[2] == f"nvidia{minor(index, 2)}" and out[3].endswith("No such device or address"), out
    wait_count(container.bundle, counted(container.bundle)[-1] + 2)


def test_it_goes_on_with_its_gpu(runtime: Runtime, host: SimulatedDriver, gpu: Callable[..., Bundle], image: Path) -> None:
    b = gpu("1")
    before = tree_listing(b.rootfs)
    first = start(runtime, host, b)
    seen(first, 1)
    saved(first, image, env=ENVIRONMENT | host.env)
    assert set(tree_listing(b.rootfs)) - set(before) <= {"tmp/count"}, "delete leaves the image as it was"
    second = restored(first, image, env=ENVIRONMENT | host.env)
    seen(second, 1)
    assert counted(b) == list(range(1, len(counted(b)) + 1))
    saved(second, image, env=ENVIRONMENT | host.env)  # a restored one is like any other
    third = restored(second, image, env=ENVIRONMENT | host.env)
    seen(third, 1)
    assert third.kill("KILL").rc == 0
    third.wait()
    assert third.delete().rc == 0
    assert set(tree_listing(b.rootfs)) - set(before) <= {"tmp/count"}


@pytest.mark.parametrize("kind", ["plain", "read-only", "user namespace"])
def test_moved_to_another_gpu(
    runtime: Runtime, host: SimulatedDriver, gpu: Callable[..., Bundle], image: Path, kind: str
) -> None:
    b = gpu("0")
    if kind == "user namespace":
        b.user_namespace()
    if kind == "read-only":
        b.config["root"]["readonly"] = True
        b.mount("/tmp", str(b.rootfs / "tmp"), "bind", "rw")
    first = start(runtime, host, b)
    seen(first, 0)
    saved(first, image, env=ENVIRONMENT | host.env)
    second = restored(first, image, "--gpu-map", f"{uuid(0)}=1", env=ENVIRONMENT | host.env)
    seen(second, 1)
    if kind != "user namespace":  # where nobody may make nodes
        script = f"mknod /dev/x c {MAJOR} {minor(0, 2)}; : <>/dev/x"
        said = runtime("exec", second.id, "sh", "-c", script)
        assert "can't create /dev/x: Operation not permitted" in said.text, "the rules are those of the other GPU"
    config = json.loads((Path(runtime.root) / second.id / "config.json").read_text())
    assert "NVIDIA_VISIBLE_DEVICES=1" in config["process"]["env"]
    assert runtime("exec", second.id, "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES").out == "1\n"


def test_free_ones_are_leased_anew(runtime: Runtime, host: SimulatedDriver, gpu: Callable[..., Bundle], image: Path) -> None:
    env = ENVIRONMENT | host.env
    b = gpu("free:1")
    first = runtime.start(b, env=env)
    wait_count(b, 3)
    seen(first, 0)
    saved(first, image, env=env)
    other = runtime.start(gpu("free:1"), env=env)  # takes the GPU that the saved container had
    second = restored(first, image, env=env)
    held = [runtime("exec", c.id, "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES").out.strip() for c in (other, second)]
    assert sorted(held) == [uuid(0), uuid(1)]
    refused = runtime.refused(gpu("free:1"), env=env)
    assert "free" in refused


def devices_of(container: Container) -> str:
    return container.runtime("exec", container.id, "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES").out.strip()


def test_a_free_one_is_rather_the_one_it_had(
    runtime: Runtime, host: SimulatedDriver, gpu: Callable[..., Bundle], image: Path
) -> None:
    """A GPU that has rested is taken by others; a restored container goes on with its own while nobody has it."""
    env = ENVIRONMENT | host.env
    container = start(runtime, host, gpu("free:1"))
    had = devices_of(container)
    for _ in range(2):
        saved(container, image, env=env)
        container = restored(container, image, env=env)
        assert devices_of(container) == had
    seen(container, 0 if had == uuid(0) else 1)


@pytest.mark.parametrize("said", ["annotation", "site"])
def test_another_in_the_place_of_one_that_is_leased(
    runtime: Runtime, host: SimulatedDriver, gpu: Callable[..., Bundle], image: Path, tmp_path: Path, said: str
) -> None:
    """What engines cannot say at restore: the container has said it when it was made, or the site does."""
    site = tmp_path / "site.toml"
    site.write_text('[restore]\ngpus = "free"\n' if said == "site" else "")
    env = ENVIRONMENT | host.env | {"GPURUN_CONFIG": str(site)}
    b = gpu("0")
    if said == "annotation":
        b.config["annotations"] = {"dev.gpurun.gpu.restore": "free"}
    first = start(runtime, host, b)
    seen(first, 0)
    saved(first, image, env=env)
    second = restored(first, image, env=env)
    seen(second, 0)
    assert json.loads(runtime("gpu", "leases", "--json", env=env).out)["leases"] == [], "nobody else has it: as it was"
    saved(second, image, env=env)
    (tmp_path / "never.toml").write_text('[leases]\nnever = ["1"]\n')
    other = runtime.start(gpu("free:1"), env=env | {"GPURUN_CONFIG": str(tmp_path / "never.toml")})
    assert devices_of(other) == uuid(0)
    third = restored(second, image, env=env)
    seen(third, 1)
    assert devices_of(third) == uuid(1)
    listed = json.loads(runtime("gpu", "leases", "--json", env=env).out)["leases"]
    assert sorted(gpu["index"] for lease in listed for gpu in lease["gpus"]) == [0, 1]
    saved(third, image, env=env)
    runtime.start(gpu("free:1"), env=env)
    words = ("restore", "-d", "--bundle", str(b.directory), "--image-path", str(image), first.id)
    refused = runtime(*words, env=env)
    assert refused.rc == 1 and "1 GPU wanted, 0 of 2 free" in refused.text and "GPU 0: leased by" in refused.text


def test_the_map_of_the_site_and_of_an_engine(
    runtime: Runtime, host: SimulatedDriver, gpu: Callable[..., Bundle], image: Path, tmp_path: Path
) -> None:
    """The site's is for containers that had that GPU; an option before the command is what Podman's --runtime-flag makes."""
    site = tmp_path / "site.toml"
    site.write_text(f'[restore]\ngpu-map = ["{uuid(0)}={uuid(1)}", "GPU-of-another-host={uuid(0)}"]\n')
    b = gpu("0")
    first = start(runtime, host, b)
    saved(first, image, env=ENVIRONMENT | host.env)
    second = restored(first, image, env=ENVIRONMENT | host.env | {"GPURUN_CONFIG": str(site)})
    seen(second, 1)
    assert devices_of(second) == uuid(1)
    saved(second, image, env=ENVIRONMENT | host.env)
    words = ("restore", "-d", "--bundle", str(b.directory), "--image-path", str(image), first.id)
    done = runtime("--gpu-map", "1=0", *words, env=ENVIRONMENT | host.env)
    assert done.rc == 1 and "does not name" in done.text, "the config names 0, which is what it gets"
    b.process["env"][-1] = "NVIDIA_VISIBLE_DEVICES=1"
    b.write()
    done = runtime("--gpu-map", "1=0", *words, env=ENVIRONMENT | host.env)
    assert done.rc == 0, done.text
    seen(second, 0)


def test_a_newer_driver(runtime: Runtime, host: SimulatedDriver, gpu: Callable[..., Bundle], image: Path) -> None:
    """Programs that have none of the driver's files open go on; those that have are refused before anything is touched."""
    plain, holds = gpu("0"), gpu("0").sh(HOLD)
    one, two = start(runtime, host, plain), start(runtime, host, holds)
    images = image / "plain", image / "holds"
    saved(one, images[0], env=ENVIRONMENT | host.env)
    saved(two, images[1], env=ENVIRONMENT | host.env)
    again = restored(two, images[1], env=ENVIRONMENT | host.env)  # with the file open, and the driver that it was of
    wait_count(holds, counted(holds)[-1] + 2)
    saved(again, images[1], env=ENVIRONMENT | host.env)
    shutil.rmtree(host.path)
    host.path.mkdir(mode=0o755)
    make(host.path, Options(version="1000.11.22", major=MAJOR))
    seen(restored(one, images[0], env=ENVIRONMENT | host.env), 0)
    before = tree_listing(holds.rootfs)
    done = runtime(
        *("restore", "-d", "--bundle", str(holds.directory), "--image-path", str(images[1]), two.id),
        env=ENVIRONMENT | host.env,
    )
    assert done.rc == 1 and "libcuda.so.999.88.77, of driver 999.88.77, and driver 1000.11.22 does not have it" in done.text
    assert "does not exist" in runtime("state", two.id).text and tree_listing(holds.rootfs) == before


def test_a_program_that_computes_is_refused_where_cuda_checkpoint_is_missing(
    runtime: Runtime, host: SimulatedDriver, gpu: Callable[..., Bundle], image: Path
) -> None:
    """The open GPU is a stand-in: a node of that name which can be opened here."""
    b = gpu("0").sh(f"rm /dev/nvidiactl; mknod /dev/nvidiactl c 1 3; exec 5<>/dev/nvidiactl; {COUNT}")
    b.linux["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
    container = start(runtime, host, b)
    done = save(container, image, env=ENVIRONMENT | host.env)
    assert done.rc == 1 and "has /dev/nvidiactl open: only CRIU's CUDA plugin saves and restores that" in done.text
    assert "cuda-checkpoint" in done.text and not image.exists()
    assert container.state()["status"] == "running"
    wait_count(b, counted(b)[-1] + 2)


def test_what_is_refused(runtime: Runtime, host: SimulatedDriver, gpu: Callable[..., Bundle], image: Path) -> None:
    b = gpu("0")
    first = start(runtime, host, b)
    saved(first, image, env=ENVIRONMENT | host.env)
    before = tree_listing(b.rootfs)

    def refused(*options: str) -> str:
        command = ("restore", "-d", "--bundle", str(b.directory), "--image-path", str(image), *options, first.id)
        done = runtime(*command, env=ENVIRONMENT | host.env)
        assert done.rc == 1 and "does not exist" in runtime("state", first.id).text
        assert tree_listing(b.rootfs) == before
        return done.text

    assert "must be OLD=NEW" in refused("--gpu-map", "1")
    assert f"had no GPU 1: its GPUs were 0 ({uuid(0)})" in refused("--gpu-map", "1=0")
    assert "7: unknown device" in refused("--gpu-map", "0=7")
    b.config["hooks"] = {"createRuntime": [{"path": "/bin/false"}]}
    b.write()
    assert "createRuntime hook #0" in refused()
    del b.config["hooks"]
    b.write()
    text = (image / "devices.json").read_text()
    (image / "devices.json").write_text(text.replace("/usr/bin/nvidia-smi", "/usr/../bin/nvidia-smi"))
    assert "devices.json: is damaged" in refused()
    (image / "devices.json").unlink()
    assert "do not say which mounts were made for devices" in refused()
    (image / "devices.json").write_text(text)
    next(image.glob("core-*.img")).write_bytes(b"nonsense")
    assert "criu failed" in refused()
