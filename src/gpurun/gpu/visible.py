"""GPURUN_VISIBLE_DEVICES: GPUs of any maker, said as the variables of their makers that say the same.

Words between commas: a PCI address, the name of a card or render node (``card1``), ``vendor:index``, or another name that
`gpurun gpu list` shows; ``all``; ``none``; ``free:2;vendor=intel``.  Where it is set and not empty the makers' own variables
do not count, so what an image says of one maker's GPUs brings none beside those that are named here.
"""

from __future__ import annotations

from gpurun.cdi.edits import ContainerEdits
from gpurun.errors import ConfigError, GpuError, clean
from gpurun.gpu.device import whole_keys
from gpurun.gpu.host.access import NOT_OF_THE_JOB, closed_by_job
from gpurun.gpu.vendors import EVERY_MAKER, VENDORS, is_free, module, place, present
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.gpu.device import GpuDevice

#: Words that a value may have; no host has more GPUs and parts of them.
_MOST_WORDS = 1024
_NONE = ("none", "void")


def makers_words(env: tuple[str, ...], own_env: Mapping[str, str]) -> tuple[str, ...]:
    """*env* with the variables of makers in the place of GPURUN_VISIBLE_DEVICES; as it is where that says nothing.

    Raises :class:`ConfigError` for a value that cannot be read, :class:`GpuError` for a GPU that this host does not have.
    """
    values = [entry.partition("=")[2] for entry in env if entry.startswith(f"{EVERY_MAKER}=")]
    value = values[-1].strip() if values else ""
    if not value:
        return env
    names = _free(value, own_env) if is_free(value) else _names_by_vendor(value, own_env)
    without = tuple([entry for entry in env if not entry.startswith(tuple([f"{v.variable}=" for v in VENDORS]))])
    asked = [f"{vendor.variable}={names[vendor.name]}" for vendor in VENDORS if vendor.name in names]
    # An image that says nothing but CUDA_VERSION asks for GPUs as well.
    unasked = [
        vendor for vendor in VENDORS if vendor.name not in names and any(e.startswith(vendor.prefixes) for e in without)
    ]
    return (*without, *asked, *[f"{vendor.variable}=void" for vendor in unasked])


def with_names(
    made: ContainerEdits | None, env: tuple[str, ...], words: tuple[str, ...], given: frozenset[str]
) -> ContainerEdits | None:
    """*made*, with what the container's programs read in the place of its *env*, which :func:`makers_words` has read as
    *words*: each maker's variable names its GPUs that were given, or is ``void``, and this one names all of them.

    *given* are the names of the makers of which it gets devices: a site's policy may deny those of one.
    What an image says of GPUs that the container does not have would be believed by its programs.
    """
    values = dict([entry.partition("=")[::2] for entry in (*words, *(made.env if made is not None else ()))])
    before = dict([entry.partition("=")[::2] for entry in env])
    set_here, names = [], []
    for vendor in VENDORS:
        said = before.get(vendor.variable, "")
        value = values.get(vendor.variable, "")
        if vendor.name not in given and value not in ("", *_NONE):
            value = "void"
        value = value or ("void" if said not in ("", *_NONE) else "")
        if value and vendor.variable != EVERY_MAKER and value != said:
            set_here.append(f"{vendor.variable}={value}")
        if value not in ("", *_NONE):
            names.append(value)
    if made is None and not set_here:  # nothing but this variable, which says none
        return None
    kept = tuple([entry for entry in (made.env if made is not None else ()) if not entry.startswith(f"{EVERY_MAKER}=")])
    added = [entry for entry in set_here if entry not in kept]
    return replace(made or ContainerEdits(), env=(*kept, *added, f"{EVERY_MAKER}={','.join(names) or 'none'}"))


def _free(value: str, own_env: Mapping[str, str]) -> dict[str, str]:
    """Vendor → *value*, which asks for free GPUs: of the maker that it names, else of the only one that this host has."""
    from gpurun.gpu.request.free import read_free_request

    vendor = read_free_request(value, EVERY_MAKER).vendor
    makers = [row.name for row in present(own_env)]
    if not vendor and len(makers) > 1:
        what = f"'{clean(value)}': this host has GPUs of {' and '.join(makers)}, say which: 'free;vendor={makers[0]}'"
        raise ConfigError(place(EVERY_MAKER), what)
    if not vendor and not makers:
        raise GpuError(f"'{clean(value)}' ({place(EVERY_MAKER)}): {_nothing(own_env)}")
    return {vendor or makers[0]: value}


def _names_by_vendor(value: str, own_env: Mapping[str, str]) -> dict[str, str]:
    """Vendor → the names that its GPUs have in its own variable."""
    if value in _NONE:
        return {}
    words = [word.strip() for word in value.split(",", _MOST_WORDS)]
    if len(words) > _MOST_WORDS:
        raise ConfigError(place(EVERY_MAKER), f"it has more than {_MOST_WORDS} words")
    units = tuple(
        [unit for row in present(own_env) for unit in module(row.name, "survey").survey(own_env, False, True).units]
    )
    divided = whole_keys(units)
    whole = [unit for unit in units if unit.key not in divided]
    if words == ["all"]:
        if not whole:
            raise GpuError(f"all ({place(EVERY_MAKER)}): {_nothing(own_env)}")
        closed = closed_by_job([node.host_path for unit in whole for node in unit.nodes])
        chosen = [unit for unit in whole if not any(node.host_path in closed for node in unit.nodes)]
        if not chosen:
            raise GpuError(f"all ({place(EVERY_MAKER)}): {whole[0].label}: {NOT_OF_THE_JOB}")
    else:
        chosen = [unit for word in words for unit in _find(word, units, own_env)]
    listed: dict[str, list[str]] = {}
    for unit in chosen:
        listed.setdefault(unit.vendor, []).append(unit.name)
    return {vendor: ",".join(dict.fromkeys(names)) for vendor, names in listed.items()}


def _nothing(own_env: Mapping[str, str]) -> str:
    """That this host has no GPU, and what it has instead or could have."""
    from gpurun.gpu.offers import idle_cards, offers_text

    idle = "".join([f"; {text}" for text in idle_cards(own_env)])
    return f"this host has no GPU that gpurun knows{offers_text(own_env)}{idle}"


def _find(word: str, units: tuple[GpuDevice, ...], own_env: Mapping[str, str]) -> tuple[GpuDevice, ...]:
    """The GPU that *word* names; all parts of one that is divided, where its maker's GPUs can be asked for so."""
    wanted = word.lower()
    nodes = f"/dev/dri/{wanted}"
    for unit in units:
        if wanted in (unit.key, f"{unit.vendor}:{unit.index}") and not unit.parent:
            return (unit,)
        if not wanted.isdecimal() and wanted in [name.lower() for name in unit.names]:
            return (unit,)  # a bare number would mean another GPU for each maker
        if any(node.path == nodes for node in (*unit.nodes, *unit.more_nodes)):
            return (unit,)
    parts = tuple([unit for unit in units if wanted and unit.parent == wanted])
    if not parts or _as_divided(wanted, own_env):
        raise GpuError(_refusal(word, units, own_env))
    return parts


def _refusal(word: str, units: tuple[GpuDevice, ...], own_env: Mapping[str, str]) -> str:
    """Why *word* names none of *units*, and what to say instead."""
    from gpurun.gpu.host.naming import makers_list

    said = f"'{clean(word)}' ({place(EVERY_MAKER)})"
    if divided := _as_divided(word.lower(), own_env):
        return f"{said}: {divided}"
    if not units:
        return f"{said}: {_nothing(own_env)}"
    keys = {unit.key for unit in units}
    whole = [unit for unit in units if unit.parent not in keys]  # a MIG device has the index of its GPU
    listed = makers_list([(unit.vendor, unit.index, unit.key) for unit in whole])
    if not word.isdecimal():
        return f"{said} is not a GPU of this host: there are {listed}"
    makers = tuple(dict.fromkeys([unit.vendor for unit in whole]))
    such = [f"'{unit.vendor}:{unit.index}'" for unit in whole if word == str(unit.index)]
    words = " or ".join(such or [f"'{maker}:0'" for maker in makers])
    return f"{said}: a number needs a maker, such as {words}: this host has {listed}"


def _as_divided(word: str, own_env: Mapping[str, str]) -> str:
    """That the GPU *word* has been divided into parts that are asked for one by one; "" for any other word."""
    for row in present(own_env):
        for name, names, parts in getattr(module(row.name, "survey"), "divided", _none_divided)(own_env):
            if word in names:
                listed = ", ".join(parts) or "the drivers of this host have none of them: virtual machines may"
                return f"{name} is divided, and its {row.part}s are what containers get: {listed}"
    return ""


def _none_divided(own_env: Mapping[str, str]) -> tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]:
    """Of makers whose divided GPUs can be asked for by the name of the whole."""
    return ()
