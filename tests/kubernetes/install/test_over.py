"""When the installer's pod ends: is its DaemonSet over on this node, or does the next pod of it come?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpurun.kubernetes.api import Api, ApiError, connect
from gpurun.kubernetes.install.over import is_over
from tests.kubernetes.api_server import ApiServer


@pytest.fixture
def server() -> Iterator[ApiServer]:
    made = ApiServer()
    made.token = "a-token"
    made.put("nodes", {"metadata": {"name": "node-1", "labels": {"gpu": "yes"}}})
    yield made
    made.stop()


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> Api:
    return connect(str(server.kubeconfig(tmp_path / "kubeconfig")))


def daemonset(server: ApiServer, selector: dict[str, str] | None = None, **metadata: Any) -> None:
    pod = {"nodeSelector": selector} if selector else {}
    made = {"name": "gpurun-install", "namespace": "gpurun"} | metadata
    server.put("daemonsets", {"metadata": made, "spec": {"template": {"spec": pod}}})


@pytest.mark.parametrize(
    ("selector", "over"), [(None, False), ({"gpu": "yes"}, False), ({"gpu": "no"}, True), ({"a": "b"}, True)]
)
def test_it_goes_on_where_it_means_the_node(
    server: ApiServer, api: Api, selector: dict[str, str] | None, over: bool
) -> None:
    daemonset(server, selector)
    assert is_over(api, "gpurun", "gpurun-install", "node-1") is over
    wanted = {("get", "daemonsets")} | ({("get", "nodes")} if selector else set())
    assert server.used == wanted, "and asks for no more than its role allows"


def test_it_is_over(server: ApiServer, api: Api) -> None:
    assert is_over(api, "gpurun", "gpurun-install", "node-1"), "there is none"
    daemonset(server, deletionTimestamp="2026-01-01T00:00:00Z")
    assert is_over(api, "gpurun", "gpurun-install", "node-1"), "it is going"
    daemonset(server)
    server.token = "another"
    assert is_over(api, "gpurun", "gpurun-install", "node-1"), "its service account is gone"


def test_nobody_answers(server: ApiServer, api: Api) -> None:
    daemonset(server)
    server.down = True
    with pytest.raises(ApiError):
        is_over(api, "gpurun", "gpurun-install", "node-1")
