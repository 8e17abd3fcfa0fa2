"""What is written of a container that has GPUs: the lease, and the GPUs in it.

A lease is a file of its own (:mod:`gpurun.gpu.leases.files` reads it, :mod:`gpurun.gpu.leases.store` keeps it).
"""

from __future__ import annotations

from _blake2 import blake2b

from gpurun.record import Record


class Leased(Record):
    """One GPU or MIG device of a lease, as :class:`gpurun.gpu.leases.choice.Unit` has it."""

    key: str
    name: str
    index: int
    minor: int


class Lease(Record):
    """A container (*id* in the state directory *root*) and the GPUs that it has.

    *maker* is the process that makes the container, *pid* its init (0 until there is one), each with its start time.
    *kind* is ``lease``; ``named`` for GPUs that were asked for by name, and are noted where the site wants to know; or
    ``released`` when an administrator has taken the lease away; or ``share``, of *memory* bytes and *threads* percent of the
    GPU (0: not limited), which others may have shares of as well.  *since* is in nanoseconds since 1970.
    """

    id: str
    root: str
    units: tuple[Leased, ...]
    maker: int
    maker_start: int
    boot: str
    pid_namespace: int
    since: int
    kind: str = "lease"
    request: str = ""
    name: str = ""  # as the engine calls the container
    engine: str = ""
    user: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    pid: int = 0
    start_time: int = 0
    cgroup: str = ""  # empty where the end of the init is that of the container
    cgroup_inode: int = 0
    part: str = ""  # of GPUs that came to a container that ran: such leases are beside the one that it was made with
    memory: int = 0
    threads: int = 0
    until: int = 0  # when its time is over (gpurun.gpu.leases.terms); 0: with the container
    stage: str = ""  # the last step that was taken for that
    stage_at: int = 0

    @property
    def file(self) -> str:
        """The name of its file."""
        return blake2b(f"{self.root}\0{self.id}\0{self.part}".encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()

    @property
    def label(self) -> str:
        """What a sentence calls the container."""
        return f"{self.name} ({self.id[:12]})" if self.name and self.name != self.id else short(self.id)


def short(container_id: str) -> str:
    """*container_id* as engines show it."""
    return container_id[:12] if len(container_id) == 64 else container_id[:64]
