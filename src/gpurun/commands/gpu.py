"""gpu: what GPUs this host has, who uses and leases them, whether containers can, and what a request would bring."""

from __future__ import annotations

import posix

from gpurun.cli.table import GROUPS
from gpurun.cli.terminal import write_wrapped
from gpurun.commands.groups import check_options
from gpurun.errors import UsageError
from gpurun.formats.jsontext import dumps
from gpurun.output import write_stdout
from gpurun.record import to_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.host.finding import Finding
    from gpurun.invocation import Invocation

_VERDICT = 6  # columns of the doctor's verdict and the blanks behind it


def gpu(invocation: Invocation) -> int:
    """``gpu list``, ``leases``, ``lease``, ``attach``, ``detach``, ``doctor``, ``explain`` and ``mig``.

    The exit code is 1 when the doctor finds something that does not work, or explain that create would fail.  Raises
    :class:`UsageError` for another word.
    """
    what, *words = invocation.args
    if what not in GROUPS["gpu"]:
        raise UsageError(f'gpu: no such command "{what}", use {", ".join(GROUPS["gpu"][:-1])} or {GROUPS["gpu"][-1]}')
    check_options(invocation)
    if words and what not in ("explain", "lease", "attach", "detach", "mig"):
        raise UsageError(f"gpu {what}: takes no argument")
    form = invocation.form()
    env = {k.decode("utf-8", "surrogateescape"): v.decode("utf-8", "surrogateescape") for k, v in posix.environ.items()}
    if what == "list":
        from gpurun.commands.gpu_list import list_gpus
        from gpurun.commands.gpu_use import state_roots

        roots = state_roots(invocation.globals.root, invocation.globals.root_given)
        return list_gpus(env, form, roots, invocation.flag("processes"))
    if what in ("attach", "detach"):
        from gpurun.commands import gpu_attach

        return (gpu_attach.attach if what == "attach" else gpu_attach.detach)(tuple(words), invocation)
    if what == "mig":
        from gpurun.commands.gpu_mig import mig

        return mig(tuple(words), invocation, env)
    if what in ("leases", "lease"):
        from gpurun.commands.gpu_leases import expire_leases, list_leases, release

        if what == "leases" and invocation.flag("expire"):
            return expire_leases(env)
        return release(tuple(words), env, invocation.flag("release")) if what == "lease" else list_leases(env, form)
    if what == "explain":
        from gpurun.commands.gpu_explain import explain

        return explain(tuple(words), env, form)
    return _doctor(invocation, env, form)


def _doctor(invocation: Invocation, env: dict[str, str], form: str) -> int:
    from gpurun.commands.gpu_use import state_roots
    from gpurun.gpu.doctor import examine

    roots = state_roots(invocation.globals.root, invocation.globals.root_given)
    findings = (*_site(), *examine(env), *_containers(roots, env))
    if invocation.flag("rootless") or posix.geteuid():
        from gpurun.gpu.doctor import node_paths
        from gpurun.gpu.doctor_rootless import examine_rootless

        theirs = examine_rootless(env, node_paths(env))
        answered = {one.subject for one in theirs}
        findings = (*[one for one in findings if one.subject not in answered or one.verdict != "ok"], *theirs)
    if form == "json":
        write_stdout(dumps([to_plain(f) for f in findings], 2) + "\n")
    else:
        write_wrapped([f"{f.verdict:4}  {f.subject}: {f.text}" for f in findings], _VERDICT)
    return 1 if any(f.verdict == "fail" for f in findings) else 0


def _site() -> list[Finding]:
    """What is wrong with gpurun's own config.toml, which every create reads."""
    from gpurun.engine.site_config import site_mistakes
    from gpurun.gpu.host.finding import Finding

    return [Finding("configuration", "fail", text) for text in site_mistakes(posix.environ)]


def _containers(roots: tuple[str, ...], env: dict[str, str]) -> list[Finding]:
    """What is wrong with containers that run already."""
    from gpurun.commands.gpu_use import containers_of, with_another_driver
    from gpurun.gpu.host.finding import Finding
    from gpurun.gpu.nvidia.host.driver import module_version
    from gpurun.gpu.nvidia.host.roots import roots_from_environment

    loaded = module_version(roots_from_environment(env))
    if not loaded:
        return []  # reported already
    held = containers_of(roots)
    stale = with_another_driver(held, loaded)
    if not stale:
        return (
            [Finding("containers", "ok", f"{len(held)} with GPUs, all with the libraries of driver {loaded}")]
            if held
            else []
        )
    named = ", ".join([f"{container} ({version})" for container, version in stale])
    text = f"the kernel module is {loaded}, the driver libraries are not in {named}: make these containers anew"
    return [Finding("containers", "fail", text)]
