"""Hooks of the stages on the host: in the bundle, with the runtime's own environment, as runc and crun run them."""

from __future__ import annotations

from gpurun.engine.hook_output import close_outputs, open_outputs
from gpurun.engine.hooks import in_directory, run_hook, run_hooks
from gpurun.errors import StepError
from gpurun.launcher.sealed import all_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.oci.config import OciHook


def _own_environment() -> dict[str, str]:
    return {k.decode("utf-8", "surrogateescape"): v.decode("utf-8", "surrogateescape") for k, v in all_variables().items()}


def run_host_hooks(name: str, hooks: tuple[OciHook, ...], state: str, bundle: str, files: tuple[str, str]) -> None:
    """Run *hooks* of the stage *name* up to the first that fails, which raises :class:`GpurunError`.

    *state* is the JSON text on their stdin, *files* are those of :func:`gpurun.engine.hook_output.output_files`.
    """
    if not hooks:
        return
    outputs = open_outputs(files)
    try:
        run_hooks(name, hooks, state, _own_environment(), in_directory(bundle), outputs)
    finally:
        close_outputs(outputs)


def run_poststop(hooks: tuple[OciHook, ...], state: str, bundle: str, files: tuple[str, str]) -> tuple[str, ...]:
    """Run all of *hooks*, whatever becomes of each; returns what went wrong, as warnings."""
    warnings = []
    outputs = (-1, -1)
    try:
        outputs = open_outputs(files)
    except StepError as e:  # the container is gone: a hook without its log is better than none
        warnings.append(str(e))
    for index, hook in enumerate(hooks):
        failure = run_hook(hook, state, _own_environment(), in_directory(bundle), outputs)
        if failure:
            warnings.append(f"error running poststop hook #{index}: {failure}")
    close_outputs(outputs)
    return tuple(warnings)
