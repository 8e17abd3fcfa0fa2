"""kubernetes explain: why a pod is Pending, for people: which GPU is whose, which selector excludes what."""

from __future__ import annotations

from gpurun.errors import UsageError
from gpurun.invocation import Invocation
from gpurun.output import one_line, write_lines


def explain(invocation: Invocation, arguments: list[str]) -> int:
    """Print it; the exit code.  Raises :class:`GpurunError` when the API server cannot be asked, or has no such pod."""
    from gpurun.kubernetes.api import RESOURCE_GROUP, ApiError, connect
    from gpurun.kubernetes.pending.claims import claim_lines
    from gpurun.kubernetes.pending.nodes import requested_resources, resource_lines

    if len(arguments) != 1:
        raise UsageError("kubernetes explain: needs one argument, the name of a pod")
    namespace, slash, name = arguments[0].rpartition("/")
    if not slash:
        namespace = invocation.option("namespace", "default")
    api = connect(invocation.option("kubeconfig"))
    pod = api.pod(namespace, name)
    lines = [_state(pod, f"{namespace}/{name}")]
    wanted = bool((pod.get("spec") or {}).get("resourceClaims"))
    if _waits(pod) and (requested_resources(pod) or wanted):
        nodes = api.list_core("node")
        if requested_resources(pod):
            lines += resource_lines(pod, nodes, api.list_core("pod"))
        if wanted:
            try:
                version = api.resource_version_of_group()
                claims, classes, slices = (
                    api.list(RESOURCE_GROUP, version, kind)[0]
                    for kind in ("resourceclaims", "deviceclasses", "resourceslices")
                )
                lines += claim_lines(pod, nodes, claims, classes, slices)
            except ApiError as e:
                lines.append(f"claims: {e}")
    elif _waits(pod):
        lines.append(
            "it asks for no GPU: no nvidia.com/..., amd.com/... or gpu.intel.com/... in its limits, no ResourceClaim"
        )
    write_lines([one_line(line) for line in lines])
    return 0


def _waits(pod: dict[str, object]) -> bool:
    spec, status = pod.get("spec"), pod.get("status")
    phase = status.get("phase", "Pending") if isinstance(status, dict) else "Pending"
    return phase == "Pending" and not (isinstance(spec, dict) and spec.get("nodeName"))


def _state(pod: dict[str, object], name: str) -> str:
    """The pod's state, with the scheduler's own words where it has said any."""
    spec, status = pod.get("spec"), pod.get("status")
    table = status if isinstance(status, dict) else {}
    node = spec.get("nodeName") if isinstance(spec, dict) else None
    if node:
        return f"pod {name} is {table.get('phase', 'Pending')} on node {node}: it does not wait for a place"
    conditions = [one for one in table.get("conditions") or () if one.get("type") == "PodScheduled"]
    said = next((str(one.get("message")) for one in conditions if one.get("message")), "")
    return f"pod {name} is {table.get('phase', 'Pending')}" + (f": {said}" if said else "")
