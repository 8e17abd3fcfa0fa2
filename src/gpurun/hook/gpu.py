"""The one question the engine asks of this room: what do the GPUs add to this container?

A container that asks for nothing pays for one look at the names of its variables; nothing else of the room is imported.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.hook.edits import ContainerEdits
    from gpurun.hook.request import Policy


def gpu_edits(
    env: tuple[str, ...],
    annotations: Mapping[str, str],
    privileged: bool,
    own_env: Mapping[str, str],
    driver_root: str = "/",
    policy: Policy | None = None,
) -> ContainerEdits | None:
    """The edits for a container with that ``process.env``, or ``None`` when it asks for no GPU.

    *privileged*: its bounding set has CAP_SYS_ADMIN.  *own_env* is the environment of gpurun itself (GPURUN_SYSROOT).
    Raises :class:`ConfigError` for a bad request, :class:`GpuError` for a host that cannot serve it.  Changes nothing.
    """
    if policy is None and not any(e.startswith(("NVIDIA_VISIBLE_DEVICES=", "CUDA_VERSION=")) for e in env):
        return None
    from gpurun.hook.request import read_request

    request = read_request(env, annotations, privileged, policy)
    if request is None:
        return None
    from gpurun.hook.edits import ContainerEdits

    if request.denied:
        return ContainerEdits(warnings=(request.denied,))
    from gpurun.hook.driver import read_driver, roots_from_environment
    from gpurun.hook.nvidia import edits

    roots = roots_from_environment(own_env, driver_root)
    return edits(request, read_driver(roots, request.capabilities, own_env))
