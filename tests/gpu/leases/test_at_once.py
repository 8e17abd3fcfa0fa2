"""Many containers ask for free GPUs at once, and a third of them are killed: no GPU ever has two of them."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpurun.gpu.leases.store import Store, directory
from tests.conftest import MakeBundle
from tests.gpu.leases.asked import asking, leases
from tests.gpu.leases.conftest import MakeHost
from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.native.waiting import wait_until
from tests.simdriver import SimulatedDriver

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


class Watch:
    """Looks at the leases all the time: no GPU may ever be in two of them."""

    def __init__(self, host: SimulatedDriver) -> None:
        self.store = Store(directory(host.env))
        self.looks, self.twice, self.most = 0, [], 0  # type: int, list[str], int
        self.over = False
        self.looked = threading.Condition()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self.over:
                keys = [unit.key for lease in self.store.leases() for unit in lease.units]
                with self.looked:
                    self.looks += 1
                    self.most = max(self.most, len(keys))
                    self.twice += [key for key in set(keys) if keys.count(key) > 1]
                    self.looked.notify_all()
                    self.looked.wait(0.002)
        finally:
            self.over = True

    def next_look(self) -> None:
        """Wait until it has looked once more, from beginning to end."""
        with self.looked:
            after = self.looks + 2
            assert self.looked.wait_for(lambda: self.looks >= after or self.over, 60) and not self.over

    def __enter__(self) -> Watch:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over = True
        self.thread.join()


@pytest.mark.parametrize("count", [32, pytest.param(200, marks=pytest.mark.slow)])
def test_many_at_once_and_a_third_killed(
    runtime: Runtime,
    bundle: MakeBundle,
    make_host: MakeHost,
    count: int,
) -> None:
    """16 at a time ask for one or two of 8 GPUs; of each three one create or one container is killed at any moment."""
    host = make_host(8)
    moments = random.Random(17)
    jobs = [(n, moments.choice((1, 2)), moments.choice(("", "", "create", "init")), moments.random()) for n in range(count)]
    held: dict[str, str] = {}
    lock = threading.Lock()
    given_back = threading.Condition(lock)
    bundles = [bundle() for _ in range(16)]
    ran = killed = 0

    def job(number: int, gpus: int, kill: str, moment: float) -> None:
        with lock:
            b = bundles.pop()
        try:
            for _ in range(2000):
                if attempt(b, gpus, kill, moment):
                    return
                with lock:
                    given_back.wait(0.5)
            raise AssertionError(f"container {number} never got its {gpus} GPUs")
        finally:
            with lock:
                bundles.append(b)
                given_back.notify_all()

    def attempt(b: Bundle, gpus: int, kill: str, moment: float) -> bool:
        nonlocal ran, killed
        container_id = runtime.new_id()
        b.process["env"] = [e for e in b.process["env"] if not e.startswith("NVIDIA_")]
        asking(b, f"free:{gpus}", "exec sleep 600").linux.pop("cgroupsPath", None)
        runtime.prepare(b, container_id)
        files = runtime.new_files()
        command = ("create", "--bundle", str(b.directory), "--pid-file", str(files / "pid"), container_id)
        process = runtime.popen(*command, files=files, env=ENVIRONMENT | host.env)
        if kill == "create":
            try:
                process.wait(moment * 0.6)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                with lock:
                    killed += 1
                assert runtime("delete", "--force", container_id).rc == 0
                return True
        if process.wait():
            text = (files / "err").read_text()
            assert "wanted" in text, text
            return False
        pid = int((files / "pid").read_text())
        assert runtime("start", container_id).rc == 0
        names = visible_devices(pid)
        assert len(names) == gpus
        with lock:
            ran += 1
            assert not [name for name in names if name in held], f"{names} are held already: {held}"
            held.update(dict.fromkeys(names, container_id))
        watch.next_look()
        with lock:
            for name in names:
                del held[name]
        if kill == "init":
            pidfd = os.pidfd_open(pid)
            os.kill(pid, signal.SIGKILL)
            assert select.select([pidfd], [], [], 60)[0], "it does not end"
            os.close(pidfd)
            with lock:
                killed += 1
            if moment < 0.5:
                return True  # never deleted, until the end of the test
        assert runtime("delete", "--force", container_id).rc == 0
        return True

    with Watch(host) as watch, ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(job, *one) for one in jobs]:
            done.result()
    assert not watch.twice and watch.looks > count and watch.most >= 6
    to_kill = {kill: sum(job[2] == kill for job in jobs) for kill in ("create", "init")}
    # A create may end before its moment has come; then it runs as the others do.
    assert ran >= count - to_kill["create"] and killed >= to_kill["init"] > 0
    assert leases(runtime, host) == []
    assert runtime.run(asking(bundle(), "free:8", "true"), env=ENVIRONMENT | host.env).rc == 0


def visible_devices(pid: int) -> list[str]:
    """The GPUs that the process *pid* has been told of, once its program runs.

    Each look is one by itself: while the program executes the next one, its environment is empty for a moment.
    """
    name = b"NVIDIA_VISIBLE_DEVICES="
    looks: list[bytes] = []

    def is_told() -> bool:
        looks.append(Path(f"/proc/{pid}/environ").read_bytes())
        return name + b"GPU-" in looks[-1]

    wait_until(is_told)
    return looks[-1].partition(name)[2].partition(b"\0")[0].decode().split(",")
