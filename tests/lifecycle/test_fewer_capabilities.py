"""Callers who are root and lack capabilities, as root of other runtimes' containers does: what is asked for is the
capability, not the user id."""

from __future__ import annotations

import os

import pytest

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.runtime import Runtime
from tests.simdriver import SimulatedDriver, minor

pytestmark = pytest.mark.native

#: What Docker gives the root of a container, without CAP_MKNOD.
DOCKERS = (
    "chown dac_override fsetid fowner net_raw setgid setuid setfcap setpcap net_bind_service sys_chroot kill audit_write"
)
INSIDE = ("unshare", "--user", "--map-root-user", "--mount")


def without(*names: str) -> tuple[str, ...]:
    return "setpriv", "--bounding-set", ",".join(f"-{name}" for name in names)


def only(names: str) -> tuple[str, ...]:
    return "setpriv", "--bounding-set", ",".join(["-all", *(f"+{name}" for name in names.split())])


def nested(b: Bundle) -> Bundle:
    """*b* for root of a user namespace that has that one id."""
    for mount in b.config["mounts"]:
        if mount["destination"] == "/dev/pts":
            mount["options"].remove("gid=5")
    return b.user_namespace(0, 1)


CALLERS = {
    "without SYS_PTRACE": without("sys_ptrace"),
    "without SYS_ADMIN": without("sys_admin"),
    "Docker's": only(DOCKERS),
    "inside, without SYS_PTRACE": (*INSIDE, *without("sys_ptrace")),
    "inside, without SYS_ADMIN": (*INSIDE, *without("sys_admin")),
    "inside, SYS_ADMIN alone": (*INSIDE, *only("sys_admin setfcap")),
}


@pytest.mark.parametrize("caller", CALLERS)
def test_a_container_with_a_user_namespace(runtime: Runtime, bundle: MakeBundle, caller: str) -> None:
    """create, start, exec, delete; all of them in one user namespace."""
    if runtime.name == "runc" and caller != "inside, without SYS_PTRACE":
        pytest.skip("runc 1.1 enters the init's mount namespace, or fails")
    if runtime.name == "crun" and not caller.startswith("inside"):
        pytest.skip("crun 1.8 raises RLIMIT_MEMLOCK for its device program, and gives the host's /dev/null away")
    b = bundle().sh("id -u; cat /tmp/file; echo up; exec sleep 600")
    (b.directory / "data").mkdir()
    (b.directory / "data/file").write_text("a source of the host's\n")
    b.mount("/tmp", str(b.directory / "data"), "rbind", "ro")
    b = nested(b) if caller.startswith("inside") else b.user_namespace()
    container_id = runtime.new_id()
    runtime.prepare(b, container_id)
    call = f"{runtime.path} --root {runtime.root}"
    script = (
        f"{call} create --bundle {b.directory} {container_id} && {call} start {container_id} || exit\n"
        f"{call} exec {container_id} cat /tmp/file; rc=$?\n{call} delete --force {container_id}; exit $rc"
    )
    done = runtime(tracer=(*CALLERS[caller], "sh", "-c", script))
    assert done.rc == 0 and done.out.count("a source of the host's\n") >= 1, done.text


@pytest.mark.gpurun_only
@pytest.mark.parametrize("caller", CALLERS)
def test_gpus(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, caller: str) -> None:
    """The host's nodes are bound and its libraries, by the init itself where the caller may not."""
    b = bundle().sh("ls /dev/nvidiactl /dev/nvidia[0-9]* && cat /proc/driver/nvidia/version && ls -R /usr/lib")
    b.process["env"].append("NVIDIA_VISIBLE_DEVICES=0")
    b = nested(b) if caller.startswith("inside") else b.user_namespace()
    said = runtime.output(b, tracer=CALLERS[caller], env=dict(os.environ) | host.env)
    assert said.startswith(f"/dev/nvidia{minor(0, 2)}\n/dev/nvidiactl\n") and "libcuda.so.1" in said, said


@pytest.mark.gpurun_only
def test_id_mapped_mounts_take_what_the_caller_lacks(runtime: Runtime, bundle: MakeBundle) -> None:
    """Nobody else could map the ids; without that the files would be somebody else's."""
    for lacking in ("sys_admin", "sys_ptrace"):
        b = bundle().user_namespace()
        b.config["mounts"].append(
            {"destination": "/tmp", "type": "bind", "source": str(b.directory), "options": ["rbind", "idmap"]}
        )
        said = runtime.refused(b, tracer=without(lacking))
        assert "this takes CAP_SYS_ADMIN, CAP_SYS_CHROOT and CAP_SYS_PTRACE: run gpurun as root with all of them" in said


@pytest.mark.gpurun_only
def test_maps_that_take_a_capability(runtime: Runtime, bundle: MakeBundle) -> None:
    said = runtime.refused(nested(bundle()), tracer=(*INSIDE, *only("sys_admin")))
    assert "operation not permitted: gpurun runs without CAP_SETUID and CAP_SETFCAP, which this takes" in said
