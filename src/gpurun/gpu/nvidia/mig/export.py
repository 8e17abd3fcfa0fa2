"""How GPUs are divided, as a configuration of mig-parted: pure."""

from __future__ import annotations

from gpurun.errors import GpuError
from gpurun.formats.jsontext import dumps
from gpurun.formats.yaml import resolve_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpurun.gpu.nvidia.mig.state import MigGpu


def export_config(gpus: tuple[MigGpu, ...], label: str) -> dict[str, Any]:
    """The document of a configuration *label* that makes such GPUs be as *gpus* are.

    GPUs that are alike are one entry; ``device-filter`` is there where the host has GPUs of several models.  Raises
    :class:`GpuError` for a GPU that cannot be asked.
    """
    groups: dict[tuple[bool, tuple[tuple[str, int], ...]], list[MigGpu]] = {}
    for gpu in gpus:
        if gpu.problem:
            raise GpuError(f"GPU {gpu.index} cannot be asked what it is divided into: {gpu.problem}")
        devices = sorted([(profile.name, count) for profile, count in gpu.devices().items()])
        groups.setdefault((bool(gpu.mode), tuple(devices)), []).append(gpu)
    models = sorted({gpu.device for gpu in gpus})
    listed = []
    for (enabled, made), members in groups.items():
        theirs = sorted({gpu.device for gpu in members})
        alike = [gpu.index for gpu in gpus if gpu.device in theirs]
        indices = [gpu.index for gpu in members]
        entry: dict[str, Any] = {}
        if len(models) > 1 and len(groups) > 1:
            names = [f"0x{device:08X}" for device in theirs]
            entry["device-filter"] = names[0] if len(names) == 1 else names
        entry["devices"] = "all" if indices == alike else indices
        listed.append(entry | {"mig-enabled": enabled, "mig-devices": dict(made)})
    return {"version": "v1", "mig-configs": {label: listed}}


def as_yaml(document: dict[str, Any]) -> str:
    """*document*, one of :func:`exported`, as mig-parted writes it."""
    lines = [f"version: {document['version']}", "mig-configs:"]
    for label, listed in document["mig-configs"].items():
        plain = label.replace("-", "").replace("_", "").replace(".", "")
        safe = plain.isascii() and plain.isalnum() and label[0].isalpha() and resolve_plain(label) == label
        lines.append(f"  {label if safe else dumps(label)}:")
        for entry in listed:
            mark = "-"
            for key, value in entry.items():
                text = "" if key == "mig-devices" and value else f" {value if value == 'all' else dumps(value)}"
                lines.append(f"  {mark} {key}:{text}")
                mark = " "
            lines += [f"      {dumps(name)}: {count}" for name, count in entry["mig-devices"].items()]
    return "\n".join(lines) + "\n"
