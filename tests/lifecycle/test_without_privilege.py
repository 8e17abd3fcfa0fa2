"""Callers who may not do what the config asks: the step, the object and what to do about it, in one sentence."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeBundle
from tests.lifecycle.test_in_chroot import into
from tests.lifecycle.test_rootless import UID, Rootless, rootless  # noqa: F401 (a fixture)
from tests.native.inject import Injection
from tests.native.runtime import Runtime
from tests.simdriver import Options, make

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]
GROUP = 64992  # one without a name
SPEC = "`gpurun spec --rootless` writes such a config.json"


def left(rootless: Rootless) -> list[str]:  # noqa: F811
    """What is in the user's state directory."""
    root = rootless.place / "state"
    return sorted(path.name for path in root.iterdir()) if root.exists() else []


def mapped(config: dict[str, Any], host: int) -> dict[str, Any]:
    """*config* with the container's root as the user *host*."""
    for key in ("uidMappings", "gidMappings"):
        config["linux"][key][0]["hostID"] = host
    return config


def test_a_user_without_a_user_namespace(rootless: Rootless) -> None:  # noqa: F811
    config = rootless.config("true")
    linux = config["linux"]
    assert isinstance(linux, dict)
    linux["namespaces"] = [one for one in linux["namespaces"] if one["type"] != "user"]
    for key in ("uidMappings", "gidMappings"):
        linux.pop(key)
    rootless.write(config)
    done = rootless("run", "c")
    assert done.returncode == 1, done.stdout
    assert "clone3(2) a process in new namespaces (" in done.stdout
    said = "operation not permitted: this takes CAP_SYS_ADMIN: run gpurun as root, or give the container a user namespace"
    assert f"{said} ({SPEC})" in done.stdout
    assert left(rootless) == []


def test_a_user_who_has_no_namespaces_left(rootless: Rootless) -> None:  # noqa: F811
    rootless.write(mapped(rootless.config("true"), 0))
    rootless.before = ("unshare", "-Ur", "sh", "-c", 'echo 0 >/proc/sys/user/max_uts_namespaces && exec "$@"', "sh")
    done = rootless("run", "c")
    assert done.returncode == 1
    assert "no space left on device: there are as many namespaces as user.max_*_namespaces allows (sysctl)" in done.stdout
    assert left(rootless) == []


def test_root_of_a_user_namespace(rootless: Rootless) -> None:  # noqa: F811
    """It may make no device nodes, and maps only what it has itself; in a mount namespace of the host's."""
    rootless.before = ("unshare", "-Ur")
    config = rootless.config("busybox ls -l /dev/null; busybox cat /proc/self/uid_map")
    done = rootless("run", "c")
    assert done.returncode == 1
    assert f'write \\"0 {UID} 1\\" to /proc/' in done.stdout, done.stdout
    said = "operation not permitted: linux.uidMappings may name only ids that gpurun's own user namespace has"
    assert said in done.stdout
    assert left(rootless) == []
    rootless.write(mapped(config, 0))
    done = rootless("run", "c")
    assert done.returncode == 0 and done.stdout.startswith("crw-rw-rw-"), done.stdout


def test_user_namespaces_are_not_made_in_a_chroot(runtime: Runtime, bundle: MakeBundle, tmp_path: Path) -> None:
    said = runtime.refused(bundle().user_namespace(), preexec=into(tmp_path, False))
    assert "clone3(2) a process in new namespaces (" in said and "user" in said
    assert "operation not permitted: this host does not let unprivileged users create user namespaces (kernel." in said
    assert "or gpurun runs in a chroot, where the kernel refuses them" in said


def test_a_state_directory_of_another_user(rootless: Rootless) -> None:  # noqa: F811
    rootless.config("true")
    (rootless.place / "others").mkdir(mode=0o700)
    done = rootless("--root", str(rootless.place / "others/state"), "run", "c")
    assert done.returncode == 1
    where = f"{rootless.place}/others/state"
    said = f"make the state root {where}: permission denied: you may not write to {rootless.place}/others: --root names a "
    assert f"{said}directory of your own" in done.stdout


def test_lists_of_another_users_containers(rootless: Rootless) -> None:  # noqa: F811
    """An empty table would say that there are none."""
    rootless.config("true")
    root = rootless.place / "others"
    root.mkdir(mode=0o700)
    remedy = "permission denied: it is another user's: --root names a directory of your own"
    for words in (["list"], ["delete", "--regex", "."], ["kill", "--regex", "."]):
        done = rootless("--root", str(root), *words)
        assert done.returncode == 1 and f"read {root}: {remedy}" in done.stdout, done.stdout
    for words in (["list", "--all"], ["stats", "--once"]):
        done = rootless("--root", str(root), *words)
        assert done.returncode == 0 and "gpurun: containers in " in done.stdout
        assert str(root) in done.stdout and "are not shown: permission denied: run it as root" in done.stdout, done.stdout


def test_a_state_root_that_may_not_be_there(rootless: Rootless) -> None:  # noqa: F811
    """Of what is in a closed directory nobody can say that it is another user's; the closed directory is named."""
    rootless.config("true")
    closed = rootless.place / "closed"
    closed.mkdir(mode=0o700)
    root = closed / "sub/state"
    for words, what in ((["list"], root), (["delete", "--regex", "."], root), (["start", "c"], root / "c/state")):
        done = rootless("--root", str(root), *words)
        said = f"read {what}: permission denied: you may not look into {closed}: --root names a directory of your own"
        assert done.returncode == 1 and said in done.stdout, done.stdout


def test_explain_names_nodes_that_cannot_be_opened(rootless: Rootless, place: Path) -> None:  # noqa: F811
    """As the container's log does when it is made; a member of the group is told nothing."""
    sim = make(place / "closed-nodes", Options())
    sim.path.chmod(0o755)
    node = sim.path / "dev/nvidia0"
    os.chown(node, 0, GROUP)
    node.chmod(0o660)
    config = rootless.config("true")
    config["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=all")  # type: ignore[index]
    rootless.write(config)
    said = f"the container cannot open device nodes: {node}: the group {GROUP} can (mode 0660), this user is not in it"
    try:
        for groups, named in (([], True), ([GROUP], False)):
            rootless.groups = groups
            done = rootless("explain", str(rootless.place), env=sim.env)
            assert done.returncode == 0 and (said in done.stdout) == named, done.stdout
            done = rootless("run", "c", env=sim.env)
            assert done.returncode == 0 and (said in done.stdout) == named, done.stdout
    finally:
        shutil.rmtree(sim.path)


def test_a_group_that_the_user_namespace_lacks(rootless: Rootless) -> None:  # noqa: F811
    """As in any config that is not for users: /dev/pts belongs to the group 5."""
    config = rootless.config("true")
    mounts = config["mounts"]
    assert isinstance(mounts, list)
    (pts,) = [mount for mount in mounts if mount["destination"] == "/dev/pts"]
    pts["options"].append("gid=5")
    rootless.write(config)
    done = rootless("run", "c")
    assert done.returncode == 1
    said = "invalid argument: gid=5 is likely an id that the user namespace does not map: map it, or leave that option out"
    assert said in done.stdout
    assert left(rootless) == []


def test_additional_groups_with_a_map_of_one(rootless: Rootless) -> None:  # noqa: F811
    config = rootless.config("true")
    config["process"]["user"] = {"uid": 0, "gid": 0, "additionalGids": [0]}  # type: ignore[index]
    rootless.write(config)
    done = rootless("run", "c")
    assert done.returncode == 1
    said = "set the additional groups [0]: operation not permitted: a user namespace that maps only the caller's group"
    assert said in done.stdout and "run.oci.keep_original_groups" in done.stdout, done.stdout
    assert left(rootless) == []


def test_a_user_without_a_session(rootless: Rootless) -> None:  # noqa: F811
    """Without XDG_RUNTIME_DIR the state is where logind would make it, and where leases and the manager are looked for."""
    rootless.config("true")
    words = f"exec env -u XDG_RUNTIME_DIR {rootless.path} run --bundle {rootless.place} c"
    rootless.before = ("sh", "-c", words)
    done = rootless()
    assert done.returncode == 1
    said = (
        f"make the state root /run/user/{UID}: permission denied: you are not logged in: `loginctl enable-linger`, or --root"
    )
    assert said in done.stdout, done.stdout


def test_a_host_name_that_may_not_be_set(runtime: Runtime, bundle: MakeBundle, tmp_path: Path) -> None:
    with Injection(tmp_path / "log", "sethostname", "EPERM") as tracer:
        said = runtime.refused(bundle(), tracer=tracer)
    assert "error during container init: sethostname(2): set the host name test: operation not permitted" in said


def test_a_loopback_that_may_not_be_set_up(runtime: Runtime, bundle: MakeBundle, tmp_path: Path) -> None:
    with Injection(tmp_path / "log", "socket", "EPERM") as tracer:
        said = runtime.refused(bundle(), tracer=tracer)
    assert "during container init: set up the loopback device of the new network namespace: operation not permitted" in said
