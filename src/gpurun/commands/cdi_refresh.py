"""cdi refresh: the CDI file of this host's GPUs as it should be now, for a service that runs when the driver changes."""

from __future__ import annotations

import posix

from gpurun.cdi.files import read_spec_file
from gpurun.commands.cdi_generate import format_asked, generate_as_asked, spec_text, write_spec
from gpurun.errors import ConfigError, GpurunError, UsageError
from gpurun.gpu.nvidia.cdi.stale import driver_versions
from gpurun.gpu.nvidia.host.driver import module_version
from gpurun.gpu.nvidia.host.roots import roots_from_environment
from gpurun.gpu.nvidia.request.settings import read_settings, settings_path
from gpurun.linux.files import read_file
from gpurun.output import write_stderr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.invocation import Invocation

#: Read by every engine beside /etc/cdi, and gone with the next boot, as the driver's state is.
OUTPUT = "/run/cdi/nvidia.yaml"
_LIMIT = 16 << 20


def refresh(invocation: Invocation, env: Mapping[str, str]) -> int:
    """``cdi refresh``: write the file anew if it is not as ``cdi generate`` with the same options would write it.

    While no driver is loaded, a file that describes NVIDIA's GPUs is removed, for its devices are not there; that is no
    error.  A container that asks for them is then told that there is no such device, instead of a missing library.
    Raises :class:`GpurunError`, OSError.
    """
    output = invocation.option("output", OUTPUT)
    if not output.endswith((".json", ".yaml")):
        raise UsageError(f"--output={output}: no runtime reads it: the name must end in .json or .yaml")
    form = format_asked(invocation)
    roots = roots_from_environment(env, invocation.option("driver-root", read_settings(settings_path(env)).driver_root))
    if not module_version(roots) and invocation.option("mode", "auto").lower() == "auto":
        return _no_driver(output, f"{roots.sysroot}/proc/driver/nvidia/version")
    made, _ = generate_as_asked(invocation, env)
    for warning in made.warnings:
        _say(warning)
    before = _content(output)
    if before == spec_text(made.spec, output, form).encode():
        _say(f"{output} is as it should be")
        return 0
    write_spec(made.spec, output, form)
    why = "" if before is None else ", the driver or its devices had changed"
    _say(f"wrote {output}: {len(made.spec.devices)} devices{why}")
    _warn_of_others(output, made.spec.kind)
    return 0


def _no_driver(output: str, looked_at: str) -> int:
    try:
        spec = read_spec_file(output)
    except (ConfigError, FileNotFoundError):
        _say(f"no NVIDIA driver is loaded ({looked_at}): nothing is written")
        return 0
    if spec.kind.partition("/")[0] != "nvidia.com" and not driver_versions(spec):
        raise GpurunError(
            f"{output} is not removed, although no NVIDIA driver is loaded: it describes devices of the kind {spec.kind}"
        )
    posix.unlink(output)
    _say(f"no NVIDIA driver is loaded ({looked_at}): {output} is gone")
    return 0


def _warn_of_others(output: str, kind: str) -> None:
    """Names that two files of one directory define are ambiguous, and engines then know none of them."""
    directory, slash, own = output.rpartition("/")
    for name in sorted(posix.listdir(directory or slash or ".")):
        if name == own or not name.endswith((".json", ".yaml")):
            continue
        path = f"{directory}{slash}{name}"
        try:
            other = read_spec_file(path).kind
        except (ConfigError, OSError):
            continue
        if other == kind:
            _say(f"{path} describes {kind} as well: a device that is in both files is in neither for an engine, remove one")


def _content(path: str) -> bytes | None:
    try:
        return read_file(path, _LIMIT)
    except FileNotFoundError:
        return None


def _say(text: str) -> None:
    write_stderr(f"gpurun: {text}")
