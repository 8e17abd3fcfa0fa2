"""Whether a card still answers on the PCI bus, whoever made it."""

from __future__ import annotations

from gpurun.linux.files import read_regular

OFF_THE_BUS = "it does not answer on the PCI bus: it has fallen off, or is in need of a cold start"
_NO_ANSWER = b"\xff\xff"


def is_off_the_bus(path: str) -> bool:
    """Whether the device whose directory in sysfs is *path* does not answer: its configuration space reads as all ones."""
    try:
        return read_regular(f"{path}/config", len(_NO_ANSWER)) == _NO_ANSWER
    except OSError:
        return False  # not to be read says nothing
