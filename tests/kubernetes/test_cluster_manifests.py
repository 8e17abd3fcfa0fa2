"""What gpurun prints for a cluster, before a real API server: taken as it is, with strict validation of its fields."""

# ruff: noqa: F811 - the fixtures are imported
from __future__ import annotations

import copy
from pathlib import Path

import pytest

from tests.kubernetes import models, real
from tests.kubernetes.charts import VARIANTS
from tests.kubernetes.real import get, kubectl
from tests.kubernetes.test_cluster_pods import chart

pytestmark = pytest.mark.skipif(not real.is_here(), reason=real.WHY_NOT)


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_gpurun_prints_is_taken_as_it_is(variant: str, rights: None, tmp_path: Path) -> None:
    """By server-side apply, which knows no default of a client's."""
    objects = [one for one in chart(VARIANTS[variant], tmp_path) if one["kind"] not in models.FOREIGN]
    words = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")
    assert kubectl(*words, given=objects).count("serverside-applied (server dry run)") == len(objects)


def test_a_misspelt_field_would_be_refused(rights: None, tmp_path: Path) -> None:
    objects = chart({}, tmp_path)
    policy = next(one for one in objects if one["kind"] == "ValidatingAdmissionPolicy")
    daemonset = next(one for one in objects if one["kind"] == "DaemonSet")
    policy["spec"]["failurepolicy"] = "Fail"
    daemonset["spec"]["template"]["spec"]["hostpid"] = True
    for one in (policy, daemonset):
        said = kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", given=one, good=False)
        assert "unknown field" in said, said


def test_an_expression_that_is_no_cel_would_be_refused(rights: None) -> None:
    classes = {one["metadata"]["name"]: one for one in get("deviceclasses")["items"]}
    assert set(classes) == {"gpu.nvidia.com", "mig.nvidia.com", "gpu.amd.com", "gpu.intel.com"}
    for name, one in classes.items():
        made = {key: one[key] for key in ("apiVersion", "kind")} | {
            "metadata": {"name": "odd"},
            "spec": copy.deepcopy(one["spec"]),
        }
        assert "created" in kubectl("create", "--dry-run=server", "-f", "-", given=made)
        made["spec"]["selectors"][0]["cel"]["expression"] += f" && device.maker == '{name}'"
        assert "undefined field 'maker'" in kubectl("create", "--dry-run=server", "-f", "-", given=made, good=False)
