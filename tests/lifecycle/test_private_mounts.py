"""The rule for every way to make a container: its mounts share nothing with the host's but what the config asks for.

The host's mounts are all shared.  The container prints its mounts, then mounts something over each of them: no mount may be
a peer or a slave of the host's, and nothing may appear on the host.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import MakeBundle, runtime_path
from tests.native.bundle import Bundle
from tests.native.checkpoint import restored, saved
from tests.native.leaks import Leaks
from tests.native.others import another, new_bundle
from tests.native.runtime import ENVIRONMENT, Container, Runtime
from tests.native.terminal import Listener
from tests.native.waiting import wait_until
from tests.simdriver import Options, SimulatedDriver, make

pytestmark = [
    pytest.mark.native,
    pytest.mark.attack("shared mounts", "what a container mounts appears on the host"),
]

#: Deeper mounts before those that they are in.
SCRIPT = """
while [ ! -e /tmp/go ]; do sleep 0.05; done
cat /proc/self/mountinfo
while read -r id parent device root point rest; do echo $point; done </proc/self/mountinfo | sort -ru >/dev/shm/points
while read -r point; do
    if [ -d $point ]; then mount -t tmpfs none $point; else mount --bind /bin/busybox $point; fi && echo over $point
done </dev/shm/points
echo done
exec sleep 1000
"""
CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_MKNOD", "CAP_DAC_OVERRIDE")


class Host(NamedTuple):
    """What a way may use of the host's."""

    runtime: Runtime
    bundle: MakeBundle
    driver: SimulatedDriver
    files: Path  # a directory of its own, on a shared mount

    def start(self, b: Bundle, *options: str) -> Container:
        return self.runtime.start(b.capabilities(*CAPABILITIES), *options, env=ENVIRONMENT | self.driver.env)


@pytest.fixture
def host(runtime: Runtime, bundle: MakeBundle, leaks: Leaks, place: Path) -> Iterator[Host]:
    leaks.allow_rootfs_changes()
    directory = Path(tempfile.mkdtemp(dir=place))
    directory.chmod(0o755)
    (directory / "files/deep").mkdir(parents=True)
    (directory / "files/file").write_text("the host's\n")
    yield Host(runtime, bundle, make(directory / "driver", Options()), directory / "files")
    runtime.cleanup()
    shutil.rmtree(directory)


def check(container: Container, before: list[str], asked: Callable[[str], bool] = lambda point: False) -> None:
    """Let the container run :data:`SCRIPT` to its end and look; *asked*: mount points that the config wants to be slaves."""
    (container.bundle.rootfs / "tmp/go").touch()
    container.wait_for("done\n")
    mounts = [line.split() for line in container.out.splitlines() if " - " in line]
    shared = {m[4]: m[6 : m.index("-")] for m in mounts if m[6 : m.index("-")]}
    assert not {point: tags for point, tags in shared.items() if not asked(point)}
    if container.runtime.name.startswith("gpurun"):
        assert mounts[0][4] == "/", "df shows the first one"
    over = {line.removeprefix("over ") for line in container.out.splitlines() if line.startswith("over ")}
    assert over == {m[4] for m in mounts}, container.err
    assert container.runtime.bed.mounts() == before


def plain(host: Host) -> Bundle:
    b = host.bundle().sh(SCRIPT)
    (b.rootfs / "etc/secret").write_text("hidden")
    (b.rootfs / "hidden").mkdir()
    b.linux["maskedPaths"] += ["/etc/secret", "/hidden", "/proc/acpi"]
    b.linux["readonlyPaths"] += ["/var", "/mnt/deep"]
    b.mount("/mnt", str(host.files), "rbind", "rprivate").mount("/run", "tmpfs", "nosuid", kind="tmpfs")
    return b.mount("/etc/file", str(host.files / "file"), "bind", "private", "ro")


def read_only_root(host: Host) -> Bundle:
    b = plain(host)
    (b.rootfs / "mnt").mkdir()
    (b.rootfs / "etc/file").touch()
    b.config["root"]["readonly"] = True
    return b


def user_namespace(host: Host) -> Bundle:
    b = plain(host).user_namespace()
    b.linux["devices"] = [{"path": "/dev/made", "type": "c", "major": 1, "minor": 5}]
    return b


def joined_namespaces(host: Host) -> Bundle:
    first = host.runtime.create(host.bundle())
    b = plain(host)
    del b.config["hostname"]
    for kind, name in {"network": "net", "pid": "pid", "ipc": "ipc", "uts": "uts", "cgroup": "cgroup"}.items():
        b.namespace(kind, f"/proc/{first.pid}/ns/{name}")
    return b


def joined_user_namespace(host: Host) -> Bundle:
    first = host.runtime.create(host.bundle().user_namespace())
    return plain(host).user_namespace().namespace("user", f"/proc/{first.pid}/ns/user")


def gpus(host: Host) -> Bundle:
    b = plain(host)
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]
    return b


def gpus_in_a_user_namespace(host: Host) -> Bundle:
    return gpus(host).user_namespace()


def gpus_on_a_read_only_file_system(host: Host) -> Bundle:
    """Where room has to be made for what the image lacks."""
    b = host.bundle().sh(SCRIPT)
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=all"]
    for name in ("lib", "tmp", "usr/bin", "usr/lib", "var/run", "etc"):
        (b.rootfs / name).mkdir(parents=True, exist_ok=True)
    b.write()  # what the rootfs is now is what it has to be
    return b


def cdi_devices(host: Host) -> Bundle:
    path = host.driver.path / "etc/cdi/nvidia.yaml"
    done = host.runtime("cdi", "generate", "--output", str(path), env=ENVIRONMENT | host.driver.env)
    assert done.rc == 0, done.text
    b = plain(host)
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all"]
    return b


def copied_tmpfs(host: Host) -> Bundle:
    return plain(host).mount("/root", "tmpfs", "tmpcopyup", kind="tmpfs")


def cgroup_mount(host: Host) -> Bundle:
    return plain(host).mount("/sys/fs/cgroup", "cgroup", "nosuid", "noexec", "nodev", "relatime", "ro", kind="cgroup")


def cgroup_mount_of_the_hosts(host: Host) -> Bundle:
    return cgroup_mount(host).without_namespace("cgroup")


def mapped_volume(host: Host) -> Bundle:
    b = plain(host).mount("/srv", str(host.files), "rbind", "rprivate")
    mapping = [{"containerID": 0, "hostID": 100000, "size": 1000}]
    b.config["mounts"][-1].update(uidMappings=mapping, gidMappings=mapping)
    return b


WAYS = (
    plain,
    read_only_root,
    user_namespace,
    joined_namespaces,
    joined_user_namespace,
    gpus,
    gpus_in_a_user_namespace,
    cdi_devices,
    copied_tmpfs,
    cgroup_mount,
    cgroup_mount_of_the_hosts,
    pytest.param(mapped_volume, marks=pytest.mark.takes("mount_setattr", "there are no id-mapped mounts")),
)


@pytest.mark.sweep(10)
@pytest.mark.gpurun_only
@pytest.mark.parametrize("options", [(), ("--no-pivot",)], ids=["pivot", "no-pivot"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_mounts_of_a_container_are_its_own(host: Host, way: Callable[[Host], Bundle], options: tuple[str, ...]) -> None:
    b = way(host)
    before = host.runtime.bed.mounts()
    check(host.start(b, *options), before)


@pytest.mark.gpurun_only
def test_where_room_is_made_on_a_read_only_file_system(host: Host) -> None:
    b = gpus_on_a_read_only_file_system(host)
    bed = host.runtime.bed
    bed.run("mount", "--bind", str(b.rootfs), str(b.rootfs))
    bed.run("mount", "-o", "remount,ro,bind", str(b.rootfs))
    try:
        before = bed.mounts()
        check(host.start(b), before)
    finally:
        host.runtime.cleanup()
        bed.run("umount", str(b.rootfs))


@pytest.mark.gpurun_only
def test_a_terminal_with_the_hosts_dev(host: Host, listener: Listener) -> None:
    """The terminal is then one of the host's devpts, and /dev/console is mounted from there."""
    b = plain(host)
    b.config["mounts"] = [m for m in b.config["mounts"] if not m["destination"].startswith("/dev")]
    b.mount("/dev", "/dev", "rbind", "rslave")
    b.process["terminal"] = True
    before = host.runtime.bed.mounts()
    host.start(b.sh(f"exec >/tmp/out 2>&1; {SCRIPT}"), "--console-socket", str(listener.path))
    _, (master,) = listener.message()
    (b.rootfs / "tmp/go").touch()
    written = b.rootfs / "tmp/out"
    wait_until(lambda: written.exists() and "done\n" in written.read_text())
    out = written.read_text()
    tags = {line.split()[4]: line.split(" - ")[0].split()[6:] for line in out.splitlines() if " - " in line}
    assert tags["/dev/console"] == [] and "over /dev/console" in out
    assert {point for point in tags if tags[point]} == {p for p in tags if f"{p}/".startswith("/dev/")} - {"/dev/console"}
    assert host.runtime.bed.mounts() == before
    os.close(master)


@pytest.mark.gpurun_only
def test_a_joined_mount_namespace(host: Host) -> None:
    """Even one that shares all of its mounts with the host is cut off it."""
    command = ["unshare", "-m", "--propagation", "unchanged", "sh", "-c", "echo up; read -r _"]
    enter = host.runtime.bed.enter()
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=enter)
    assert holder.stdout is not None and holder.stdout.readline() == "up\n"
    try:
        b = plain(host).namespace("mount", f"/proc/{holder.pid}/ns/mnt")
        before = host.runtime.bed.mounts()
        check(host.start(b), before)
    finally:
        host.runtime.cleanup()
        holder.communicate("\n", timeout=10)


@pytest.mark.gpurun_only
def test_nodes_that_are_bound_from_the_host(host: Host) -> None:
    """As under rootless Podman: the runtime itself is root of a user namespace, and can neither make nodes nor lend them."""
    b = host.bundle().sh(SCRIPT)
    for mount in b.config["mounts"]:
        mount["options"] = [o for o in mount.get("options", []) if not o.startswith("gid=")]
    del b.config["linux"]["resources"], b.process["rlimits"]
    runtime, container_id = host.runtime, host.runtime.new_id()
    b.capabilities(*CAPABILITIES)
    runtime.prepare(b, container_id)
    before = runtime.bed.mounts()
    (b.rootfs / "tmp/go").touch()
    command = [*runtime.argv, "run", "--bundle", str(b.directory), container_id]
    b.sh(SCRIPT.replace("exec sleep 1000", ""))
    runtime.prepare(b, container_id)
    done = subprocess.run(
        ["unshare", "-Ur", *command],
        preexec_fn=runtime.bed.enter(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    mounts = [line.split() for line in done.stdout.splitlines() if " - " in line]
    assert "/dev/null" in [m[4] for m in mounts], "the nodes are bound"
    assert not [m for m in mounts if m[6] != "-"]
    assert {f"over {m[4]}" for m in mounts} <= set(done.stdout.splitlines())
    assert runtime.bed.mounts() == before


@pytest.mark.gpurun_only
def test_restored(host: Host, image: Path) -> None:
    b = plain(host)
    before = host.runtime.bed.mounts()
    first = host.start(b)
    saved(first, image)
    check(restored(first, image), before)


@pytest.fixture
def runc(host: Host, place: Path) -> Iterator[Runtime]:
    with another("runc", host.runtime.bed, place) as made:
        yield made


@pytest.mark.gpurun_only
@pytest.mark.parametrize("user_namespace", [False, True])
def test_the_stand_alone_hook_under_runc(host: Host, runc: Runtime, busybox: Path, user_namespace: bool) -> None:
    """runc 1.1 leaves its root, and nodes that it binds, slaves of the host's; the hook leaves nothing more so."""
    b = new_bundle(runc, busybox)
    if user_namespace:
        b.user_namespace()
    plain_mounts = runc.output(b.args("cat", "/proc/self/mountinfo"), stdin=b"").splitlines()
    runcs_own = {line.split()[4] for line in plain_mounts if "master:" in line}
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=all"]
    name = b.directory / "nvidia-container-runtime-hook"
    name.symlink_to(runtime_path())
    hook = {"path": str(name), "args": [name.name, "prestart"], "env": [f"GPURUN_SYSROOT={host.driver.path}"]}
    b.config["hooks"] = {"prestart": [hook]}
    before = runc.bed.mounts()
    container = runc.start(b.capabilities(*CAPABILITIES).sh(SCRIPT), stdin=b"")
    check(container, before, asked=lambda point: point in runcs_own)
    assert "nvidia" in container.out
