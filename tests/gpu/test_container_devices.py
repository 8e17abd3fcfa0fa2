"""Containers with more than whole GPUs: MIG devices and their administration, other drivers' nodes, IMEX, WSL, Tegra."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.simdriver import MULTIARCH, Options, SimulatedDriver, make, make_tegra, make_wsl, mig_minor, minor, uuid

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

MIG = ((0, 1, 0), (0, 2, 0), (1, 0, 0))
OWN, OTHER = (mig_minor(minor(0, 2), 1), mig_minor(minor(0, 2), 1, 0)), mig_minor(minor(0, 2), 2)
#: Opens each node; ENXIO (no driver behind it) shows that the device cgroup allows it.
OPEN = 'for n in $NODES; do echo "$n $( (: <$n) 2>&1 )"; done'
ALLOWED, DENIED = "No such device or address", "Operation not permitted"


@pytest.fixture
def directory(place: Path) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(dir=place))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def run(runtime: Runtime, bundle: MakeBundle) -> Callable[..., str]:
    def call(host: SimulatedDriver, env: tuple[str, ...], script: str, *more: Callable[[Bundle], object]) -> str:
        made = bundle()
        made.process["env"] += ["NVIDIA_DRIVER_CAPABILITIES=utility", *env]
        made.capabilities("CAP_MKNOD", "CAP_DAC_OVERRIDE")
        for change in more:
            change(made)
        before = rootfs(made)
        out = runtime.output(made.sh(script), env=ENVIRONMENT | host.env)
        assert rootfs(made) == before  # nothing is left in the image
        return out

    return call


def rootfs(bundle: Bundle) -> list[str]:
    return sorted(str(path) for path in bundle.rootfs.rglob("*"))


def verdicts(out: str) -> dict[str, str]:
    lines = [line.split(" ", 1) for line in out.splitlines() if line.startswith("/")]
    return {name: text.rpartition(": ")[2] for name, text in lines}


def test_a_mig_device_and_not_its_neighbour(run: Callable[..., str], directory: Path) -> None:
    host = make(directory, Options(mig=MIG))
    caps = [f"/dev/nvidia-caps/nvidia-cap{n}" for n in OWN]
    nodes = " ".join([*caps, f"/dev/nvidia{minor(0, 2)}", "/x", "/y"])
    script = (
        f"mknod /x c 235 {OTHER}; mknod /y c 195 {minor(1, 2)}; NODES='{nodes}'; {OPEN}; rm /x /y; ls /dev/nvidia-caps; "
        "cd /proc/driver/nvidia; find capabilities gpus -type f; cat capabilities/gpu1/mig/gi1/access"
    )
    out = run(host, (f"NVIDIA_VISIBLE_DEVICES=MIG-{uuid(0)}/1/0",), script)
    assert verdicts(out) == {**dict.fromkeys(nodes.split(), ALLOWED), "/x": DENIED, "/y": DENIED}
    lines = [line for line in out.splitlines() if not line.startswith("/")]
    assert sorted(lines[:2]) == sorted(f"nvidia-cap{n}" for n in OWN)
    assert sorted(lines[2:5]) == [
        "capabilities/gpu1/mig/gi1/access", "capabilities/gpu1/mig/gi1/ci0/access", "gpus/0000:07:00.0/information",
    ]  # fmt: skip
    assert f"DeviceFileMinor: {OWN[0]}" in lines


def test_administering_mig(run: Callable[..., str], directory: Path) -> None:
    """The whole directory, and nodes that do not exist yet: another of the class is allowed, one of another class is not."""
    host = make(directory, Options(mig=MIG))
    env = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_CONFIG_DEVICES=all")
    script = (
        "mknod /x c 235 4000; mknod /y c 236 1; NODES='/dev/nvidia-caps/nvidia-cap1 /x /y'; "
        f"{OPEN}; rm /x /y; cat /proc/driver/nvidia/capabilities/mig/config; ls /proc/driver/nvidia/capabilities/gpu1/mig"
    )
    out = run(host, env, script, lambda b: b.capabilities("CAP_MKNOD", "CAP_DAC_OVERRIDE", "CAP_SYS_ADMIN"))
    assert verdicts(out) == {"/dev/nvidia-caps/nvidia-cap1": ALLOWED, "/x": ALLOWED, "/y": DENIED}
    assert "DeviceFileMinor: 1" in out and out.splitlines()[-2:] == ["gi1", "gi2"]


def test_extras_and_channels(run: Callable[..., str], directory: Path) -> None:
    host = make(directory, Options(extras=True))
    env = (
        "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GDS=enabled", "NVIDIA_MOFED=enabled", "NVIDIA_IMEX_CHANNELS=0,9",
    )  # fmt: skip
    nodes = [f"/dev/nvidia-caps-imex-channels/channel{n}" for n in (0, 9)]
    script = (
        f"NODES='{' '.join(nodes)}'; {OPEN}; "
        "ls -l /dev/nvidia-fs0 /dev/infiniband/rdma_cm; cat /etc/cufile.json; ls /run/udev"
    )
    out = run(host, env, script)
    assert verdicts(out) == dict.fromkeys(nodes, ALLOWED)
    assert "237,   0" in out and "10, 121" in out and out.splitlines()[-2:] == ["{}", "data"]


def test_devices_as_volume_mounts(run: Callable[..., str], directory: Path) -> None:
    host = make(directory, Options())
    config = host.path / "etc/nvidia-container-runtime/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(
        "accept-nvidia-visible-devices-as-volume-mounts = true\n"
        "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
    )
    marker = "/var/run/nvidia-container-devices"

    def mount(bundle: Bundle) -> None:
        target = bundle.rootfs / f"{marker}/1".lstrip("/")
        target.parent.mkdir(parents=True)  # of the config's mounts the mount points stay, as with every runtime
        target.touch()
        bundle.config["mounts"].append({"source": "/dev/null", "destination": f"{marker}/1", "options": ["bind"]})

    made = run(host, (f"NVIDIA_VISIBLE_DEVICES={marker}",), "nvidia-smi -L", mount)
    assert uuid(1) in made and uuid(0) not in made
    assert run(host, ("NVIDIA_VISIBLE_DEVICES=all",), "ls /dev | grep -c nvidia; true").strip() == "0"


def test_wsl(run: Callable[..., str], directory: Path) -> None:
    out = run(
        make_wsl(directory),
        ("NVIDIA_VISIBLE_DEVICES=all",),
        "test -c /dev/dxg && nvidia-smi; grep -c libdxcore /proc/mounts",
    )
    assert out.splitlines() == ["wsl", "1"]


def test_tegra(run: Callable[..., str], directory: Path) -> None:
    libs = f"/usr/lib/{MULTIARCH[os.uname().machine]}"
    script = (
        f"test -c /dev/nvmap; echo $?; readlink {libs}/libcuda.so; head -c 4 {libs}/tegra/libcuda.so.1 | tail -c 3; id -G"
    )
    out = run(make_tegra(directory), ("NVIDIA_VISIBLE_DEVICES=0",), script)
    assert out.splitlines()[:2] == ["0", "tegra/libcuda.so.1"] and "ELF" in out and "44" in out.split()[-1]
