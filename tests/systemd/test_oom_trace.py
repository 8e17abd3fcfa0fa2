"""What tests/systemd/test_oom_events.py takes for a kill that the shim knows of, or has missed itself, or neither."""

from __future__ import annotations

import pytest

from tests.systemd.oom_trace import Killed, parse

#: As the kernel writes it; the text that is read has lines of its own.
LINES = {
    "made": "          gpurun-575     [000] d..1.   275.50: cgroup_mkdir: root=0 id=1408 level=2 path=/test/t1",
    "woken": " containerd-shim-567     [001] .....   276.98: woken: (vfs_read <- inotify_read)",
    "kill": "              dd-577     [001] ...1.   277.05: mark_victim: pid=577 comm=dd total-vm=104704kB",
    "another's": """         systemd-1       [000] .....   277.06: memory_events: (<- memory_events_show) text="low 0
oom_kill 1
\"""",
    "oom_kill 0": """ containerd-shim-567     [000] .....   276.99: memory_events: (<- memory_events_show) text="low 0
max 1
oom_kill 0
oom_group_kill 0
\"""",
    "populated 1": """ containerd-shim-578     [000] .....   276.99: cgroup_events: (<- cgroup_events_show) text="populated 1
frozen 0
\"""",
    "removed": "          gpurun-581     [000] d..1.   278.36: cgroup_rmdir: root=0 id=1408 level=2 path=/test/t1",
}
LINES["oom_kill 1"] = LINES["oom_kill 0"].replace("oom_kill 0", "oom_kill 1")
LINES["populated 0"] = LINES["populated 1"].replace("populated 1", "populated 0")
LOOP = ["woken", "oom_kill 0", "populated 1"]  # as before containerd 2.2
NEW_LOOP = ["woken", "populated 1", "oom_kill 0"]
#: (what happens before the cgroup is removed, what after that, whether the shim knows of the kill, whether it has given up)
CASES = {
    "read": ([*LOOP, "kill", "woken", "oom_kill 1", "populated 0"], [], True, False),
    "read while it runs": ([*LOOP, "kill", "woken", "oom_kill 1", "populated 1"], [], True, False),
    "missed between its reads": ([*LOOP, "woken", "oom_kill 0", "kill", "populated 0"], [], False, True),
    "has yet to read": ([*LOOP, "kill", "woken"], ["oom_kill 1", "populated 0"], False, False),
    "still watches": (["woken", "oom_kill 0", "kill", "populated 1"], ["woken", "oom_kill 1"], False, False),
    "read in the new order": ([*NEW_LOOP, "kill", "woken", "populated 0", "oom_kill 1"], [], True, False),
    "kept from its last read": ([*NEW_LOOP, "kill", "woken", "populated 0"], [], False, False),
    "read by another": ([*LOOP, "kill", "another's"], [], False, False),
}


@pytest.mark.parametrize("case", CASES)
def test_what_the_shim_knows(case: str) -> None:
    before, after, known, given_up = CASES[case]
    text = "# tracer: nop\n#\n" + "\n".join(LINES[name] for name in ["made", *before, "removed", *after])
    found = parse(text, "test")["t1"]
    assert (found.known_to_the_shim, found.given_up_by_the_shim) == (known, given_up)
    assert found.killed and found.removed


def test_another_namespace_is_not_ours() -> None:
    assert parse(LINES["made"], "k8s.io") == {}
    assert parse(LINES["made"], "test") == {"t1": Killed()}
