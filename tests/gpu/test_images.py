"""GPU containers of each kind of image: what works inside, and that the image is afterwards what it was, and when."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpurun.formats.ldcache import parse
from tests.conftest import MakeBundle
from tests.gpu.nvidia.host.real_driver import host_with_real_userspace
from tests.native.bundle import Bundle
from tests.native.images import debian_tar, package, unpack
from tests.native.leaks import Leaks
from tests.native.listing import tree_listing
from tests.native.runtime import ENVIRONMENT, Container, Runtime
from tests.simdriver import MULTIARCH, SimulatedDriver
from tests.simdriver.elf import shared_library

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

MACHINE = os.uname().machine
LIB = f"usr/lib/{MULTIARCH[MACHINE]}/nvidia/current"
FIND_CUDA = "ldconfig -p | grep -c 'libcuda.so.1 .*nvidia/current/libcuda.so.1'"


@pytest.fixture
def run(runtime: Runtime, host: SimulatedDriver) -> Callable[..., str]:
    def call(bundle: Bundle, *options: str) -> str:
        return runtime.output(bundle, *options, env=ENVIRONMENT | host.env)

    return call


def asking(made: Bundle) -> Bundle:
    made.process["env"].append("NVIDIA_VISIBLE_DEVICES=all")
    return made.capabilities("CAP_DAC_OVERRIDE", "CAP_CHOWN", "CAP_FOWNER")


@pytest.fixture
def gpu(bundle: MakeBundle) -> Callable[[], Bundle]:
    return lambda: asking(bundle())


@pytest.fixture
def debian(bundle: MakeBundle) -> Bundle:
    tar = debian_tar()
    made = asking(bundle())
    unpack(tar, made.rootfs)
    return made


def test_a_debian_image_is_the_same_to_the_byte_afterwards(debian: Bundle, run: Callable[..., str]) -> None:
    before = tree_listing(debian.rootfs, exact=True)
    out = run(debian.sh(f"{FIND_CUDA}; cat /etc/ld.so.conf.d/*gpurun.conf; stat -c '%a %u' /etc/ld.so.cache"))
    assert out.splitlines() == ["1", f"/{LIB}", f"/usr/lib/{MULTIARCH[MACHINE]}", "644 0"]
    after = tree_listing(debian.rootfs, exact=True)
    assert {k: (before.get(k), after.get(k)) for k in before.keys() | after.keys() if before.get(k) != after.get(k)} == {}


def test_ldconfig_works_and_the_driver_is_still_found(debian: Bundle, run: Callable[..., str], leaks: Leaks) -> None:
    leaks.allow_rootfs_changes()  # ldconfig's own work stays, as it does without GPUs
    before = tree_listing(debian.rootfs, exact=True)
    out = run(debian.sh(f"ldconfig && {FIND_CUDA}; ldconfig -p | grep -c 'libc.so.6 '"))
    assert out.splitlines() == ["1", "1"]
    after = tree_listing(debian.rootfs, exact=True)
    changed = {k for k in before.keys() | after.keys() if before.get(k, ())[:5] != after.get(k, ())[:5]}
    assert changed - {"var/cache/ldconfig/aux-cache", "var/cache/ldconfig"} == {"etc/ld.so.cache"}
    assert parse((debian.rootfs / "etc/ld.so.cache").read_bytes()), "what ldconfig wrote is kept"


def test_a_package_with_a_library_can_be_installed(debian: Bundle, run: Callable[..., str], leaks: Leaks) -> None:
    """dpkg runs ldconfig as a trigger of libc-bin: with a mount over the cache the whole installation fails."""
    leaks.allow_rootfs_changes()
    tree = debian.rootfs / "root/p"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text("Package: p\nVersion: 1\nArchitecture: all\nMaintainer: a\nDescription: x\n")
    (tree / "DEBIAN/triggers").write_text("activate-noawait ldconfig\n")
    subprocess.run(["dpkg-deb", "--build", str(tree)], check=True, capture_output=True)
    out = run(debian.sh(f"dpkg -i /root/p.deb 2>&1; echo $?; {FIND_CUDA}"))
    assert "Processing triggers for libc-bin" in out and out.splitlines()[-2:] == ["0", "1"], out


def test_read_only_root(debian: Bundle, run: Callable[..., str]) -> None:
    before = tree_listing(debian.rootfs, exact=True)
    debian.config["root"]["readonly"] = True
    out = run(debian.sh(f"{FIND_CUDA}; touch /etc/x 2>&1; nvidia-smi -L | wc -l"))
    assert out.splitlines() == ["1", "touch: cannot touch '/etc/x': Read-only file system", "2"]
    assert tree_listing(debian.rootfs, exact=True) == before


def test_the_real_userspace_finds_no_device_and_misses_no_library(
    debian: Bundle, runtime: Runtime, place: Path, leaks: Leaks
) -> None:
    """nvidia-smi and libcuda of Debian's own packages, before and after an ldconfig in the container."""
    leaks.allow_rootfs_changes()  # ldconfig's own cache in /var
    directory = Path(tempfile.mkdtemp(dir=place))
    directory.chmod(0o755)
    try:
        real = host_with_real_userspace(directory)
        libraries = "libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"
        probe = shared_library("probe.so", (), MACHINE, libraries)
        (debian.rootfs / "probe.so").write_bytes(probe)
        before = tree_listing(debian.rootfs, exact=True)
        look = "nvidia-smi; echo code $?; $(ls /lib*/ld-linux-*) --list /probe.so"
        out = runtime.output(
            debian.sh(f"({look}; ldconfig; {look}) 2>&1"),
            env=ENVIRONMENT | real.env,
        )
    finally:
        shutil.rmtree(directory)
    assert out.count("NVIDIA-SMI has failed") == 2 and "not found" not in out and "error while loading" not in out, out
    assert out.count("code 9") == 2, "NVML says: driver not loaded"
    for name in libraries:
        assert len([line for line in out.splitlines() if line.strip().startswith(f"{name} => /")]) == 2, out
    after = tree_listing(debian.rootfs, exact=True)
    changed = {k for k in before.keys() | after.keys() if before.get(k) != after.get(k)}
    assert changed <= {"etc", "etc/ld.so.cache", "var/cache/ldconfig", "var/cache/ldconfig/aux-cache"}


@pytest.mark.parametrize("version", ["1000.1.2", "998.1.2"])
def test_forward_compatibility(debian: Bundle, run: Callable[..., str], version: str, leaks: Leaks) -> None:
    """The loader takes the image's own libcuda if it is newer than the driver's (999), before and after ldconfig."""
    leaks.allow_rootfs_changes()
    compat = debian.rootfs / "usr/local/cuda-20/compat"
    compat.mkdir(parents=True)
    (debian.rootfs / "usr/local/cuda").symlink_to("cuda-20")
    (compat / f"libcuda.so.{version}").write_bytes(shared_library("libcuda.so.1", (), MACHINE))
    (compat / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")
    (debian.rootfs / "probe.so").write_bytes(shared_library("probe.so", (), MACHINE, ("libcuda.so.1",)))
    find = "$(ls /lib*/ld-linux-*) --list /probe.so | grep -o '/.*libcuda.so[^ ]*'"
    before, after = run(debian.sh(f"{find}; ldconfig; {find}")).splitlines()
    assert before == (f"/usr/local/cuda-20/compat/libcuda.so.{version}" if version == "1000.1.2" else f"/{LIB}/libcuda.so.1")
    assert after.rpartition("/")[0] == before.rpartition("/")[0]
    assert not list((debian.rootfs / "etc/ld.so.conf.d").glob("*gpurun*"))


@pytest.fixture
def read_only_file_system(runtime: Runtime) -> Iterator[Callable[[Bundle], None]]:
    """Binds a rootfs on itself, read-only: nothing at all can be made in it."""
    bound: list[Path] = []

    def in_bed(*argv: str) -> None:
        subprocess.run(argv, check=True, preexec_fn=runtime.bed.enter())

    def bind(bundle: Bundle) -> None:
        in_bed("mount", "--bind", str(bundle.rootfs), str(bundle.rootfs))
        bound.append(bundle.rootfs)
        in_bed("mount", "-o", "remount,bind,ro", str(bundle.rootfs))

    yield bind
    runtime.cleanup()
    for rootfs in bound:
        in_bed("umount", str(rootfs))


def test_a_file_system_that_cannot_be_written(
    debian: Bundle, run: Callable[..., str], read_only_file_system: Callable[[Bundle], None], leaks: Leaks, tmp_path: Path
) -> None:
    """As of ``ctr run --read-only``: a snapshot that nobody can make a mount point in."""
    before = tree_listing(debian.rootfs, exact=True)
    (tmp_path / "hosts").write_text("of the engine\n")
    debian.mount("/etc/debian_version", str(tmp_path / "hosts"), "bind", "ro")
    debian.write()
    read_only_file_system(debian)
    script = f"{FIND_CUDA}; touch /usr/bin/x 2>&1; nvidia-smi -L | wc -l; cat /etc/debian_version; ls /usr/bin/env"
    out = run(debian.sh(script))
    assert out.splitlines() == [
        "1",
        "touch: cannot touch '/usr/bin/x': Read-only file system",
        "2",
        "of the engine",
        "/usr/bin/env",
    ]
    assert tree_listing(debian.rootfs, exact=True) == before


def test_a_file_system_that_cannot_be_written_and_lacks_a_top_directory(
    gpu: Callable[[], Bundle],
    runtime: Runtime,
    host: SimulatedDriver,
    read_only_file_system: Callable[[Bundle], None],
) -> None:
    made = gpu()
    (made.rootfs / "usr").rmdir()
    made.write()
    read_only_file_system(made)
    text = runtime.refused(made, env=ENVIRONMENT | host.env)
    assert "the rootfs is read-only and has no /usr, which /usr/" in text


def test_an_image_without_etc(gpu: Callable[[], Bundle], run: Callable[..., str]) -> None:
    made = gpu()
    shutil.rmtree(made.rootfs / "etc")
    before = tree_listing(made.rootfs, exact=True)
    out = run(made.sh(f"nvidia-smi -L | wc -l; head -c 19 /etc/ld.so.cache; echo; readlink /{LIB}/libcuda.so.1"))
    assert out.splitlines() == ["2", "glibc-ld.so.cache1.", "libcuda.so.999.88.77"]
    assert tree_listing(made.rootfs, exact=True) == before


def test_an_image_with_nothing(gpu: Callable[[], Bundle], run: Callable[..., str]) -> None:
    """Scratch: one static program, and no directory of any kind."""
    made = gpu()
    busybox = (made.rootfs / "bin/busybox").read_bytes()
    shutil.rmtree(made.rootfs)
    made.rootfs.mkdir()
    (made.rootfs / "busybox").write_bytes(busybox)
    (made.rootfs / "busybox").chmod(0o755)
    for name in ("dev", "proc", "sys"):
        (made.rootfs / name).mkdir()
    before = tree_listing(made.rootfs, exact=True)
    script = f"/busybox ls /dev | /busybox grep -c nvidia; /busybox ls /{LIB} | /busybox grep -c cuda"
    out = run(made.args("/busybox", "sh", "-c", script))
    assert [int(line) for line in out.splitlines()] == [5, 5]
    assert tree_listing(made.rootfs, exact=True) == before


@pytest.mark.parametrize("path_file", [None, b"/lib:/usr/lib\n", b"/opt/lib\n/lib"])
def test_a_musl_image(gpu: Callable[[], Bundle], run: Callable[..., str], path_file: bytes | None) -> None:
    """musl's own loader finds a library of the driver by its SONAME; no cache is left in an image that reads none."""
    loader = package("musl") / f"lib/{MACHINE}-linux-musl/libc.so"
    if not loader.exists():
        pytest.skip("Debian's musl has its loader elsewhere on this machine")
    made = gpu()
    name = f"ld-musl-{MACHINE}"
    (made.rootfs / "lib").mkdir()
    shutil.copy(loader, made.rootfs / f"lib/{name}.so.1")
    (made.rootfs / f"lib/{name}.so.1").chmod(0o755)
    if path_file is not None:
        (made.rootfs / f"etc/{name}.path").write_bytes(path_file)
    (made.rootfs / "probe.so").write_bytes(shared_library("probe.so", (), MACHINE, ("libcuda.so.1",)))
    before = tree_listing(made.rootfs, exact=True)
    out = run(made.sh(f"/lib/{name}.so.1 --list /probe.so; cat /etc/{name}.path; ls /etc"))
    assert f"libcuda.so.1 => /{LIB}/libcuda.so.1" in out, out
    assert out.index((path_file or b"/lib:/usr/local/lib:/usr/lib").decode().strip()) < out.index(f"\n/{LIB}\n")
    assert "ld.so.cache" not in out
    assert tree_listing(made.rootfs, exact=True) == before


def test_a_rhel_image_on_a_debian_host(gpu: Callable[[], Bundle], run: Callable[..., str]) -> None:
    made = gpu()
    (made.rootfs / "usr/lib64").mkdir()
    (made.rootfs / "lib64").symlink_to("usr/lib64")
    (made.rootfs / "etc/ld.so.conf.d").mkdir()
    before = tree_listing(made.rootfs, exact=True)
    out = run(made.sh(f"cat /etc/ld.so.conf.d/00-gpurun.conf; ls /{LIB} | grep -c libcuda.so"))
    assert out.splitlines() == [f"/{LIB}", "3"]
    assert tree_listing(made.rootfs, exact=True) == before


def test_a_user_namespace(debian: Bundle, run: Callable[..., str]) -> None:
    debian.user_namespace()
    before = tree_listing(debian.rootfs, exact=True)
    out = run(debian.sh(f"{FIND_CUDA}; stat -c '%a %u %g' /etc/ld.so.cache /etc/ld.so.conf.d/00-gpurun.conf"))
    assert out.splitlines() == ["1", "644 0 0", "644 0 0"]
    assert tree_listing(debian.rootfs, exact=True) == before


def test_two_containers_of_one_image(debian: Bundle, runtime: Runtime, host: SimulatedDriver, leaks: Leaks) -> None:
    """The first one's mount points and cache serve the second one too: they stay until both are gone."""
    leaks.allow_rootfs_changes()  # /etc/x
    before = tree_listing(debian.rootfs, exact=True)
    env = ENVIRONMENT | host.env
    debian.sh(f"until [ -e /etc/go ]; do sleep 0.02; done; {FIND_CUDA}; head -c 4 /{LIB}/libcuda.so.1 | tail -c 3")

    def created() -> Container:
        debian.linux.pop("cgroupsPath", None)
        return runtime.create(debian, env=env)

    first, second = created(), created()
    second.start()
    assert first.delete("--force").rc == 0
    third = created()
    (debian.rootfs / "etc/go").touch()
    assert second.wait() == 0 and second.out.splitlines() == ["1", "ELF"], second.err
    assert second.delete().rc == 0
    assert third.start().rc == 0 and third.wait() == 0 and third.out.splitlines() == ["1", "ELF"]
    assert third.delete().rc == 0
    (debian.rootfs / "etc/go").unlink()
    after = tree_listing(debian.rootfs, exact=True)
    assert {k for k in before.keys() | after.keys() if before.get(k) != after.get(k)} <= {"etc"}


def test_a_volume_keeps_the_empty_mount_points(gpu: Callable[[], Bundle], run: Callable[..., str], runtime: Runtime) -> None:
    """As under every runtime: what a volume holds is its owner's, and delete cannot see it any more.  Nothing else stays."""
    volume = runtime.directory / "volume"
    volume.mkdir()
    (volume / "own").write_text("own")
    made = gpu().mount("/opt", str(volume), "rbind", "rw")
    (made.rootfs / "opt").mkdir()
    (made.rootfs / "usr").mkdir(exist_ok=True)
    (made.rootfs / "usr/bin").symlink_to("/opt")
    assert "GPU 1:" in run(made.args("/bin/busybox", "sh", "-c", "/opt/nvidia-smi -L"))
    left = {path.name: path.read_bytes() for path in volume.iterdir()}
    assert left.pop("own") == b"own" and left.keys() >= {"nvidia-smi"} and set(left.values()) == {b""}
    before = tree_listing(volume, exact=True)
    assert "GPU 1:" in run(made.args("/bin/busybox", "sh", "-c", "/opt/nvidia-smi -L"))
    assert tree_listing(volume, exact=True) == before, "a second container finds them there"
