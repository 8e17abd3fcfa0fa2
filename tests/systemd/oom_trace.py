"""What the kernel and containerd's shims do about kills for want of memory, in order: from the kernel's own trace.

An instance of tracefs of our own, so that nobody else's trace is changed.  Probes are added for it: what is read of a
cgroup's memory.events and cgroup.events, and the end of a read(2) of an inotify(7) descriptor.

Reference: Documentation/trace/{ftrace,kprobetrace,events}.rst.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_EVENTS = ("cgroup/cgroup_mkdir", "cgroup/cgroup_rmdir", "oom/mark_victim")
#: The text is the first member of the seq_file that a file's function is given; Linux 6.9 has it still when that returns.
_PROBES = (
    "memory_events memory_events_show text=+0(+0($arg1)):string",
    "cgroup_events cgroup_events_show text=+0(+0($arg1)):string",
    "woken inotify_read",
)
_HEAD = re.compile(r"^\s*(?P<comm>\S.*)-\d+\s+\[\d+\]\s+\S+\s+\d+\.\d+: (?P<event>\w+): (?P<rest>.*)$")
_SHIM = "containerd-shim"  # as much as the kernel keeps of its name


@dataclass
class Killed:
    """What has happened to one container's cgroup until it was removed.

    :attr:`shim` is what its shim has been told, in order: "woken", "oom_kill N" of memory.events, "populated N" of
    cgroup.events.
    """

    shim: list[str] = field(default_factory=list)
    killed: bool = False
    removed: bool = False

    @property
    def known_to_the_shim(self) -> bool:
        """Whether the shim has read of the kill, and thus has to tell it."""
        return any(told.startswith("oom_kill") and told != "oom_kill 0" for told in self.shim)

    @property
    def given_up_by_the_shim(self) -> bool:
        """Whether the shim has missed the kill itself: it read of that first, then of the end, and reads no more."""
        return not self.known_to_the_shim and self.shim[-2:] == ["oom_kill 0", "populated 0"]


def parse(text: str, namespace: str) -> dict[str, Killed]:
    """By its id, what the trace *text* has of each container in containerd's *namespace*; they ran one after the other."""
    found: dict[str, Killed] = {}
    now = Killed()
    for comm, event, rest in _records(text):
        path = re.search(rf" path=/{namespace}/(\w+)$", rest)
        if path and event == "cgroup_mkdir":
            now = found[path[1]] = Killed()
        elif path and event == "cgroup_rmdir":
            now.removed = True
        elif event == "mark_victim":
            now.killed = True
        elif comm.startswith(_SHIM) and not now.removed:
            if event == "woken":
                now.shim.append(event)
            elif event in ("memory_events", "cgroup_events") and (value := re.search(r"\b(oom_kill|populated) \d+", rest)):
                now.shim.append(value[0])
    return found


def _records(text: str) -> Iterator[tuple[str, str, str]]:
    """(name of the thread, event, all that is said of it), also where that has several lines."""
    record: list[str] = []
    for line in [*text.splitlines(), None]:
        head = _HEAD.match(line) if line else None
        if record and (head or line is None):
            comm, event, *rest = record
            yield comm, event, "\n".join(rest)
        if head:
            record = [head["comm"], head["event"], head["rest"]]
        elif record and line is not None:
            record.append(line)


class Trace:
    """The trace in the *instance* of tracefs."""

    def __init__(self, instance: Path) -> None:
        self._instance = instance

    def text(self) -> str:
        text = (self._instance / "trace").read_text(errors="replace")
        written = re.search(r"entries-in-buffer/entries-written: (\d+)/(\d+)", text)
        assert written and written[1] == written[2], "the trace's buffer was too small"
        return text


@contextmanager
def traced() -> Iterator[Trace]:
    """Trace what happens inside; raises OSError (EINVAL) where the kernel is too old for the probes."""
    tracefs = Path("/sys/kernel/tracing")
    mounted = not (tracefs / "instances").exists()
    if mounted:
        subprocess.run(["mount", "-t", "tracefs", "tracefs", tracefs], check=True)
    group = f"gpurun{os.getpid()}"
    instance = tracefs / "instances" / group
    made: list[str] = []
    try:
        for probe in _PROBES:
            _append(tracefs / "kprobe_events", f"r:{group}/{probe}\n")
            made.append(f"{group}/{probe.partition(' ')[0]}")
        instance.mkdir()
        (instance / "trace_clock").write_text("mono")
        (instance / "buffer_size_kb").write_text("4096")
        for event in (*_EVENTS, *made):
            (instance / "events" / event / "enable").write_text("1")
        yield Trace(instance)
    finally:
        if instance.exists():
            instance.rmdir()
        for event in made:
            _append(tracefs / "kprobe_events", f"-:{event}\n")
        if mounted:
            subprocess.run(["umount", tracefs], check=True)


def _append(path: Path, line: str) -> None:
    """Python's mode "a" looks for the end first, which these files do not have."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)
