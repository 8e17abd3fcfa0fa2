"""Runs the attacks on several runtimes and writes docs/attacks.md.

    python -m tests.attacks.document [--into FILE] [RUNTIME...]

Without arguments: ``build/gpurun``, ``build/gpurun-fast``, and the machine's ``runc`` and ``crun``; a name that is not
there is left out.  With ``$RUNTIME`` that one alone is attacked and no document is written.  The exit code is that of
the first runtime's run: what other runtimes hold or do not hold is a row of the table, and no failure of ours.

Each run has a limit (``ATTACK_LIMIT``, seconds): a run that is ended there counts as far as it came, and the table says so.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENT = REPOSITORY / "docs/attacks.md"
RESULTS = REPOSITORY / "build/attacks"
#: What no other runtime does (the hook of an image's files, fuzzing of our readers) is tried on the first one alone.
SELECTION = "attack and not vm and not slow"
NATIVE = f"native and {SELECTION}"
#: A runtime that cannot do this runs nothing here (crun 1.8 without CAP_SYS_RESOURCE), and nothing can be said of it.
PROBE = "tests/attacks/test_cve_2022_29162.py::test_the_first_process"
LIMIT_S = int(os.environ.get("ATTACK_LIMIT", "1800"))
JOBS = os.environ.get("JOBS") or str((os.cpu_count() or 1) + 1)

HEAD = """\
# Attacks

Made by `make test-attacks`, not by hand. Each line is a class of attacks that was published for a runtime or for NVIDIA's
toolkit, or found on gpurun itself; its tests, marked `attack`, show first that the attack would work where nothing holds it.

- **held**: all variants of the attack were tried, and none reached anything. (*n*): how many.
- **falls**: at least one variant succeeded, as the test expects of this version; why is below.
- **fails**, **hangs**: the test did not come to its end in the way that it should; what it said is below.
- **-**: not tried: the attack is one on what only gpurun does, or this machine lacks what it needs.

"""

COUNTED = """
## Counted

What an attack has counted, where the number says more than whether it was held.

"""
NOTES = """
## Why

"""


def run(runtime: str, selection: str, path: Path, limit_s: float = LIMIT_S) -> tuple[dict[str, Any], int]:
    """The report on *runtime* and pytest's exit code, 124 for a run that *limit_s* has ended."""
    path.unlink(missing_ok=True)
    # crun 1.8 ends what is in its caller's cgroup
    isolated = ["unshare", "--pid", "--fork", "--mount-proc"] if os.path.basename(runtime).startswith("crun") else []
    command = [*isolated, sys.executable, "-m", "pytest", "-q", "--long", "--tb=line", "-p", "no:cacheprovider", "-n", JOBS]
    command += ["-p", "tests.attacks.report", f"--attack-report={path}", "-m", selection]
    environment = {"ATTACK_TIMES": "200", **os.environ, "RUNTIME": runtime}
    process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, start_new_session=True)
    code = 124
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):  # the first one lets pytest clean up
        try:
            code = process.wait(limit_s)
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, number)
            limit_s = 60
    else:
        process.wait()
    report: dict[str, Any] = {"version": os.path.basename(runtime), "complete": False, "rows": []}
    if path.exists():
        report = json.loads(path.read_text())
    report["code"] = code
    return report, code


def runs_here(runtime: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", PROBE]
    environment = {**os.environ, "RUNTIME": runtime}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, stdout=subprocess.DEVNULL, timeout=300, check=False)
    return done.returncode == 0


def kind_of(outcome: str) -> str:
    return outcome.partition(":")[0]


def cell(outcomes: list[str]) -> str:
    kinds = Counter(map(kind_of, outcomes))
    tried = sum(number for kind, number in kinds.items() if kind != "not tried")
    for kind in ("falls", "fails", "hangs"):
        if kinds[kind]:
            return f"**{kind}**" if kinds[kind] == tried else f"**{kind}** ({kinds[kind]} of {tried})"
    return f"held ({kinds['held']})" if kinds["held"] else "-"


def files_of(row: dict[str, Any]) -> str:
    return ", ".join(f"`{file.removeprefix('tests/')}`" for file in row["files"])


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def table(reports: list[dict[str, Any]]) -> str:
    found = [{(row["class"], row["what"]): row for row in report["rows"]} for report in reports]
    keys = sorted(dict.fromkeys(key for rows in found for key in rows))
    names = [report["version"] + ("" if report["complete"] else " (ended before its end)") for report in reports]
    lines = ["| class | attack | tests | " + " | ".join(names) + " |", "|---|---|---|" + "---|" * len(reports)]
    counted, notes = [], []
    for key in keys:
        rows = [every.get(key) for every in found]
        files = next(files_of(row) for row in rows if row)
        cells = [*key, files, *(cell(row["outcomes"]) if row else "-" for row in rows)]
        lines.append("| " + " | ".join(map(escaped, cells)) + " |")
        for report, row in zip(reports, rows, strict=True):
            if row is None:
                continue
            counted += [f"- {key[0]}, {report['version']}: {text}\n" for text in row["counted"]]
            for text, number in Counter(row["outcomes"]).items():
                kind, _, reason = text.partition(": ")
                if kind in ("falls", "fails", "hangs"):
                    notes.append(f"- {key[0]} ({key[1]}), {report['version']}, {kind} {number} times: {reason}\n")
    text = "\n".join(lines) + "\n"
    text += COUNTED + "".join(counted) if counted else ""
    return text + (NOTES + "".join(notes) if notes else "")


def main(arguments: list[str]) -> int:
    only = os.environ.get("RUNTIME")
    if only:
        return run(os.path.abspath(only), SELECTION, RESULTS / "only.json")[1]
    into = DOCUMENT
    if arguments[:1] == ["--into"]:
        into, arguments = Path(arguments[1]), arguments[2:]
    own = [str(REPOSITORY / "build" / name) for name in ("gpurun", "gpurun-fast")]
    runtimes = arguments or [path for path in own if os.path.exists(path)]
    runtimes = arguments or [*runtimes, *filter(None, map(shutil.which, ("runc", "crun")))]
    reports, codes = [], []
    for number, runtime in enumerate(runtimes):
        if number and not runs_here(os.path.abspath(runtime)):
            print(f"{runtime} runs no container here and is left out", file=sys.stderr)
            continue
        report, code = run(os.path.abspath(runtime), SELECTION if number == 0 else NATIVE, RESULTS / f"{number}.json")
        reports.append(report)
        codes.append(code)
        into.write_text(HEAD + table(reports))  # after each: what ends the next one loses nothing
    return codes[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
