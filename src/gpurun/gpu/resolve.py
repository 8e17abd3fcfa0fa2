"""The one question the engine asks of this room: what do the GPUs add to this container?

A container that asks for nothing pays for one look at the names of its variables and one failed look for the site's
policy; nothing else of the room is imported.
"""

from __future__ import annotations

import posix

from gpurun.errors import GpuError
from gpurun.gpu.request.injected import has_gpus
from gpurun.gpu.vendors import ASKING, EVERY_MAKER, VENDORS, module
from gpurun.oci.annotations import GPU_MEMORY, GPU_THREADS
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from gpurun.cdi.edits import ContainerEdits
    from gpurun.gpu.request.free import FreeRequest
    from gpurun.gpu.request.injected import Injected
    from gpurun.gpu.request.share import Share
    from gpurun.gpu.vendors import Vendor

    #: Called with the edits as they are known so far, before the host is changed; raises when the container is refused.
    Check = Callable[[ContainerEdits], None]
    #: A request for free GPUs to (the names of those that the container gets, warnings).
    Allocate = Callable[[FreeRequest], tuple[tuple[str, ...], tuple[str, ...]]]
    Sharer = Callable[[Share, ContainerEdits, Injected | None], ContainerEdits]

#: Who is asked for free GPUs without being the runtime.
NO_LESSOR = (
    "free GPUs are leased by gpurun as the container's runtime: name the devices here (a hook and CDI files know no "
    "container that a lease could end with)"
)
NO_SHARER = "a share of a GPU needs gpurun as the container's runtime; a hook cannot give one"
_SHARE_VARIABLES = ("GPURUN_GPU_MEMORY=", "GPURUN_GPU_THREADS=")
_SHARE_ANNOTATIONS = (GPU_MEMORY, GPU_THREADS)


def may_ask(env: tuple[str, ...]) -> bool:
    """Whether a container with that ``process.env`` will most likely get edits: found out before the host is looked at."""
    return any(e.startswith(ASKING) for e in env)


def may_share(env: tuple[str, ...], annotations: Mapping[str, str]) -> bool:
    """Whether a container with that ``process.env`` may ask for a share of a GPU: found out at once."""
    return any(e.startswith(_SHARE_VARIABLES) for e in env) or any(name in annotations for name in _SHARE_ANNOTATIONS)


class Inquiry(Record):
    """What :func:`gpu_edits` is asked: a container's own words, and what holds for them on this host.

    *env* is its ``process.env``; *privileged*: its bounding set has CAP_SYS_ADMIN.  *own_env* is the environment of gpurun
    itself (GPURUN_SYSROOT); *settings* are read from the site's configuration file unless given; *mounts* are the (source,
    destination) of the config's.  *injected* is what an engine may have put into the config for devices: known hooks of CDI
    files are done by gpurun, and for GPUs that are there in any way /proc/driver/nvidia is filtered.  Without *files* CDI
    devices are refused (from outside, not all that they may bring can be given).  With *prepare* and a host that lacks
    device nodes or modules, ``nvidia-modprobe`` is run where there is one (unless ``load-kmods`` says no); else nothing is
    changed.  *prepare* is called first, and what it raises leaves the host untouched (:func:`no_check` has no objection).
    *cache* is a directory for answers by the site's own settings (:mod:`gpurun.gpu.nvidia.discovery_cache`), empty for none.
    *allocate* puts names in the place of ``free:N`` in a request (:mod:`gpurun.gpu.leases`), which is refused without one;
    so is a share of a GPU without *sharer*, which adds what it takes to the edits.  *running*: these come beside what the
    container has, so what is made once for all of its GPUs is left out.
    """

    env: tuple[str, ...]
    annotations: Mapping[str, str]
    privileged: bool
    own_env: Mapping[str, str]
    settings: Any = None  # gpurun.gpu.nvidia.request.settings.Settings
    mounts: tuple[tuple[str, str], ...] = ()
    injected: Injected | None = None
    files: bool = True
    prepare: Check | None = None
    cache: str = ""
    allocate: Allocate | None = None
    sharer: Sharer | None = None
    running: bool = False


class GpuAnswer(Record):
    """What a request brings, None for nothing; *cacheable*: it depends on nothing but what the discovery cache looks at
    (:mod:`gpurun.gpu.host.facts`)."""

    edits: ContainerEdits | None = None
    cacheable: bool = False


def gpu_edits(asked: Inquiry) -> ContainerEdits | None:
    """The edits for a container that asks so, or ``None`` when it asks for no GPU.

    Raises :class:`ConfigError` for a bad request or configuration, :class:`GpuError` for a host that cannot serve it.
    """
    share = _share(asked)
    said = asked.env
    if any(e.startswith(f"{EVERY_MAKER}=") for e in said):
        from gpurun.gpu.visible import makers_words

        asked = replace(asked, env=makers_words(said, asked.own_env))
    made: ContainerEdits | None = None
    given: list[str] = []
    for vendor in VENDORS:
        if _concerns(vendor, asked):
            try:
                found = module(vendor.name, "resolve").edits_of(asked)
            except GpuError as e:
                e.args = (_with_offers(str(e), vendor, asked),)
                raise
            made = both(made, found)
            given += [vendor.name] if found is not None and found.device_nodes else []
    if asked.env is not said:
        from gpurun.gpu.visible import with_names

        made = with_names(made, said, asked.env, frozenset(given))
    if share is not None and asked.sharer is not None:
        from gpurun.cdi.edits import ContainerEdits

        made = asked.sharer(share, made or ContainerEdits(), asked.injected)
    for vendor in VENDORS:
        if vendor.limits and asked.files and any(e.startswith(vendor.limits) for e in asked.env):
            made = module(vendor.name, "resolve").with_limits(made, asked)
    return made


def _with_offers(text: str, vendor: Vendor, asked: Inquiry) -> str:
    """*text*, an error about GPUs of *vendor*; where this host has nothing of the kind at all, with what it has instead."""
    from gpurun.gpu.offers import accelerators, count_gpus, idle_cards, offers_text
    from gpurun.gpu.surveys import is_silence

    if is_silence(text):
        return text  # what else the host has would be asked of the same driver
    accelerator = vendor.accelerators[0]
    if accelerator and any(e.startswith(f"{accelerator}=") for e in asked.env):
        return text if vendor in [row for row, _ in accelerators(asked.own_env)] else text + offers_text(asked.own_env)
    if vendor in [row for row, *_ in count_gpus(asked.own_env)]:
        return text
    return f"{text}{''.join([f'; {idle}' for idle in idle_cards(asked.own_env, (vendor,))])}{offers_text(asked.own_env)}"


def both(one: ContainerEdits | None, other: ContainerEdits | None) -> ContainerEdits | None:
    """*one*, then *other*, as far as they are there."""
    if one is None or other is None:
        return one or other
    from gpurun.cdi.edits import combine

    return combine(one, other)


def _concerns(vendor: Vendor, asked: Inquiry) -> bool:
    """Whether the room of *vendor* has to be asked: found out without importing it."""
    if any(e.startswith(vendor.prefixes) for e in asked.env):
        return True
    if vendor.site_file and (asked.settings is not None or has_settings(vendor, asked.own_env)):
        return True
    injected = asked.injected if vendor.cdi_programs else None
    return injected is not None and (has_hooks(vendor, injected) or has_gpus(injected, vendor))


def has_hooks(vendor: Vendor, injected: Injected) -> bool:
    """Whether the config has hooks of CDI files of *vendor*, which gpurun does itself."""
    hooks = (*injected.hooks, *injected.runtime_hooks)
    return any(hook.path.rpartition("/")[2] in vendor.cdi_programs for hook in hooks)


def replace_engine_hooks(injected: Injected, own_env: Mapping[str, str]) -> ContainerEdits | None:
    """The edits that are made in the place of an engine's own CDI hooks, and of mounts that those are about, if any."""
    made: ContainerEdits | None = None
    for vendor in VENDORS:
        if has_hooks(vendor, injected):
            made = both(made, module(vendor.name, "resolve").take_over(injected, own_env))
    return made


def has_settings(vendor: Vendor, own_env: Mapping[str, str]) -> bool:
    """Whether there may be a configuration file: it can name other variables to ask with (``swarm-resource``)."""
    if any(own_env.get(name) for name in vendor.site_variables):
        return True
    try:
        posix.stat(vendor.site_file)
    except OSError:
        return False
    return True


def _share(asked: Inquiry) -> Share | None:
    """The share of a GPU that is asked for, if any; raises where it cannot be given."""
    if not may_share(asked.env, asked.annotations):
        return None
    from gpurun.gpu.request.share import read_share

    share = read_share(asked.env, asked.annotations)
    if share is not None and asked.sharer is None:
        raise GpuError(NO_SHARER)
    return share


def no_check(edits: ContainerEdits) -> None:
    """The *prepare* of callers that plan nothing which could be refused later."""
