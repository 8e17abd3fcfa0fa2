"""Runs the operations of the clients and writes what they have shown into docs/clients.md.

    python -m tests.clients.document                   runs them natively and writes that part (`make test-clients`)
    python -m tests.clients.document --short           runs a third of them, and writes nothing (`make test-clients SHORT=1`)
    python -m tests.clients.document guest REPORT      writes the other part, of a report from the guest (`make test-vm-all`)

    python -m tests.clients.document rootless REPORT   writes the part of engines without root (`make test-clients-rootless`)
    python -m tests.clients.document nested REPORT     writes the part of engines in containers (`make test-clients-nested`)

Each part is replaced as a whole, and only by its own run; by none with the clients of a tree (CLIENTS_ROOT).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.clients.bed import ROOT
from tests.clients.operation import CLIENTS, nested_operations, rootless_operations
from tests.clients.outers import OUTERS

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENT = REPOSITORY / "docs/clients.md"
REPORT = REPOSITORY / "build/clients.json"
PARTS = {
    "native": "On this machine's own kernel",
    "guest": "In a guest with systemd and all controllers",
    "rootless": "Podman and Docker of a user without root",
    "nested": "In a container of gpurun's",
}
HEAD = """\
# Clients, with gpurun and with runc

What Docker, Podman, containerd (`ctr`) and a kubelet's containerd (CRI) do with gpurun, beside what they do with runc
and crun.

Each operation is a block of shell in `tests/clients/operations/`. Real daemons run it with each runtime. It passes if
it prints what it must print and ends well; what it prints with gpurun is then compared with runc's, line by line. A
difference fails the test unless `tests/clients/differences.py` lists it with a reason.

- The tables have only the operations in which a runtime fails or a line differs; the others follow after "Alike:".
- **-** means: not asked of this runtime, or not compared, because runc fails.
- **cri** is containerd's CRI plugin, called as a kubelet calls it, by a small client of the tests (`tests/clients/cri/`).
- nerdctl and crictl are not tested: neither Debian (12, 13 and unstable) nor PyPI nor npm has a package.

`make test-clients`, `make test-vm-all`, `make test-clients-rootless` and `make test-clients-nested` write a part each;
nothing here is written by hand.
"""
ROOTLESS_TEXT = """\
`make test-clients-rootless`: Podman and the Docker daemon run as a user with ids in /etc/subuid. Podman's user has a
delegated cgroup without controllers; without systemd Docker gives a user's containers no cgroup. The test fails where
crun or runc passes and gpurun or gpurun-fast does not, and where no runtime passes.
"""
NESTED_TEXT = """\
`make test-clients-nested`: the daemons, the clients and the runtimes run in a privileged container of gpurun, as a CI
runner's docker:dind does, or in one with a user namespace of its own, as sysbox makes it. The test fails by the same
rules as the part above. With GPUs through both layers: `tests/clients/test_nested.py`.
"""
TITLES = {"docker": "Docker", "podman": "Podman", "cri": "A kubelet's containerd (CRI)"}
#: Outer container (tests/clients/nested_bed.py) → the title of its tables.
IN = {"docker": "in Docker", "podman": "in Podman", "userns": "in a user namespace of Podman's"}


def escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


class Row(NamedTuple):
    """An operation: its name, the outcome with each runtime, and how gpurun's lines differ from runc's."""

    name: str
    outcomes: list[str]
    compared: str

    @property
    def is_alike(self) -> bool:
        return self.compared == "same" and set(self.outcomes) == {"pass"}


def section(title: str, version: str, columns: list[str], rows: list[Row]) -> list[str]:
    """The text of one client: counts, a table of what differs, and the names of the operations that are alike."""
    passed = []
    for number, column in enumerate(columns):
        outcomes = [row.outcomes[number] for row in rows if row.outcomes[number] != "-"]
        of = f" of {len(outcomes)}" if len(outcomes) < len(rows) else ""
        passed.append(f"{column} {outcomes.count('pass')}{of}")
    alike = [row.name for row in rows if row.is_alike]
    counts = f"{len(rows)} operations; passed: {', '.join(passed)}. In {len(alike)} all pass, with the same lines."
    lines = [f"### {title}", "", *([f"{version}."] if version else []), counts, ""]
    if len(alike) < len(rows):
        lines += [f"| operation | {' | '.join(columns)} | beside runc, line by line |", "|---" * (len(columns) + 2) + "|"]
        unlike: dict[tuple[str, ...], list[str]] = {}
        for row in rows:
            if not row.is_alike:
                unlike.setdefault((*row.outcomes, row.compared), []).append(row.name)
        for words, names in unlike.items():
            outcomes = [outcome.replace("fail", "**fail**") for outcome in words[:-1]]
            lines.append(f"| {' | '.join([escape('; '.join(names)), *outcomes, escape(words[-1])])} |")
        lines.append("")
    if alike:
        lines += [f"Alike: {escape('; '.join(alike))}.", ""]
    return lines


def not_run(operations: list[dict[str, Any]]) -> list[str]:
    """The operations that were left out, by the reason; those that are run elsewhere are left out of this, too."""
    left: dict[str, list[str]] = {}
    for o in operations:
        if o["outcome"] == "skipped" and not o["why"].startswith("runs "):
            left.setdefault(o["why"], []).append(o["name"])
    return ["Not run:", "", *[f"- {why}: {escape('; '.join(names))}" for why, names in left.items()], ""] if left else []


def row(operation: dict[str, Any]) -> Row:
    ours, theirs = operation.get("gpurun", "fail"), operation.get("runc", "-")
    compared = "-" if theirs == "-" else "same" if operation["outcome"] == "passed" else "differs"
    reasons = operation.get("reasons") or []
    if reasons and compared == "same":
        compared = "; ".join(reasons)
    return Row(operation["name"], [ours, theirs], compared)


def part(name: str, report: dict[str, Any]) -> str:
    """The text of one part."""
    versions = ", ".join(f"{key} {value}".removeprefix("gpurun gpurun") for key, value in report["versions"].items())
    lines = [f"## {PARTS[name]}", "", versions.strip() + ".", ""]
    for client in CLIENTS:
        mine = [o for o in report["operations"] if o["client"] == client]
        run = [row(o) for o in mine if o["outcome"] != "skipped"]
        lines += section(client, "", ["gpurun", "runc"], run) + not_run(mine)
    return "\n".join(lines).rstrip() + "\n"


#: Runtime as the tests call it → its column.
BESIDE = {"gpurun": "gpurun", "fast": "gpurun-fast", "crun": "crun", "peer": "runc"}


def table(title: str, version: str, mine: list[dict[str, Any]], planned: int) -> list[str]:
    """The operations *mine* of one client, a column for each runtime; *planned* is how many a whole run has."""
    run = [o for o in mine if o["outcome"] != "skipped"]
    columns = [key for key in BESIDE if any(key in o for o in run)]
    rows = []
    for o in run:
        compared = "; ".join(o.get("reasons") or []) or "same"
        if all(o.get(key) == "fail" for key in columns):
            compared = "-"
        elif o["outcome"] != "passed":
            compared = "differs"
        elif o.get("peer") != "pass" or "reasons" not in o:
            compared = "-"
        rows.append(Row(o["name"], [o.get(key, "-") for key in columns], compared))
    lines = section(title, version, [BESIDE[key] for key in columns], rows) + not_run(mine)
    if planned > len(mine):
        lines += [f"{planned - len(mine)} more were not in this run.", ""]
    return lines


def with_peers(versions: dict[str, str], client: str) -> str:
    """The versions of *client* and of the runtimes that gpurun stands beside."""
    return ", ".join([versions[client], *[f"{name} {versions[name]}" for name in ("crun", "runc") if name in versions]])


def rootless_part(report: dict[str, Any]) -> str:
    """The text of the part of engines without root."""
    lines = [f"## {PARTS['rootless']}", "", ROOTLESS_TEXT]
    for client, title in (("rootless", "Podman"), ("rootless-docker", "Docker")):
        mine = [o for o in report["operations"] if o["client"] == client]
        planned = sum(o.client == client for o in rootless_operations())
        lines += table(f"{title}, rootless", with_peers(report["versions"], title.lower()), mine, planned)
    return "\n".join(lines)


def nested_part(report: dict[str, Any]) -> str:
    """The text of the part of engines in containers."""
    versions = report["versions"] | {"cri": f"containerd {report['versions']['containerd']}"}
    lines = [f"## {PARTS['nested']}", "", NESTED_TEXT]
    for outer in OUTERS.values():
        for client in outer.inside:
            mine = [o for o in report["operations"] if (o.get("outer"), o["client"]) == (outer.name, client)]
            if mine:
                title = f"{TITLES[client]} {IN[outer.name]}"
                lines += table(title, with_peers(versions, client), mine, len(nested_operations(client)))
    return "\n".join(lines)


def write(name: str, report: dict[str, Any]) -> None:
    """Replace the part of the document; the other stays."""
    old = DOCUMENT.read_text() if DOCUMENT.exists() else ""
    parts = {n: found[0] for n, title in PARTS.items() if (found := re.findall(rf"(?ms)^## {title}\n.*?(?=^## |\Z)", old))}
    made = {"rootless": rootless_part, "nested": nested_part}
    parts[name] = made[name](report) if name in made else part(name, report)
    DOCUMENT.write_text("\n".join([HEAD, *(parts[n].rstrip() + "\n" for n in PARTS if n in parts)]))


def main(arguments: list[str]) -> int:
    short = arguments == ["--short"]
    if arguments and not short:
        report = json.loads(Path(arguments[1]).read_text())
        if any(o["outcome"] != "skipped" for o in report["operations"]):
            write(arguments[0], report)
        return 0
    # The clients share nothing: each has daemons of its own where there are processors for it (tests/parallel.py).
    at_once = str(min(len(CLIENTS), os.cpu_count() or 1))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        at_once,
        "-p",
        "tests.clients.report",
        f"--clients-report={REPORT}",
        *([] if short else ["--long"]),
    ]
    rc = subprocess.run([*command, "tests/clients/test_operations.py"], cwd=REPOSITORY, check=False).returncode
    report = json.loads(REPORT.read_text())
    if not short and not ROOT and any(o["outcome"] != "skipped" for o in report["operations"]):
        write("native", report)
    return rc


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
