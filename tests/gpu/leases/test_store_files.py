"""What the store writes of leases, gives back, and forgets; when GPUs were last used."""

from __future__ import annotations

import errno
import json
import posix
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.errors import GpurunError, StepError
from gpurun.gpu.leases import files
from gpurun.gpu.leases.lease import Lease, Leased
from gpurun.gpu.leases.store import Store, new_lease
from gpurun.record import replace, to_plain
from tests.deadline import within

UNIT = Leased("0000:01:00.0", "GPU-1", 0, 0)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Store]:
    with within(60):
        yield Store(f"{tmp_path}/own")


def lease(name: str, **more: object) -> Lease:
    """Of a container that this process makes."""
    return replace(new_lease(name, "/root", (UNIT,)), **more)


def test_all_that_are_written_the_oldest_first(own: Store) -> None:
    with own:
        for name, since in (("b", 2), ("c", 3), ("a", 1)):
            own.save(lease(name, since=since))
        assert [one.id for one in own.leases()] == ["a", "b", "c"]
    assert [one.id for one in own.own_leases()] == ["a", "b", "c"]


def test_everybody_may_read_a_lease_and_nobody_else_write_it(own: Store) -> None:
    """Of the lock not even that: who could open it could hold it."""
    with own:
        own.save(lease("a"))
        own.note_use([UNIT.key])
    modes = {path.name: path.stat().st_mode & 0o777 for path in Path(own.path).iterdir()}
    assert modes.pop("lock") == 0o600
    assert len(modes) == 2 and set(modes.values()) == {0o644}
    assert Path(own.path).stat().st_mode & 0o777 == 0o755


def test_a_lease_that_is_given_back_is_gone(own: Store) -> None:
    one, other = lease("one"), lease("other")
    with own:
        own.save(one)
        own.save(other)
        own.remove(one)
        own.remove(one)  # nobody has it any more
        assert [found.id for found in own.leases()] == ["other"]
        assert own.current(one) is None and own.current(other) == other


def test_a_lease_takes_the_place_of_the_containers_own(own: Store) -> None:
    with own:
        own.save(lease("one", request="free"))
        own.save(lease("one", request="free:2"))
        assert [found.request for found in own.leases()] == ["free:2"]


def test_as_it_is_written_now(own: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one = lease("one")
    assert own.current(one) is None, "there is no directory yet"
    with own:
        own.save(replace(one, request="another"))
    now = own.current(one)
    assert now is not None and now.request == "another"
    path = Path(own.path, one.file)
    path.write_text("no lease")
    assert own.current(one) is None

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "")

    monkeypatch.setattr(files, "_read", fails)
    with pytest.raises(StepError, match=f"read a lease of GPUs in {own.path}: input/output error"):
        own.current(one)
    with pytest.raises(StepError, match=f"read the leases of GPUs in {own.path}: input/output error"):
        own.own_leases()


@pytest.mark.parametrize(
    "change", [{"units": 1025}, {"pid": (1 << 22) + 1}, {"since": 1 << 64}, {"request": 7}, {"index": -1}]
)
def test_the_largest_that_a_lease_can_have(change: dict[str, int]) -> None:
    largest = lease("a", pid=1 << 22, since=(1 << 64) - 1)
    plain = to_plain(replace(largest, units=(UNIT,) * 1024))
    assert files.parse(json.dumps(plain).encode()).units == (UNIT,) * 1024
    if "units" in change:
        plain["units"].append(plain["units"][0])
    elif "index" in change:
        plain["units"][0] = {**plain["units"][0], **change}
    else:
        plain |= change
    with pytest.raises(files.Damaged):
        files.parse(json.dumps(plain).encode())


def test_as_much_as_is_read_of_a_file(tmp_path: Path) -> None:
    """One byte more is no lease, and nothing that is no regular file is opened."""
    text = json.dumps(to_plain(lease("a"))).encode()
    directory = posix.open(tmp_path, posix.O_RDONLY)
    try:
        (tmp_path / "x").write_bytes(text.ljust(files.LIMIT))
        assert files.load(directory, "x") is not None
        (tmp_path / "x").write_bytes(text.ljust(files.LIMIT + 1))
        with pytest.raises(files.Damaged):
            files.load(directory, "x")
        (tmp_path / "link").symlink_to("x")
        (tmp_path / "null").symlink_to("/dev/null")
        (tmp_path / "directory").mkdir()
        for name in ("link", "null", "directory"):
            with pytest.raises(files.Damaged):
                files.load(directory, name)
        assert files.load(directory, "none") is None
    finally:
        posix.close(directory)


def test_as_many_as_are_looked_at(tmp_path: Path) -> None:
    """Whatever they are called: a name that no lease has is one of them."""
    for number in range(5):
        (tmp_path / f"{number:032x}").touch()
    (tmp_path / ("-" * 32)).touch()
    (tmp_path / "short").touch()
    directory = posix.open(tmp_path, posix.O_RDONLY)
    try:
        assert files.names(directory) == [f"{number:032x}" for number in range(5)]
        assert len(files.names(directory, 7)) == 5 and 1 <= len(files.names(directory, 3)) <= 3
    finally:
        posix.close(directory)


def test_when_gpus_were_used(own: Store) -> None:
    assert own.last_used() == {}
    with own:
        own.note_use(["a b", "c"])
        first = own.last_used()
        assert list(first) == ["a b", "c"] and len(set(first.values())) == 1
        own.note_use(["c"])
        second = own.last_used()
        assert second["a b"] == first["a b"] < second["c"]
    (used,) = [path for path in Path(own.path).iterdir() if path.name != "lock"]
    used.write_bytes(used.read_bytes() + b"d\ne -1\nf 1.5\n\xff 7\n")
    assert own.last_used() == {**second, "\ufffd": 7}, "what is damaged does not count"


def test_a_lease_that_cannot_be_written(own: Store) -> None:
    with own:
        Path(own.path, lease("a").file).mkdir()
        with pytest.raises(GpurunError, match=f"write a lease of GPUs in {own.path}: "):
            own.save(lease("a"))
