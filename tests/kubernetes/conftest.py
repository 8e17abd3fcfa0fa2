"""What tests of the cluster's side begin with: the manifests' rights on a real cluster, a node with a DRA driver."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.cluster import Cluster, cluster
from tests.kubernetes.host_trees import listening, make_tree
from tests.kubernetes.real import ROLES, get, gone, kubectl, manifests, until


@pytest.fixture(scope="module")
def rights() -> Iterator[None]:
    """Accounts, roles, policies and classes of both manifests; no pods."""
    objects = {(one["kind"], one["metadata"]["name"]): one for name in ROLES for one in manifests(name, "DaemonSet")}
    kubectl("apply", "-f", "-", given=list(objects.values()))
    until(lambda: all("typeChecking" in one.get("status", {}) for one in get("validatingadmissionpolicies")["items"]))
    until(lambda: "gpurun-dra-driver" in kubectl("-n", "gpurun", "get", "serviceaccounts"))
    yield
    objects.pop(("Namespace", "gpurun"))
    kubectl("delete", "-f", "-", "--ignore-not-found", given=list(objects.values()))


@pytest.fixture
def directory() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="cluster-", dir="/var/tmp"))
    made.chmod(0o755)  # root of a user namespace reads the driver as everybody does
    yield made
    shutil.rmtree(made)


@pytest.fixture
def pods() -> Iterator[None]:
    yield
    gone()


@pytest.fixture
def another() -> Iterator[str]:
    """A node that is somebody else's."""
    kubectl("create", "-f", "-", given={"apiVersion": "v1", "kind": "Node", "metadata": {"name": "another"}})
    yield "another"
    kubectl("delete", "node", "another")


@pytest.fixture
def started() -> Iterator[Cluster]:
    """A node with two GPUs: its DRA driver runs, and has published its slice."""
    with cluster() as made:
        made.start()
        made.until(lambda: len(made.published()) == 2)
        yield made


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """The root of a node, with an engine that listens."""
    made = make_tree(tmp_path)
    with listening(made):
        yield made
