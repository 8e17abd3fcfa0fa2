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
from typing import Any

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

Made by `make test-clients` and `make test-vm-all`, not by hand. Each line is an operation of a client, in
`tests/clients/operations/`: real daemons do it once with gpurun and once with runc, both must say what the operation says
they must, and what they say is compared line by line. Where it differs the test fails, unless the difference is listed,
with its reason, in `tests/clients/differences.py`.

- **pass**: it said what it must, and ended well. **same**: runc said the same in every line.
- **cri** is containerd's CRI plugin, as a kubelet calls it: by a small client of the tests' own (`tests/clients/cri/`).
- **-**: runc was not asked; the operation says what its runtime lacks.
- Not here: nerdctl and crictl. Debian packages neither (looked for in 12, 13 and unstable), nor do PyPI and npm have them.
"""
ROOTLESS_TEXT = """\
The same operations, by `make test-clients-rootless`: each `podman`, and the Docker daemon, is a user's with ids of its own
in /etc/subuid. Podman's user has a cgroup delegated, without controllers; without systemd Docker gives a user's containers
none. A test fails where crun or runc passes and gpurun or gpurun-fast does not, where no runtime passes, and where their
lines are not those of runc but for a listed difference. **-** in the last column: not compared, or runc does not pass.
"""
NESTED_TEXT = """\
The same operations, by `make test-clients-nested`, in a privileged container that gpurun runs: a CI runner's docker:dind,
and with a user namespace of its own what sysbox makes. The daemons, the clients and the runtimes are in there. The rules are
those of the part above; **-**: not asked. With GPUs through both layers: `tests/clients/test_nested.py`.
"""
TITLES = {"docker": "Docker", "podman": "Podman", "cri": "A kubelet's containerd (CRI)"}
#: Outer container (tests/clients/nested_bed.py) → the title of its tables.
IN = {"docker": "in Docker", "podman": "in Podman", "userns": "in a user namespace of Podman's"}


def escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def row(operation: dict[str, Any]) -> str:
    ours, theirs = operation.get("gpurun", "fail"), operation.get("runc", "-")
    reasons = operation.get("reasons") or []
    compared = "same" if operation["outcome"] == "passed" and theirs != "-" else "-" if theirs == "-" else "**differs**"
    if reasons and compared == "same":
        compared = "but for: " + "; ".join(reasons)
    cells = [escape(operation["name"]), ours.replace("fail", "**fail**"), theirs.replace("fail", "**fail**"), compared]
    return f"| {' | '.join(cells)} |"


def part(name: str, report: dict[str, Any]) -> str:
    """The text of one part."""
    versions = ", ".join(f"{key} {value}".removeprefix("gpurun gpurun") for key, value in report["versions"].items())
    lines = [f"## {PARTS[name]}", "", versions.strip() + ".", ""]
    for client in CLIENTS:
        mine = [o for o in report["operations"] if o["client"] == client]
        run = [o for o in mine if o["outcome"] != "skipped"]
        lines += [
            f"### {client}",
            "",
            "| operation | gpurun | runc | line by line |",
            "|---|---|---|---|",
            *map(row, run),
            "",
        ]
        left: dict[str, list[str]] = {}
        for o in mine:
            if o["outcome"] == "skipped" and not o["why"].startswith("runs "):
                left.setdefault(o["why"], []).append(o["name"])
        lines += [f"Not run here, {why}: {escape('; '.join(names))}.\n" for why, names in left.items()]
    return "\n".join(lines).rstrip() + "\n"


#: Runtime as the tests call it → its column.
BESIDE = {"gpurun": "gpurun", "fast": "gpurun-fast", "crun": "crun", "peer": "runc"}


def table(title: str, version: str, mine: list[dict[str, Any]], planned: int) -> list[str]:
    """The operations *mine* of one client, a column for each runtime; *planned* is how many a whole run has."""
    run = [o for o in mine if o["outcome"] != "skipped"]
    columns = [key for key in BESIDE if any(key in o for o in run)]
    asked = {key: sum(key in o for o in run) for key in columns}
    passed = ", ".join(
        f"{BESIDE[key]} {sum(o.get(key) == 'pass' for o in run)}{f' of {asked[key]}' if asked[key] < len(run) else ''}"
        for key in columns
    )
    lines = [f"### {title}", "", f"{version}. Of {len(run)} passed: {passed}.", ""]
    lines += [f"| operation | {' | '.join(BESIDE[key] for key in columns)} | beside runc, line by line |"]
    lines += ["|---" * (len(columns) + 2) + "|"]
    for o in run:
        reasons = o.get("reasons") or []
        compared = "but for: " + "; ".join(reasons) if reasons else "same"
        if all(o.get(key) == "fail" for key in columns):
            compared = "-"
        elif o["outcome"] != "passed":
            compared = "**differs**"
        elif o.get("peer") != "pass" or "reasons" not in o:
            compared = "-"
        lines.append(f"| {' | '.join([escape(o['name']), *[o.get(key, '-') for key in columns], escape(compared)])} |")
    left: dict[str, list[str]] = {}
    for o in mine:
        if o["outcome"] == "skipped":
            left.setdefault(o["why"], []).append(o["name"])
    lines += ["", *[f"Not run, {why}: {escape('; '.join(names))}.\n" for why, names in left.items()]]
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
