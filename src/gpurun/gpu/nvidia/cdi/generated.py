"""What ``cdi generate`` is asked, and what it has made."""

from __future__ import annotations

from gpurun.cdi.document import CdiEdits
from gpurun.gpu.nvidia.edits.features import HOOKS
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.document import CdiHook, CdiSpec


class GenerateOptions(Record):
    """What ``cdi generate`` takes; *hook* is the program of the hooks and what stands before the hook's name.

    *csv_files* are a Tegra's lists of files (all of *csv_dir* where none is named), *csv_ignored* patterns of links in them;
    *csv_compat_root* is where an Orin's images have newer CUDA libraries.
    """

    vendor: str = "nvidia.com"
    cls: str = "gpu"
    strategies: tuple[str, ...] = ("index", "uuid")
    hook: tuple[str, ...] = ("/usr/bin/nvidia-cdi-hook",)
    ldconfig_path: str = ""
    disabled_hooks: tuple[str, ...] = ()
    enabled_hooks: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    all_device: bool = True
    devices: tuple[str, ...] = ("all",)
    csv_dir: str = "/etc/nvidia-container-runtime/host-files-for-container.d"
    csv_files: tuple[str, ...] = ()
    csv_ignored: tuple[str, ...] = ()
    csv_compat_root: str = ""


class Generated(Record):
    """The specification, and what could not be put into it as asked."""

    spec: CdiSpec
    warnings: tuple[str, ...] = ()


def union(every: list[CdiEdits]) -> CdiEdits:
    """What a container with all of these devices gets."""
    nodes = {node.path: node for edits in every for node in edits.device_nodes}
    return CdiEdits(
        device_nodes=tuple([nodes[path] for path in sorted(nodes)]),
        hooks=_merged_hooks(every),
        mounts=tuple(dict.fromkeys([mount for edits in every for mount in edits.mounts])),
        additional_gids=tuple(sorted({gid for edits in every for gid in edits.additional_gids})),
    )


def _merged_hooks(every: list[CdiEdits]) -> tuple[CdiHook, ...]:
    """One call of each hook for all devices."""
    merged: dict[tuple[str, ...], CdiHook] = {}
    for hook in [hook for edits in every for hook in edits.hooks]:
        at = next(i for i, word in enumerate(hook.args) if word in HOOKS) + 1
        same = merged.get(hook.args[:at])
        if same is None:
            merged[hook.args[:at]] = hook
            continue
        pairs = list(zip(same.args[at::2], same.args[at + 1 :: 2], strict=True))
        pairs += [p for p in zip(hook.args[at::2], hook.args[at + 1 :: 2], strict=True) if p not in pairs]
        merged[hook.args[:at]] = replace(same, args=(*hook.args[:at], *[word for pair in pairs for word in pair]))
    return tuple(merged.values())
