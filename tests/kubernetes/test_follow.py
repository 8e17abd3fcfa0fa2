"""How long parts wait after a failure, and what they ask again."""

from __future__ import annotations

import threading
from pathlib import Path

from gpurun.kubernetes.api import ApiError, Object, connect
from gpurun.kubernetes.follow import follow
from gpurun.kubernetes.pauses import Pauses
from tests.kubernetes.api_server import ApiServer


def test_pauses_double_and_are_spread() -> None:
    seen = {Pauses(1, 8).next() for _ in range(50)}
    assert len(seen) > 40 and min(seen) >= 0.5 and max(seen) <= 1.5
    pauses = Pauses(1, 8)
    for middle in (1, 2, 4, 8, 8):
        assert middle * 0.5 <= pauses.next() <= middle * 1.5
    pauses.good()
    assert pauses.next() <= 1.5


def test_a_broken_watch_goes_on_where_it_was(tmp_path: Path) -> None:
    """Only a version that the server has forgotten is a reason to list again."""
    server = ApiServer()
    server.put("nodes", {"metadata": {"name": "node-1", "labels": {}}})
    seen: list[str] = []
    failures: list[object] = []
    stop, changed = threading.Event(), threading.Condition()

    def note(text: str) -> None:
        with changed:
            seen.append(text)
            changed.notify_all()

    def wait(*wanted: str) -> None:
        with changed:
            assert changed.wait_for(lambda: seen == list(wanted), 60), seen

    def begun(found: list[Object]) -> None:
        note(f"{len(found)} listed")

    def told(kind: str, one: Object) -> None:
        note(f"{kind} {one['metadata']['labels'].get('a')}")

    arguments = (connect(str(server.kubeconfig(tmp_path / "config"))), "nodes", "metadata.name=node-1", stop)
    threading.Thread(target=follow, args=(*arguments, begun, told, failures.append), daemon=True).start()
    try:
        wait("1 listed")
        server.put("nodes", {"metadata": {"name": "node-1", "labels": {"a": "1"}}})
        server.put("nodes", {"metadata": {"name": "node-2", "labels": {"a": "not ours"}}})
        wait("1 listed", "MODIFIED 1")
        server.down = True
        server.wait(lambda: any(isinstance(e, ApiError) and e.status == 503 for e in failures))
        server.put("nodes", {"metadata": {"name": "node-1", "labels": {"a": "2"}}})
        server.down = False
        wait("1 listed", "MODIFIED 1", "MODIFIED 2")
        server.down = True
        count = len(failures)
        server.wait(lambda: len(failures) > count)
        server.put("nodes", {"metadata": {"name": "node-1", "labels": {"a": "3"}}})
        server.forget()
        server.down = False
        wait("1 listed", "MODIFIED 1", "MODIFIED 2", "1 listed")
    finally:
        stop.set()
        server.stop()
