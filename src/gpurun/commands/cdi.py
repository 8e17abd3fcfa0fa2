"""cdi: write, list, check and move files of the Container Device Interface.

The functions beside :func:`cdi` take plain values, for other command lines that do the same (``nvidia-ctk cdi``).
"""

from __future__ import annotations

import os
import shutil
import sys

from gpurun.cli.output import write_stdout
from gpurun.engine.state import write_atomically
from gpurun.errors import ConfigError, GpurunError, UsageError
from gpurun.hook.cdi import spec_dirs
from gpurun.hook.cdi_coherent import by_coherence
from gpurun.hook.cdi_files import parse_spec, read_registry, read_spec_file
from gpurun.hook.cdi_generate import Generated, GenerateOptions, generate
from gpurun.hook.cdi_modes import KINDS, MODES, generate_mode
from gpurun.hook.cdi_platforms import PLATFORMS, generate_platform
from gpurun.hook.cdi_stale import stale_files
from gpurun.hook.cdi_transform import transform_root
from gpurun.hook.cdi_write import to_text
from gpurun.hook.features import COHERENT
from gpurun.hook.gpus import read_gpus
from gpurun.hook.host import Roots, dev_root, roots_from_environment
from gpurun.hook.platforms import detect
from gpurun.hook.settings import read_settings, settings_path
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.hook.cdi_document import CdiSpec
    from gpurun.invocation import Invocation

_GPU_MODES = ("auto", "nvml")


def cdi(invocation: Invocation) -> int:
    """``cdi generate``, ``list``, ``validate`` and ``transform root``; 1 when a file is wrong."""
    what, args = invocation.args[0], tuple(invocation.args[1:])
    env = dict(os.environ)
    if what == "generate" and not args:
        return _generate(invocation, env)
    if what == "list" and not args:
        names, problems = list_devices(configured_dirs(env, invocation.texts("spec-dir")))
        sys.stderr.write("".join([f"gpurun: {problem}\n" for problem in problems]))
        write_stdout("".join([f"{name}\n" for name in names]))
        return 0
    if what == "validate":
        good, problems, warnings = validate(args, configured_dirs(env, invocation.texts("spec-dir")), env)
        write_stdout("".join([f"{path}: good, {count} devices\n" for path, count in good]))
        sys.stderr.write("".join([f"gpurun: {text}\n" for text in (*warnings, *problems)]))
        return 1 if problems else 0
    if what == "transform" and args == ("root",):
        return _transform(invocation)
    raise UsageError(f'cdi: no such command "{" ".join((what, *args))}", use generate, list, validate or transform root')


def configured_dirs(env: Mapping[str, str], given: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The directories *given*, else those of the site's configuration, else the usual ones."""
    return given or spec_dirs(read_settings(settings_path(env)), env)


def list_devices(dirs: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(qualified names of all devices in *dirs*, sorted; what is wrong with files and names there)."""
    registry = read_registry(dirs)
    return tuple(sorted(registry.devices)), tuple([text for _, text in registry.errors])


def validate(
    paths: tuple[str, ...], dirs: tuple[str, ...], env: Mapping[str, str]
) -> tuple[tuple[tuple[str, int], ...], tuple[str, ...], tuple[str, ...]]:
    """((good file, its devices), ...), problems and warnings of the files *paths*, or of all in *dirs*."""
    good: list[tuple[str, int]] = []
    if not paths:
        registry = read_registry(dirs)
        good = [(file.path, len(file.spec.devices)) for file in registry.files]
        warnings = stale_files(registry, roots_from_environment(env))
        return tuple(good), tuple([text for _, text in registry.errors]), warnings
    problems = []
    for path in paths:
        if not path.endswith((".json", ".yaml")):
            problems.append(f"{path}: no runtime reads it: the name must end in .json or .yaml")
            continue
        try:
            good.append((path, len(read_spec_file(path).devices)))
        except ConfigError as e:
            problems.append(str(e))
    return tuple(good), tuple(problems), ()


def generate_spec(mode: str, roots: Roots, options: GenerateOptions, env: Mapping[str, str]) -> Generated:
    """The specification of *mode* (``auto``, ``nvml`` or one of :data:`MODES`).  Raises :class:`GpurunError`."""
    platform = PLATFORMS.get(mode, "")
    if mode == "auto" and not read_gpus(roots):
        platform = detect(roots)
    if platform:
        return generate_platform(platform, roots, options, env)
    if mode in _GPU_MODES:
        return generate(roots, options, env)
    if mode not in MODES:
        raise UsageError(f'--mode: "{mode}" is not done here, known are {", ".join([*_GPU_MODES, *PLATFORMS, *MODES])}')
    common = generate(roots, replace(options, devices=("all",)), env).spec if mode == "management" else None
    return generate_mode(mode, dev_root(roots).rstrip("/"), options, common)


def write_spec(spec: CdiSpec, output: str, form: str = "") -> None:
    """Write *spec* to the file *output* (in one step, its directory made if need be), or to stdout when it is empty.

    The format is *form*, else what the file's name says, else YAML.
    """
    implied = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}.get(os.path.splitext(output)[1].lower(), "")
    text = to_text(spec, form or implied or "yaml")
    if not output:
        write_stdout(text)
        return
    os.makedirs(os.path.dirname(os.path.abspath(output)), 0o755, exist_ok=True)
    write_atomically(os.path.abspath(output), text.encode(), 0o644)


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


def _generate(invocation: Invocation, env: dict[str, str]) -> int:
    mode = invocation.option("mode", "auto").lower()
    vendor, cls = KINDS.get(mode, ("nvidia.com", "gpu" if mode in (*_GPU_MODES, *PLATFORMS) else mode))
    settings = read_settings(settings_path(env))
    options = GenerateOptions(
        vendor=invocation.option("vendor", vendor),
        cls=invocation.option("class", cls),
        strategies=invocation.texts("device-name-strategy") or ("index", "uuid"),
        hook=hook_program(invocation.option("nvidia-cdi-hook-path")),
        ldconfig_path=invocation.option("ldconfig-path"),
        disabled_hooks=invocation.texts("disable-hook"),
        enabled_hooks=invocation.texts("enable-hook"),
        features=invocation.texts("feature-flag"),
        all_device=not invocation.flag("no-all-device"),
        devices=invocation.texts("device-id") or ("all",),
        csv_dir=settings.csv_dir,
        csv_files=invocation.texts("csv.file"),
        csv_ignored=invocation.texts("csv.ignore-pattern"),
    )
    form = invocation.option("format").lower()
    if form not in ("", "yaml", "json"):
        raise UsageError(f'--format: "{form}" is neither yaml nor json')
    roots = roots_from_environment(env, invocation.option("driver-root", settings.driver_root))
    dirs = invocation.texts("library-search-path")
    roots = replace(roots, config_dirs=invocation.texts("config-search-path"))
    roots = replace(roots, dev_root=invocation.option("dev-root", roots.dev_root), library_dirs=dirs or roots.library_dirs)
    made = generate_spec(mode, roots, options, env)
    for warning in made.warnings:
        sys.stderr.write(f"gpurun: {warning}\n")
    output = invocation.option("output")
    write_spec(made.spec, output, form)
    if COHERENT in options.features:
        name, ending = os.path.splitext(output)
        for infix, spec in by_coherence(made, options.all_device):
            write_spec(spec, f"{name}{infix}{ending}" if output else "", form)
    return 0


def _transform(invocation: Invocation) -> int:
    source = invocation.option("input", "-")
    spec = parse_spec(sys.stdin.buffer.read(), "stdin") if source == "-" else read_spec_file(source)
    if not invocation.option("from"):
        raise UsageError("--from: is missing, it names the root to replace")
    new = transform_root(spec, invocation.option("from"), invocation.option("to"), invocation.option("relative-to", "host"))
    try:
        write_spec(new, invocation.option("output"), "json" if source.endswith(".json") else "")
    except OSError as e:
        raise GpurunError(f"{invocation.option('output')}: {e.strerror}") from None
    return 0
