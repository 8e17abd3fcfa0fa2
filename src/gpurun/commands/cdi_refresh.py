"""cdi refresh: the CDI files of this host's GPUs as they should be now, for a service that runs when a driver changes."""

from __future__ import annotations

import posix

from gpurun.cdi.files import read_spec_file
from gpurun.commands.cdi_generate import MAKERS, format_asked, generate_as_asked, spec_text, write_spec
from gpurun.errors import ConfigError, GpurunError, UsageError, oserror_text
from gpurun.gpu.nvidia.cdi.stale import driver_versions
from gpurun.gpu.nvidia.host.driver import module_version
from gpurun.gpu.nvidia.host.roots import roots_from_environment
from gpurun.gpu.nvidia.request.settings import read_settings, settings_path
from gpurun.gpu.offers import count_gpus
from gpurun.gpu.vendors import find_vendor, module, present
from gpurun.linux.files import read_file
from gpurun.output import write_stderr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.cdi.document import CdiSpec
    from gpurun.gpu.vendors import Vendor
    from gpurun.invocation import Invocation

#: Read by every engine beside /etc/cdi, and gone with the next boot, as the driver's state is.
DIRECTORY = "/run/cdi"
_LIMIT = 16 << 20


def refresh(invocation: Invocation, env: Mapping[str, str]) -> int:
    """``cdi refresh``: write the file anew if it is not as ``cdi generate`` with the same options would write it.

    Without ``--mode`` and ``--output`` it is done for each maker whose driver is loaded, or whose file is there.  While no
    driver is loaded, a file that describes the maker's GPUs is removed, for its devices are not there; that is no error.  A
    container that asks for them then gets the error that there is no such device, instead of a missing library.  What goes
    wrong with one maker's file keeps no other's from being written.  Raises :class:`GpurunError`, OSError.
    """
    mode = invocation.option("mode", "auto").lower()
    maker = mode if mode in MAKERS else "nvidia"
    output = invocation.option("output", _usual(maker))
    if not output.endswith((".json", ".yaml")):
        raise UsageError(f"--output={output}: no runtime reads it: the name must end in .json or .yaml")
    if mode in MAKERS:
        return _of_maker(find_vendor(mode), output, format_asked(invocation), env)
    if mode != "auto" or "output" in invocation.options:
        return _nvidias(invocation, env, output)
    failed = []
    for name in ("nvidia", *MAKERS):
        try:
            if name == "nvidia":
                _nvidias(invocation, env, output)
            elif find_vendor(name) in present(env) or posix.access(_usual(name), posix.F_OK):
                _of_maker(find_vendor(name), _usual(name), format_asked(invocation), env)
        except GpurunError as e:
            failed.append(str(e))
        except OSError as e:
            failed.append(oserror_text(e))
    if failed:
        raise GpurunError("; ".join(failed))
    return 0


def _usual(maker: str) -> str:
    return f"{DIRECTORY}/{maker}.yaml"


def _nvidias(invocation: Invocation, env: Mapping[str, str], output: str) -> int:
    form = format_asked(invocation)
    roots = roots_from_environment(env, invocation.option("driver-root", read_settings(settings_path(env)).driver_root))
    if not module_version(roots) and invocation.option("mode", "auto").lower() == "auto":
        why = f"no NVIDIA driver is loaded ({roots.sysroot}/proc/driver/nvidia/version{_elsewhere(invocation, env)})"
        return _no_driver(output, why, "nvidia.com")
    made, _ = generate_as_asked(invocation, env)
    for warning in made.warnings:
        _say(warning)
    return _bring_about(made.spec, output, form)


def _elsewhere(invocation: Invocation, env: Mapping[str, str]) -> str:
    """Which modes write the GPUs of other makers into the file that is asked for: without one each has a file of its own."""
    if "output" not in invocation.options:
        return ""
    said = [f"{vendor.title}'s GPUs are written by --mode {vendor.name}" for vendor, *_ in count_gpus(env)]
    return f"; {', '.join(said)}" if said else ""


def _of_maker(vendor: Vendor, output: str, form: str, env: Mapping[str, str]) -> int:
    """The file of a maker's GPUs, of which a host may have none although its driver is loaded."""
    if not module(vendor.name, "survey").survey(env, False).units:
        looked_at = " and ".join([env.get("GPURUN_SYSROOT", "").rstrip("/") + probe for probe in vendor.probes])
        return _no_driver(output, f"no GPU of {vendor.kind} is there ({looked_at})", vendor.kind.partition("/")[0])
    return _bring_about(module(vendor.name, "cdi").generate(roots_from_environment(env).sysroot), output, form)


def _bring_about(spec: CdiSpec, output: str, form: str) -> int:
    before = _content(output)
    if before == spec_text(spec, output, form).encode():
        _say(f"{output} is as it should be")
        return 0
    write_spec(spec, output, form)
    why = "" if before is None else ", the driver or its devices had changed"
    _say(f"wrote {output}: {len(spec.devices)} devices{why}")
    _warn_of_others(output, spec.kind)
    return 0


def _no_driver(output: str, why: str, owner: str) -> int:
    """Remove *output*, if it is a file of *owner*'s devices."""
    try:
        spec = read_spec_file(output)
    except (ConfigError, FileNotFoundError):
        _say(f"{why}: nothing is written")
        return 0
    if spec.kind.partition("/")[0] != owner and not (owner == "nvidia.com" and driver_versions(spec)):
        raise GpurunError(f"{output} is not removed, although {why}: it describes devices of the kind {spec.kind}")
    posix.unlink(output)
    _say(f"{why}: {output} is gone")
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
