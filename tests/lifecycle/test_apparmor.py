"""A container and its profile of AppArmor, beside runc: its label, what the kernel refuses it, and what the kernel logs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gpurun.security.lsm import apparmor_enabled
from tests.conftest import REPOSITORY, MakeBundle
from tests.native.apparmor import Load, denials, package_rules
from tests.native.bundle import Bundle
from tests.native.kernel_log import mark_kernel_log
from tests.native.leaks import Leaks
from tests.native.others import runtime_at
from tests.native.runtime import Result, Runtime

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(not apparmor_enabled(), reason="this kernel does not run AppArmor"),
    pytest.mark.skipif(shutil.which("apparmor_parser") is None, reason="apparmor_parser is not installed"),
]

#: As engines' profiles are: nearly all is allowed, signals only of those who are named.
HEAD = "flags=(attach_disconnected,mediate_deleted{flags}) {{\n  file, capability, mount, umount, network, unix,\n"
SIGNALS = "  signal (receive) peer=unconfined, signal (send, receive) peer=gpurun-test*,\n"
PROFILES = {
    "enforced": HEAD.format(flags="") + SIGNALS + "  deny /tmp/** w,\n}\n",
    "complaining": HEAD.format(flags=",complain") + SIGNALS + "}\n",
    # What the runtime does between its fork and the execve of the program is not the program's.
    "strict": "flags=(attach_disconnected) {\n  file, signal (receive) peer=unconfined,\n"
    "  deny mount, deny umount, deny ptrace, deny capability, deny network, deny change_profile,\n}\n",
}


def confined(bundle: Bundle, profile: str) -> Bundle:
    bundle.process["apparmorProfile"] = profile
    bundle.process["noNewPrivileges"] = False
    return bundle.mount("/tmp", "tmpfs", kind="tmpfs")


LABEL = "cat /proc/self/attr/current"


@pytest.mark.short
def test_labels(either: Runtime, bundle: MakeBundle, load: Load) -> None:
    """run and exec are in the profile from their first instruction; --apparmor of exec names another."""
    profile, other = load("gpurun-test", PROFILES["enforced"]), load("gpurun-test-other", PROFILES["enforced"])
    log = mark_kernel_log()
    container = either.start(confined(bundle(), profile).sh(f"{LABEL}; touch /tmp/file || echo refused; sleep 1000"))
    assert container.wait_for("refused").splitlines()[0] == f"{profile} (enforce)"
    assert either("exec", container.id, "sh", "-c", LABEL).out.strip("\n\0") == f"{profile} (enforce)"
    assert either("exec", "--apparmor", other, container.id, "sh", "-c", LABEL).out.strip("\n\0") == f"{other} (enforce)"
    assert container.kill("KILL").rc == 0 and container.wait() == 137 and container.delete().rc == 0
    # Denied by a rule, and so not logged; nothing else was refused on the way.
    assert denials(log) == set()


@pytest.mark.short
@pytest.mark.gpurun_only
def test_exec_by_the_compiled_front(runtime: Runtime, bundle: MakeBundle, load: Load) -> None:
    """What the front executes without an interpreter, after an exec like it, is in the container's profile as well."""
    front, profile = REPOSITORY / "build/gpurun-fast", load("gpurun-test", PROFILES["enforced"])
    if not front.exists():
        pytest.skip("build/gpurun-fast is not there")
    with runtime_at(str(front), runtime.bed, runtime.directory) as fast:
        container = fast.start(confined(bundle(), profile).sh("echo up; sleep 1000"))
        container.wait_for("up")
        script = f"{LABEL}; touch /tmp/file || echo refused"
        process = container.files / "process.json"
        process.write_text(json.dumps({**container.bundle.process, "args": ["sh", "-c", script]}))

        def label() -> str:
            files = fast.new_files()
            words = ("--detach", "--process", str(process), "--pid-file", str(files / "pid"))
            done = fast("exec", *words, container.id, files=files)
            assert done.rc == 0, done
            os.waitpid(int((files / "pid").read_text()), 0)
            return (files / "out").read_text().replace("\0", "")

        assert label() == f"{profile} (enforce)\nrefused\n"
        interpreter = os.path.realpath(sys.executable)
        runtime.bed.run("mount", "--bind", shutil.which("false") or "/bin/false", interpreter)
        try:
            assert fast("--version").rc == 1, "the launcher runs"
            assert label() == f"{profile} (enforce)\nrefused\n"
        finally:
            runtime.bed.run("umount", interpreter)
        assert container.kill("KILL").rc == 0 and container.wait() == 137 and container.delete().rc == 0


@pytest.mark.short
def test_a_profile_that_complains_refuses_nothing(either: Runtime, bundle: MakeBundle, load: Load) -> None:
    profile = load(
        "gpurun-test", PROFILES["complaining"].replace("file,", "deny /nowhere w, /{bin,lib,usr,proc}/** mrix, /* r,")
    )
    log = mark_kernel_log()
    assert either.output(confined(bundle(), profile).sh(f"{LABEL}; touch /tmp/file && echo made")) == (
        f"{profile} (complain)\nmade\n"
    )
    logged = denials(log)
    assert {verdict for verdict, *_ in logged} == {"ALLOWED"}
    assert ("ALLOWED", "mknod", profile, "/tmp/file") in logged


def test_what_a_profile_denies_is_the_programs_and_not_the_runtimes(either: Runtime, bundle: MakeBundle, load: Load) -> None:
    """No mounts, capabilities, ptrace or other profiles: the container is made, entered and ended all the same."""
    profile = load("gpurun-test", PROFILES["strict"])
    log = mark_kernel_log()
    b = confined(bundle(), profile).sh(f"{LABEL}; mount -t tmpfs t /tmp 2>/dev/null || echo refused; sleep 1000")
    b.capabilities("CAP_SYS_ADMIN", "CAP_CHOWN")
    container = either.start(b)
    assert container.wait_for("refused").splitlines()[0] == f"{profile} (enforce)"
    assert either("exec", container.id, "sh", "-c", LABEL).out.strip("\n\0") == f"{profile} (enforce)"
    assert either("exec", "-u", "1000:1000", container.id, "true").rc == 0
    assert container.kill("TERM").rc == 0 and container.kill("KILL").rc == 0
    assert container.wait() in (137, 143) and container.delete().rc == 0
    assert denials(log) == set()


def test_exec_after_the_profile_was_loaded_anew(either: Runtime, bundle: MakeBundle, load: Load, leaks: Leaks) -> None:
    leaks.rootfs_may_change = True
    profile = load("gpurun-test", PROFILES["enforced"])
    container = either.start(confined(bundle(), profile).sh("echo up; sleep 1000"))
    container.wait_for("up")
    assert either("exec", container.id, "touch", "/before").rc == 0
    load("gpurun-test", PROFILES["enforced"].replace("deny /tmp/** w,", "deny /after w,"))
    assert (
        either("exec", container.id, "touch", "/after").rc != 0 and either("exec", container.id, "touch", "/tmp/x").rc == 0
    )
    assert container.kill("KILL").rc == 0


def test_exec_after_the_profile_was_removed(either: Runtime, bundle: MakeBundle, load: Load, tmp_path: Path) -> None:
    profile = load("gpurun-test", PROFILES["enforced"])
    container = either.start(confined(bundle(), profile).sh("echo up; sleep 1000"))
    container.wait_for("up")
    subprocess.run(["apparmor_parser", "-R", str(tmp_path / profile)], check=True)
    refused = either("exec", container.id, "true")
    load("gpurun-test", PROFILES["enforced"])
    assert refused.rc != 0 and "apparmor" in refused.text
    assert container.kill("KILL").rc == 0


@pytest.mark.parametrize("form", ["gpurun-test//&gpurun-test-other", ":gpurun-test-ns:gpurun-test", "&gpurun-test-other"])
def test_stacked_profiles_and_namespaces(
    runtime: Runtime, bundle: MakeBundle, load: Load, tmp_path: Path, form: str
) -> None:
    """Whatever the kernel makes of such a name, it is the same under runc: what the program sees, or that it is refused."""
    load("gpurun-test", PROFILES["enforced"])
    load("gpurun-test-other", PROFILES["enforced"])
    namespace = ["apparmor_parser", "-K", "-n", "gpurun-test-ns"]
    subprocess.run([*namespace, "-r", str(tmp_path / "gpurun-test")], check=True)
    try:
        answers: list[Result] = []
        for path in (runtime.path, shutil.which("runc") or pytest.skip("runc is not installed")):
            one = Runtime(path, runtime.bed, Path(tempfile.mkdtemp(dir=runtime.directory)))
            answers.append(one.run(confined(bundle(), form).sh(f"{LABEL}; touch /tmp/file || echo refused")))
            one.cleanup()
    finally:
        subprocess.run([*namespace, "-R", str(tmp_path / "gpurun-test")], check=True)
        Path("/sys/kernel/security/apparmor/policy/namespaces/gpurun-test-ns").rmdir()
    assert [(answer.rc, answer.out) for answer in answers[:1]] == [(answer.rc, answer.out) for answer in answers[1:]]


@pytest.mark.short
@pytest.mark.gpurun_only
def test_the_package_profile_of_gpurun_itself(runtime: Runtime, bundle: MakeBundle, load: Load) -> None:
    """It is there for user namespaces (debian/apparmor); a container's profile takes signals of `unconfined` alone."""
    load("gpurun", f"{runtime.path} {package_rules()}")
    profile = load("gpurun-test", PROFILES["enforced"])
    container = runtime.start(confined(bundle(), profile).sh(f"{LABEL}; sleep 1000"))
    assert container.wait_for("(").splitlines()[0] == f"{profile} (enforce)"
    assert runtime("exec", container.id, "sh", "-c", LABEL).out.strip("\n\0") == f"{profile} (enforce)"
    assert container.kill("CONT").rc == 0 and container.kill("KILL").rc == 0 and container.wait() == 137
    other = runtime.start(confined(bundle(), profile).sh("sleep 1000"))
    assert other.delete("--force").rc == 0
    unconfined = bundle().sh(LABEL)
    assert runtime.output(unconfined).strip("\n\0") == "gpurun (unconfined)"


RESTRICTED = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")


@pytest.mark.gpurun_only
@pytest.mark.skipif(not RESTRICTED.exists(), reason="this kernel does not restrict user namespaces by AppArmor")
def test_user_namespaces_where_they_are_restricted(runtime: Runtime, bundle: MakeBundle, load: Load) -> None:
    """As Ubuntu has it: rootless containers need the profile of the package."""
    directory = Path(tempfile.mkdtemp(dir=runtime.directory))
    directory.chmod(0o777)
    b = bundle().user_namespace(host=1000, size=1).without_namespace("network").sh("echo there")
    b.linux["cgroupsPath"] = ""
    b.write()

    def as_user() -> subprocess.CompletedProcess[str]:
        command = ["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", runtime.path]
        command += ["--root", str(directory), "run", "--bundle", str(b.directory), "rootless"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    before = RESTRICTED.read_text()
    RESTRICTED.write_text("1")
    try:
        assert as_user().returncode != 0
        load("gpurun", f"{runtime.path} {package_rules()}")
        allowed = as_user()
    finally:
        RESTRICTED.write_text(before)
    assert (allowed.returncode, allowed.stdout) == (0, "there\n"), allowed.stderr
