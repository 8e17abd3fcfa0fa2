"""A lease goes over from the process that makes a container to its init."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gpurun.engine.gpus.leases import StoredLease, bind
from gpurun.engine.state import State
from gpurun.gpu.leases.lease import Leased
from gpurun.gpu.leases.store import Store, new_lease
from gpurun.linux import procfs
from gpurun.record import replace
from tests.deadline import within


@pytest.fixture
def state() -> State:
    found = procfs.stat(os.getpid())
    assert found is not None
    values = dict.fromkeys(State._fields, "")
    numbers = {"pid": os.getpid(), "start_time": found[1], "keeper": 0, "oom_kills": -1}
    return State(**{**values, **numbers, "id": "web", "private_pid": True})  # type: ignore[arg-type]


def test_a_release_meanwhile_stays(tmp_path: Path, state: State) -> None:
    """The administrator was faster than the container's init."""
    store = Store(str(tmp_path))
    lease = new_lease("web", "/root", (Leased("0000:01:00.0", "GPU-1", 0, 0),))
    with store:
        store.save(lease)
        store.save(replace(lease, kind="released"))
    bind(StoredLease(lease, str(tmp_path)), state)
    (now,) = store.leases()
    assert (now.kind, now.pid, now.start_time) == ("released", state.pid, state.start_time)


def test_it_waits_for_the_lock(tmp_path: Path, state: State) -> None:
    store = Store(str(tmp_path))
    lease = new_lease("web", "/root", (Leased("0000:01:00.0", "GPU-1", 0, 0),))
    with within(60):
        with store:
            store.save(lease)
            other = threading.Thread(target=bind, args=(StoredLease(lease, str(tmp_path)), state))
            other.start()
            # Whatever the other thread does meanwhile, what the holder of the lock writes last is what it finds.
            store.save(replace(lease, kind="released"))
        other.join()
    (now,) = store.leases()
    assert (now.kind, now.pid) == ("released", state.pid)


def test_a_lease_that_is_gone_is_written_anew(tmp_path: Path, state: State) -> None:
    lease = new_lease("web", "/root", (Leased("0000:01:00.0", "GPU-1", 0, 0),))
    bind(StoredLease(lease, str(tmp_path / "made")), state)
    assert [one.pid for one in Store(str(tmp_path / "made")).leases()] == [state.pid]
