"""Seccomp: containers under filters, with and without no_new_privs."""

from __future__ import annotations

import errno
import json
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.runtime import Runtime
from tests.security.profile import engine_profile, long_profile

pytestmark = pytest.mark.native

MKDIR = ["mkdir", "mkdirat"]
both = pytest.mark.parametrize("no_new_privileges", [True, False])
x86_only = pytest.mark.skipif(platform.machine() != "x86_64", reason="the profile is one for x86_64")


def rule(action: str, *names: str, **more: Any) -> dict[str, Any]:
    return {"names": list(names), "action": f"SCMP_ACT_{action}", **more}


def under(b: Bundle, *rules: dict[str, Any], default: str = "ALLOW", no_new_privileges: bool = True, **more: Any) -> Bundle:
    b.process["noNewPrivileges"] = no_new_privileges
    b.linux["seccomp"] = {"defaultAction": f"SCMP_ACT_{default}", "syscalls": list(rules), **more}
    return b


def status(text: str) -> dict[str, str]:
    return {k: v.strip() for k, _, v in (line.partition(":") for line in text.splitlines())}


@pytest.mark.sweep(6)
@both
@pytest.mark.parametrize(
    ("action", "code", "said"),
    [
        (rule("ERRNO", *MKDIR), 1, "Operation not permitted"),
        (rule("ERRNO", *MKDIR, errnoRet=errno.ENOSPC), 1, "No space left on device"),
        (rule("TRACE", *MKDIR), 1, "Function not implemented"),  # there is no tracer
        (rule("KILL", *MKDIR), 159, ""),
        (rule("KILL_PROCESS", *MKDIR), 159, ""),
        (rule("KILL_THREAD", *MKDIR), 159, ""),
        (rule("TRAP", *MKDIR), 159, ""),
        (rule("LOG", *MKDIR), 0, ""),
    ],
    ids=lambda value: f"{value['action']}{value.get('errnoRet', '')}" if isinstance(value, dict) else None,
)
def test_actions(
    runtime: Runtime,
    bundle: MakeBundle,
    leaks: Leaks,
    action: dict[str, Any],
    code: int,
    said: str,
    no_new_privileges: bool,
) -> None:
    leaks.allow_rootfs_changes()
    result = runtime.run(under(bundle().args("mkdir", "/tmp/made"), action, no_new_privileges=no_new_privileges))
    assert result.rc == code, result
    assert said in result.err


def test_arguments(runtime: Runtime, bundle: MakeBundle) -> None:
    """kill(2) with signal 0 and 10 is denied, all else goes."""
    two = [{"index": 1, "value": value, "op": "SCMP_CMP_EQ"} for value in (0, 10)]
    b = under(bundle().sh("for s in 0 10 CONT; do kill -$s $$ && echo $s; done; true"), rule("ERRNO", "kill", args=two))
    result = runtime.run(b)
    assert result.out == "CONT\n"
    assert result.err.count("Operation not permitted") == 2


@x86_only
def test_a_profile_with_hundreds_of_rules(runtime: Runtime, bundle: MakeBundle) -> None:
    """It does not fit as the search tree that libseccomp is asked for first."""
    b = bundle().args("echo", "hello")
    b.linux["seccomp"] = long_profile(610)
    assert runtime.run(b).out == "hello\n"


@both
def test_a_profile_of_an_engine(runtime: Runtime, bundle: MakeBundle, no_new_privileges: bool) -> None:
    b = bundle().sh("unshare -U true; uname -s; grep Seccomp: /proc/self/status")
    b.process["noNewPrivileges"] = no_new_privileges
    b.linux["seccomp"] = engine_profile()
    if platform.machine() != "x86_64":
        del b.linux["seccomp"]["architectures"]
    result = runtime.run(b)
    assert "Operation not permitted" in result.err  # CAP_SYS_ADMIN is not needed for a user namespace, but unshare(2) is
    assert result.out == "Linux\nSeccomp:\t2\n"


@both
def test_one_filter_and_no_more(runtime: Runtime, bundle: MakeBundle, no_new_privileges: bool) -> None:
    b = under(bundle().args("cat", "/proc/self/status"), rule("ERRNO", *MKDIR), no_new_privileges=no_new_privileges)
    found = status(runtime.output(b))
    assert (found["Seccomp"], found["Seccomp_filters"]) == ("2", "1")
    assert found["NoNewPrivs"] == str(int(no_new_privileges))


@both
def test_what_the_runtime_itself_does_need_not_be_allowed(
    runtime: Runtime, bundle: MakeBundle, no_new_privileges: bool
) -> None:
    """Newer calls that are said not to be there, and some that only a runtime makes."""
    names = "close_range fsopen fsconfig fsmount fspick openat2 open_tree move_mount mount_setattr".split()
    names += "mount umount2 pivot_root prctl capset setresuid setresgid setgroups setuid setgid chdir fchdir".split()
    b = under(bundle().args("echo", "alive"), rule("ERRNO", *names, errnoRet=38), no_new_privileges=no_new_privileges)
    if runtime.name != "gpurun":
        b.linux["seccomp"]["syscalls"][0]["names"] = names[:9]
    assert runtime.output(b) == "alive\n"


@both
@pytest.mark.gpurun_only
def test_nothing_but_execve_need_be_allowed(runtime: Runtime, bundle: MakeBundle, no_new_privileges: bool) -> None:
    """The program is there, and the first thing it does kills it: the filter is as strict as a filter can be."""
    b = under(bundle().args("true"), rule("ALLOW", "execve"), default="KILL_PROCESS", no_new_privileges=no_new_privileges)
    b.linux["seccomp"]["defaultErrnoRet"] = 38  # no ENOSYS for what is newer than execve
    assert runtime.run(b).rc == 159
    container = runtime.create(b)
    container.start()
    assert container.wait() == 159
    assert container.err == ""


def test_execve_itself_can_be_denied(runtime: Runtime, bundle: MakeBundle) -> None:
    result = runtime.run(under(bundle().args("true"), rule("ERRNO", "execve", "execveat")))
    assert result.rc in (1, 255)
    assert "operation not permitted" in result.text


@pytest.mark.gpurun_only
@both
def test_no_system_call_between_the_filter_and_execve(
    runtime: Runtime, bundle: MakeBundle, leaks: Leaks, tmp_path: Path, no_new_privileges: bool
) -> None:
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    b = under(bundle().args("true"), rule("ERRNO", *MKDIR), no_new_privileges=no_new_privileges)
    b.process["user"] = {"uid": 1000, "gid": 1000}
    b.config["hooks"] = {"startContainer": [{"path": "/bin/true", "args": ["true"]}]}
    container = runtime.create(b)
    command = ["strace", "-ff", "-e", "signal=none", "-o", str(tmp_path / "strace"), "-p", str(container.pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        said = tracer.stderr.readline()
        if "attached" not in said:
            pytest.skip(f"strace cannot attach here: {said}")
        assert container.start().rc == 0
        container.wait()
    after = []
    for log in tmp_path.glob("strace.*"):  # one for each process
        calls = log.read_text().splitlines()
        after += [calls[i + 1] for i, call in enumerate(calls) if call.startswith("seccomp(SECCOMP_SET_MODE_FILTER")]
    assert sorted(call.partition(",")[0] for call in after) == ['execve("/bin/true"', 'execve("/bin/true"'], after


@pytest.mark.parametrize(
    ("uid", "sets"),
    [
        (0, {"bounding": ["KILL", "CHOWN"], "permitted": ["KILL"], "effective": ["KILL"]}),
        (1000, {"bounding": ["KILL"], "permitted": ["KILL"], "effective": ["KILL"]}),
        (1000, {"bounding": ["KILL"], "permitted": ["KILL"], "inheritable": ["KILL"], "ambient": ["KILL"]}),
        (0, {}),
        (1000, None),
    ],
)
def test_the_capability_that_loads_the_filter_is_not_the_container_s(
    runtime: Runtime, bundle: MakeBundle, uid: int, sets: dict[str, list[str]] | None
) -> None:
    """All five sets are as without a filter; CAP_SYS_ADMIN is in none."""
    b = bundle().args("cat", "/proc/self/status")
    b.process["user"] = {"uid": uid, "gid": uid}
    b.process["noNewPrivileges"] = False
    if sets is None:
        del b.process["capabilities"]
    else:
        b.process["capabilities"] = {k: [f"CAP_{n}" for n in v] for k, v in sets.items()}
    without = status(runtime.output(b))
    found = status(runtime.output(under(b, rule("ERRNO", *MKDIR), no_new_privileges=False)))
    keys = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Uid")
    assert {k: found[k] for k in keys} == {k: without[k] for k in keys}
    assert found["Seccomp"] == "2"
    if sets is not None:
        assert not int(found["CapBnd"], 16) & 1 << 21


@both
def test_in_a_user_namespace(runtime: Runtime, bundle: MakeBundle, no_new_privileges: bool) -> None:
    b = bundle().user_namespace().args("mkdir", "/tmp/made")
    b.process["user"] = {"uid": 1000, "gid": 1000}
    result = runtime.run(under(b, rule("ERRNO", *MKDIR, errnoRet=errno.ENOSPC), no_new_privileges=no_new_privileges))
    assert "No space left" in result.err


@both
def test_start_container_hooks_run_under_the_filter(
    runtime: Runtime, bundle: MakeBundle, leaks: Leaks, no_new_privileges: bool
) -> None:
    leaks.allow_rootfs_changes()
    b = under(bundle().args("cat", "/tmp/hook"), rule("ERRNO", *MKDIR), no_new_privileges=no_new_privileges)
    script = "(grep -E 'Seccomp:|CapEff' /proc/self/status; mkdir /tmp/made 2>&1) >/tmp/hook"
    b.config["hooks"] = {"startContainer": [{"path": "/bin/sh", "args": ["sh", "-c", script + "; true"]}]}
    out = runtime.output(b)
    assert "Seccomp:\t2" in out
    assert "Operation not permitted" in out
    assert int(status(out)["CapEff"], 16) & 1 << 21 == 0


@pytest.mark.gpurun_only
def test_other_hooks_do_not(runtime: Runtime, bundle: MakeBundle, tmp_path: Path) -> None:
    b = under(bundle().args("true"), rule("ERRNO", "execve"))
    hook = {"path": "/bin/sh", "args": ["sh", "-c", f"grep Seccomp: /proc/self/status >>{tmp_path}/hooks"]}
    b.config["hooks"] = {name: [hook] for name in ("prestart", "createRuntime", "poststart", "poststop")}
    container = runtime.create(b)
    container.start()
    container.wait()
    container.delete()
    assert (tmp_path / "hooks").read_text() == "Seccomp:\t0\n" * 4


@pytest.mark.parametrize(
    ("flags", "number"),
    [
        (None, 4),
        ([], 0),
        (["SECCOMP_FILTER_FLAG_LOG"], 2),
        (["SECCOMP_FILTER_FLAG_SPEC_ALLOW"], 4),
        (["SECCOMP_FILTER_FLAG_TSYNC"], 0),
        (["SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_SPEC_ALLOW", "SECCOMP_FILTER_FLAG_TSYNC"], 6),
    ],
)
@pytest.mark.gpurun_only
def test_flags(runtime: Runtime, bundle: MakeBundle, flags: list[str] | None, number: int) -> None:
    b = under(bundle().args("mkdir", "/tmp/made"), rule("ERRNO", *MKDIR), flags=flags)
    result = runtime.run(b, globals_=["--debug"])
    assert "Operation not permitted" in result.err
    assert f"seccomp filter flags: {number}" in result.err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        pytest.param(
            {"flags": ["SECCOMP_FILTER_FLAG_NONE"]},
            "SECCOMP_FILTER_FLAG_NONE",
            marks=pytest.mark.not_on("runc 1.1", reason="it knows no flags at all"),
        ),
        ({"defaultAction": "SCMP_ACT_NONE"}, "SCMP_ACT_NONE"),
        ({"architectures": ["SCMP_ARCH_NONE"]}, "SCMP_ARCH_NONE"),
        ({"syscalls": [rule("NOTIFY", "mkdir")]}, "listenerPath is not set"),
        (
            {"syscalls": [rule("NOTIFY", "write")], "listenerPath": "/nowhere"},
            "cannot be used for the write syscall",
        ),
        (
            {"defaultAction": "SCMP_ACT_NOTIFY", "listenerPath": "/nowhere"},
            "cannot be used as default action",
        ),
    ],
)
@pytest.mark.not_on("crun", reason="crun has other words, and takes some of these")
def test_bad_profiles_are_refused(runtime: Runtime, bundle: MakeBundle, more: dict[str, Any], said: str) -> None:
    b = bundle()
    b.linux["seccomp"] = {"defaultAction": "SCMP_ACT_ALLOW", **more}
    assert said in runtime.refused(b)


@pytest.mark.gpurun_only
def test_a_refused_profile_names_its_place_and_touches_nothing(runtime: Runtime, bundle: MakeBundle) -> None:
    b = under(bundle(), rule("ERRNO", "mkdir"), rule("ERRNO", "mkdir", args=[{"index": 0, "op": "X"}]))
    assert "linux.seccomp.syscalls[1].args[0].op: " in runtime.refused(b)
    assert not runtime.root.exists()


def test_names_of_the_future_are_left_out(runtime: Runtime, bundle: MakeBundle) -> None:
    result = runtime.run(
        under(bundle().args("mkdir", "/tmp/made"), rule("ERRNO", "frobnicate", *MKDIR)), globals_=["--debug"]
    )
    assert "Operation not permitted" in result.err
    if runtime.name == "gpurun":
        assert 'unknown seccomp syscall "frobnicate" ignored' in result.text


@pytest.mark.not_on("runc", reason="an annotation of crun's")
def test_names_of_the_future_are_refused_where_an_annotation_asks(runtime: Runtime, bundle: MakeBundle) -> None:
    """Also where the same profile has been compiled and kept before."""
    b = under(bundle().args("true"), rule("ERRNO", "frobnicate", *MKDIR))
    assert runtime.run(b).rc == 0
    b.config["annotations"] = {"run.oci.seccomp_fail_unknown_syscall": "1"}
    assert "frobnicate" in runtime.refused(b)
    b.config["annotations"] = {"run.oci.seccomp_fail_unknown_syscall": "0"}
    assert runtime.run(b).rc == 0


@both
def test_exec_is_under_the_filter(runtime: Runtime, bundle: MakeBundle, no_new_privileges: bool) -> None:
    container = runtime.start(under(bundle().sh("sleep 100"), rule("ERRNO", *MKDIR), no_new_privileges=no_new_privileges))
    result = runtime("exec", container.id, "sh", "-c", "cat /proc/self/status; mkdir /tmp/made")
    found = status(result.out)
    assert (found["Seccomp"], found["Seccomp_filters"]) == ("2", "1")
    assert int(found["CapEff"], 16) & 1 << 21 == 0
    assert "Operation not permitted" in result.err


@pytest.mark.gpurun_only
def test_features(runtime: Runtime) -> None:
    found = json.loads(runtime("features").out)
    seccomp = found["linux"]["seccomp"]
    assert seccomp["enabled"] is True
    assert "SCMP_ACT_NOTIFY" in seccomp["actions"] and "SCMP_CMP_MASKED_EQ" in seccomp["operators"]
    assert "SCMP_ARCH_X86_64" in seccomp["archs"]
    assert set(seccomp["supportedFlags"]) <= set(seccomp["knownFlags"])
    assert found["annotations"]["io.github.seccomp.libseccomp.version"].startswith("2.")


SYS_ADMIN = 1 << 21


@x86_only
@pytest.mark.gpurun_only
@pytest.mark.parametrize("uid", [0, 1000])
def test_who_waits_for_start_keeps_no_capability_for_the_filter(runtime: Runtime, bundle: MakeBundle, uid: int) -> None:
    """Where the profile lets it wait, as engines' do: the filter is on already, and CAP_SYS_ADMIN is gone."""
    b = bundle().sh("cat /proc/self/status; sleep 1000")
    b.process["user"] = {"uid": uid, "gid": uid}
    b.process["noNewPrivileges"] = False
    b.linux["seccomp"] = engine_profile()
    container = runtime.create(b)
    waiting = status(container.proc("status").read_text())
    assert waiting["Seccomp"] == "2"
    for name in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb"):
        assert not int(waiting[name], 16) & SYS_ADMIN, name
    assert container.start().rc == 0
    running = status(container.wait_for("nonvoluntary_ctxt_switches"))
    assert (running["Seccomp"], running["Seccomp_filters"]) == ("2", waiting["Seccomp_filters"])
    assert int(running["CapPrm"], 16) == int(waiting["CapPrm"], 16) * (uid == 0)
    result = runtime("exec", container.id, "cat", "/proc/self/status")
    assert result.rc == 0, result.text
    assert status(result.out)["Seccomp_filters"] == waiting["Seccomp_filters"]


@x86_only
@pytest.mark.gpurun_only
def test_a_waiting_process_under_its_filter_is_stopped_and_fails_as_others(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh("true")
    b.process["noNewPrivileges"] = False
    b.linux["seccomp"] = engine_profile()
    container = runtime.create(b)
    assert container.kill("TERM").rc == 0
    assert container.wait() == 128 + 15
    (b.rootfs / "usr/data").write_bytes(b"\x7fELF nothing")
    (b.rootfs / "usr/data").chmod(0o755)
    container = runtime.create(b.args("/usr/data"))
    assert container.start().rc == 0
    assert container.wait() == 255
    assert "exec /usr/data: exec format error" in container.err
    (b.rootfs / "usr/data").unlink()


@pytest.mark.gpurun_only
def test_a_profile_that_allows_execve_alone(runtime: Runtime, bundle: MakeBundle) -> None:
    """Then the filter is installed by the call before it, and the capability stays until then."""
    b = bundle().sh("sleep 1000")
    under(b, rule("KILL", "read", "capset", "clone"), no_new_privileges=False)
    container = runtime.create(b)
    waiting = status(container.proc("status").read_text())
    assert (waiting["Seccomp"], int(waiting["CapPrm"], 16) & SYS_ADMIN) == ("0", SYS_ADMIN)
