"""cdi generate: this host's GPUs as a CDI file.

The functions beside :func:`generate_file` take plain values, for other command lines that do the same (``nvidia-ctk cdi``).
"""

from __future__ import annotations

import os
import shutil
import sys

from gpurun.cdi.write import to_text
from gpurun.errors import GpuError, UsageError
from gpurun.gpu.nvidia.cdi.coherent import by_coherence
from gpurun.gpu.nvidia.cdi.generate import generate
from gpurun.gpu.nvidia.cdi.generated import Generated, GenerateOptions
from gpurun.gpu.nvidia.cdi.modes import MODES, generate_mode
from gpurun.gpu.nvidia.cdi.platforms import PLATFORMS, generate_platform
from gpurun.gpu.nvidia.edits.features import COHERENT
from gpurun.gpu.nvidia.host.gpus import has_cards_alone
from gpurun.gpu.nvidia.host.roots import Roots, dev_root, roots_from_environment
from gpurun.gpu.nvidia.platforms.platform import detect
from gpurun.gpu.nvidia.request.settings import read_settings, settings_path
from gpurun.gpu.offers import count_gpus
from gpurun.gpu.vendors import VENDORS, module
from gpurun.linux.files import write_atomically
from gpurun.output import write_document, write_stderr
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.cdi.document import CdiSpec
    from gpurun.invocation import Invocation

_GPU_MODES = ("auto", "nvml")
#: Modes that write the GPUs of another maker, as amd.com/gpu and intel.com/gpu.
MAKERS = ("amd", "intel")
#: The format that is amd-ctk's, byte for byte.
_AMD = "amd"
#: The kind that tells the devices of a mode from GPUs, for those who want both in one directory.
_OWN_KIND = {mode: f"--class={mode}" for mode in ("gds", "mofed", "gdrcopy", "nvswitch")}
_OWN_KIND |= {"imex": "--class=imex-channel", "management": "--vendor=management.nvidia.com"}


def option_items(invocation: Invocation, name: str) -> tuple[str, ...]:
    """All that was given for the option *name*: again and again, or with commas, as NVIDIA's program takes both."""
    return tuple([item for text in invocation.texts(name) for part in text.split(",") if (item := part.strip())])


def generate_spec(mode: str, roots: Roots, options: GenerateOptions, env: Mapping[str, str]) -> Generated:
    """The specification of *mode* (``auto``, ``nvml``, a maker or one of :data:`MODES`).  Raises :class:`GpurunError`."""
    if mode in MAKERS:
        return Generated(module(mode, "cdi").generate(roots.sysroot))
    platform = PLATFORMS.get(mode, "")
    if mode == "auto" and not has_cards_alone(roots):
        platform = detect(roots)
    if platform:
        return generate_platform(platform, roots, options, env)
    if mode in _GPU_MODES:
        return generate(roots, options, env)
    if mode not in MODES:
        raise UsageError(
            f'--mode: "{mode}" is not supported, known are {", ".join([*_GPU_MODES, *PLATFORMS, *MODES, *MAKERS])}'
        )
    common = generate(roots, replace(options, devices=("all",)), env).spec if mode == "management" else None
    return generate_mode(mode, dev_root(roots).rstrip("/"), options, common)


def write_spec(spec: CdiSpec, output: str, form: str = "") -> None:
    """Write *spec* to the file *output* (in one step, its directory made if need be), or to stdout when it is empty.

    The format is *form*, else what the file's name says, else YAML.
    """
    write_text(spec_text(spec, output, form), output)


def write_text(text: str, output: str) -> None:
    """Write the CDI file *output*, which says *text*, as :func:`write_spec` does."""
    if not output:
        write_document(text)
        return
    os.makedirs(os.path.dirname(os.path.abspath(output)), 0o755, exist_ok=True)
    write_atomically(os.path.abspath(output), text.encode(), 0o644, durable=True)


def spec_text(spec: CdiSpec, output: str, form: str = "") -> str:
    """*spec* in the format *form*, else in that of the name *output*, else as YAML."""
    return to_text(spec, form or _implied_format(output) or "yaml")


def hook_program(path: str) -> tuple[str, ...]:
    """How the hooks are called: the program, and the words before a hook's name.

    *path* is what the caller asks for; by default this program itself, wherever it is installed.
    """
    if not path:
        own = os.path.realpath(sys.argv[0])
        if not os.access(own, os.X_OK) or own.endswith(".py"):  # run from its source tree
            found = shutil.which("nvidia-cdi-hook") or shutil.which("gpurun")
            own = os.path.abspath(found) if found else "/usr/bin/nvidia-cdi-hook"
        path = own
    return (path,) if os.path.basename(path) == "nvidia-cdi-hook" else (path, "hook")


def generate_as_asked(invocation: Invocation, env: Mapping[str, str]) -> tuple[Generated, GenerateOptions]:
    """What the options of ``cdi generate`` ask for, and the same as a record.  Raises :class:`GpurunError`.

    Returns (specification, options).
    """
    settings = read_settings(settings_path(env))
    options = GenerateOptions(
        vendor=invocation.option("vendor", "nvidia.com"),
        cls=invocation.option("class", "gpu"),
        strategies=option_items(invocation, "device-name-strategy") or ("index", "uuid"),
        hook=hook_program(invocation.option("nvidia-cdi-hook-path")),
        ldconfig_path=invocation.option("ldconfig-path"),
        disabled_hooks=option_items(invocation, "disable-hook"),
        enabled_hooks=option_items(invocation, "enable-hook"),
        features=option_items(invocation, "feature-flag"),
        all_device=not invocation.flag("no-all-device"),
        devices=option_items(invocation, "device-id") or ("all",),
        csv_dir=settings.csv_dir,
        csv_files=option_items(invocation, "csv.file"),
        csv_ignored=option_items(invocation, "csv.ignore-pattern"),
        csv_compat_root=invocation.option("csv.compat-container-root", settings.csv_compat_root),
    )
    roots = roots_from_environment(env, invocation.option("driver-root", settings.driver_root))
    dirs = option_items(invocation, "library-search-path")
    configs = option_items(invocation, "config-search-path")
    roots = replace(roots, config_dirs=configs, excluded=settings.excluded_devices)
    roots = replace(roots, dev_root=invocation.option("dev-root", roots.dev_root), library_dirs=dirs or roots.library_dirs)
    try:
        return generate_spec(_mode(invocation), roots, options, env), options
    except GpuError as e:
        e.args = (f"{e}{_other_modes(_mode(invocation), env)}",)
        raise


def _other_modes(mode: str, env: Mapping[str, str]) -> str:
    """Which mode writes the GPUs that this host has, where *mode* has found none of its maker's; the end of a sentence."""
    asked = mode if mode in MAKERS else VENDORS[0].name
    there = [vendor for vendor, *_ in count_gpus(env)]
    if asked in [vendor.name for vendor in there]:
        return ""
    said = [
        f"{vendor.title}'s GPUs are written by --mode {vendor.name if vendor.name in MAKERS else 'auto'}" for vendor in there
    ]
    return f"; {', '.join(said)}" if said else ""


def _mode(invocation: Invocation) -> str:
    return invocation.option("mode", "auto").lower()


def format_asked(invocation: Invocation) -> str:
    """``yaml``, ``json`` or, when none is given, empty.  Raises :class:`UsageError`."""
    form = invocation.option("format").lower()
    if form not in ("", "yaml", "json"):
        raise UsageError(f'--format: "{form}" is neither yaml nor json')
    return form


def generate_file(invocation: Invocation, env: Mapping[str, str]) -> int:
    """``cdi generate``: to the file that is asked for, or to stdout.  Raises :class:`GpurunError`, OSError."""
    if invocation.option("format").lower() == _AMD:
        if _mode(invocation) != _AMD:
            raise UsageError("--format amd: that is how amd-ctk writes AMD's GPUs, so it needs --mode amd")
        text = module(_AMD, "cdi").amd_ctk_text(roots_from_environment(env).sysroot)
        write_text(text, _readable(invocation.option("output"), "json"))
        return 0
    form = format_asked(invocation)
    made, options = generate_as_asked(invocation, env)
    output = _readable(invocation.option("output"), form)
    for warning in (*made.warnings, *_cautions(invocation, _mode(invocation), made.spec, output, form)):
        write_stderr(f"gpurun: {warning}")
    write_spec(made.spec, output, form)
    if COHERENT in options.features:
        name, ending = os.path.splitext(output)
        for infix, spec in by_coherence(made, options.all_device):
            write_spec(spec, f"{name}{infix}{ending}" if output else "", form)
    return 0


def _cautions(invocation: Invocation, mode: str, spec: CdiSpec, output: str, form: str) -> list[str]:
    """What may well be meant otherwise."""
    said = []
    given = invocation.option("output")
    if output != given:
        said.append(f"{output} is written: no runtime reads {given}, whose name ends in neither .json nor .yaml")
    implied = _implied_format(output)
    if form and implied and form != implied:
        said.append(f"--format {form}: readers of {output} will expect {implied}, because of its name")
    if mode in _OWN_KIND and spec.kind == "nvidia.com/gpu":
        said.append(
            f"these devices have the kind of GPUs: in one directory with a file of GPUs, neither file's {spec.kind}=all is "
            f"valid; give them a kind of their own with {_OWN_KIND[mode]}"
        )
    return said


def _readable(output: str, form: str) -> str:
    """*output* as a name that runtimes read, as NVIDIA's program makes one."""
    if not output or output.endswith((".json", ".yaml")):
        return output
    return f"{output}.{form or 'yaml'}"


def _implied_format(output: str) -> str:
    return {".json": "json", ".yaml": "yaml", ".yml": "yaml"}.get(os.path.splitext(output)[1].lower(), "")
