"""The operations of each client, read from ``operations/``, and how what they said is made comparable.

A client's files are bash.  ``shared.bash`` and ``CLIENT.bash`` come before each of its operations; ``CLIENT-SUBJECT.bash``
holds operations::

    ### exec: command not found
    # says: exit code 127         a line of what is said that this pattern must fit as a whole; any number of these
    # needs: memory systemd       what the machine must have (controllers of cgroup v2, `bed.abilities`); else it is skipped
    # compared if: idmap          what it must have for runc; else gpurun does it alone
    # broken: containerd-2.1 REASON    not with that: no runtime can do it there, for this reason
    # on: native                  or `guest`: run it only there
    # guest                       run it in the emulated guest too, which is slow, although it needs nothing of it
    # short                       in the short form of the guest's suite too (`make test-vm`)
    # gpurun                      only gpurun has it: there is nothing to compare with
    # nested: REASON              nobody can do it in a container; or `nested userns`, in one with a user namespace
    # rootless: REASON            a user without root cannot do it, for this reason; or `rootless podman`, `rootless docker`
    up
    fails 127 in_ nosuchcommand

Marks before the first operation of a file are those of each.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.native.runtime import Result

OPERATIONS = Path(__file__).resolve().parent / "operations"
#: Client → its preludes, and the beginnings of the names of its files.
CLIENTS = {
    "docker": (("shared", "daemons", "docker", "engines"), ("engines-", "docker-")),
    "podman": (("shared", "daemons", "podman", "engines"), ("engines-", "podman-")),
    "ctr": (("shared", "daemons", "ctr"), ("ctr-",)),
    "cri": (("shared", "daemons", "cri"), ("cri-",)),
}
#: The preludes of the operations of Podman and Docker as a user does them.
ROOTLESS = {"rootless": (*CLIENTS["podman"][0], "rootless"), "rootless-docker": (*CLIENTS["docker"][0], "rootless-docker")}
#: The marks of an operation: with a value after them, and alone.
NESTED_MARKS = ("nested", "nested userns")
ROOTLESS_MARKS = ("rootless", "rootless podman", "rootless docker")
VALUED, BARE = ("says", "needs", "on", "compared if", "broken", *NESTED_MARKS, *ROOTLESS_MARKS), ("guest", "gpurun", "short")
MARK = re.compile(rf"# (({'|'.join(VALUED)}): |({'|'.join(BARE)})$)")
#: What differs from run to run, and is the same to its reader: in this order.
VOLATILE = (
    (r"\x1b\[[0-9;?]*[A-Za-z]", ""),  # what a shell asks its terminal
    (r"(?m)^/ # .*(?=/ # )", ""),  # it draws its line again when the size changes, and docker says the size when it likes
    (r"\b[0-9a-f]{64}\b", "<id>"),
    (r"\b[0-9a-f]{12}\b", "<id>"),
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( ?(Z|[+-]\d\d:?\d\d))?( [A-Z]{3,4})?", "<time>"),
    (r"\b(10\.\d+|172\.\d+|192\.168)\.\d+\.\d+\b", "<address>"),
    (r"\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b", "<mac>"),
    (r"/tmp/(runc-process|tmp\.)[0-9A-Za-z]+", "<temporary>"),
)


class Operation(NamedTuple):
    """One operation of a client; see above."""

    client: str
    name: str
    script: str
    says: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    on: str = ""
    guest: bool = False
    gpurun: bool = False
    compared: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    short: bool = False
    nested: tuple[tuple[str, str], ...] = ()  # (where, reason): why nobody can do it in a container
    rootless: tuple[tuple[str, str], ...] = ()  # (whose, reason): why a user without root cannot do it

    @property
    def engine(self) -> str:
        """The client as its operations at root are called."""
        return {"rootless": "podman", "rootless-docker": "docker"}.get(self.client, self.client)

    @property
    def beyond_a_user(self) -> str:
        """Why a user without root cannot do it; empty where one can."""
        return next((reason for whose, reason in self.rootless if whose in ("rootless", f"rootless {self.engine}")), "")

    def beyond_a_container(self, outer: str) -> str:
        """Why nobody can do it in the *outer* container (of :data:`tests.clients.outers.OUTERS`); else empty."""
        return next((reason for where, reason in self.nested if where in ("nested", f"nested {outer}")), "")

    @property
    def prelude(self) -> str:
        """What comes before the operations of its client."""
        names = ROOTLESS.get(self.client) or CLIENTS[self.client][0]
        return "\n".join(["set -eu -o pipefail", *[(OPERATIONS / f"{name}.bash").read_text() for name in names]])

    @property
    def whole(self) -> str:
        """The script with all that comes before it."""
        return f"{self.prelude}\n{self.script}"

    def skipped(self, abilities: frozenset[str], guest: bool) -> str:
        """Why this is not run on a machine with these *abilities*; empty if it is."""
        if self.client in ROOTLESS and (reason := self.beyond_a_user):
            return reason
        if lacking := [need for need in self.needs if need not in abilities]:
            return f"needs {' and '.join(lacking)}"
        for ability, _, reason in (mark.partition(" ") for mark in self.broken):
            if ability in abilities:
                return f"with {ability} {reason}"
        if self.on and self.on != ("guest" if guest else "native"):
            return f"runs {'in the guest' if self.on == 'guest' else 'natively'} only"
        if guest and not (self.guest or self.needs or self.on):
            return "runs natively"
        return ""


def parse(client: str, text: str) -> list[Operation]:
    """The operations in the text of a file."""
    found = []
    head, *blocks = re.split(r"(?m)^### ", text)
    of_all = [line[2:] for line in head.splitlines() if MARK.match(line)]
    for block in blocks:
        name, *lines = block.strip().splitlines()
        marks = [line[2:] for line in lines if MARK.match(line)]
        script = "\n".join(line for line in lines if line[2:] not in marks or not line.startswith("# "))
        values: dict[str, list[str]] = {key: [] for key in (*VALUED, *BARE)}
        for mark in (*of_all, *marks):
            key, _, value = mark.partition(": ")
            values[key].append(value)
        needs = tuple(" ".join(values["needs"]).split())
        on = "".join(values["on"])
        found.append(
            Operation(
                client,
                name,
                script,
                tuple(values["says"]),
                needs,
                on,
                bool(values["guest"]),
                bool(values["gpurun"]),
                tuple(" ".join(values["compared if"]).split()),
                tuple(values["broken"]),
                bool(values["short"]),
                *[
                    tuple([(key, reason) for key in keys for reason in values[key]])
                    for keys in (NESTED_MARKS, ROOTLESS_MARKS)
                ],
            )
        )
    return found


def shared() -> set[str]:
    """The names of the operations that several clients share."""
    files = [path for path in OPERATIONS.iterdir() if path.name.startswith("engines-")]
    return {operation.name for path in files for operation in parse("", path.read_text())}


def operations(client: str) -> list[Operation]:
    """All operations of *client*, in the order of its files."""
    prefixes = CLIENTS[client][1]
    files = sorted(p for p in OPERATIONS.iterdir() if p.name.startswith(prefixes))
    found = [operation for path in files for operation in parse(client, path.read_text())]
    if client == "podman":  # what it shares with Docker: the guest is slow, so there only what needs it
        found = [o if o.name not in shared() else o._replace(guest=False) for o in found]
    names = [operation.name for operation in found]
    assert len(set(names)) == len(names), f"{client}: two operations of one name"
    return found


def rootless_operations() -> list[Operation]:
    """Podman's and Docker's operations as a user does them."""
    podman = [operation._replace(client="rootless") for operation in operations("podman")]
    return podman + [operation._replace(client="rootless-docker") for operation in operations("docker")]


def nested_operations(client: str) -> list[Operation]:
    """The operations of *client* that are done in a container as well: what engines share, and all of a kubelet's."""
    return [operation for operation in operations(client) if client == "cri" or operation.name in shared()]


def transcript(result: Result, names: dict[str, str]) -> list[str]:
    """The lines of *result*, errors after output, without what is another one each time; *names* → what stands for it.

    A carriage return is shown as ``\\r``: what a terminal is sent must not differ in one either.
    """
    text = result.out + ("" if result.out.endswith("\n") or not result.out else "\n")
    text += "".join(f"! {line}\n" for line in result.err.splitlines())
    for name, stands in sorted(names.items(), key=lambda pair: -len(pair[0])):
        text = text.replace(name, stands)
    for pattern, stands in VOLATILE:
        text = re.sub(pattern, stands, text)
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line.rstrip(" \t").replace("\r", "\\r") for line in lines] + [f"exit {result.rc}"]


def missing(operation: Operation, lines: list[str]) -> list[str]:
    """What the operation must say, and has not; of carriage returns at the end of a line only those count that it names."""
    ends = {re.sub(r"(\\r)+$", "", line) for line in lines}.union(lines)
    return [wanted for wanted in operation.says if not any(re.fullmatch(wanted, line) for line in ends)]
