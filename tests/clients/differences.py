"""Comparing two transcripts line by line, and the differences that are meant, each with its reason."""

from __future__ import annotations

import difflib
import re
from typing import NamedTuple


class Difference(NamedTuple):
    """Lines that may stand in each other's place; an empty pattern is a line that is not there."""

    gpurun: str
    runc: str
    reason: str
    operations: str = ""  # `client: operation` begins with this pattern


DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        r"(.*)(OCI runtime (create|exec) failed: |OCI runtime error: |<runtime>: |! )(.*)",
        r"(.*)(OCI runtime (create|exec) failed: |OCI runtime error: |<runtime>: |! )runc (create|exec) failed: (.*)",
        "the error has the same cause; each runtime puts its own words before it",
    ),
    Difference(
        "(/proc/.*) devtmpfs",
        "(/proc/.*) tmpfs",
        "gpurun covers a masked file with the host's /dev/null, read-only; runc uses the container's own /dev/null",
        ".*: mounts of a container",
    ),
    Difference(
        "crw-rw-rw- root root 1, 3",
        "crw-rw-rw- nobody nogroup 1, 3",
        "in a user namespace gpurun makes device nodes that belong to the container's root; runc binds the host's",
        "podman: --userns: exec",
    ),
    Difference(
        "(weight )?59",
        "(weight )?20",
        "gpurun computes cpu.weight from cpu.shares by the formula of newer versions of runc (default to default)",
        ".*: (--cpu-shares|limits of a container)",
    ),
    Difference(
        r"(.*): is a directory: permission denied(.*)",
        r"(.*): (is a directory|permission denied)(.*)",
        "the error says `is a directory` and `permission denied`: some clients look for one, some for the other (code 126)",
        ".*: exec: command is a directory",
    ),
    Difference(
        "",
        r"! .*runc (pause|resume) may fail if you don't have the full access to cgroups\"",
        "runc warns at each pause by a user, gpurun only where the pause fails",
        ".*: (pause|pod: shared pid namespace)",
    ),
    Difference(
        r"rshared 1",
        r"rshared 0",
        "rootfsPropagation shared: gpurun makes / shared, as the specification says; runc 1.1 only the mounts above it",
        "ctr: run --rootfs-propagation",
    ),
)


class Comparison(NamedTuple):
    listed: tuple[str, ...]  # reasons of the differences that are meant
    unlisted: tuple[str, ...]  # the others, as lines with `gpurun: ` or `runc: ` before them


def compare(
    operation: str, tested: list[str], reference: list[str], listed: tuple[Difference, ...] = DIFFERENCES
) -> Comparison:
    """Where the lines of the runtime under test are not those of the reference."""
    reasons: dict[str, None] = {}
    unlisted: list[str] = []
    ours = [d for d in listed if re.match(d.operations, operation)]
    for kind, a, b, c, d in difflib.SequenceMatcher(None, tested, reference, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        left, right = tested[a:b], reference[c:d]
        for i in range(max(len(left), len(right))):
            pair = (left[i] if i < len(left) else "", right[i] if i < len(right) else "")
            reason = next(
                (d.reason for d in ours if re.fullmatch(d.gpurun, pair[0]) and re.fullmatch(d.runc, pair[1])), None
            )
            if reason:
                reasons[reason] = None
            else:
                unlisted += [f"gpurun: {pair[0]}", f"runc:   {pair[1]}"]
    return Comparison(tuple(reasons), tuple(unlisted))
