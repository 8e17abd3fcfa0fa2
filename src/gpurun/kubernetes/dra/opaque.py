"""The opaque configuration of a claim's device: NVIDIA's GpuConfig and MigDeviceConfig, resource.nvidia.com/v1beta1.

The models are also the JSON Schema of docs/gpu-config.schema.json (:func:`schema`), with which a claim can be checked before
a node sees it.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from gpurun.kubernetes.models import Table

TIME_SLICES = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}
_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
#: What resource.Quantity of Kubernetes reads.
_AMOUNT = re.compile(r"(\d+\.?\d*|\.\d+)([KMGTPE]i|[eE][+-]?\d{1,2}|[numkMGTPE])?", re.ASCII)
_POWERS = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_QUANTITY = {"type": "string", "pattern": "^[0-9]+(Ki|Mi|Gi|Ti|k|M|G|T)?$"}


def bytes_of(quantity: object) -> int:
    """A Kubernetes quantity of memory in bytes.  Raises ValueError with the sentence."""
    text = str(quantity)
    digits = text.rstrip("KMGTik")
    unit = text[len(digits) :]
    if unit not in _UNITS or not digits.isascii() or not digits.isdigit() or len(digits) > 19:
        raise ValueError(f"{text[:40]!r} is not an amount of memory such as 8Gi")
    return int(digits) * _UNITS[unit]


def amount_of(quantity: object) -> int:
    """A whole number that the API server has written: every form that a quantity has there, rounded up.

    It keeps the form that the claim has (``10e9``).  Raises ValueError with the sentence.
    """
    text = str(quantity)
    found = _AMOUNT.fullmatch(text) if len(text) <= 64 else None
    made = _rounded(Decimal(found[1]), found[2] or "") if found is not None else -1
    if not 0 <= made < 1 << 63:
        raise ValueError(f"{text[:40]!r} is not an amount of memory such as 8Gi")
    return made


def _rounded(number: Decimal, suffix: str) -> int:
    if suffix.endswith("i"):
        number *= 1 << (10 * ("KMGTPE".index(suffix[0]) + 1))
    elif suffix[:1] in ("e", "E") and len(suffix) > 1:
        number = number.scaleb(int(suffix[1:]))
    else:
        number = number.scaleb(_POWERS[suffix])
    return int(number.to_integral_value(ROUND_CEILING))


def _quantity(value: object) -> str:
    bytes_of(value)
    return str(value)


def _percentage(value: object) -> object:
    if type(value) is not int or not 0 <= value <= 100:
        raise ValueError("must be a number from 0 to 100")
    return value


def _none_if_empty(value: object) -> object:
    """What Go's decoder takes for absent: an empty text, object or list."""
    return value or None


Quantity = Annotated[str, BeforeValidator(_quantity), Field(json_schema_extra=_QUANTITY)]


class TimeSlicing(Table):
    """How long a process may compute before the next one's turn."""

    interval: Annotated[Literal["Default", "Short", "Medium", "Long"] | None, BeforeValidator(_none_if_empty)] = None


class Mps(Table):
    """Limits of the clients of an MPS daemon: threads in percent, memory as quantities, for all GPUs or by index or UUID."""

    defaultActiveThreadPercentage: Annotated[int, Field(ge=0, le=100), BeforeValidator(_percentage)] | None = None
    defaultPinnedDeviceMemoryLimit: Quantity | None = None
    defaultPerDevicePinnedMemoryLimit: dict[str, Quantity] | None = None


class Sharing(Table):
    """How the containers of a claim share a device; each strategy has a configuration of its own."""

    strategy: Literal["TimeSlicing", "MPS"]
    timeSlicingConfig: Annotated[TimeSlicing | None, BeforeValidator(_none_if_empty)] = None
    mpsConfig: Annotated[Mps | None, BeforeValidator(_none_if_empty)] = None

    @model_validator(mode="after")
    def _only_its_own(self) -> Sharing:
        other = "mpsConfig" if self.strategy == "TimeSlicing" else "timeSlicingConfig"
        if getattr(self, other) is not None:
            raise ValueError(f"{other} cannot be given with the strategy {self.strategy}")
        return self


class Opaque(Table):
    """The parameters as a whole."""

    apiVersion: Literal["resource.nvidia.com/v1beta1"]
    kind: Literal["GpuConfig", "MigDeviceConfig"]
    sharing: Annotated[Sharing | None, BeforeValidator(_none_if_empty)] = None


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of :class:`Opaque`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Opaque.model_json_schema()}
