"""Many pods at once on one node: none lost, none given twice, and the plugin does not grow.

``python -m tests.kubernetes.load [PODS [AT ONCE]]``; `make load-kubernetes` is the long form.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc

from tests.kubernetes.kubelet import NotEnough
from tests.kubernetes.nodes import GPU, Node, node
from tests.simdriver import Options

REPLICAS = 4


def rss_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


class Load:
    """*pods* pods, *at_once* of them at a time, on eight GPUs of four replicas each."""

    def __init__(self, made: Node, pods: int, at_once: int) -> None:
        self.node, self.pods, self.at_once = made, pods, at_once
        self.started: list[str] = []
        self.held: dict[str, str] = {}  # device → pod
        self.errors: list[str] = []
        self.lock = threading.Lock()
        self.retried = 0

    def run(self, restarts: int) -> None:
        names = iter([f"pod-{i}" for i in range(self.pods)])
        threads = [threading.Thread(target=self._worker, args=(names,)) for _ in range(self.at_once)]
        for thread in threads:
            thread.start()
        for number in range(restarts):
            while len(self.started) < self.pods * (number + 1) // (restarts + 1):
                time.sleep(0.01)
            self.node.kubelet.restart()
        for thread in threads:
            thread.join()

    def _worker(self, names: object) -> None:
        while True:
            with self.lock:
                name = next(names, None)  # type: ignore[call-overload]
            if name is None:
                return
            self._pod(name)

    def _pod(self, name: str) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                answer = self.node.kubelet.run_container(name, GPU)
                break
            except (grpc.RpcError, NotEnough, ValueError) as e:  # the kubelet is just restarting: the pod is tried again
                self.retried += 1
                if time.monotonic() > deadline:
                    self.errors.append(f"{name} was lost: {e}")
                    return
                time.sleep(0.02)
        (key,) = self.node.kubelet.given[name]
        device = key.partition(" ")[2]
        with self.lock:
            if device in self.held:
                self.errors.append(f"{device} is given to {name} and to {self.held[device]}")
            self.held[device] = name
            self.started.append(name)
        if not answer.cdi_devices[0].name.endswith(device.partition("::")[0]):
            self.errors.append(f"{name} got {answer.cdi_devices[0].name} for {device}")
        time.sleep(0.002)
        with self.lock:
            del self.held[device]
        self.node.kubelet.end_container(name)


def load(pods: int, at_once: int, restarts: int) -> tuple[Load, int, int]:
    """What came of it, and the plugin's memory in KiB after a tenth of the pods and at the end."""
    with node(Options(gpus=8)) as made:
        config = made.directory / "config.yaml"
        config.write_text(f"sharing: {{timeSlicing: {{resources: [{{name: {GPU}, replicas: {REPLICAS}}}]}}}}\n")
        words = ["kubernetes", "device-plugin", "--config-file", str(config), "--kubelet-dir", str(made.kubelet.directory)]
        command = [sys.executable, "-m", "gpurun", *words, "--cdi-dir", str(made.cdi_dir)]
        env = os.environ | made.driver.env | {"PYTHONPATH": "src"}
        with open(made.directory / "log", "w") as log:
            process = subprocess.Popen(command, env=env, stderr=log)
        try:
            made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 8 * REPLICAS)
            warm = Load(made, max(pods // 10, 10), at_once)
            warm.run(restarts=1)
            made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 8 * REPLICAS)
            before = rss_kib(process.pid)
            made_load = Load(made, pods, at_once)
            made_load.run(restarts)
            after = rss_kib(process.pid)
            assert not made.kubelet.given
            made_load.errors += warm.errors
            return made_load, before, after
        finally:
            process.terminate()
            process.wait(60)


def main() -> None:
    pods, at_once = [int(word) for word in (*sys.argv[1:], *("1000", "16")[len(sys.argv) - 1 :])]
    began = time.monotonic()
    done, before, after = load(pods, at_once, restarts=max(1, pods // 250))
    took = time.monotonic() - began
    print(
        f"{len(done.started)} of {pods} pods, {at_once} at a time, in {took:.1f} s; {done.retried} tries more "
        f"while the kubelet restarted; the plugin's memory {before} KiB, then {after} KiB"
    )
    sys.exit("\n".join(done.errors) or 0)


if __name__ == "__main__":
    main()
