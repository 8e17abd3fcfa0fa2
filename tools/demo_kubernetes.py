"""make demo-kubernetes: the device plugin on a simulated driver, with the tests' kubelet: no cluster, no GPU."""

from __future__ import annotations

import time

from gpurun.kubernetes.config import PluginConfig, Replicated, Sharing
from tests.kubernetes.nodes import GPU, node, replace_node
from tests.simdriver import minor


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def main() -> None:
    with node() as made:
        say("a node with two GPUs; the plugin registers with the kubelet")
        made.start_plugin(interval_s=0.2)
        made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 2)
        print(f"{GPU}: {made.kubelet.capacity(GPU)}")
        say("two pods, two GPUs")
        for pod in ("pod-1", "pod-2"):
            answer = made.kubelet.run_container(pod, GPU)
            print(f"{pod}: {', '.join(device.name for device in answer.cdi_devices)}")
        for pod in ("pod-1", "pod-2"):
            made.kubelet.end_container(pod)
        say("the first GPU's device node is taken away: unhealthy; and put back")
        made.device_node(0).unlink()
        made.kubelet.wait(lambda: "Unhealthy" in made.kubelet.health()[GPU].values())
        print(made.kubelet.health()[GPU])
        replace_node(made.device_node(0), minor(0, 2))
        made.kubelet.wait(lambda: set(made.kubelet.health()[GPU].values()) == {"Healthy"})
        print(made.kubelet.health()[GPU])
        say("each GPU shared by four, by time slices")
        made.config = PluginConfig(sharing=Sharing("time-slicing", False, (Replicated(GPU, 4),)))
        made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 8)
        for number in range(4):
            answer = made.kubelet.run_container(f"pod-{number}", GPU)
            print(f"pod-{number}: {', '.join(device.name for device in answer.cdi_devices)}")
        say("the kubelet restarts")
        began = time.monotonic()
        made.kubelet.restart()
        made.kubelet.wait(lambda: made.kubelet.capacity(GPU) == 8)
        print(f"{GPU}: {made.kubelet.capacity(GPU)} again after {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
