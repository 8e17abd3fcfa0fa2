"""What the claims of a pod ask for, which devices there are, who has them, and which selector excludes what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpurun.kubernetes.dra.opaque import amount_of
from gpurun.kubernetes.dra.slices import quantity
from gpurun.kubernetes.pending.nodes import name_of, refusals
from gpurun.kubernetes.pending.selectors import excluded_by

Object = Mapping[str, Any]
Key = tuple[str, str, str]  # (driver, pool, device)
Held = tuple[str, Mapping[str, str]]  # (who has it, how much of its capacities, where others may have some as well)


def claim_lines(
    pod: Object, nodes: Sequence[Object], claims: Sequence[Object], classes: Sequence[Object], slices: Sequence[Object]
) -> list[str]:
    """For each claim of *pod* what becomes of it, device by device."""
    known = {name_of(claim): claim for claim in claims}
    holders = _holders(claims)
    lines = []
    for entry in (pod.get("spec") or {}).get("resourceClaims") or ():
        name = _claim_name(pod, entry)
        claim = known.get(name)
        if claim is None:
            template = entry.get("resourceClaimTemplateName")
            why = f"it has not been made of the template {template} yet" if template else "there is none of that name"
            lines.append(f"claim {name or entry.get('name')}: {why}")
            continue
        results = _results(claim)
        if results:
            got = ", ".join([f"{r.get('pool')}/{r.get('device')}" for r in results])
            lines.append(f"claim {name}: is allocated ({got}), the pod waits for something else")
            continue
        for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
            for one in request.get("firstAvailable") or [request.get("exactly") or request]:
                lines += _request_lines(name, request, one, pod, nodes, classes, slices, holders)
    return lines


def _claim_name(pod: Object, entry: Object) -> str:
    """``namespace/name`` of the claim that is meant; empty when it is not known yet."""
    made = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    given = next((one.get("resourceClaimName") for one in made if one.get("name") == entry.get("name")), None)
    name = entry.get("resourceClaimName") or given
    return f"{pod['metadata'].get('namespace') or 'default'}/{name}" if name else ""


def _results(claim: Object) -> list[Object]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or ())


def _holders(claims: Sequence[Object]) -> dict[Key, list[Held]]:
    """Device → who has it, or some of it; admin access takes nothing from others."""
    found: dict[Key, list[Held]] = {}
    for claim in claims:
        pods = [str(one.get("name")) for one in (claim.get("status") or {}).get("reservedFor") or ()]
        for result in _results(claim):
            if not result.get("adminAccess"):
                key = str(result.get("driver")), str(result.get("pool")), str(result.get("device"))
                who = f"claim {name_of(claim)}" + (f" (pod {', '.join(pods)})" if pods else " (no pod)")
                found.setdefault(key, []).append((who, result.get("consumedCapacity") or {}))
    return found


def _too_little(device: Object, held: Sequence[Held], wanted: Object) -> str:
    """What *device*, which several claims may have, has too little of for the request *wanted*; empty: nothing."""
    requests = (wanted.get("capacity") or {}).get("requests") or {}
    for name, capacity in sorted((device.get("capacity") or {}).items()):
        policy = capacity.get("requestPolicy") or {}
        amount = requests.get(name) or policy.get("default")
        if amount is None:
            continue
        has = [(who, consumed[name]) for who, consumed in held if name in consumed]
        try:
            left = amount_of(capacity["value"]) - sum([amount_of(size) for _, size in has])
            if amount_of(amount) > left:
                theirs = ", ".join([f"{who} has {size}" for who, size in has])
                return f"{amount} of {name} wanted, {quantity(left)} of {capacity['value']} left: {theirs}"
        except ValueError:  # an amount that GPUs' memory does not have
            return f"some of its {name} is taken by {', '.join([who for who, _ in held])}"
    return ""


def _request_lines(
    claim: str, request: Object, wanted: Object, pod: Object, nodes: Sequence[Object], classes: Sequence[Object],
    slices: Sequence[Object], holders: Mapping[Key, list[Held]],
) -> list[str]:  # fmt: skip
    cls = str(wanted.get("deviceClassName"))
    kind = next((one for one in classes if one["metadata"]["name"] == cls), None)
    count = "all" if wanted.get("allocationMode") == "All" else str(wanted.get("count", 1))
    head = f"claim {claim}, request {request.get('name')}: {count} of class {cls}"
    if kind is None:
        return [f"{head}: there is no such DeviceClass"]
    selectors = [("class", one) for one in (kind.get("spec") or {}).get("selectors") or ()]
    selectors += [("claim", one) for one in wanted.get("selectors") or ()]
    lines = [head]
    for place in _newest(slices):
        for device in place["spec"].get("devices") or ():
            others = {} if wanted.get("adminAccess") else holders
            why = _why_not(place["spec"], device, selectors, pod, nodes, others, wanted)
            lines.append(f"  {place['spec']['pool']['name']}/{device['name']}: {why}")
    return lines if len(lines) > 1 else [f"{head}: no node publishes any device"]


def _newest(slices: Sequence[Object]) -> list[Object]:
    """The slices of the newest generation of each pool, in order."""
    newest: dict[tuple[str, str], int] = {}
    for one in slices:
        key = str(one["spec"].get("driver")), str(one["spec"]["pool"]["name"])
        newest[key] = max(newest.get(key, 0), int(one["spec"]["pool"].get("generation", 0)))
    kept = [
        one for one in slices
        if int(one["spec"]["pool"].get("generation", 0))
        == newest[str(one["spec"].get("driver")), str(one["spec"]["pool"]["name"])]
    ]  # fmt: skip
    return sorted(kept, key=lambda one: (str(one["spec"]["pool"]["name"]), str(one["metadata"]["name"])))


def _why_not(
    place: Object, device: Object, selectors: Sequence[tuple[str, Object]], pod: Object, nodes: Sequence[Object],
    holders: Mapping[Key, list[Held]], wanted: Object,
) -> str:  # fmt: skip
    """Why the pod does not get *device* for the request *wanted*."""
    driver = str(place.get("driver"))
    inner = device.get("basic") or device  # v1beta1 has it one level deeper
    unknown = []
    for whose, selector in selectors:
        expression = str((selector.get("cel") or {}).get("expression") or "")
        why = excluded_by(expression, driver, inner)
        if why:
            return f"the selector of the {whose} excludes it ({why}): {expression}"
        if why is None:
            unknown.append(f"; whether the selector of the {whose} lets it pass is not known here: {expression}")
    held = holders.get((driver, str(place["pool"]["name"]), str(device["name"])), [])
    taken = _too_little(inner, held, wanted) if inner.get("allowMultipleAllocations") else ""
    if held and (taken or not inner.get("allowMultipleAllocations")):
        return taken or f"{held[-1][0]} has it"
    node = next((one for one in nodes if one["metadata"]["name"] == place.get("nodeName")), None)
    reasons = refusals(pod, node) if node is not None else []
    taints = [f"the taint {one.get('key')}:{one.get('effect')} is on the device" for one in inner.get("taints") or ()]
    return f"{'; '.join([*reasons, *taints]) or 'it is free'}{''.join(unknown)}"
