"""gpu mig apply, assert, export, generate-config: GPUs divided by MIG, with the words and options of nvidia-mig-parted."""

from __future__ import annotations

from gpurun import log
from gpurun.engine.gpus.leases import open_store, site_policy
from gpurun.errors import GpurunError, UsageError, clean
from gpurun.formats.jsontext import dumps
from gpurun.gpu.nvidia.host.nvml import find_nvml
from gpurun.gpu.nvidia.mig import change_record
from gpurun.gpu.nvidia.mig.apply import MigHost, apply_config
from gpurun.gpu.nvidia.mig.busy import hold_gpus
from gpurun.gpu.nvidia.mig.config import load, select
from gpurun.gpu.nvidia.mig.export import as_yaml, export_config
from gpurun.gpu.nvidia.mig.generate import generate_config, silent, untold
from gpurun.gpu.nvidia.mig.plan import plan_config
from gpurun.gpu.nvidia.mig.state import read_state
from gpurun.gpu.nvidia.mps.programs import find_driver_program
from gpurun.gpu.nvidia.request.settings import roots_of, site_settings
from gpurun.output import write_document, write_stdout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from gpurun.gpu.nvidia.mig.config import MigEntry
    from gpurun.gpu.nvidia.mig.plan import MigChange
    from gpurun.invocation import Invocation

#: Which options are for which word, and the variable that mig-parted has for each.
_OPTIONS = {
    "apply": ("config-file", "selected-config", "mode-only", "skip-reset"),
    "assert": ("config-file", "selected-config", "mode-only", "valid-config"),
    "export": ("output-format", "config-label"),
    "generate-config": ("output-format",),
}
_VARIABLES = {"mode-only": "MIG_PARTED_MODE_CHANGE_ONLY"}
_TRUE = ("1", "t", "T", "true", "TRUE", "True")


def mig(words: tuple[str, ...], invocation: Invocation, env: Mapping[str, str]) -> int:
    """``gpu mig``; the exit code, 1 where ``assert`` finds the GPUs divided in another way.

    Raises :class:`UsageError` for other words and for an option of another of them.
    """
    if len(words) != 1 or words[0] not in _OPTIONS:
        raise UsageError("gpu mig: say what to do: apply, assert, export or generate-config")
    what = words[0]
    for name in invocation.options:
        if name not in _OPTIONS[what]:
            raise UsageError(f"gpu mig {what}: takes no option --{name}, it has: --{', --'.join(_OPTIONS[what])}")
    if what in ("export", "generate-config"):
        return _print(what, invocation, env)
    path = _text(invocation, env, "config-file")
    if not path:
        raise UsageError(f"gpu mig {what}: needs the configuration file (-f)")
    name, entries = select(load(path), _text(invocation, env, "selected-config"), path)
    mode_only = _flag(invocation, env, "mode-only")
    if what == "apply":
        return _apply(env, name, entries, mode_only, not _flag(invocation, env, "skip-reset"))
    if _flag(invocation, env, "valid-config"):
        write_stdout("the file is right and has the configuration\n")
        return 0
    return _assert(env, name, entries, mode_only)


def _apply(env: Mapping[str, str], name: str, entries: tuple[MigEntry, ...], mode_only: bool, reset: bool) -> int:
    roots = roots_of(env, site_settings(env))

    def hold(changes: tuple[MigChange, ...]) -> AbstractContextManager[None]:
        return hold_gpus(changes, env, site_policy(), open_store(env))

    host = MigHost(
        find_nvml(roots), f"{roots.sysroot}{change_record.DIRECTORY}",
        find_driver_program("nvidia-smi", f"{roots.sysroot}{roots.driver_root}".rstrip("/")), hold,
    )  # fmt: skip
    changes = apply_config(host, name, entries, mode_only, reset)
    changed = ", ".join([f"GPU {change.index}" for change in changes])
    write_stdout(f"divided anew: {changed}\n" if changed else "the GPUs were already divided like this\n")
    return 0


def _assert(env: Mapping[str, str], name: str, entries: tuple[MigEntry, ...], mode_only: bool) -> int:
    roots = roots_of(env, site_settings(env))
    changes = plan_config(read_state(find_nvml(roots)), entries, mode_only)
    if changes:
        others = ", ".join([str(change.index) for change in changes])
        raise GpurunError(f'not divided as the configuration "{clean(name)}" says: GPU {others}')
    write_stdout("the GPUs are divided so\n")
    return 0


def _print(what: str, invocation: Invocation, env: Mapping[str, str]) -> int:
    form = _text(invocation, env, "output-format") or "yaml"
    if form not in ("yaml", "json"):
        raise UsageError(f'gpu mig {what}: unknown --output-format "{clean(form)}", use yaml or json')
    gpus = read_state(find_nvml(roots_of(env, site_settings(env))))
    if what == "generate-config":
        document = generate_config(gpus)
        if silent(gpus):
            log.warning(untold(gpus))
    else:
        document = export_config(gpus, _text(invocation, env, "config-label") or "current")
    write_document(as_yaml(document) if form == "yaml" else dumps(document, 2) + "\n")
    return 0


def _text(invocation: Invocation, env: Mapping[str, str], option: str) -> str:
    return invocation.option(option) or env.get(_variable(option), "")


def _flag(invocation: Invocation, env: Mapping[str, str], option: str) -> bool:
    if option in invocation.options:
        return invocation.flag(option)
    return env.get(_variable(option), "") in _TRUE


def _variable(option: str) -> str:
    return _VARIABLES.get(option) or f"MIG_PARTED_{option.replace('-', '_').upper()}"
