"""Whether a PCI device is a virtual GPU, and which driver of the hypervisor has made it: the vendor's capability says so.

Specification of the list of capabilities: PCI Local Bus 3.0, section 6.7.  The records in NVIDIA's are as GPU feature
discovery reads them: after the letters VF each has a number, its length with these two bytes, and its data; number 0 has the
driver's version and branch, ten bytes each.
"""

from __future__ import annotations

#: The bytes of a configuration space that are needed; a process without CAP_SYS_ADMIN can read 64 of them.
CONFIG_SPACE = 256
_STATUS, _HAS_LIST, _FIRST = 0x06, 0x10, 0x34
_VENDOR_SPECIFIC = 0x09
_SIGNATURE = b"VF"
_RECORDS, _TEXT = 5, 10


def hypervisor_driver(config: bytes) -> tuple[str, str] | None:
    """(version, branch) of the hypervisor's driver, empty where it does not say; None if it is not a virtual GPU."""
    capability = _vendor_capability(config)
    if capability[3:5] != _SIGNATURE:
        return None
    at = _RECORDS
    while at + 2 <= len(capability):
        number, length = capability[at], capability[at + 1]
        if number == 0:
            data = capability[at + 2 : at + 2 + 2 * _TEXT]
            return (_text(data[:_TEXT]), _text(data[_TEXT:])) if len(data) == 2 * _TEXT else ("", "")
        if length < 2:
            break  # a record that does not end
        at += length
    return "", ""


def _vendor_capability(config: bytes) -> bytes:
    """The first capability of the vendor's own; empty where there is none."""
    if len(config) < CONFIG_SPACE or not config[_STATUS] & _HAS_LIST:
        return b""
    at, seen = config[_FIRST], set[int]()
    while at and at not in seen and at + 3 <= len(config):
        seen.add(at)
        if config[at] == _VENDOR_SPECIFIC:
            return config[at : at + config[at + 2]]
        at = config[at + 1]
    return b""


def _text(data: bytes) -> str:
    return data.strip(b"\0").decode("ascii", "replace")
