"""CDI files of the node's GPUs (:mod:`gpurun.gpu.nvidia.cdi.generate`), kept in a directory that container engines read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TypeVar

from gpurun.cdi.document import CdiDevice, CdiEdits, CdiMount, CdiSpec, minimum_version
from gpurun.cdi.transform import transform_root
from gpurun.cdi.write import to_text
from gpurun.errors import GpurunError, strerror_lower
from gpurun.gpu.nvidia.cdi.generate import generate
from gpurun.gpu.nvidia.cdi.generated import GenerateOptions
from gpurun.gpu.nvidia.cdi.modes import generate_mode
from gpurun.gpu.nvidia.host.roots import Roots, dev_root
from gpurun.linux.files import unlink_if_there, write_atomically
from gpurun.record import Record, replace

T = TypeVar("T")

CDI_DIR = "/var/run/cdi"


class NodeHost(Record):
    """Where things are: *roots* as this process sees them, *root* the host's root as it sees it (empty: its own).

    *hook* is the program of the files' hooks, a path of the host, with the words before a hook's name.
    """

    roots: Roots
    root: str = ""
    hook: tuple[str, ...] = ("/usr/bin/nvidia-cdi-hook",)


def device_spec(
    host: NodeHost, vendor: str, cls: str, devices: tuple[str, ...], strategy: str, env: Mapping[str, str]
) -> CdiSpec:
    """The specification of *devices* (UUIDs; ``all``), named by *strategy* (``uuid`` or ``index``).

    Raises :class:`GpurunError` when the host has not what they need.
    """
    options = GenerateOptions(
        vendor=vendor, cls=cls, strategies=(strategy,), hook=host.hook, all_device=False, devices=devices
    )
    spec = generate(host.roots, options, env).spec
    return transform_root(spec, host.root, "/") if host.root else spec


def mode_edits(host: NodeHost, mode: str) -> CdiEdits:
    """What the CDI mode *mode* (``gds``, ``mofed``, ``gdrcopy``, ``imex``) brings.  Raises :class:`GpurunError`."""
    spec = generate_mode(mode, dev_root(host.roots).rstrip("/"), GenerateOptions(hook=host.hook), None).spec
    spec = transform_root(spec, host.root, "/") if host.root else spec
    return merged(spec.edits, *[device.edits for device in spec.devices])


def with_edits(spec: CdiSpec, more: CdiEdits) -> CdiSpec:
    """*spec* that brings *more* with each of its devices."""
    made = replace(spec, edits=merged(spec.edits, more))
    return replace(made, version=minimum_version(made))


def with_devices(spec: CdiSpec, devices: Mapping[str, tuple[str, CdiEdits]]) -> CdiSpec:
    """*spec* with only these devices: name → (the name of one of *spec*'s, what this one brings beside it)."""
    edits = {device.name: device.edits for device in spec.devices}
    made = [CdiDevice(name, merged(edits[old], more)) for name, (old, more) in devices.items() if old in edits]
    made_spec = replace(spec, devices=tuple(made))
    return replace(made_spec, version=minimum_version(made_spec))


def merged(*all_edits: CdiEdits) -> CdiEdits:
    """All edits in one, each part once."""
    return CdiEdits(
        env=_once([item for edits in all_edits for item in edits.env]),
        device_nodes=_once([item for edits in all_edits for item in edits.device_nodes]),
        hooks=_once([item for edits in all_edits for item in edits.hooks]),
        mounts=_once([item for edits in all_edits for item in edits.mounts]),
        additional_gids=_once([item for edits in all_edits for item in edits.additional_gids]),
    )


def _once(items: list[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))


def mps_edits(pipes: str, shm: str) -> CdiEdits:
    """What a client of an MPS daemon needs: its pipes, and the daemon's shared memory."""
    options = ("rw", "nosuid", "nodev", "rbind")
    return CdiEdits(
        env=("CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps",),
        mounts=(CdiMount(pipes, "/tmp/nvidia-mps", options), CdiMount(shm, "/dev/shm", options)),
    )


def file_name(directory: str, vendor: str, cls: str, suffix: str = "") -> str:
    """The file of the kind *vendor*/*cls*, as CDI's libraries name it; a *suffix* tells files of one kind apart."""
    return f"{directory}/{vendor}-{cls}{f'_{suffix}' if suffix else ''}.json"


def write(path: str, spec: CdiSpec) -> bool:
    """Write *spec* to *path* in one step, and to the disk; whether it was not there just so.

    Raises :class:`GpurunError`.
    """
    data = to_text(spec, "json").encode()
    try:
        try:
            with open(path, "rb") as old:
                if old.read() == data:
                    return False
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        write_atomically(path, data, 0o644, durable=True)
    except OSError as e:
        raise GpurunError(f"write {path}: {strerror_lower(e.errno or 0)}") from None
    return True


def remove(path: str) -> None:
    """Remove *path* if it is there.  Raises :class:`GpurunError`."""
    try:
        unlink_if_there(path)  # done already
    except OSError as e:
        raise GpurunError(f"remove {path}: {strerror_lower(e.errno or 0)}") from None


def is_spec(path: str) -> bool:
    """Whether *path* is a whole document: one that a full disk has cut short is to be written again."""
    try:
        with open(path, "rb") as file:
            return isinstance(json.load(file), dict)
    except (OSError, ValueError):
        return False
