"""Runs the conformance tests with several runtimes and writes docs/conformance.md.

    python -m tests.conformance.document [RUNTIME...]

Without arguments: ``build/gpurun``, and the machine's ``runc`` and ``crun``.  With ``$RUNTIME`` that one alone is run and
no document is written.  crun runs in a pid namespace of its own: old versions kill what is in the caller's cgroup.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENT = REPOSITORY / "docs/conformance.md"
#: Why gpurun does otherwise where it does: written by hand, part of the document.
DECISIONS = Path(__file__).with_name("decisions.md")
RESULTS = REPOSITORY / "build/conformance"
#: If this test fails, none can pass, and the runtime is "not runnable here".
PROBE = "tests/conformance/test_runtime.py::test_runtime_lifecycle_step_8_the_program_runs"
OUTCOMES = ("pass", "fail", "skip")
Named = list[tuple[str, dict[tuple[str, str, str], list[dict[str, Any]]]]]  # (version, rows) of each runtime
#: In which order the documents of the specification appear.
ORDER = ("bundle", "runtime", "runtime-linux", "config", "config-linux", "features", "features-linux")

HEAD = """\
# Conformance to the OCI runtime specification 1.3

Made by `make test-conformance`; the decisions are those of tests/conformance/decisions.md. Each line is a test under
`tests/` that quotes a section of the specification and drives a runtime's command line;
`RUNTIME=/path/to/runtime make test-conformance` runs them with any runtime.
Properties of config.json that have no MUST of their own have one by runtime.md "Create": all properties MUST be applied.

- **pass**: all cases of the test passed. **fail**: some did not; which ones is in the notes, where only some did not.
- **fail (known)**: the test belongs to another suite and was not run, because this version is known to fail it.
- **skip**: this machine or this version of the runtime lacks what the test needs.

"""


def run_tests(runtime: str, arguments: list[str]) -> int:
    """pytest's exit code with *runtime* under test."""
    isolated = ["unshare", "--pid", "--fork", "--mount-proc"] if os.path.basename(runtime).startswith("crun") else []
    command = [
        *isolated,
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--long",
        "--tb=line",
        "-p",
        "tests.conformance.report",
        *arguments,
    ]
    return subprocess.run(command, cwd=REPOSITORY, env={**os.environ, "RUNTIME": runtime}, check=False).returncode


def measure(runtime: str, number: int) -> tuple[dict[str, Any] | None, int]:
    """The report of *runtime*, or None if it runs nothing here; and pytest's exit code."""
    if run_tests(runtime, [PROBE]):
        return None, 0
    path = RESULTS / f"{number}-{os.path.basename(runtime)}.json"
    path.unlink(missing_ok=True)
    rc = run_tests(runtime, ["-m", "conforms and not vm and not slow", f"--conformance-report={path}"])
    return json.loads(path.read_text()), rc


def rows(report: dict[str, Any]) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """(section, level, what) → the outcomes of the cases."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for test in report["tests"]:
        for r in test["requirements"]:
            found.setdefault((r["section"], r["level"], r["what"]), []).append(test)
    return found


def cell(tests: list[dict[str, Any]]) -> str:
    outcomes = {test["outcome"] for test in tests}
    if "fail" in outcomes:
        return "**fail**"
    if "known" in outcomes:
        return "**fail** (known)"
    if "pass" in outcomes:
        return "pass"
    return f"skip: {tests[0]['why']}" if tests else "skip: no such test"


def note(name: str, tests: list[dict[str, Any]]) -> str:
    """Why, for a row that fails: the reason that the test gives, and the cases that failed."""
    bad = [test for test in tests if test["outcome"] in ("fail", "known")]
    if not bad:
        return ""
    said = "; ".join(dict.fromkeys(fault for test in bad for fault in (*test["faults"], test["why"]) if fault))
    cases = ", ".join(f"`{test['parameters']}`" for test in bad[:6]) + (f" and {len(bad) - 6} more" if len(bad) > 6 else "")
    if len(bad) < len(tests):
        said += f"{' ' if said else ''}({len(bad)} of {len(tests)} cases: {cases})"
    return f"{name}: {said}" if said else ""


def place(key: tuple[str, str, str]) -> tuple[int, str]:
    document = key[0].partition(".md")[0]
    section = re.sub(r"\d+", lambda number: number[0].zfill(3), key[0])  # step 2 before step 12
    return (ORDER.index(document) if document in ORDER else len(ORDER)), section


def escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def notes_of(key: tuple[str, str, str], named: Named) -> str:
    return " · ".join(n for n in (note(name, found.get(key, [])) for name, found in named) if n)


def table(reports: list[dict[str, Any]]) -> str:
    """The document's table; a column for each report."""
    named = [(report["version"], rows(report)) for report in reports]
    keys = sorted(dict.fromkeys(key for _, found in named for key in found), key=place)
    counts = [
        f"| {name} | "
        + " | ".join(str(sum(cell(found.get(k, [])).strip("*").startswith(o) for k in keys)) for o in OUTCOMES)
        + " |"
        for name, found in named
    ]
    lines = ["| runtime | pass | fail | skip |", "|---|---|---|---|", *counts, ""]
    lines += ["| section | level | what | " + " | ".join(name for name, _ in named) + " | notes |"]
    lines += ["|---|---|---|" + "---|" * len(named) + "---|"]
    for key in keys:
        cells = [*map(escape, key), *(escape(cell(found.get(key, []))) for _, found in named), escape(notes_of(key, named))]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    only = os.environ.get("RUNTIME")
    if only:
        return run_tests(os.path.abspath(only), ["-m", "conforms and not vm and not slow"])
    runtimes = arguments or [str(REPOSITORY / "build/gpurun"), *filter(None, map(shutil.which, ("runc", "crun")))]
    reports, left_out, worst = [], [], 0
    for number, runtime in enumerate(runtimes):
        report, rc = measure(runtime, number)
        worst = max(worst, rc)
        if report:
            reports.append(report)
        else:
            said = subprocess.run([runtime, "--version"], capture_output=True, text=True, check=False).stdout
            left_out.append(said.partition("\n")[0].replace(" version", ""))
    if not reports:
        print("none of the runtimes runs here", file=sys.stderr)
        return 1
    text = f"{HEAD}{DECISIONS.read_text()}\n## Results\n\n{table(reports)}"
    if left_out:
        text += f"\nNot runnable on the machine that made this table: {', '.join(left_out)}.\n"
    DOCUMENT.write_text(text)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
