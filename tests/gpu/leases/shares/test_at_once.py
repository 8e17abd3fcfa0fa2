"""Many containers ask for shares of GPUs at once, and are killed at any step."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import MakeBundle
from tests.gpu.leases.asked import leases
from tests.gpu.leases.shares.sharing import (
    asking,
    words_of,
)
from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.native.waiting import wait_until
from tests.simdriver import SimulatedDriver

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


@pytest.mark.parametrize("count", [16, pytest.param(100, marks=pytest.mark.slow)])
def test_many_at_once_and_killed_at_any_step(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, count: int
) -> None:
    """8 at a time ask for a quarter of one of two GPUs; creates and containers are killed at any moment."""
    moments = random.Random(17)
    jobs = [(n, moments.choice(("", "create", "init")), moments.random()) for n in range(count)]
    bundles = [bundle() for _ in range(8)]
    env = ENVIRONMENT | host.env
    most = 0
    killed: list[str] = []
    given_back = threading.Condition()

    def create(b: Bundle, kill: str, moment: float) -> str | None:
        """The id of a container that is made; "" of one whose create was killed, None where there is no room."""
        container_id = runtime.new_id()
        b.process["env"] = [e for e in b.process["env"] if not e.startswith("NVIDIA_")]
        asking(b, "free", "exec sleep 600", memory="20GiB", threads="25%").linux.pop("cgroupsPath", None)
        runtime.prepare(b, container_id)
        files = runtime.new_files()
        process = runtime.popen("create", "--bundle", str(b.directory), container_id, files=files, env=env)
        if kill == "create":
            try:
                process.wait(moment)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                killed.append(container_id)
                return ""
        if not process.wait():
            return container_id
        assert "no GPU has room for a share of" in (files / "err").read_text()
        return None

    def job(number: int, kill: str, moment: float) -> None:
        nonlocal most
        b = bundles.pop()
        try:
            for _ in range(2000):
                container_id = create(b, kill, moment)
                if container_id is not None:
                    break
                with given_back:
                    given_back.wait(0.5)
            else:
                raise AssertionError(f"container {number} never got its share")
            if not container_id:
                return
            now = leases(runtime, host)
            for gpu in {one["gpus"][0]["uuid"] for one in now}:
                of_it = [one for one in now if one["gpus"][0]["uuid"] == gpu]
                assert sum(one["memory"] for one in of_it) <= 80 << 30 and sum(one["threads"] for one in of_it) <= 100
                most = max(most, len(of_it))
            if kill == "init" and moment < 0.5:
                assert runtime("kill", container_id, "KILL").rc == 0
            else:
                assert runtime("delete", "--force", container_id).rc == 0
        finally:
            bundles.append(b)
            with given_back:
                given_back.notify_all()

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(job, *one) for one in jobs]:
            done.result()
    assert most > 1

    def none_is_left() -> bool:
        for container_id in killed:  # again and again: one may be on its way to where it waits
            end_one_that_waits(runtime, container_id)
        return leases(runtime, host) == []

    wait_until(none_is_left)


def end_one_that_waits(runtime: Runtime, container_id: str) -> None:
    """A create that was killed when all was done but for its own end has made a container, which waits for start.

    It is started at its FIFO, as ``start`` does, which shows that it waits there; what was killed earlier ends by itself.
    """
    try:
        fifo = os.open(runtime.root / container_id / "exec.fifo", os.O_WRONLY | os.O_NONBLOCK)
    except OSError as e:
        assert e.errno in (errno.ENOENT, errno.ENXIO)  # killed before there was one, or nobody waits
        return
    os.write(fifo, b"0")
    os.close(fifo)
    state = runtime("state", container_id)
    if state.rc == 0:
        wait_until(lambda: words_of(json.loads(state.out)["pid"]) in (b"", b"sleep\0600\0"))
        assert runtime("delete", "--force", container_id).rc == 0
