"""The directory of leases: who may have written what is in it, what ends a lease, and what a look that fails means."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import GpurunError
from gpurun.gpu.leases import store as store_module
from gpurun.gpu.leases.lease import Lease, Leased
from gpurun.gpu.leases.liveness import is_live
from gpurun.gpu.leases.store import Store, directory, new_lease, other_directories
from gpurun.record import replace, to_plain
from tests.deadline import within

USER = 54321
UNIT = Leased("0000:01:00.0", "GPU-1", 0, 0)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="directories of other users need root")


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    with within(60):
        yield


@pytest.fixture
def own(tmp_path: Path) -> Store:
    return Store(f"{tmp_path}/own")


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A user's directory of leases, at the place where it is looked for."""
    directory = tmp_path / "run/user" / str(USER) / "gpurun-leases"
    directory.mkdir(parents=True, mode=0o755)
    for path in (directory.parent, directory):
        os.chown(path, USER, USER)
    return directory


@pytest.mark.parametrize(
    ("user", "namespace", "env", "expected"),
    [
        (0, False, {}, "/run/gpurun-leases"),
        (0, False, {"XDG_RUNTIME_DIR": "/run/user/0"}, "/run/gpurun-leases"),
        (0, True, {}, "/run/gpurun-leases"),
        (0, True, {"XDG_RUNTIME_DIR": "/run/user/7/"}, "/run/user/7/gpurun-leases"),
        (7, False, {"XDG_RUNTIME_DIR": "/elsewhere"}, "/elsewhere/gpurun-leases"),
        (7, False, {}, "/run/user/7/gpurun-leases"),
        (0, False, {"GPURUN_SYSROOT": "/sim/"}, "/sim/run/gpurun-leases"),
        (7, False, {"GPURUN_SYSROOT": "/sim"}, "/sim/run/user/7/gpurun-leases"),
    ],
)
def test_where_a_callers_leases_are(
    monkeypatch: pytest.MonkeyPatch, user: int, namespace: bool, env: dict[str, str], expected: str
) -> None:
    monkeypatch.setattr("gpurun.gpu.leases.store.posix.geteuid", lambda: user)
    monkeypatch.setattr("gpurun.gpu.leases.store.procfs.in_user_namespace", lambda: namespace)
    assert directory(env) == expected


def reader(theirs: Path) -> Store:
    base = str(theirs.parents[3])
    others = other_directories(f"{base}/run/gpurun-leases", {"GPURUN_SYSROOT": base})
    assert str(theirs) in others
    return Store(f"{base}/run/gpurun-leases", others)


def put(directory: Path, lease: Lease, owner: int = USER, **more: Any) -> Path:
    path = directory / lease.file
    path.write_text(json.dumps({**to_plain(lease), **more}))
    os.chown(path, owner, owner)
    return path


@pytest.fixture
def sleeper() -> Iterator[Lease]:
    """A lease of a container whose init is a process of this test."""
    with subprocess.Popen(["sleep", "600"]) as process:
        mine = new_lease("theirs", "/their/root", (UNIT,))
        start = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
        yield replace(mine, pid=process.pid, start_time=start)
        process.kill()


def ended(lease: Lease, **more: Any) -> Lease:
    """*lease* of a container whose init is gone."""
    return replace(lease, start_time=1, **more)


@as_root
@pytest.mark.parametrize("where", ["cgroup.events", "the lease", "the directory"])
def test_a_fifo_of_another_user_blocks_nobody(theirs: Path, sleeper: Lease, where: str) -> None:
    if where == "cgroup.events":
        trap = theirs / "trap"
        trap.mkdir()
        os.mkfifo(trap / "cgroup.events", 0o666)
        put(theirs, ended(sleeper, cgroup=str(trap), cgroup_inode=trap.stat().st_ino))
    elif where == "the lease":
        os.mkfifo(theirs / ("0" * 32), 0o666)
        os.chown(theirs / ("0" * 32), USER, USER)
    else:
        theirs.rmdir()
        os.mkfifo(theirs, 0o666)
    assert reader(theirs).leases() == ()


@as_root
def test_a_cgroup_of_another_users_lease_is_the_kernels_or_none(theirs: Path, sleeper: Lease) -> None:
    """A file of the user's that says "populated 1" keeps nothing alive."""
    trap = theirs / "trap"
    trap.mkdir()
    (trap / "cgroup.events").write_text("populated 1\n")
    for path in (str(trap), f"/sys/fs/cgroup/../../..{trap}", "/sys/fs/cgroup/\0", str(trap)[1:]):
        put(theirs, ended(sleeper, cgroup=path, cgroup_inode=trap.stat().st_ino))
        assert reader(theirs).leases() == (), path


def test_a_file_that_is_no_cgroups_keeps_no_lease_of_ours(own: Store, tmp_path: Path, sleeper: Lease) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    os.mkfifo(trap / "cgroup.events")
    with own:
        own.save(ended(sleeper, cgroup=str(trap), cgroup_inode=trap.stat().st_ino))
        assert own.leases() == ()


@as_root
def test_what_another_user_says_is_believed_only_of_himself(theirs: Path, sleeper: Lease) -> None:
    put(theirs, replace(sleeper, user=0, labels=(("team", "a"),)))
    (lease,) = reader(theirs).leases()
    assert (lease.user, lease.labels, lease.units) == (USER, (), (UNIT,))
    assert reader(theirs).own_leases() == ()


@as_root
def test_another_user_releases_nothing(theirs: Path, sleeper: Lease) -> None:
    """Who could say "released" of any container would have its GPU judged free while it is in use."""
    put(theirs, replace(sleeper, kind="released"))
    assert reader(theirs).leases() == ()


@as_root
@pytest.mark.parametrize(
    "change",
    [
        {"since": 10**30},
        {"pid": 1 << 40},
        {"memory": -1},
        {"user": True},
        {"units": 7},
        {"units": [7]},
        {"units": [{"key": "a", "name": "b", "index": 0, "minor": "0"}]},
        {"labels": [["a"]]},
        {"id": None},
        {"request": "x" * (1 << 17)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_values_that_no_lease_can_have(theirs: Path, sleeper: Lease, change: dict[str, Any]) -> None:
    good = put(theirs, replace(sleeper, part="good"))
    put(theirs, sleeper, **change)
    (lease,) = reader(theirs).leases()
    assert lease.file == good.name


def of_root(path: Path, _: Path, lease: Lease) -> None:
    os.chown(path / lease.file, 0, 0)


def linked(path: Path, elsewhere: Path, lease: Lease) -> None:
    (path / lease.file).unlink()
    (path / lease.file).symlink_to(elsewhere / lease.file)


def directory_linked(path: Path, elsewhere: Path, lease: Lease) -> None:
    (path / lease.file).unlink()
    path.rmdir()
    path.symlink_to(elsewhere)


def of_another(path: Path, _: Path, lease: Lease) -> None:
    os.chown(path, USER + 1, USER + 1)
    os.chown(path / lease.file, USER + 1, USER + 1)


@as_root
@pytest.mark.parametrize("change", [of_root, linked, directory_linked, of_another])
def test_nothing_leads_out_of_a_users_directory(
    theirs: Path, tmp_path: Path, sleeper: Lease, change: Callable[[Path, Path, Lease], None]
) -> None:
    put(theirs, sleeper)
    assert len(reader(theirs).leases()) == 1
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    put(elsewhere, sleeper)
    change(theirs, elsewhere, sleeper)
    assert reader(theirs).leases() == ()


@as_root
def test_a_user_with_very_many_files(theirs: Path, sleeper: Lease) -> None:
    for number in range(1500):
        (theirs / f"{number:032}").touch()
    assert reader(theirs).leases() == ()


def test_a_lease_ends_with_the_boot(own: Store, sleeper: Lease) -> None:
    with own:
        own.save(sleeper)
        assert own.leases() == (sleeper,)
        own.save(replace(sleeper, boot="another"))
        assert own.leases() == () and not os.path.exists(f"{own.path}/{sleeper.file}")
        assert list(own.last_used()) == [UNIT.key]


def test_a_lease_ends_with_its_process(own: Store) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        start = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
        with own:
            own.save(replace(new_lease("a", "/root", (UNIT,)), pid=process.pid, start_time=start))
            assert len(own.leases()) == 1
            process.kill()
            process.wait()
            assert own.leases() == ()


def test_without_the_lock_nothing_is_removed(own: Store, sleeper: Lease) -> None:
    with own:
        own.save(ended(sleeper))
    assert own.leases() == () and os.path.exists(f"{own.path}/{sleeper.file}")


def test_a_lease_of_a_later_version_holds(own: Store, sleeper: Lease) -> None:
    with own:
        put(Path(own.path), sleeper, os.geteuid(), colour="blue")
        assert own.leases() == (sleeper,)


def test_what_is_no_lease_is_removed_by_who_has_the_lock(own: Store, capfd: pytest.CaptureFixture[str]) -> None:
    with own:
        path = Path(own.path, "a" * 32)
        path.write_text("{")
    assert own.leases() == () and path.exists() and capfd.readouterr().err == ""
    with own:
        assert own.leases() == () and not path.exists()
    assert "is not a lease of a GPU and was removed" in capfd.readouterr().err


@as_root
@pytest.mark.parametrize("whose", ["own", "a user's"])
@pytest.mark.parametrize("there", ["its init", "nothing", "no lease"])
def test_a_create_that_ends_between_two_looks(
    own: Store, theirs: Path, sleeper: Lease, monkeypatch: pytest.MonkeyPatch, whose: str, there: str
) -> None:
    """Whoever looks without the lock has read of the process that makes the container, and finds that process ended."""
    directory = theirs if whose == "a user's" else Path(own.path)
    look = reader(theirs) if whose == "a user's" else own
    with own:
        own.remove(sleeper)
    maker = subprocess.Popen(["sleep", "600"])
    start = int(Path(f"/proc/{maker.pid}/stat").read_text().rpartition(")")[2].split()[19])
    owner = USER if whose == "a user's" else os.geteuid()
    path = put(directory, replace(sleeper, pid=0, start_time=0, maker=maker.pid, maker_start=start), owner)

    def late(lease: Lease, foreign: bool = False) -> bool:
        if not lease.pid:
            if there == "its init":
                put(directory, sleeper, owner)
            elif there == "no lease":
                path.write_text("{")
            else:
                path.unlink()
            maker.kill()
            maker.wait()
        return is_live(lease, foreign)

    monkeypatch.setattr(store_module, "is_live", late)
    found = look.leases()
    assert maker.returncode is not None
    assert [lease.pid for lease in found] == ([sleeper.pid] if there == "its init" else [])


@pytest.fixture
def no_descriptors() -> Iterator[Callable[[int], None]]:
    """``no_descriptors(n)``: only *n* more can be opened."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []

    def limit(left: int) -> None:
        highest = os.open("/dev/null", os.O_RDONLY)
        held.append(highest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 256), before[1]))
        while True:
            try:
                held.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        for _ in range(left):
            os.close(held.pop())

    yield limit
    for fd in held:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("left", range(5))
def test_without_descriptors_no_lease_is_lost(
    own: Store, sleeper: Lease, no_descriptors: Callable[[int], None], left: int
) -> None:
    """What cannot be looked at is neither ended nor removed."""
    with own:
        own.save(sleeper)
        no_descriptors(left)
        try:
            assert own.leases() == (sleeper,)
        except GpurunError as e:
            assert "too many open files" in str(e)
    assert os.path.exists(f"{own.path}/{sleeper.file}")


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_directory_that_others_could_write_in(own: Store, mode: int) -> None:
    os.mkdir(own.path)
    os.chmod(own.path, mode)
    for look in (own.leases, own.own_leases, own.__enter__):
        with pytest.raises(GpurunError, match="other users can write here"):
            look()


def test_one_who_holds_the_lock_is_not_waited_for_for_ever(own: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "LOCK_SECONDS", 0.05)
    before = len(os.listdir("/proc/self/fd"))
    with own, pytest.raises(GpurunError, match=r"/lock: another gpurun has held it for 0\.05 s$"), Store(own.path):
        pass
    assert len(os.listdir("/proc/self/fd")) == before
    with Store(own.path):
        pass


def test_one_who_stands_behind_many_is_not_refused(own: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of those before has less than the whole time; together they take three times as long."""
    seconds = iter(range(1000))
    holders = [Store(own.path) for _ in range(6)]
    turns = 0

    def half_of_the_time_later(_: float) -> None:
        nonlocal turns
        turns += 1
        if turns % 5 == 0:
            holders.pop(0).__exit__()
            if holders:
                holders[0].__enter__()

    monkeypatch.setattr("gpurun.gpu.leases.store.time.monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr("gpurun.gpu.leases.store.time.sleep", half_of_the_time_later)
    monkeypatch.setattr(store_module, "LOCK_SECONDS", 10)
    holders[0].__enter__()
    with own:
        assert holders == [] and turns == 30


def test_the_lock_is_no_link(own: Store, tmp_path: Path) -> None:
    Path(own.path).mkdir(mode=0o755)
    (Path(own.path) / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(GpurunError, match=f"open the leases of GPUs {own.path}: too many levels of symbolic links"), own:
        pass
    assert not (tmp_path / "elsewhere").exists()


@as_root
def test_a_directory_that_another_user_has_made(own: Store) -> None:
    Path(own.path).mkdir(mode=0o755)
    os.chown(own.path, USER, USER)
    with pytest.raises(GpurunError, match=f"{own.path}: other users can write here, so no GPU is leased"), own:
        pass


def test_two_at_once_take_turns(own: Store, sleeper: Lease) -> None:
    """A second process gets the lock when the first one has gone, however it went."""
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        with own:
            os.write(go, b"x")
            signal.pause()
    assert os.read(ready, 1) == b"x"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with own:
        own.save(sleeper)
        assert own.leases() == (sleeper,)
    os.close(ready)
    os.close(go)


@as_root
def test_a_full_disk_leaves_the_lease_that_was_there(tmp_path: Path, sleeper: Lease) -> None:
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "tmpfs", place], check=True)
    try:
        store = Store(str(place))
        with store:
            store.save(sleeper)
            full = os.open(place / "fill", os.O_WRONLY | os.O_CREAT)
            with pytest.raises(OSError, match="No space left"):
                while True:
                    os.write(full, b"x" * 4096)
            os.close(full)
            with pytest.raises(GpurunError, match=r"write a lease of GPUs in .*no space left"):
                store.save(replace(sleeper, kind="released"))
            assert store.leases() == (sleeper,)
    finally:
        subprocess.run(["umount", place], check=True)


def test_what_a_killed_writer_left_is_removed_under_the_lock(own: Store, sleeper: Lease) -> None:
    with own:
        own.save(sleeper)
    place = Path(own.path)
    left, young = place / f".{sleeper.file}.0123456789abcdef.new", place / f".{sleeper.file}.fedcba9876543210.new"
    for path in (left, young):
        path.write_text("")
    old = time.time() - 3600
    for path in (left, place / sleeper.file):
        os.utime(path, (old, old))
    own.leases()
    assert left.exists(), "who has no lock removes nothing"
    with own:
        assert [one.id for one in own.leases()] == [sleeper.id]
    assert sorted(path.name for path in place.iterdir() if path.name not in ("lock", "used")) == [young.name, sleeper.file]
