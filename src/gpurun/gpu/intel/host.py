"""Intel's GPUs of a host: those of i915 and xe by PCI address, virtual functions among them.

A GPU that has virtual functions is not offered itself: its memory and time are theirs.
"""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.gpu.host.drm import DrmDevice, devices_of_driver, distinct, hexadecimal
from gpurun.gpu.host.reads import names_in, read_attribute
from gpurun.record import Record

DRIVERS = ("i915", "xe")
INTEL = 0x8086
#: Names of Intel's cards with memory of their own (pci.ids); others are called by their number.
_MODELS = {
    0x0BD5: "Intel Data Center GPU Max 1550", 0x0BDA: "Intel Data Center GPU Max 1100",
    0x56A0: "Intel Arc A770", 0x56A1: "Intel Arc A750", 0x56A2: "Intel Arc A580", 0x56A5: "Intel Arc A380",
    0x56C0: "Intel Data Center GPU Flex 170", 0x56C1: "Intel Data Center GPU Flex 140",
    0xE20B: "Intel Arc B580", 0xE20C: "Intel Arc B570", 0xE211: "Intel Arc Pro B60", 0xE212: "Intel Arc Pro B50",
}  # fmt: skip


class IntelGpu(Record):
    """A GPU, or a virtual function of one; *memory* is in bytes, -1 where the driver does not tell it (i915)."""

    index: int
    drm: DrmDevice
    model: str
    memory: int = -1

    @property
    def key(self) -> str:
        """Its PCI address: numbers of its nodes may change at the next boot."""
        return self.drm.name

    @property
    def qualified(self) -> str:
        """Its key among the GPUs of all makers."""
        return f"intel:{self.key}"

    @property
    def label(self) -> str:
        """What a sentence calls it."""
        more = f", a virtual function of {self.drm.physfn}" if self.drm.physfn else ""
        return f"Intel GPU {self.index} ({self.key}{more})"

    @property
    def cdi_names(self) -> tuple[str, ...]:
        """Its names in CDI files: of the card, as Intel's tools wrote first, and of address and PCI id, as they do now."""
        card = (self.drm.card.path.rpartition("/")[2],) if self.drm.card is not None else ()
        return (*card, f"{self.key.replace(':', '-').replace('.', '-')}-{self.drm.device:#06x}")


def intel_gpus(sysroot: str) -> tuple[IntelGpu, ...]:
    """The GPUs of the host below *sysroot* (empty for ``/``), by PCI address."""
    offered = [device for device in _devices(sysroot) if not device.functions]
    ordered = distinct(sorted(offered, key=lambda device: device.name))
    return tuple(
        [
            IntelGpu(i, device, _MODELS.get(device.device, f"Intel GPU {device.device:#06x}"), _memory(device.path))
            for i, device in enumerate(ordered)
        ]
    )


def divided_gpus(sysroot: str) -> tuple[DrmDevice, ...]:
    """The GPUs that have virtual functions, by PCI address."""
    return distinct(sorted([device for device in _devices(sysroot) if device.functions], key=lambda device: device.name))


def _devices(sysroot: str) -> list[DrmDevice]:
    found = [device for driver in DRIVERS for device in devices_of_driver(sysroot, driver)]
    return [device for device in found if device.vendor == INTEL]


def _memory(path: str) -> int:
    """Bytes of the memory of all tiles, which xe tells."""
    total = 0
    for name in names_in(path):
        if name.startswith("tile") and decimal(name[4:], 64) is not None:
            text = read_attribute(f"{path}/{name}/physical_vram_size_bytes", 64)
            total += hexadecimal(text, 1 << 50) if text.startswith("0x") else decimal(text, 1 << 50) or 0
    return total or -1
