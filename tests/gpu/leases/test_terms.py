"""The end of a lease's time: what is said, what is sent, and by which step."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.engine.signals import send_signal
from gpurun.errors import ConfigError, GpurunError
from gpurun.gpu.leases import terms
from gpurun.gpu.leases.lease import Lease, Leased
from gpurun.gpu.leases.policy import LeasePolicy
from gpurun.gpu.leases.store import Store, new_lease
from gpurun.gpu.leases.terms import clock_time, due_step, end_time, expire, format_duration
from gpurun.gpu.request.free import read_free_request
from gpurun.linux import procfs
from gpurun.record import replace

S = 10**9
END = LeasePolicy(at_end="end", warn=600, grace=60)
TELL = LeasePolicy(at_end="tell", warn=600)
LEASE = replace(new_lease("web", "/root", (Leased("0000:01:00.0", "GPU-1", 0, 0),)), pid=1 << 22, until=10_000 * S)


@pytest.mark.parametrize(
    ("stage", "second", "of_end", "of_tell"),
    [
        ("", 9_399, "", ""),
        ("", 9_400, "warned", "warned"),
        ("warned", 9_999, "", ""),
        ("warned", 10_000, "SIGTERM", "over"),
        ("", 10_000, "SIGTERM", "over"),  # nobody has looked for long
        ("over", 10_001, "SIGTERM", ""),  # the site says otherwise by now
        ("SIGTERM", 10_059, "", ""),
        ("SIGTERM", 10_060, "SIGKILL", ""),
        ("SIGKILL", 99_999, "", ""),
    ],
)
def test_what_is_due(stage: str, second: int, of_end: str, of_tell: str) -> None:
    lease = replace(LEASE, stage=stage, stage_at=10_000 * S)
    assert (due_step(lease, second * S, END), due_step(lease, second * S, TELL)) == (of_end, of_tell)


@pytest.mark.parametrize("change", [{"until": 0}, {"kind": "released"}])
def test_what_never_ends(change: dict[str, object]) -> None:
    assert due_step(replace(LEASE, **change), 99_999 * S, END) == ""


@pytest.mark.parametrize("change", [{"part": "more"}, {"pid": 0}])
def test_who_is_told_and_not_ended(change: dict[str, object]) -> None:
    assert due_step(replace(LEASE, **change), 99_999 * S, END) == "over"


@pytest.mark.parametrize(
    ("text", "longest", "seconds"),
    [("free", 0, 0), ("free;for<=4h", 0, 14400), ("free", 60, 60), ("free;for<=30s", 60, 30), ("free; for <= 1m", 60, 60)],
)
def test_for_how_long(text: str, longest: int, seconds: int) -> None:
    before = terms.now()
    end = end_time(read_free_request(text, ""), LeasePolicy(longest=longest), "")
    assert (before + seconds * S <= end <= terms.now() + seconds * S) if seconds else end == 0


def test_more_than_the_site_allows() -> None:
    with pytest.raises(ConfigError, match="the site leases GPUs for 8h at the most: ask for<=8h, or for less"):
        end_time(read_free_request("free;for<=9h", ""), LeasePolicy(longest=8 * 3600), "NVIDIA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    "condition", ["for", "for<=", "for<=4", "for<=4x", "for<=0s", "for<=367d", "for<4h", "for<=-1h", "for<=h"]
)
def test_times_that_are_none(condition: str) -> None:
    with pytest.raises(ConfigError, match=r"for<=4h"):
        read_free_request(f"free;{condition}", "")


def test_words() -> None:
    assert [format_duration(s) for s in (0, 30, 60, 90, 3600, 5400, 86400)] == ["0s", "30s", "1m", "90s", "1h", "90m", "24h"]
    assert abs(clock_time(terms.now()) - __import__("time").time_ns()) < S


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[Store, Lease, subprocess.Popen[bytes]]]:
    """A lease whose time is over, of a container that lives."""
    with subprocess.Popen(["sleep", "600"]) as process:
        found = procfs.stat(process.pid)
        assert found is not None
        store = Store(str(tmp_path))
        lease = replace(LEASE, pid=process.pid, start_time=found[1], until=1)
        with store:
            store.save(lease)
        yield store, lease, process
        process.kill()


Running = tuple[Store, Lease, "subprocess.Popen[bytes]"]


def test_it_is_ended(running: Running, capfd: pytest.CaptureFixture[str]) -> None:
    store, _, process = running
    assert expire(store, END, send_signal) == 1
    assert process.wait(60) == -signal.SIGTERM
    assert "the lease of GPU 0 by web is over: its container gets SIGTERM, and SIGKILL in 1m" in capfd.readouterr().err
    assert expire(store, END, send_signal) == 0


def test_one_that_does_not_listen_is_killed(running: Running, capfd: pytest.CaptureFixture[str]) -> None:
    store, lease, process = running
    with store:
        store.save(replace(lease, stage="SIGTERM", stage_at=1))
    assert expire(store, END, send_signal) == 1
    assert process.wait(60) == -signal.SIGKILL and "its container gets SIGKILL, " in capfd.readouterr().err


def test_only_told(running: Running, capfd: pytest.CaptureFixture[str]) -> None:
    store, _, process = running
    assert expire(store, TELL, send_signal) == 1 and expire(store, TELL, send_signal) == 0, "once"
    assert process.poll() is None
    assert "the lease of GPU 0 by web is over: the container goes on, and keeps the GPU" in capfd.readouterr().err
    assert [one.stage for one in store.leases()] == ["over"], "and nobody else gets it"


def test_before_the_end(running: Running, capfd: pytest.CaptureFixture[str]) -> None:
    store, lease, process = running
    with store:
        store.save(replace(lease, until=terms.now() + 300 * S))
    assert expire(store, END, send_signal) == 1 and process.poll() is None
    assert "by web ends in " in capfd.readouterr().err


def test_what_is_not_noted_is_not_done(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full, or a kill just there, never leads to the same signal again and again."""
    store, _, process = running

    def full(*_: object) -> None:
        raise GpurunError("no space left on device")

    sent: list[int] = []
    monkeypatch.setattr(store, "save", full)
    with pytest.raises(GpurunError, match="no space"):
        expire(store, END, lambda _, number: sent.append(number))
    assert not sent and process.poll() is None


def test_the_pid_of_another_process_gets_nothing(running: Running) -> None:
    store, lease, process = running
    with store:
        store.save(replace(lease, pid_namespace=1))
    sent: list[int] = []
    assert expire(store, END, lambda _, number: sent.append(number)) == 1 and not sent
    assert process.poll() is None
