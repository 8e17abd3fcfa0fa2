"""dcgm-exporter's file of counters: which figures of GPUs there are, as what, and with which help; pure but for its file.

A line is ``DCGM FIELD, type, help``; one that begins with ``#`` is a comment.  A help with commas is in quotes, which begin
right behind the comma, as Go's encoding/csv reads it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable

from gpurun import log
from gpurun.errors import ConfigError, GpurunError, clean, reason
from gpurun.linux.files import read_regular
from gpurun.metrics.samples import Sample
from gpurun.record import Record, replace

_LIMIT = 1 << 20  # bytes
_FIELD = r'"(?:[^"]|"")*"|[^",]*'
_LINE = re.compile(rf"({_FIELD}),({_FIELD}),({_FIELD})")
_NAME = re.compile(r"DCGM_(FI|EXP)_[A-Z0-9_]+|(gpu|pcie|hw)_[a-z0-9_]+", re.ASCII)
#: What the names of one maker's figures begin with.
_MAKERS = (("DCGM_",), ("gpu_", "pcie_"), ("hw_",))
#: Names of dcgm-exporter 1.x → of today.
LEGACY = {
    "dcgm_sm_clock": "DCGM_FI_DEV_SM_CLOCK",
    "dcgm_memory_clock": "DCGM_FI_DEV_MEM_CLOCK",
    "dcgm_memory_temp": "DCGM_FI_DEV_MEMORY_TEMP",
    "dcgm_gpu_temp": "DCGM_FI_DEV_GPU_TEMP",
    "dcgm_power_usage": "DCGM_FI_DEV_POWER_USAGE",
    "dcgm_total_energy_consumption": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "dcgm_pcie_replay_counter": "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "dcgm_gpu_utilization": "DCGM_FI_DEV_GPU_UTIL",
    "dcgm_mem_copy_utilization": "DCGM_FI_DEV_MEM_COPY_UTIL",
    "dcgm_enc_utilization": "DCGM_FI_DEV_ENC_UTIL",
    "dcgm_dec_utilization": "DCGM_FI_DEV_DEC_UTIL",
    "dcgm_xid_errors": "DCGM_FI_DEV_XID_ERRORS",
    "dcgm_fb_free": "DCGM_FI_DEV_FB_FREE",
    "dcgm_fb_used": "DCGM_FI_DEV_FB_USED",
}


class Counter(Record):
    """A line: *name* is what the metric is called, *field* DCGM's name of it, *kind* ``gauge`` or ``counter``."""

    name: str
    field: str
    kind: str
    help: str


class Counters(Record):
    """A file: the metrics, the fields that are labels of all of them, what was left out, as sentences, and all fields that
    it names."""

    metrics: tuple[Counter, ...]
    labels: tuple[str, ...]
    warnings: tuple[str, ...]
    named: frozenset[str] = frozenset()

    def _chosen_prefixes(self) -> tuple[str, ...]:
        """Those of DCGM, which it always chooses, and of the makers of which it names some."""
        chosen = [one for one in _MAKERS[1:] if any(name.startswith(one) for name in self.named)]
        return (*_MAKERS[0], *[prefix for one in chosen for prefix in one])

    def chosen(self, samples: Iterable[Sample]) -> list[Sample]:
        """Those of *samples* that the file names, in its order and words.

        What is not a field of DCGM's stays as it is, unless the file names figures of that maker's exporter.
        """
        found: dict[str, list[Sample]] = {}
        for sample in samples:
            found.setdefault(sample.name if sample.name.startswith(self._chosen_prefixes()) else "", []).append(sample)
        made = [
            replace(sample, name=one.name, kind=one.kind, help=one.help)
            for one in self.metrics
            for sample in found.get(one.field, ())
        ]
        return [*made, *found.get("", ())]


def counters(data: bytes, source: str, metrics: Collection[str], labels: Collection[str]) -> Counters:
    """The file in *data*; *metrics* and *labels* are the fields that can be had.

    Fields that DCGM may have and gpurun has not are left out with a warning.  Raises :class:`ConfigError` with the line of
    what dcgm-exporter refuses too.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        raise ConfigError(source, f"is not UTF-8 text (byte {e.start})") from None
    made: list[Counter] = []
    kept: list[str] = []
    warnings: list[str] = []
    named: set[str] = set()
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if not line or line.startswith("#"):
            continue
        where = f"{source}: line {number}"
        parts = _LINE.fullmatch(line)
        if parts is None:
            raise ConfigError(
                where, f'"{clean(line, 80)}" is not DCGM FIELD, type, help (a help with commas is in quotes, '
                "right behind the comma)"
            )  # fmt: skip
        name, kind, help_text = [_unquoted(part).strip(" ") for part in parts.groups()]
        field = LEGACY.get(name, name)
        if not _NAME.fullmatch(field):
            raise ConfigError(where, f'"{clean(name, 80)}" is not a field of DCGM')
        if kind not in ("gauge", "counter", "label"):
            raise ConfigError(where, f'"{clean(kind, 80)}" is not gauge, counter or label')
        named.add(field)
        if field not in (labels if kind == "label" else metrics):
            other = field in (metrics if kind == "label" else labels)
            why = f"cannot be had without {'DCGM' if field.startswith(_MAKERS[0]) else 'the library of its maker'}"
            if other:
                why = "is not a label" if kind == "label" else "is only a label"
            warnings.append(f"{where}: {name} {why} and is left out")
        elif name in [one.name for one in made] or (kind == "label" and field in kept):
            warnings.append(f"{where}: {name} is there already, this line is left out")
        elif kind == "label":
            kept.append(field)
        else:
            made.append(Counter(name, field, kind, help_text))
    if not made and not warnings:
        raise ConfigError(source, "names no field")
    return Counters(tuple(made), tuple(kept), tuple(warnings), frozenset(named))


def _unquoted(text: str) -> str:
    return text[1:-1].replace('""', '"') if text.startswith('"') else text


class CountersFile:
    """The file *path*, read again when it has changed; *metrics* and *labels* as for :func:`counters`.

    Raises :class:`GpurunError` for what is wrong at the start; later that is a warning, and what was good stays.
    """

    def __init__(self, path: str, metrics: Collection[str], labels: Collection[str]) -> None:
        self._path, self._metrics, self._labels = path, metrics, labels
        self._data = self._bytes()
        self._made = self._read()

    def now(self) -> Counters:
        """What the file says."""
        try:
            data = self._bytes()
            if data != self._data:
                self._data = data
                self._made = self._read()
        except GpurunError as e:
            log.warning(f"{e}; the counters from before stay")
        return self._made

    def _bytes(self) -> bytes:
        try:
            return read_regular(self._path, _LIMIT)
        except OSError as e:
            raise ConfigError(self._path, reason(e)) from None

    def _read(self) -> Counters:
        made = counters(self._data, os.path.basename(self._path), self._metrics, self._labels)
        for text in made.warnings:
            log.warning(text)
        return made
