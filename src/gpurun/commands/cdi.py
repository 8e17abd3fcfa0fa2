"""cdi: write, list, check and move files of the Container Device Interface.

The functions beside :func:`cdi` take plain values, for other command lines that do the same (``nvidia-ctk cdi``).
"""

from __future__ import annotations

import os
import sys

from gpurun.cdi.files import Registry, SpecFile, parse_spec, read_registry, read_spec_file
from gpurun.cdi.transform import transform_root
from gpurun.cli.table import GROUPS
from gpurun.commands.cdi_generate import generate_file, option_items, write_spec
from gpurun.commands.cdi_refresh import refresh
from gpurun.commands.groups import check_options
from gpurun.errors import ConfigError, GpurunError, StepError, UsageError, strerror_lower
from gpurun.formats.jsontext import dumps
from gpurun.gpu.nvidia.cdi.named_devices import spec_dirs
from gpurun.gpu.nvidia.cdi.stale import stale_files
from gpurun.gpu.nvidia.host.roots import roots_from_environment
from gpurun.gpu.nvidia.platforms.platform import detect
from gpurun.gpu.nvidia.request.settings import read_settings, settings_path
from gpurun.gpu.offers import count_gpus, generate_advice, offers_text
from gpurun.gpu.vendors import VENDORS
from gpurun.output import write_lines, write_stderr, write_stdout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.invocation import Invocation


def cdi(invocation: Invocation) -> int:
    """``cdi generate``, ``refresh``, ``list``, ``validate`` and ``transform root``; 1 when a file is wrong.

    Raises :class:`UsageError` for another word.
    """
    what, args = invocation.args[0], tuple(invocation.args[1:])
    env = dict(os.environ)
    if what in GROUPS["cdi"]:
        check_options(invocation)
    if what == "generate" and not args:
        return generate_file(invocation, env)
    if what == "refresh" and not args:
        return refresh(invocation, env)
    if what == "list" and not args:
        return _list(invocation, env)
    if what == "validate":
        return _validate(invocation, env)
    if what == "transform" and args == ("root",):
        return _transform(invocation)
    raise UsageError(
        f'cdi: no such command "{" ".join((what, *args))}", use generate, refresh, list, validate or transform root'
    )


def _list(invocation: Invocation, env: Mapping[str, str]) -> int:
    """``cdi list``; as JSON ``devices`` (``name``, ``file``), ``directories`` and ``problems``, not on stderr then."""
    form, dirs = invocation.form(), configured_dirs(env, option_items(invocation, "spec-dir"))
    if form == "json":
        registry = read_registry(dirs)
        devices = [{"name": name, "file": found.file.path} for name, found in sorted(registry.devices.items())]
        problems = [text for _, text in registry.errors]
        write_stdout(dumps({"devices": devices, "directories": list(dirs), "problems": problems}, 2) + "\n")
        return 0
    names, wrong = list_devices(dirs)
    for text in wrong if names else (*wrong, f"no CDI device: {_looked_in(dirs, env)}"):
        write_stderr(f"gpurun: {text}")
    write_lines(names)
    return 0


def _validate(invocation: Invocation, env: Mapping[str, str]) -> int:
    """``cdi validate``; as JSON ``files`` (the good ones: ``path``, ``devices``), ``problems`` and ``warnings``."""
    form, dirs = invocation.form(), configured_dirs(env, option_items(invocation, "spec-dir"))
    paths = tuple(invocation.args[1:])
    good, problems, warnings = validate(paths, dirs, env)
    if not (paths or good or problems):
        warnings += (f"no CDI file: {_looked_in(dirs, env)}",)
    if form == "json":
        files = [{"path": path, "devices": count} for path, count in good]
        answer = {"files": files, "problems": list(problems), "warnings": list(warnings)}
        write_stdout(dumps(answer, 2) + "\n")
        return 1 if problems else 0
    write_lines([f"{path}: good, {count} devices" for path, count in good])
    for text in (*warnings, *problems):
        write_stderr(f"gpurun: {text}")
    return 1 if problems else 0


def _looked_in(dirs: tuple[str, ...], env: Mapping[str, str]) -> str:
    """What *dirs*, in which no device is, have instead, and what to do."""
    looked_in = []
    for directory in dirs:
        try:
            files = sum(1 for name in os.listdir(directory) if name.endswith((".json", ".yaml")))
            looked_in.append(f"{directory} (files: {files})" if files else f"{directory} (no .json and no .yaml)")
        except OSError as e:
            looked_in.append(f"{directory} ({strerror_lower(e.errno or 0)})")
    return f"looked in {', '.join(looked_in)}; {_advice(dirs, env)}"


def _advice(dirs: tuple[str, ...], env: Mapping[str, str]) -> str:
    """What writes the file of each maker's GPUs that this host has."""
    makers = [vendor for vendor, *_ in count_gpus(env)]
    if not makers and detect(roots_from_environment(env)):
        makers = [VENDORS[0]]  # whose GPU is no PCI card there
    said = [generate_advice(dirs, vendor) for vendor in makers]
    return ", ".join(said) or f"this host has no GPU that a CDI file could describe{offers_text(env)}"


def configured_dirs(env: Mapping[str, str], given: tuple[str, ...]) -> tuple[str, ...]:
    """The directories *given*, else those of the site's configuration, else the usual ones."""
    return given or spec_dirs(read_settings(settings_path(env)), env)


def list_devices(dirs: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(qualified names of all devices in *dirs*, sorted; what is wrong with files and names there)."""
    registry = read_registry(dirs)
    return tuple(sorted(registry.devices)), tuple([text for _, text in registry.errors])


def validate(
    paths: tuple[str, ...], dirs: tuple[str, ...], env: Mapping[str, str]
) -> tuple[tuple[tuple[str, int], ...], tuple[str, ...], tuple[str, ...]]:
    """((good file, its devices), ...), problems and warnings of the files *paths*, or of all in *dirs*.

    Returns (good files, problems, warnings).
    """
    good: list[tuple[str, int]] = []
    if not paths:
        registry = read_registry(dirs)
        good = [(file.path, len(file.spec.devices)) for file in registry.files]
        warnings = stale_files(registry, roots_from_environment(env))
        return tuple(good), tuple([text for _, text in registry.errors]), warnings
    problems = []
    files = []
    for path in paths:
        if not path.endswith((".json", ".yaml")):
            problems.append(f"{path}: no runtime reads it: the name must end in .json or .yaml")
            continue
        try:
            files.append(SpecFile(path, 0, read_spec_file(path)))
            good.append((path, len(files[-1].spec.devices)))
        except ConfigError as e:
            problems.append(str(e))
    named = Registry(tuple(files), {}, ())
    return tuple(good), tuple(problems), stale_files(named, roots_from_environment(env))


def _transform(invocation: Invocation) -> int:
    source = invocation.option("input", "-")
    if not invocation.option("from"):
        raise UsageError("--from is missing: it names the root to replace")
    if source == "-" and not (data := sys.stdin.buffer.read()).strip():
        raise GpurunError("stdin: is empty: give a CDI file there, or name one with --input")
    spec = parse_spec(data, "stdin") if source == "-" else read_spec_file(source)
    new = transform_root(spec, invocation.option("from"), invocation.option("to"), invocation.option("relative-to", "host"))
    try:
        write_spec(new, invocation.option("output"), "json" if source.endswith(".json") else "")
    except OSError as e:
        raise StepError("write", invocation.option("output"), e.errno) from None
    return 0
