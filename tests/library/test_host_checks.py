"""explain looks at all of the host that create needs, and says what create would."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpurun.engine.caller.bundle import CreateOptions, plan_config
from gpurun.library.host_checks import host_problems
from gpurun.library.summary import summary
from gpurun.oci.config import read_config
from tests.conftest import runtime_path
from tests.native.bundle import base_config

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="of other users create has more to say")


def problems(tmp_path: Path, config: dict[str, Any]) -> tuple[str, ...]:
    data = json.dumps(config).encode()
    options = CreateOptions("ID", str(tmp_path / "state"), str(tmp_path))
    return host_problems(plan_config(options, data, read_config(data), {})[1])


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    """A config with which create would succeed."""
    (tmp_path / "rootfs/bin").mkdir(parents=True)
    (tmp_path / "rootfs/bin/true").touch(0o755)
    return base_config()


def test_nothing_is_wrong(tmp_path: Path, config: dict[str, Any]) -> None:
    assert problems(tmp_path, config) == ()


def test_the_rootfs(tmp_path: Path, config: dict[str, Any]) -> None:
    config["root"]["path"] = "nowhere"
    assert problems(tmp_path, config)[0] == f"root.path: invalid rootfs: {tmp_path}/nowhere: no such file or directory"


def test_sources_of_bind_mounts(tmp_path: Path, config: dict[str, Any]) -> None:
    config["mounts"].append({"destination": "/a", "source": "/nowhere", "options": ["bind"]})
    config["mounts"].append({"destination": "/b", "source": "beside", "options": ["rbind"]})
    assert problems(tmp_path, config) == (
        'mounts[6]: error mounting "/nowhere" to rootfs at "/a": no such file or directory',
        f'mounts[7]: error mounting "{tmp_path}/beside" to rootfs at "/b": no such file or directory',
    )
    (tmp_path / "beside").symlink_to("/nowhere")
    config["mounts"][7]["options"] += ["copy-symlink"]
    assert len(problems(tmp_path, config)) == 1


def test_types_of_file_systems(tmp_path: Path, config: dict[str, Any]) -> None:
    config["mounts"].append({"destination": "/a", "type": "tmpf", "source": "tmpfs"})
    (said,) = problems(tmp_path, config)
    assert said.startswith('mounts[6]: error mounting "tmpfs" to rootfs at "/a": no such device') and '"tmpfs"?)' in said


def test_namespaces(tmp_path: Path, config: dict[str, Any]) -> None:
    config["linux"]["namespaces"][1]["path"] = "/run/netns/nowhere"
    (said,) = problems(tmp_path, config)
    assert said == "open the network namespace /run/netns/nowhere: no such file or directory"


def test_hooks(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "hook").touch(0o644)
    config["hooks"] = {
        "createRuntime": [{"path": "/nowhere"}],
        "createContainer": [{"path": str(tmp_path / "hook")}],
        "poststop": [{"path": "/nowhere"}],  # nothing of create's
    }
    assert problems(tmp_path, config) == (
        "hooks.createRuntime[0].path: /nowhere: no such file or directory",
        f"hooks.createContainer[0].path: {tmp_path}/hook: permission denied (it is not executable)",
    )


def test_network_devices(tmp_path: Path, config: dict[str, Any]) -> None:
    config["linux"]["netDevices"] = {"nowhere0": {}}
    assert problems(tmp_path, config) == ("linux.netDevices: move the network device nowhere0: no such device",)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["/bin/nothing"], 'exec: "/bin/nothing": stat /bin/nothing: no such file or directory'),
        (["nothing"], 'exec: "nothing": executable file not found in $PATH'),
    ],
)
def test_programs(tmp_path: Path, config: dict[str, Any], args: list[str], said: str) -> None:
    config["process"]["args"] = args
    assert problems(tmp_path, config) == (said,)
    config["mounts"].append({"destination": "/bin", "source": "/bin", "options": ["bind"]})
    assert problems(tmp_path, config) == (), "a mount may bring it"


def test_seccomp(tmp_path: Path, config: dict[str, Any]) -> None:
    config["linux"]["seccomp"] = {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}],
    }
    assert problems(tmp_path, config) == ()


def test_the_summary(tmp_path: Path, config: dict[str, Any]) -> None:
    config["linux"]["resources"]["memory"] = {"limit": 3 << 29}
    config["mounts"].append({"destination": "/data", "source": "/srv", "options": ["bind", "ro"]})
    data = json.dumps(config).encode()
    options = CreateOptions("ID", str(tmp_path / "state"), str(tmp_path), cgroup_manager="disabled")
    found = summary(plan_config(options, data, read_config(data), {})[1])
    assert found["program"] == "true   as 0:0 in /"
    assert found["limits"] == "none: it stays in the caller's cgroup"
    assert found["mounts"] == "6 file systems; of the host: /srv on /data"
    assert found["privileges"] == "3 of 41 capabilities, no_new_privs, no seccomp filter"
    assert found["namespaces"].startswith("new: ") and found["namespaces"].endswith("the host's: user, time")


def gpurun(*words: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"]}
    return subprocess.run([runtime_path(), *words], capture_output=True, text=True, env=env, timeout=60)


def write(directory: Path, config: dict[str, Any]) -> str:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return str(directory)


def test_the_command(tmp_path: Path, config: dict[str, Any]) -> None:
    bundle = write(tmp_path, config)
    done = gpurun("explain", bundle)
    assert done.returncode == 0 and done.stdout.startswith("program     true   as 0:0 in /\n")
    config["process"]["args"] = ["/bin/nothing"]
    write(tmp_path, config)
    done = gpurun("explain", bundle)
    assert done.returncode == 1 and done.stderr == ""
    assert done.stdout.startswith('create would fail: exec: "/bin/nothing": stat /bin/nothing: no such file or directory\n')
    document = json.loads(gpurun("explain", "--json", bundle).stdout)
    assert len(document["problems"]) == 1
    assert "pid" in document["namespaces"]["new"]
    assert document["init"]["process"]["capabilities"]["bounding"][0].startswith("CAP_")
    assert document["init"]["mounts"][1]["options"][:2] == ["nosuid", "strictatime"]
    assert not (tmp_path / "state").exists()


def test_what_tells_two_bundles_apart(tmp_path: Path, config: dict[str, Any]) -> None:
    one = write(tmp_path, config)
    done = gpurun("explain", "--diff", one, one)
    assert (done.returncode, done.stdout) == (0, "the same is done for both\n")
    config["hostname"] = "other"
    config["process"]["env"].append("COLOUR=green")
    other = write(tmp_path / "other", config)
    done = gpurun("explain", "--diff", one, other)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"- {one}", f"+ {other}",
        "root file system", "  - hostname test", "  + hostname other",
        "process", "  + env COLOUR=green",
    ]  # fmt: skip
    assert "two bundles" in gpurun("explain", "--diff", one).stderr
