"""The containers in which clients are nested (tests/clients/nested_bed.py); it imports nothing of gpurun's."""

from __future__ import annotations

from typing import NamedTuple

#: The ids of the host that a user namespace of the outer container has.
FIRST_ID = 100000
USERNS = ("--uidmap", f"0:{FIRST_ID}:65536", "--gidmap", f"0:{FIRST_ID}:65536")


class Outer(NamedTuple):
    """Which engine makes the outer container, and how."""

    name: str
    engine: str
    inside: tuple[str, ...]  # the clients whose operations are done in there
    options: tuple[str, ...] = ()


_OUTERS = (
    Outer("docker", "docker", ("docker", "podman", "cri")),
    Outer("podman", "podman", ("podman",)),
    Outer("userns", "podman", ("docker",), USERNS),
)
OUTERS = {outer.name: outer for outer in _OUTERS}
