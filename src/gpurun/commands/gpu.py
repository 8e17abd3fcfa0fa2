"""gpu: what GPUs this host has and who uses them, whether containers can, and what a request would bring."""

from __future__ import annotations

import posix

from gpurun.cli.output import write_stdout
from gpurun.errors import GpurunError, UsageError
from gpurun.jsontext import dumps
from gpurun.record import to_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.invocation import Invocation

_COMMANDS = ("list", "doctor", "explain")


def gpu(invocation: Invocation) -> int:
    """``gpu list``, ``gpu doctor`` and ``gpu explain``.

    The exit code is 1 when the doctor finds something that does not work, or explain that create would fail.
    """
    what, *words = invocation.args
    if what not in _COMMANDS:
        raise UsageError(f'gpu: no such command "{what}", use {", ".join(_COMMANDS[:-1])} or {_COMMANDS[-1]}')
    if words and what != "explain":
        raise UsageError(f"gpu {what}: takes no argument")
    form = "json" if invocation.flag("json") else invocation.option("format", "table")
    if form not in ("table", "json"):
        raise GpurunError(f'invalid format option "{form}", use table or json')
    env = {k.decode("utf-8", "surrogateescape"): v.decode("utf-8", "surrogateescape") for k, v in posix.environ.items()}
    if what == "list":
        from gpurun.commands.gpu_list import list_gpus
        from gpurun.commands.gpu_use import state_roots

        roots = state_roots(invocation.globals.root, invocation.globals.root_given)
        return list_gpus(env, form, roots, invocation.flag("processes"))
    if what == "explain":
        from gpurun.commands.gpu_explain import explain

        return explain(tuple(words), env, form)
    return _doctor(env, form)


def _doctor(env: dict[str, str], form: str) -> int:
    from gpurun.hook.doctor import examine

    findings = examine(env)
    if form == "json":
        write_stdout(dumps([to_plain(f) for f in findings], 2) + "\n")
    else:
        write_stdout("".join([f"{f.verdict:4}  {f.subject}: {f.text}\n" for f in findings]))
    return 1 if any(f.verdict == "fail" for f in findings) else 0
