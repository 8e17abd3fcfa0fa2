"""GPUs that cannot work: fallen off the bus, lost to the driver, or in need of a reset.

Three witnesses are asked.  The PCI configuration space of a card that does not answer any more reads as all ones.  NVML
leaves such a GPU out, or says that it is lost, or which recovery it needs.  Where NVML does not answer at all, which a lost
GPU often causes, the kernel's log is read for Xid errors after which the driver uses a GPU no more.
"""

from __future__ import annotations

from gpurun.gpu.host.pci import OFF_THE_BUS, is_off_the_bus
from gpurun.gpu.nvidia.host.roots import bus_order
from gpurun.linux.kmsg import kernel_messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from gpurun.gpu.nvidia.host.gpus import Gpu
    from gpurun.gpu.nvidia.host.roots import Roots

#: Xid errors (NVIDIA's list) after which a GPU does nothing more until it is reset.
FATAL_XIDS = {
    62: "its internal micro-controller has halted",
    79: "it has fallen off the bus",
    95: "an uncontained memory error",
    119: "its system processor does not answer",
    120: "an error of its system processor",
}
_XID = b"NVRM: Xid (PCI:"


def unwell(
    roots: Roots, gpus: Sequence[Gpu], answer: Mapping[str, Any] | None = None, silent: bool = False
) -> dict[str, str]:
    """Bus id in lower case → what is wrong with the GPU, of those that cannot work.

    *answer* is NVML's (:func:`gpurun.gpu.nvidia.host.nvml.query`), where it was asked; *silent*: it was, and has not
    answered.
    """
    found = of_answer([gpu.bus_id for gpu in gpus], answer) if answer is not None else {}
    if silent:
        found |= of_log([gpu.bus_id for gpu in gpus], kernel_messages(f"{roots.sysroot}/dev/kmsg"))
    for gpu in gpus:
        if _is_off_the_bus(roots, gpu.bus_id):
            found[gpu.bus_id.lower()] = OFF_THE_BUS
    return found


def _is_off_the_bus(roots: Roots, bus_id: str) -> bool:
    domain, _, rest = bus_id.partition(":")
    return is_off_the_bus(f"{roots.sysroot}/sys/bus/pci/devices/{domain.lstrip('0'):0>4}:{rest}".lower())


def of_answer(bus_ids: Sequence[str], answer: Mapping[str, Any]) -> dict[str, str]:
    """What NVML's *answer* says against the GPUs with these *bus_ids*.  Pure."""
    by_bus = {bus_order(str(gpu["busId"])): gpu for gpu in answer["gpus"] if gpu.get("busId")}
    errors = sorted({str(gpu["error"]) for gpu in answer["gpus"] if gpu.get("error")})
    if not by_bus and not errors:
        return {}  # a driver that tells no bus ids
    found = {}
    for bus_id in bus_ids:
        known = by_bus.get(bus_order(bus_id))
        if known is None:
            found[bus_id.lower()] = f"NVML cannot use it: {'; '.join(errors) or 'it is not in its list'}"
        elif known.get("recoveryAction") not in (None, "none"):
            found[bus_id.lower()] = f"the driver says that it needs recovery: {known['recoveryAction']}"
        elif known.get("rowRemapFailure"):
            found[bus_id.lower()] = "a damaged row of its memory could not be replaced"
    return found


def of_log(bus_ids: Sequence[str], messages: Iterable[bytes]) -> dict[str, str]:
    """Which of the GPUs the kernel's log *messages* say that the driver has given up, by their last fatal Xid.  Pure."""
    known = {bus_id.lower().rpartition(".")[0]: bus_id.lower() for bus_id in bus_ids}
    known |= {f"{name.partition(':')[0][-4:]}:{name.partition(':')[2]}": bus_id for name, bus_id in known.items()}
    found = {}
    for message in messages:
        at = message.find(_XID)
        if at < 0:
            continue
        bus, _, rest = message[at + len(_XID) :].partition(b")")
        digits = rest.lstrip(b": ").partition(b",")[0].strip()
        bus_id = known.get(bus.decode("ascii", "replace").lower(), "")
        if bus_id and digits.isdigit() and len(digits) < 5 and int(digits) in FATAL_XIDS:
            found[bus_id] = f"Xid {int(digits)}: {FATAL_XIDS[int(digits)]}"
    return found
