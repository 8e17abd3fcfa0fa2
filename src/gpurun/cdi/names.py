"""Names of the Container Device Interface: ``vendor/class=device``.

Specification: CDI 1.1.0, "Kind" and "CDI JSON Definition".  A check returns what is wrong with a name, or the empty string:
who asks knows where the name stands.
"""

from __future__ import annotations

from gpurun.record import Record

_MIDDLE_KIND = "_-."
_MIDDLE_DEVICE = "_-.:"


class QualifiedName(Record):
    """A fully qualified device name, taken apart."""

    vendor: str
    cls: str
    device: str

    @property
    def kind(self) -> str:
        """``vendor/class``, as in the ``kind`` of a CDI file."""
        return f"{self.vendor}/{self.cls}"

    def __str__(self) -> str:
        return f"{self.vendor}/{self.cls}={self.device}"


def parse_qualified(text: str) -> QualifiedName | None:
    """*text* as a fully qualified device name, ``None`` when it is not one."""
    kind, equals, device = text.partition("=")
    vendor, slash, cls = kind.partition("/")
    if not equals or not slash or vendor_problem(vendor) or class_problem(cls) or device_problem(device):
        return None
    return QualifiedName(vendor, cls, device)


def kind_problem(kind: str) -> str:
    """What is wrong with the kind ``vendor/class``."""
    vendor, slash, cls = kind.partition("/")
    if not slash:
        return f'"{kind}" is not of the form vendor/class'
    return vendor_problem(vendor) or class_problem(cls)


def vendor_problem(name: str) -> str:
    """What is wrong with a vendor: a letter first, a letter or digit last, between them also ``_ - .``."""
    return _problem("vendor", name, _MIDDLE_KIND, letter_first=True)


def class_problem(name: str) -> str:
    """What is wrong with a class: as for vendors."""
    return _problem("class", name, _MIDDLE_KIND, letter_first=True)


def device_problem(name: str) -> str:
    """What is wrong with a device: letters and digits at both ends, between them also ``_ - . :``."""
    return _problem("device", name, _MIDDLE_DEVICE, letter_first=False)


def _problem(what: str, name: str, middle: str, letter_first: bool) -> str:
    if not name:
        return f"the {what} name is empty"
    first, last = name[0], name[-1]
    if not (first.isascii() and (first.isalpha() if letter_first else first.isalnum())):
        return f'the {what} name "{name}" must begin with a letter{"" if letter_first else " or a digit"}'
    if not (last.isascii() and last.isalnum()):
        return f'the {what} name "{name}" must end with a letter or a digit'
    for c in name:
        if not (c.isascii() and (c.isalnum() or c in middle)):
            return f'the {what} name "{name}" contains {c!r}, it may have letters, digits and {" ".join(middle)}'
    return ""
