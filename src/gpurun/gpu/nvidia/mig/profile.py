"""Names of MIG profiles, such as ``1g.5gb``, ``1c.3g.20gb`` and ``1g.5gb+me``: read, written, and made of what NVML tells.

``g`` are the slices of the GPU instance, ``c`` those of the compute instance where it has not all of them, ``gb`` the memory
of the GPU instance as NVIDIA rounds it.  Behind ``+`` stand what the instance has besides (``me``: media engines), behind
``-`` what it lacks.
"""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.errors import ConfigError, clean
from gpurun.record import Record

_GIB, _MIB = 1 << 30, 1 << 20
_EIGHTHS = 8  # NVIDIA rounds the share of the memory up to eighths
_MOST = 1 << 16

#: NVML_GPU_INSTANCE_PROFILE_* → what the instance has besides, and what it lacks.
_HAS = {7: "me", 8: "me", 10: "gfx", 11: "gfx", 12: "gfx", 15: "me.all", 16: "me.all", 17: "gfx"}
_LACKS = {13: "me", 14: "me"}


class MigProfile(Record):
    """A profile.  *compute* and *slices* count slices, *memory* is in GB as the name has it; *has*, *lacks* are sorted."""

    compute: int
    slices: int
    memory: int
    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As nvidia-smi and mig-parted write it."""
        part = "" if self.compute == self.slices else f"{self.compute}c."
        tail = f"+{','.join(self.has)}" if self.has else f"-{','.join(self.lacks)}" if self.lacks else ""
        return f"{part}{self.slices}g.{self.memory}gb{tail}"


def profile_of(number: int, compute: int, slices: int, memory_mib: int, total: int) -> MigProfile:
    """The profile with NVML's *number* (NVML_GPU_INSTANCE_PROFILE_*).

    *memory_mib* is its memory in MiB, *total* that of the GPU in bytes.
    """
    eighths = -(-memory_mib * _MIB * _EIGHTHS // total) if total else 0
    gigabytes = -(-total // _GIB)
    memory = (2 * eighths * gigabytes + _EIGHTHS) // (2 * _EIGHTHS)  # rounded, halves up
    has, lacks = _HAS.get(number, ""), _LACKS.get(number, "")
    return MigProfile(compute, slices, memory, (has,) if has else (), (lacks,) if lacks else ())


def parse_profile(text: str, where: str) -> MigProfile:
    """The profile that *text* names.  Raises :class:`ConfigError` at *where* for a text that is no such name."""
    stem, plus, has = text.partition("+")
    minus, lacks = "", ""
    if not plus:
        stem, minus, lacks = text.partition("-")
    fields = stem.split(".")
    units = ("c", "g", "gb") if len(fields) == 3 else ("g", "gb")
    numbers = [_number(field, unit) for field, unit in zip(fields, units, strict=False)]
    if len(fields) != len(units) or None in numbers or "-" in has or "+" in lacks:
        raise _wrong(text, where)
    compute, slices, memory = [n or 0 for n in (numbers if len(numbers) == 3 else (numbers[0], *numbers))]
    words = (has if plus else lacks).split(",") if plus or minus else []
    if not all(_is_attribute(word) for word in words) or len(set(words)) != len(words):
        raise _wrong(text, where)
    if compute > slices:
        raise ConfigError(where, f"{clean(text)} has more compute slices than GPU slices")
    listed = tuple(sorted(words))
    return MigProfile(compute, slices, memory, listed if plus else (), listed if minus else ())


def _number(field: str, unit: str) -> int | None:
    digits = field.removesuffix(unit)
    return decimal(digits, _MOST) if field.endswith(unit) else None


def _is_attribute(word: str) -> bool:
    plain = word.replace(".", "")
    return bool(plain) and plain.isascii() and plain.isalnum() and word[0].isalpha() and word[-1] != "."


def _wrong(text: str, where: str) -> ConfigError:
    return ConfigError(
        where, f'"{clean(text)}" is not the name of a MIG profile, such as 1g.5gb, 1c.3g.20gb or 1g.5gb+me: '
        "`nvidia-smi mig -lgip` lists those of this host"
    )  # fmt: skip
