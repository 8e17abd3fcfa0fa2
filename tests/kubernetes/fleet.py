"""What the parts of many nodes ask of one API server: at their start, while nothing changes, and when it has been away.

``python -m tests.kubernetes.fleet [NODES [SECONDS]]`` on a node of a cluster (`make load-fleet`): NODES nodes that are
objects alone, each with the publisher of the DRA driver, the watch of a label and the writer of labels; then the API server
is killed (KUBE_APISERVER_PID, a file), and whoever runs it starts it again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from gpurun.commands.kubernetes_labels_where import NodeLabels
from gpurun.errors import GpurunError
from gpurun.kubernetes.api import Api, connect
from gpurun.kubernetes.config_source import LABEL, NodeLabel
from gpurun.kubernetes.dra.publish import Publisher
from gpurun.kubernetes.dra.slices import DRIVER, NodePool
from gpurun.kubernetes.pauses import Pauses
from tests.kubernetes.records import node_of

#: Seconds between two looks of the driver and of the labels, as they have them.
_LOOK_S, _LABELS_S = 10.0, 60.0


class Seen:
    """Each request with when it was made (seconds since the Epoch)."""

    def __init__(self) -> None:
        self.all: list[tuple[float, str]] = []

    def count(self, api: Api) -> None:
        """Note what *api* asks from now on."""
        client = api._client.rest_client
        request = client.request

        def noted(method: str, url: str, *arguments: Any, **options: Any) -> Any:
            resource = url.partition("?")[0].split("/apis/")[-1].split("/api/v1/")[-1]
            resource = next((word for word in ("resourceslices", "nodes") if word in resource), "version, groups")
            # Versions of the client differ in where the query is.
            watch = "watch=" in url or any(name == "watch" for name, _ in options.get("query_params") or ())
            self.all.append((time.time(), f"{'WATCH' if watch else method} {resource}"))
            return request(method, url, *arguments, **options)

        client.request = noted

    def between(self, begin: float, end: float) -> Counter[str]:
        return Counter([what for when, what in self.all if begin <= when < end])

    def most_in_a_second(self, begin: float, end: float) -> int:
        return max(Counter([int(when) for when, _ in self.all if begin <= when < end]).values(), default=0)


class SimulatedNode:
    """The parts of the node *name*, until *stop*."""

    def __init__(self, name: str, seen: Seen, stop: threading.Event) -> None:
        self.name, self.stop, self.published = name, stop, False
        self.api = connect()
        seen.count(self.api)
        self.gpus = node_of(8)
        threading.Thread(target=self._driver, daemon=True).start()
        threading.Thread(target=self._labels, daemon=True).start()

    def _driver(self) -> None:
        publisher, wake = Publisher(self.api, self.name), threading.Event()
        threading.Thread(target=publisher.follow, args=(self.stop, wake.set), daemon=True).start()
        while not self.stop.is_set():
            try:
                self.published = publisher.publish(NodePool(self.gpus, {})) or self.published
            except GpurunError:
                wake.wait(2)
            else:
                wake.wait(_LOOK_S)
            wake.clear()

    def _labels(self) -> None:
        NodeLabel(self.api, self.name, LABEL, lambda: None)
        labels, pauses = NodeLabels(self.api, self.name), Pauses()
        while not self.stop.is_set():
            try:
                labels.set({"nvidia.com/gpu.count": "8"}, ("nvidia",))
                pauses.good()
                self.stop.wait(_LABELS_S)
            except GpurunError:
                self.stop.wait(pauses.next())


def told(what: str, counts: Counter[str], nodes: int, seconds: float = 0.0) -> None:
    each = {name: round(count / nodes * (3600 / seconds if seconds else 1), 1) for name, count in sorted(counts.items())}
    print(f"{what}: {sum(each.values()):.1f} a node{' and hour' if seconds else ''}: {each}", flush=True)


def main() -> None:
    nodes, seconds = [int(word) for word in (*sys.argv[1:], *("200", "300")[len(sys.argv) - 1 :])]
    api, seen, stop = connect(), Seen(), threading.Event()
    names = [f"fleet-{number}" for number in range(nodes)]
    for name in names:
        api._core.create_node({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    began = time.time()
    fleet = [SimulatedNode(name, seen, stop) for name in names]
    while not all(one.published for one in fleet):
        time.sleep(0.5)
    time.sleep(10)
    up = time.time()
    told(f"the start of {nodes} nodes at once, all published after {up - began - 10:.0f} s", seen.between(began, up), nodes)
    time.sleep(seconds)
    told(f"{seconds} s without a change", seen.between(up, up + seconds), nodes, seconds)
    os.kill(int(Path(os.environ["KUBE_APISERVER_PID"]).read_text()), signal.SIGKILL)
    gone = time.time()
    while True:
        time.sleep(0.5)
        try:
            api.minor_version()
            break
        except GpurunError:
            continue
    back = time.time()
    time.sleep(120)
    away = seen.between(gone, back)
    told(f"the API server was away for {back - gone:.0f} s", away, nodes)
    told("the two minutes after it came back", seen.between(back, back + 120), nodes)
    print(f"at the most {seen.most_in_a_second(gone, back + 120)} of them in one second, of {nodes} nodes")
    stop.set()
    found = {str(one["spec"]["nodeName"]) for one in api.list("resource.k8s.io", "v1", "resourceslices")[0]
             if one["spec"]["driver"] == DRIVER}  # fmt: skip
    sys.exit(None if found >= set(names) else "some nodes have no slices any more")


if __name__ == "__main__":
    main()
