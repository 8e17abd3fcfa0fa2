"""What this host offers to a request for a GPU that it does not have: the end of an error's sentence.

An error about NVIDIA's GPUs on a host with AMD's names the variable that asks for that host's GPUs; for a card without a
driver it names the module.  This is looked at only when something has failed already.
"""

from __future__ import annotations

import posix

from gpurun.errors import GpurunError
from gpurun.gpu.host.naming import number_text, parts_text
from gpurun.gpu.host.reads import link_text, names_in, read_attribute
from gpurun.gpu.vendors import VENDORS, module, present
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.gpu.vendors import Vendor

#: PCI classes: VGA, 3D and other display controllers, and processing accelerators.
_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
#: No PCI bus has more devices; what is beyond is not looked at.
_MOST_DEVICES = 4096


class Card(Record):
    """A device on the PCI bus that a maker's driver could serve: its address, and the driver that it is bound to, if any."""

    pci: str
    vendor: Vendor
    driver: str = ""


def cards(sysroot: str, vendors: tuple[Vendor, ...] = VENDORS) -> tuple[Card, ...]:
    """The display controllers and accelerators of *vendors* on the PCI bus below *sysroot*, whoever drives them."""
    base = f"{sysroot}/sys/bus/pci/devices"
    by_id = {f"{vendor.pci:#06x}": vendor for vendor in vendors}
    found = []
    for pci in names_in(base)[:_MOST_DEVICES]:
        vendor = by_id.get(read_attribute(f"{base}/{pci}/vendor"))
        if vendor is not None and read_attribute(f"{base}/{pci}/class")[:6] in _CLASSES:
            found.append(Card(pci, vendor, link_text(f"{base}/{pci}/driver").rpartition("/")[2]))
    return tuple(found)


def count_gpus(own_env: Mapping[str, str]) -> tuple[tuple[Vendor, int, int], ...]:
    """(maker, how many GPUs of it containers can have, in how many parts) for each maker of which this host has some.

    The parts are 0 where no GPU is divided, and of those that are divided alone.
    """
    found = []
    for vendor in present(own_env):
        try:
            units = module(vendor.name, "survey").survey(own_env, False).units
        except GpurunError:
            continue  # the question that failed is about another maker's
        if units:
            found.append((vendor, len({unit.gpu_key for unit in units}), len([unit for unit in units if unit.parent])))
    return tuple(found)


def accelerators(own_env: Mapping[str, str]) -> tuple[tuple[Vendor, int], ...]:
    """(maker, how many accelerators of it that are no GPUs) for each maker of which this host has some."""
    base = own_env.get("GPURUN_SYSROOT", "").rstrip("/")
    found = []
    for vendor in VENDORS:
        if vendor.accelerators[0] and posix.access(base + vendor.accelerators[1], posix.F_OK):
            count = len(module(vendor.name, "survey").accelerators(own_env))
            if count:
                found.append((vendor, count))
    return tuple(found)


def offers(own_env: Mapping[str, str]) -> tuple[str, ...]:
    """What this host has, each with the variable that asks for it: ``8 GPUs of AMD's (ask with AMD_VISIBLE_DEVICES)``."""
    gpus = [
        f"{number_text(count, 'GPU')} of {vendor.title}'s{parts_text(parts)} (ask with {vendor.variable})"
        for vendor, count, parts in count_gpus(own_env)
    ]
    others = [
        f"{number_text(count, 'accelerator')} of {vendor.title}'s that {'is not a GPU' if count == 1 else 'are not GPUs'} "
        f"(ask with {vendor.accelerators[0]})"
        for vendor, count in accelerators(own_env)
    ]
    return (*gpus, *others)


def offers_text(own_env: Mapping[str, str]) -> str:
    """:func:`offers` as the end of a sentence: ``; this host has …``.  Empty where it has nothing."""
    there = offers(own_env)
    return f"; this host has {' and '.join(there)}" if there else ""


def generate_advice(dirs: tuple[str, ...], vendor: Vendor) -> str:
    """What to do where no CDI file in *dirs* has the GPUs of *vendor*."""
    directory = dirs[-1] if posix.geteuid() else dirs[0]
    mode = f" --mode {vendor.name}" if vendor is not VENDORS[0] else ""
    return f"`gpurun cdi generate{mode} --output={directory}/{vendor.name}.yaml` describes {vendor.title}'s GPUs"


def no_card(sysroot: str) -> str:
    """That there is no card, where was looked, and for whose."""
    titles = [f"{vendor.title}'s" for vendor in VENDORS]
    return f"no card of {', '.join(titles[:-1])} or {titles[-1]} is on the PCI bus ({sysroot}/sys/bus/pci/devices)"


def none_of_any(own_env: Mapping[str, str]) -> str:
    """Why a host that has no GPU of any maker's has none, and what it has instead, as a sentence."""
    idle = "; ".join(idle_cards(own_env))
    loaded = " and ".join([f"a driver of {row.title}'s is loaded and has no GPU to give" for row in present(own_env)])
    why = idle or loaded or no_card(own_env.get("GPURUN_SYSROOT", "").rstrip("/"))
    return f"no GPU: {why}{offers_text(own_env)}; `gpurun gpu doctor` looks further"


def idle_cards(own_env: Mapping[str, str], vendors: tuple[Vendor, ...] = VENDORS) -> tuple[str, ...]:
    """A sentence for each of *vendors* whose cards no driver of the maker's has: which module to load, or who has them."""
    found: dict[tuple[str, str], list[str]] = {}
    rows, loaded = {}, present(own_env)
    for card in cards(own_env.get("GPURUN_SYSROOT", "").rstrip("/"), vendors):
        if card.driver in card.vendor.modules or (not card.driver and card.vendor in loaded):
            continue  # one that its loaded driver does not want is the doctor's business
        rows[card.vendor.name] = card.vendor
        found.setdefault((card.vendor.name, card.driver), []).append(card.pci)
    return tuple([_idle(rows[name], driver, addresses) for (name, driver), addresses in found.items()])


def _idle(vendor: Vendor, driver: str, addresses: list[str]) -> str:
    many = len(addresses) > 1
    what = (
        f"the card{'s' if many else ''} {', '.join(addresses[:8])}{', …' if len(addresses) > 8 else ''} of {vendor.title}'s"
    )
    if driver:
        return f"{what} {'are' if many else 'is'} bound to {driver}: containers cannot have {'them' if many else 'it'}"
    load = " or ".join([f"`modprobe {name}`" for name in vendor.modules])
    return f"{what} {'have' if many else 'has'} no driver: {load}"
