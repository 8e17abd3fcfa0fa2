"""spec and features, as their readers read them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpurun.commands.documents import features, spec
from gpurun.errors import GpurunError
from gpurun.invocation import Globals, Invocation
from gpurun.oci.default_spec import default_spec


def call(command: str, **options: str | bool) -> Invocation:
    return Invocation(command, (), dict(options), Globals("/run/gpurun"))


def test_spec_writes_once(tmp_path: Path) -> None:
    assert spec(call("spec", bundle=str(tmp_path))) == 0
    path = tmp_path / "config.json"
    written = path.read_text()
    assert json.loads(written)["process"]["terminal"] is True
    with pytest.raises(GpurunError, match=r"^File config.json exists. Remove it first$"):
        spec(call("spec", bundle=str(tmp_path), rootless=True))
    assert path.read_text() == written


def test_spec_rootless(tmp_path: Path) -> None:
    spec(call("spec", bundle=str(tmp_path), rootless=True))
    linux = json.loads((tmp_path / "config.json").read_text())["linux"]
    kinds = {n["type"] for n in linux["namespaces"]}
    assert "user" in kinds and "network" not in kinds
    assert linux["uidMappings"] == [{"containerID": 0, "hostID": os.geteuid(), "size": 1}]
    assert "resources" not in linux


def test_default_spec_shares_nothing() -> None:
    first = default_spec()
    first["process"]["capabilities"]["bounding"].append("CAP_SYS_ADMIN")
    first["linux"]["maskedPaths"].clear()
    assert default_spec()["process"]["capabilities"]["effective"] == ["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"]
    assert "CAP_SYS_ADMIN" not in str(default_spec())
    assert default_spec()["linux"]["maskedPaths"]


def test_features(capfd: pytest.CaptureFixture[str]) -> None:
    assert features(call("features")) == 0
    text = capfd.readouterr().out
    assert text.startswith('{\n    "ociVersionMin": "1.0.0",\n    "ociVersionMax": ')
    found = json.loads(text)
    assert found["mountOptions"] == sorted(found["mountOptions"])
    assert {"rro", "rbind", "nosuid", "rprivate"} <= set(found["mountOptions"])
    assert found["linux"]["namespaces"] == ["cgroup", "ipc", "mount", "network", "pid", "time", "user", "uts"]
    assert found["linux"]["cgroup"]["v1"] is False
    assert len(found["linux"]["capabilities"]) == 41
    assert found["linux"]["cgroup"]["systemdUser"] is True
    assert found["linux"]["intelRdt"] == {"enabled": True, "schemata": True, "monitoring": True}
    policies = found["linux"]["memoryPolicy"]
    assert policies["flags"] == ["MPOL_F_NUMA_BALANCING", "MPOL_F_RELATIVE_NODES", "MPOL_F_STATIC_NODES"]
    assert len(policies["modes"]) == 7 and policies["modes"] == sorted(policies["modes"])
    unsafe = found["potentiallyUnsafeConfigAnnotations"]
    assert {"org.criu.config", "org.systemd.property.", "run.oci.", "dev.gpurun.", "cdi.k8s."} <= set(unsafe)
