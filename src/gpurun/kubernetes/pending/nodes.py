"""What a node has of a resource, who has it, and why a pod may not go there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpurun.gpu.vendors import VENDORS

Object = Mapping[str, Any]
_PREFIXES = tuple([vendor.resource for vendor in VENDORS])
_OVER = ("Succeeded", "Failed")


def name_of(thing: Object) -> str:
    """``namespace/name``."""
    metadata = thing["metadata"]
    return f"{metadata.get('namespace') or 'default'}/{metadata['name']}"


def requested_resources(pod: Object) -> dict[str, int]:
    """Resources of GPUs that *pod* asks for → how many: all containers together, or the largest init container."""
    spec = pod.get("spec") or {}
    found: dict[str, int] = {}
    for container in spec.get("containers") or ():
        for name, count in _of(container).items():
            found[name] = found.get(name, 0) + count
    for container in spec.get("initContainers") or ():
        for name, count in _of(container).items():
            found[name] = max(found.get(name, 0), count)
    return {name: count for name, count in sorted(found.items()) if count}


def _of(container: Object) -> dict[str, int]:
    resources = container.get("resources") or {}
    both = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return {name: count_of(value) for name, value in both.items() if name.startswith(_PREFIXES)}


def count_of(value: object) -> int:
    """A quantity of whole devices; 0 for what is none."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def resource_lines(pod: Object, nodes: Sequence[Object], pods: Sequence[Object]) -> list[str]:
    """For each resource that *pod* asks for, what each node has of it and who has that."""
    lines = []
    for resource, wanted in requested_resources(pod).items():
        lines.append(f"{resource}: {wanted} wanted")
        without = []
        for node in sorted(nodes, key=name_of):
            name = node["metadata"]["name"]
            status = node.get("status") or {}
            has, all_of_it = (count_of((status.get(key) or {}).get(resource, 0)) for key in ("allocatable", "capacity"))
            if not all_of_it:
                without.append(name)
                continue
            users = [
                (one, requested_resources(one)[resource]) for one in _on(name, pods) if resource in requested_resources(one)
            ]
            free = max(has - sum(count for _, count in users), 0)
            ill = f", {all_of_it - has} unhealthy" if all_of_it > has else ""
            reasons = [f"{wanted} do not fit"] if free < wanted else []
            reasons += refusals(pod, node)
            lines.append(f"  {name}: {has} allocatable{ill}, {free} free: {'; '.join(reasons) or 'it would fit here'}")
            lines += [f"    {count} has {name_of(one)}" for one, count in sorted(users, key=lambda pair: name_of(pair[0]))]
        if without:
            more = f" and {len(without) - 5} more" if len(without) > 5 else ""
            lines.append(f"  without {resource}: {', '.join(without[:5])}{more}")
    return lines


def _on(node: str, pods: Iterable[Object]) -> list[Object]:
    return [
        pod for pod in pods
        if (pod.get("spec") or {}).get("nodeName") == node and (pod.get("status") or {}).get("phase") not in _OVER
    ]  # fmt: skip


def refusals(pod: Object, node: Object) -> list[str]:
    """Why *pod* may not run on *node* whatever is free there: cordoned, taints, nodeSelector, required node affinity."""
    spec, node_spec = pod.get("spec") or {}, node.get("spec") or {}
    labels = node["metadata"].get("labels") or {}
    found = ["the node is cordoned"] if node_spec.get("unschedulable") else []
    for taint in node_spec.get("taints") or ():
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not _tolerated(taint, spec.get("tolerations") or ()):
            value = f"={taint['value']}" if taint.get("value") else ""
            found.append(f"the taint {taint.get('key')}{value}:{taint['effect']} is not tolerated")
    for key, wanted in sorted((spec.get("nodeSelector") or {}).items()):
        if labels.get(key) != wanted:
            found.append(f"nodeSelector wants {key}={wanted}, the node has {labels.get(key, 'none')}")
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = (affinity or {}).get("nodeSelectorTerms") or ()
    if terms and not any(_fits(term, labels, node["metadata"]["name"]) for term in terms):
        found.append("the required node affinity does not fit")
    return found


def _tolerated(taint: Object, tolerations: Iterable[Object]) -> bool:
    for one in tolerations:
        if one.get("effect") not in (None, "", taint.get("effect")):
            continue
        exists = one.get("operator") == "Exists"
        if (exists and not one.get("key")) or (
            one.get("key") == taint.get("key") and (exists or (one.get("value") or "") == (taint.get("value") or ""))
        ):
            return True
    return False


def _fits(term: Object, labels: Mapping[str, str], name: str) -> bool:
    fields = [({"metadata.name": name}, one) for one in term.get("matchFields") or ()]
    return all(_matches(one, table) for table, one in [*[(labels, e) for e in term.get("matchExpressions") or ()], *fields])


def _matches(expression: Object, table: Mapping[str, str]) -> bool:
    value, values = table.get(str(expression.get("key"))), expression.get("values") or ()
    operator = expression.get("operator")
    if operator in ("Gt", "Lt"):
        limit = str(values[0]) if values else ""
        if value is None or not value.lstrip("-").isdigit() or not limit.lstrip("-").isdigit():
            return False
        return int(value) > int(limit) if operator == "Gt" else int(value) < int(limit)
    return {
        "In": value in values, "NotIn": value not in values, "Exists": value is not None, "DoesNotExist": value is None,
    }.get(str(operator), False)  # fmt: skip
