"""AMD's GPUs that cannot be relied on: fallen off the bus, or with errors that no code has corrected.

amdgpu counts errors by block since it was loaded, and asks the GPU for each count: a driver that hangs does not answer.
AMD's exporter calls a GPU with any uncorrectable error unhealthy, and AMD's device plugin then offers it no more.
"""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.gpu.host.pci import OFF_THE_BUS, is_off_the_bus
from gpurun.gpu.host.reads import names_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpurun.gpu.amd.host import AmdGpu

_MOST_BLOCKS = 64
_SUFFIX = "_err_count"
#: What a block's file of errors calls its two counts, and how AMD's exporter does.
_CORRECTED, _UNCORRECTED = ("ce", "correct"), ("ue", "uncorrect")


def unwell(sysroot: str, gpus: Iterable[AmdGpu], ask: bool) -> dict[str, str]:
    """PCI address → what is wrong, of those of *gpus* that cannot be relied on; those that are silent are left out.

    Without *ask* the driver is not asked for errors; with it, one that does not answer in time is unwell as well.
    """
    boards = {gpu.pci: f"{sysroot}/sys/bus/pci/devices/{gpu.pci}" for gpu in gpus if not gpu.silent}
    found = {pci: OFF_THE_BUS for pci, path in boards.items() if is_off_the_bus(path)}
    files = {pci: tuple(error_files(path).values()) for pci, path in boards.items() if pci not in found} if ask else {}
    if not any(files.values()):
        return found
    from gpurun.gpu.host.driver_reads import read_in_time, silence

    told = read_in_time([paths for paths in files.values() if paths])
    for pci, paths in files.items():
        silent = next((path for path in paths if path not in told), "")
        texts = {name: told.get(path, "") for name, path in error_files(boards[pci]).items()}
        ill = silence(silent) if silent else uncorrectable(error_counts(texts))
        if ill:
            found[pci] = ill
    return found


def error_files(path: str) -> dict[str, str]:
    """Block → the file that counts its errors, of the GPU whose directory in sysfs is *path*."""
    try:
        names = [name for name in names_in(f"{path}/ras") if name.endswith(_SUFFIX)][:_MOST_BLOCKS]
    except OSError:
        return {}
    return {name.removesuffix(_SUFFIX): f"{path}/ras/{name}" for name in names}


def error_counts(texts: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """(``correct_umc``, how many) of each block in *texts*, which are by block what its file says.  Pure."""
    found = []
    for block, text in texts.items():
        lines = dict([line.partition(":")[::2] for line in text.splitlines()])
        for word, kind in (_CORRECTED, _UNCORRECTED):
            count = decimal(lines.get(word, "").strip())
            if count is not None and block.replace("_", "").isalnum() and block.isascii():
                found.append((f"{kind}_{block}", count))
    return tuple(found)


def uncorrectable(errors: tuple[tuple[str, int], ...]) -> str:
    """Errors that no code has corrected, as a sentence goes on; a GPU that has had any counts as unhealthy.  Pure."""
    count = sum([number for name, number in errors if name.startswith(f"{_UNCORRECTED[1]}_")])
    return f"{count} uncorrectable errors of its memory or blocks since the driver was loaded" if count else ""
