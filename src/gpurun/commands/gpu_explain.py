"""gpu explain: what a request for GPUs brings into a container, each thing with its reason, and what it does not bring.

The request is a bundle, or variables as a container would have them: ``NVIDIA_VISIBLE_DEVICES=0``
``NVIDIA_DRIVER_CAPABILITIES=all``.  Nothing is changed, and no container is needed.
"""

from __future__ import annotations

import os

from gpurun.cdi.edits import ContainerEdits
from gpurun.cli.terminal import write_wrapped
from gpurun.engine.gpus.device_edits import with_site
from gpurun.errors import GpurunError, UsageError
from gpurun.formats.jsontext import dumps
from gpurun.gpu.explain import Item, Question, edit_items, missing_items
from gpurun.gpu.nvidia.host.driver import read_driver
from gpurun.gpu.nvidia.host.file_names import library_capabilities
from gpurun.gpu.nvidia.request.environment import read_request
from gpurun.gpu.nvidia.request.settings import roots_of, site_settings
from gpurun.gpu.request.free import read_free_request
from gpurun.gpu.resolve import Inquiry, gpu_edits, may_share
from gpurun.gpu.vendors import VENDORS, is_free
from gpurun.gpu.visible import makers_words
from gpurun.output import write_stdout
from gpurun.paths import absolute_path
from gpurun.record import replace, to_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gpurun.gpu.nvidia.request.records import GpuRequest

_TITLES = {
    "environment": "environment",
    "group": "groups of the process",
    "node": "device nodes, allowed in the device cgroup",
    "class": "devices that may be used beside the nodes",
    "file": "files and programs, bound from the host",
    "link": "links",
    "cache": "libraries for the loader's cache",
    "private": "files that gpurun writes, and parts of /proc",
    "limit": "GPU memory that the container may hold",
    "hook": "hooks",
    "warning": "warnings",
}
#: The variables of other makers than NVIDIA, whose requests have no capabilities.
_OTHERS = tuple([name for vendor in VENDORS[1:] for name in (vendor.variable, vendor.accelerators[0]) if name])


def explain(words: tuple[str, ...], env: Mapping[str, str], form: str) -> int:
    """``gpu explain BUNDLE|NAME=VALUE...``; exit code 1 when the container would not be made."""
    answer = answer_for(question(words), env)
    if form == "json":
        write_stdout(dumps(answer, 2) + "\n")
    else:
        write_wrapped(lines_of(answer))
    return 1 if answer["error"] else 0


def question(words: tuple[str, ...]) -> Question:
    """What the arguments ask about.  Raises :class:`GpurunError`."""
    if not words:
        raise UsageError("gpu explain: name a bundle, or variables such as NVIDIA_VISIBLE_DEVICES=all")
    if all("=" in word and "/" not in word.partition("=")[0] for word in words):
        return Question(words)
    if len(words) > 1:
        raise UsageError("gpu explain: one bundle, or variables, but not both")
    from gpurun.engine.caller.bundle import read_bundle
    from gpurun.engine.gpus.device_edits import injected_devices

    config = read_bundle(absolute_path(words[0]), "")[1]
    capabilities = config.process.capabilities
    privileged = capabilities is not None and "CAP_SYS_ADMIN" in capabilities.bounding
    mounts = tuple([(mount.source, mount.destination) for mount in config.mounts])
    return Question(config.process.env, config.annotations, privileged, mounts, injected_devices(config))


def answer_for(asked: Question, env: Mapping[str, str]) -> dict[str, Any]:
    """The document of the JSON form: ``request``, ``driverVersion``, ``items``, ``missing`` and ``error``.

    ``items`` have ``kind``, ``path``, ``source``, ``reason``; ``missing`` ``what`` and ``reason``; ``error`` is why create
    would fail.
    """
    answer: dict[str, Any] = {"request": None, "driverVersion": "", "items": [], "missing": [], "error": ""}
    try:
        settings = site_settings(env)
        said = makers_words(asked.env, env)
        request = read_request(said, asked.annotations, asked.privileged, settings.policy, asked.mounts)
        answer["request"] = _request(request) if request is not None else _other_request(said)
        own_env = with_site(dict(env), {os.fsencode(name): os.fsencode(value) for name, value in env.items()})
        question = (asked.env, asked.annotations, asked.privileged, own_env, settings, asked.mounts, asked.injected)
        edits = gpu_edits(_with_previews(Inquiry(*question), env))
    except GpurunError as e:
        return answer | {"error": str(e)}
    if edits is None:
        return answer
    answer["items"] = [to_plain(item) for item in edit_items(edits)]
    if request is None or request.denied or edits == ContainerEdits() or _is_others(request):
        return answer
    try:
        driver = read_driver(roots_of(env, settings), request.capabilities, env)
    except GpurunError:  # WSL, a Tegra, devices of CDI files: no table says what these might have as well
        return answer
    missing = missing_items(driver, library_capabilities(request.capabilities), "compat32" in request.capabilities)
    return answer | {"driverVersion": driver.version, "missing": [{"what": m.path, "reason": m.reason} for m in missing]}


def _is_others(request: GpuRequest) -> bool:
    """Whether NVIDIA's variable asks for free GPUs of another maker, which get nothing of NVIDIA's driver."""
    words = request.devices
    own = VENDORS[0].name
    return len(words) == 1 and is_free(words[0]) and read_free_request(words[0], request.source, own).vendor != own


def _with_previews(asked: Inquiry, env: Mapping[str, str]) -> Inquiry:
    """*asked*, with what looks which free GPU or which share would be given now."""
    if may_share(asked.env, asked.annotations):
        from gpurun.engine.gpus.shares import preview_sharing

        sharing = preview_sharing(asked.env, asked.annotations, asked.mounts, env)
        if sharing is not None:
            return replace(asked, allocate=sharing.free, sharer=sharing.give)
    from gpurun.engine.gpus.leases import preview

    return replace(asked, allocate=lambda request: preview(request, env))


def _request(request: GpuRequest) -> dict[str, Any]:
    return {
        "source": request.source,
        "devices": list(request.devices or request.qualified),
        "capabilities": list(request.capabilities),
        "requirements": list(request.requirements),
        "extras": list(request.extras),
        "denied": request.denied,
    }


def _other_request(env: tuple[str, ...]) -> dict[str, Any] | None:
    """The request in *env* for GPUs of another maker than NVIDIA, which have no capabilities; None for none."""
    values = dict([entry.partition("=")[::2] for entry in env])
    for variable in _OTHERS:
        value = values.get(variable, "")
        if value not in ("", "void"):
            nothing: dict[str, Any] = {"capabilities": [], "requirements": [], "extras": [], "denied": ""}
            return {"source": variable, "devices": value.split(",")} | nothing
    return None


def lines_of(answer: dict[str, Any]) -> list[str]:
    """The document for people, as it comes: not escaped."""
    request = answer["request"]
    lines = []
    if request is None and not answer["error"]:
        given = "no GPU is asked for, but the config has the nodes of GPUs or hooks of CDI devices"
        lines.append(given if answer["items"] else "no GPU is asked for: nothing is added")
    if request is not None:
        lines += [f"asked for by {request['source']}", f"  devices: {', '.join(request['devices']) or 'none'}"]
        if request["source"] not in _OTHERS:
            lines.append(f"  capabilities: {', '.join(request['capabilities']) or 'none'}")
        lines += [f"  requirement: {r}" for r in request["requirements"]]
        lines += [f"  also: {e}" for e in request["extras"]]
    for kind, title in _TITLES.items():
        items = [item for item in answer["items"] if item["kind"] == kind]
        lines += [title, *[f"  {_line(item)}" for item in items]] if items else []
    if answer["missing"]:
        lines += ["not on this host", *[f"  {m['what']}   ({m['reason']})" for m in answer["missing"]]]
    if answer["error"]:
        lines.append(f"create would fail: {answer['error']}")
    return lines


def _line(item: dict[str, Any]) -> str:
    made: Item = Item(item["kind"], item["path"], item["source"], item["reason"])
    arrow = {"link": "->", "cache": "=>"}.get(made.kind, "from")
    source = f"  {arrow} {made.source}" if made.source and made.source != made.path else ""
    return f"{made.path}{source}" + (f"   ({made.reason})" if made.reason else "")
