"""The manifests of the chart for some values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from gpurun.errors import ConfigError
from gpurun.kubernetes.manifests.chart import FILES
from gpurun.kubernetes.manifests.functions import FUNCTIONS
from gpurun.kubernetes.manifests.template import Blocks, Renderer, parse
from gpurun.kubernetes.manifests.values import check, merged
from gpurun.kubernetes.models import load_yaml

#: The Kubernetes that the manifests are for, unless another is named.
KUBERNETES = "1.36.0"
#: What makes a difference between plain manifests and a release of helm's: the namespace, and nothing that helm would do.
PLAIN: Mapping[str, Any] = {"namespace": {"create": True}, "uninstall": {"enabled": False}}
#: In this order kubectl is to make them; the rest comes in between.
_FIRST = ("Namespace", "ServiceAccount", "ConfigMap", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
_LAST = ("DaemonSet", "Job")


def read_values(text: str, where: str) -> dict[str, Any]:
    """The values in *text*, YAML, of the file *where*.  Raises :class:`ConfigError`."""
    found = load_yaml(text, where)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(where, "must be a mapping")
    return found


def manifests(values: Sequence[tuple[str, Mapping[str, Any]]], namespace: str = "gpurun", kubernetes: str = KUBERNETES,
              service: str = "kubectl", name: str = "gpurun") -> str:  # fmt: skip
    """The documents for *values*, pairs of (where they are from, values), of which the last one counts.

    *kubernetes* is its version, *service* who is said to manage the objects, *name* the release.  Raises
    :class:`ConfigError` for values that the chart does not take, :class:`TemplateError` for what it refuses itself.
    """
    about = yaml.safe_load(FILES["Chart.yaml"])
    schema = json.loads(FILES["values.schema.json"])
    all_values = read_values(FILES["values.yaml"], "values.yaml")
    for where, more in values:
        try:
            all_values = merged(all_values, more)
            check(all_values, schema, where)
        except RecursionError:
            raise ConfigError(where, "is nested too deeply") from None
    chart = {"Name": about["name"], "Version": about["version"], "AppVersion": str(about["appVersion"])}
    data = {
        "Values": all_values, "Chart": chart, "Release": {"Name": name, "Namespace": namespace, "Service": service},
        "Capabilities": {"KubeVersion": {"Version": f"v{kubernetes.removeprefix('v')}"}},
    }  # fmt: skip
    blocks: Blocks = {}
    parsed = {path: parse(text, path, blocks) for path, text in FILES.items() if path.startswith("templates/")}
    renderer = Renderer(blocks, FUNCTIONS)
    made: list[tuple[int, str]] = []
    for path, nodes in sorted(parsed.items()):
        if path.endswith(".yaml"):
            for text in f"\n{renderer.render(nodes, data)}".split("\n---"):
                document = yaml.safe_load(text)
                if document:
                    made.append((_place(document["kind"]), text.strip("\n")))
    return "".join([f"---\n{text}\n" for _, text in sorted(made, key=lambda one: one[0])])


def _place(kind: str) -> int:
    if kind in _FIRST:
        return _FIRST.index(kind)
    return len(_FIRST) + (1 + _LAST.index(kind) if kind in _LAST else 0)
