"""What the real API server refuses of a ResourceSlice (resource.k8s.io/v1 of Kubernetes 1.36), as the tests' own does too.

From the published validation of that group: limits, forms of names and values, what may not change, what excludes what.
"""

from __future__ import annotations

import re
from typing import Any

Object = dict[str, Any]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-.]+)?(\+[0-9A-Za-z-.]+)?\Z")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)?\Z")
_SPEC = {"driver", "pool", "nodeName", "nodeSelector", "allNodes", "devices", "perDeviceNodeSelection", "sharedCounters"}
_DEVICE = {
    "name", "attributes", "capacity", "consumesCounters", "nodeName", "nodeSelector", "allNodes", "taints",
    "bindsToNode", "bindingConditions", "bindingFailureConditions", "allowMultipleAllocations",
}  # fmt: skip


def problems(body: Object, old: Object | None, minor: int) -> list[str]:
    """Each as the server words its place; empty when it takes *body* (in the place of *old*)."""
    spec = body.get("spec") or {}
    found = [f"spec.{key}: unknown field" for key in set(spec) - _SPEC]
    if not _SUBDOMAIN.match(body["metadata"]["name"]) or len(body["metadata"]["name"]) > 253:
        found.append("metadata.name: no DNS subdomain")
    if not _SUBDOMAIN.match(spec.get("driver", "")) or len(spec.get("driver", "")) > 63:
        found.append("spec.driver: no DNS subdomain of 63 characters")
    pool = spec.get("pool") or {}
    if not all(_SUBDOMAIN.match(part) for part in str(pool.get("name", "")).split("/")):
        found.append("spec.pool.name: no path of DNS subdomains")
    if type(pool.get("resourceSliceCount")) is not int or pool["resourceSliceCount"] <= 0:
        found.append("spec.pool.resourceSliceCount: must be greater than zero")
    if type(pool.get("generation")) is not int or pool["generation"] < 0:
        found.append("spec.pool.generation: must not be negative")
    if sum(bool(spec.get(key)) for key in ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")) != 1:
        found.append("spec: exactly one of nodeName, nodeSelector, allNodes, perDeviceNodeSelection is required")
    if old is not None:
        before = old["spec"]
        for path in (("pool", "name"), ("driver",), ("nodeName",)):
            if _at(spec, path) != _at(before, path):
                found.append(f"spec.{'.'.join(path)}: field is immutable")
    devices, sets = spec.get("devices"), spec.get("sharedCounters")
    if minor >= 35 and devices is not None and sets is not None:
        found.append("spec: only one of sharedCounters or devices is allowed")
    if minor < 35 and sum(len(one["counters"]) for one in sets or ()) > 32:
        found.append("spec.sharedCounters: the total number of shared counters must not exceed 32")
    advanced = any(device.get("consumesCounters") or device.get("taints") for device in devices or ())
    if len(devices or ()) > (64 if advanced else 128):
        found.append("spec.devices: too many")
    found += _doubles([str(device.get("name")) for device in devices or ()], "spec.devices")
    for number, device in enumerate(devices or ()):
        found += _device(device, f"spec.devices[{number}]")
    if minor >= 35 and len(sets or ()) > 8:
        found.append("spec.sharedCounters: too many")
    found += _doubles([str(one.get("name")) for one in sets or ()], "spec.sharedCounters")
    for number, one in enumerate(sets or ()):
        found += _counters(one.get("name"), one.get("counters"), f"spec.sharedCounters[{number}]")
    return found


def _device(device: Object, where: str) -> list[str]:
    found = [f"{where}.{key}: unknown field" for key in set(device) - _DEVICE]
    if not _LABEL.match(device.get("name", "")) or len(device["name"]) > 63:
        found.append(f"{where}.name: no DNS label")
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if len(attributes) + len(capacity) > 32:
        found.append(f"{where}: the total number of attributes and capacities must not exceed 32")
    for name, value in attributes.items():
        found += _qualified(name, f"{where}.attributes")
        kinds = {"bool": bool, "int": int, "string": str, "version": str}
        if len(value) != 1 or any(type(value[key]) is not kinds.get(key) for key in value):
            found.append(f"{where}.attributes[{name}]: exactly one value must be specified")
        text = value.get("string", value.get("version", ""))
        if len(text) > 64:
            found.append(f"{where}.attributes[{name}]: too long")
        if "version" in value and not _SEMVER.match(value["version"]):
            found.append(f"{where}.attributes[{name}]: must be a string compatible with semver.org spec 2.0.0")
    for name, value in capacity.items():
        found += _qualified(name, f"{where}.capacity")
        if set(value) - {"requestPolicy"} != {"value"} or not _QUANTITY.match(value["value"]):
            found.append(f"{where}.capacity[{name}]: no quantity")
        found += _policy(value, bool(device.get("allowMultipleAllocations")), f"{where}.capacity[{name}].requestPolicy")
    consumed = device.get("consumesCounters") or ()
    if len(consumed) > 2:
        found.append(f"{where}.consumesCounters: too many")
    found += _doubles([str(one.get("counterSet")) for one in consumed], f"{where}.consumesCounters")
    for one in consumed:
        found += _counters(one.get("counterSet"), one.get("counters"), f"{where}.consumesCounters")
    return found


def _policy(capacity: Object, multiple: bool, where: str) -> list[str]:
    policy = capacity.get("requestPolicy")
    if policy is None:
        return []
    given = policy.get("validRange") or {}
    quantities = [policy.get("default"), *given.values()]
    if not multiple or set(policy) - {"default", "validRange", "validValues"} or set(given) - {"min", "max", "step"}:
        return [f"{where}: forbidden without allowMultipleAllocations, or unknown field"]
    if not all(_QUANTITY.match(str(one)) for one in quantities) or not given.get("min"):
        return [f"{where}: no quantity"]
    return []


def _counters(name: object, counters: Object | None, where: str) -> list[str]:
    found = [] if _LABEL.match(str(name or "")) and len(str(name)) <= 63 else [f"{where}: no DNS label"]
    if not counters:
        return [*found, f"{where}.counters: required"]
    if len(counters) > 32:
        found.append(f"{where}.counters: too many")
    for key, value in counters.items():
        if not _LABEL.match(key) or len(key) > 63 or not _QUANTITY.match(value["value"]):
            found.append(f"{where}.counters[{key}]: no DNS label, or no quantity")
    return found


def _qualified(name: str, where: str) -> list[str]:
    domain, slash, identifier = name.rpartition("/")
    good = _IDENTIFIER.match(identifier) and len(identifier) <= 32
    good = good and (not slash or (_SUBDOMAIN.match(domain) and len(domain) <= 63))
    return [] if good else [f"{where}[{name}]: must be a C identifier of 32 characters, with a DNS subdomain before it"]


def _doubles(names: list[str], where: str) -> list[str]:
    return [f"{where}: duplicate {name}" for name in sorted(set(names)) if names.count(name) > 1]


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        value = (value or {}).get(part)
    return value
