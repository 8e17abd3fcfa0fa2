"""The sensors of a device, as the kernel has them for all drivers (Documentation/hwmon/sysfs-interface.rst)."""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.gpu.host.reads import names_in, read_attribute
from gpurun.record import Record

_MOST_SENSORS, _MAX_MILLI, _MAX_MICRO = 16, 10**6, 10**10
#: A sensor without a label is called as its file begins.
_MAX_LABEL = 32
_PART = "_gt"  # i915's sensors of a tile stand beside those of the card


class Sensors(Record):
    """*temperatures* are in °C, *energies* in joules since the driver was loaded, each (label, value); *power_average* (of
    a while), *power_now* and *power_limit* are in watts; None for what is not known."""

    temperatures: tuple[tuple[str, float], ...] = ()
    energies: tuple[tuple[str, float], ...] = ()
    power_average: float | None = None
    power_now: float | None = None
    power_limit: float | None = None

    @property
    def temperature(self) -> float | None:
        """The highest in °C."""
        return max([value for _, value in self.temperatures], default=None)

    @property
    def power(self) -> float | None:
        """What the device draws, in watts."""
        return self.power_average if self.power_average is not None else self.power_now


def sensors(path: str) -> Sensors:
    """The sensors of the device with the directory *path* of sysfs; what cannot be read, or is no number, is left out."""
    base = _directory(path)
    if not base:
        return Sensors()
    names = [name for name in _names(base) if name.endswith("_input")]
    return Sensors(
        _read_labelled(base, [name for name in names if name.startswith("temp")], _MAX_MILLI, 1000),
        _read_labelled(base, [name for name in names if name.startswith("energy")], None, 10**6),
        _read_scaled(f"{base}/power1_average", _MAX_MICRO, 10**6),
        _read_scaled(f"{base}/power1_input", _MAX_MICRO, 10**6),
        _first(base, ("power1_cap", "power1_max"), _MAX_MICRO),
    )


def energies(path: str) -> dict[str, float]:
    """Label → joules of the device with the directory *path*, as :func:`sensors` has them, and nothing else read."""
    base = _directory(path)
    names = [name for name in _names(base) if name.startswith("energy") and name.endswith("_input")] if base else []
    return dict(_read_labelled(base, names, None, 10**6))


def _directory(path: str) -> str:
    for sensor in _names(f"{path}/hwmon")[:_MOST_SENSORS]:
        if _PART not in read_attribute(f"{path}/hwmon/{sensor}/name", 64):
            return f"{path}/hwmon/{sensor}"
    return ""


def _read_labelled(base: str, names: list[str], most: int | None, unit: int) -> tuple[tuple[str, float], ...]:
    found: dict[str, float] = {}
    for name in names[:_MOST_SENSORS]:
        value = _read_scaled(f"{base}/{name}", most, unit)
        sensor = name.removesuffix("_input")
        label = read_attribute(f"{base}/{sensor}_label", _MAX_LABEL)
        if value is not None:
            found.setdefault(label if label.isprintable() and label else sensor, value)
    return tuple(found.items())


def _names(path: str) -> list[str]:
    try:
        return names_in(path)
    except OSError:
        return []  # a device that has gone


def _first(base: str, names: tuple[str, ...], most: int) -> float | None:
    values = [_read_scaled(f"{base}/{name}", most, 10**6) for name in names]
    return next((value for value in values if value is not None), None)


def _read_scaled(path: str, most: int | None, unit: int) -> float | None:
    text = read_attribute(path, 64)
    value = decimal(text) if most is None else decimal(text, most)
    return None if value is None else value / unit
