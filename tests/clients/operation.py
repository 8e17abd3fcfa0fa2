"""What is done with a client: a script, what it must say, and how what it said is made comparable."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.native.runtime import Result


class Operation(NamedTuple):
    """One operation of a client.

    *script* is bash (``set -eu -o pipefail``), after the client's own prelude; a line of its output that fits one of *says* as a
    whole must be there for each.  Where *needs* is not met the operation is skipped, with that reason.
    """

    name: str
    script: str
    says: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # controllers of cgroup v2, `systemd`, or `root's SYS_RESOURCE`
    native: str = ""  # why it is not run in the private bed
    guest: bool = False  # run it in the emulated guest too, which is slow, although it needs nothing of it
    gpu: bool = False  # only gpurun has it: nothing to compare with


class Client(NamedTuple):
    name: str
    prelude: str
    operations: tuple[Operation, ...]


#: What differs from run to run, and is the same to its reader: in this order.
VOLATILE = (
    (r"\b[0-9a-f]{64}\b", "<id>"),
    (r"\b[0-9a-f]{12}\b", "<id>"),
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( ?(Z|[+-]\d\d:?\d\d))?( [A-Z]{3,4})?", "<time>"),
    (r"\b(10\.\d+|172\.\d+|192\.168)\.\d+\.\d+\b", "<address>"),
    (r"\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b", "<mac>"),
    (r"/tmp/(runc-process|tmp\.)[0-9A-Za-z]+", "<temporary>"),
)


def transcript(result: Result, names: dict[str, str]) -> list[str]:
    """The lines of *result*, errors after output, without what is another one each time; *names* → what stands for it."""
    text = result.out + ("" if result.out.endswith("\n") or not result.out else "\n")
    text += "".join(f"! {line}\n" for line in result.err.splitlines())
    for name, stands in sorted(names.items(), key=lambda pair: -len(pair[0])):
        text = text.replace(name, stands)
    for pattern, stands in VOLATILE:
        text = re.sub(pattern, stands, text)
    return [line.rstrip() for line in text.splitlines()] + [f"exit {result.rc}"]


def missing(operation: Operation, lines: list[str]) -> list[str]:
    """What the operation must say, and has not."""
    return [wanted for wanted in operation.says if not any(re.fullmatch(wanted, line) for line in lines)]
