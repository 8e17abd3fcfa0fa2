"""The sensors of a device, as the kernel has them for all drivers (Documentation/hwmon/sysfs-interface.rst)."""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.gpu.host.reads import names_in, read_attribute
from gpurun.record import Record

_MOST_SENSORS, _MAX_MILLI, _MAX_MICRO = 16, 10**6, 10**10


class Sensors(Record):
    """*temperature* is the highest in °C, *power* and *power_limit* are in watts; None for what is not told."""

    temperature: float | None = None
    power: float | None = None
    power_limit: float | None = None


def sensors(path: str) -> Sensors:
    """The sensors of the device with the directory *path* of sysfs; what cannot be read, or is no number, is left out."""
    for sensor in _names(f"{path}/hwmon")[:1]:
        base = f"{path}/hwmon/{sensor}"
        inputs = [name for name in _names(base) if name.startswith("temp") and name.endswith("_input")][:_MOST_SENSORS]
        values = [_scaled(f"{base}/{name}", _MAX_MILLI, 1000) for name in inputs]
        return Sensors(
            max([value for value in values if value is not None], default=None),
            _first(base, ("power1_average", "power1_input"), _MAX_MICRO),
            _first(base, ("power1_cap", "power1_max"), _MAX_MICRO),
        )
    return Sensors()


def _names(path: str) -> list[str]:
    try:
        return names_in(path)
    except OSError:
        return []  # a device that has gone


def _first(base: str, names: tuple[str, ...], most: int) -> float | None:
    values = [_scaled(f"{base}/{name}", most, 10**6) for name in names]
    return next((value for value in values if value is not None), None)


def _scaled(path: str, most: int, unit: int) -> float | None:
    value = decimal(read_attribute(path, 64), most)
    return None if value is None else value / unit
