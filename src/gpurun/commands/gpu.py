"""gpu: what GPUs this host has, and whether containers can use them."""

from __future__ import annotations

import posix

from gpurun.cli.output import write_stdout
from gpurun.errors import GpurunError, UsageError
from gpurun.hook.doctor import examine, gpu_rows
from gpurun.jsontext import dumps
from gpurun.record import to_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.invocation import Invocation


def gpu(invocation: Invocation) -> int:
    """``gpu list`` and ``gpu doctor``; exit code 1 when the doctor finds something that does not work."""
    what = invocation.args[0]
    if what not in ("list", "doctor"):
        raise UsageError(f'gpu: no such command "{what}", use list or doctor')
    form = invocation.option("format", "table")
    if form not in ("table", "json"):
        raise GpurunError(f'invalid format option "{form}", use table or json')
    env = {k.decode("utf-8", "surrogateescape"): v.decode("utf-8", "surrogateescape") for k, v in posix.environ.items()}
    return _list(env, form) if what == "list" else _doctor(env, form)


def _list(env: dict[str, str], form: str) -> int:
    version, rows = gpu_rows(env)
    if form == "json":
        write_stdout(dumps({"driverVersion": version, "gpus": list(rows)}, 2) + "\n")
        return 0
    lines = [("INDEX", "UUID", "BUS ID", "NODE", "NUMA", "MODEL")]
    for row in rows:
        numa = str(row["numaNode"]) if row["numaNode"] != -1 else "-"
        lines.append((str(row["index"]), str(row["uuid"]), str(row["busId"]), str(row["node"]), numa, str(row["model"])))
    widths = [max([len(line[i]) for line in lines]) + 3 for i in range(len(lines[0]))]
    write_stdout(
        "".join(["".join([c.ljust(w) for c, w in zip(line, widths, strict=True)]).rstrip() + "\n" for line in lines])
    )
    return 0


def _doctor(env: dict[str, str], form: str) -> int:
    findings = examine(env)
    if form == "json":
        write_stdout(dumps([to_plain(f) for f in findings], 2) + "\n")
    else:
        write_stdout("".join([f"{f.verdict:4}  {f.subject}: {f.text}\n" for f in findings]))
    return 1 if any(f.verdict == "fail" for f in findings) else 0
