"""A caller in a profile of AppArmor that keeps something from it: one sentence says what, and nothing is left.

What Ubuntu's kernels do to all programs without a profile (kernel.apparmor_restrict_unprivileged_userns), a profile does
to one caller under any kernel from 6.7 on.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.security.lsm import apparmor_enabled
from tests.conftest import MakeBundle
from tests.native.apparmor import ABI, Load, mediates_user_namespaces, package_rules
from tests.native.bundle import Bundle
from tests.native.runtime import Result, Runtime

pytestmark = [
    pytest.mark.native,
    pytest.mark.gpurun_only,
    pytest.mark.skipif(not apparmor_enabled(), reason="this kernel does not run AppArmor"),
    pytest.mark.skipif(shutil.which("apparmor_parser") is None, reason="apparmor_parser is not installed"),
    pytest.mark.skipif(not mediates_user_namespaces(), reason="AppArmor's rules of user namespaces come with Linux 6.7"),
]

NAME = "gpurun-test-caller"
#: All that a program may ask for, but for the rule userns.
NEARLY_ALL = "/{,**} rwlkm, /{,**} ix, capability, network, unix, signal, ptrace, mount, umount, pivot_root, mqueue,"
#: As Ubuntu's unprivileged_userns: the namespace is made, and no capability holds in it.
UBUNTU = NEARLY_ALL.replace("capability,", "userns, audit deny capability,")
INTO = 'echo "exec $0" >/proc/self/attr/apparmor/exec && exec env "$@"'
AS_USER = ("setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups")

NEEDS_A_PROFILE = "AppArmor may keep the program that called from making user namespaces: gpurun needs a profile"
Confine = Callable[[str], list[str]]


@pytest.fixture
def confine(load: Load) -> Confine:
    """The words before a command that put it under *rules*."""

    def into(rules: str) -> list[str]:
        return ["sh", "-c", INTO, load(NAME, f"flags=(attach_disconnected) {{\n  {rules}\n}}\n", ABI)]

    return into


def one_sentence(result: Result) -> str:
    assert result.rc == 1 and result.out == "" and "Traceback" not in result.err, result
    assert len(result.err.strip().splitlines()) == 1, result.err
    return result.text


def rootless(bundle: MakeBundle) -> Bundle:
    b = bundle().user_namespace(host=1000, size=1).without_namespace("network").sh("echo there")
    b.linux["cgroupsPath"] = ""
    b.config["mounts"] = [mount for mount in b.config["mounts"] if mount["type"] != "sysfs"]
    b.config["mounts"] = [m | {"options": [o for o in m.get("options", ()) if o != "gid=5"]} for m in b.config["mounts"]]
    for field in ("capabilities", "rlimits"):
        del b.process[field]
    del b.linux["resources"]
    b.write()
    return b


@pytest.fixture
def as_user(runtime: Runtime) -> Callable[..., Result]:
    """``gpurun run`` by a user without privilege, with a state root of their own, which is empty again after it."""

    def run(b: Bundle, *tracer: str) -> Result:
        root = Path(tempfile.mkdtemp(dir=runtime.directory))
        root.chmod(0o777)
        words = ("run", "--bundle", str(b.directory), "rootless")
        result = runtime(*words, tracer=(*AS_USER, *tracer), globals_=("--root", str(root)))
        assert list(root.iterdir()) == []
        return result

    return run


@pytest.mark.short
@pytest.mark.parametrize(
    ("rules", "words"),
    [(NEARLY_ALL, NEEDS_A_PROFILE), (UBUNTU, "kernel.apparmor_restrict_unprivileged_userns")],
    ids=["denied", "as Ubuntu has it"],
)
def test_rootless_with_the_packages_profile_and_without(
    runtime: Runtime,
    bundle: MakeBundle,
    confine: Confine,
    load: Load,
    as_user: Callable[..., Result],
    rules: str,
    words: str,
) -> None:
    """What the caller's profile keeps from it, that of the package gives to gpurun's own path."""
    b = rootless(bundle)
    assert words in one_sentence(as_user(b, *confine(rules)))
    load("gpurun", f"{runtime.path} {package_rules()}", ABI)
    allowed = as_user(b, *confine(f"{rules}\n  {runtime.path} px,"))
    assert (allowed.rc, allowed.out) == (0, "there\n"), allowed


def test_root_may_not_make_user_namespaces_either(runtime: Runtime, bundle: MakeBundle, confine: Confine) -> None:
    container = runtime.create(bundle().user_namespace().sh("true"), check=False, tracer=confine(NEARLY_ALL))
    assert NEEDS_A_PROFILE in one_sentence(container.result)
    assert not (runtime.root / container.id).exists()


@pytest.mark.parametrize("how", ["create", "exec"])
def test_a_profile_that_does_not_let_the_sealed_interpreter_be_executed(
    runtime: Runtime, bundle: MakeBundle, confine: Confine, how: str
) -> None:
    """A file that is mounted alone is called "/" by AppArmor: a copy in memory is executed then, as runc's is."""
    rules = NEARLY_ALL.replace("/{,**} ix", "/** ix") + " userns,"
    tracer = confine(rules)
    b = bundle().sh("echo up; exec sleep 1000")
    container = runtime.start(b, **({"tracer": tracer} if how == "create" else {}))
    container.wait_for("up")
    if how == "exec":
        done = runtime("exec", container.id, "echo", "there", tracer=tracer)
        assert (done.rc, done.out) == (0, "there\n"), done
    assert container.kill("KILL").rc == 0


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (NEARLY_ALL + " audit deny capability sys_admin,", "this takes CAP_SYS_ADMIN"),
        (NEARLY_ALL + " audit deny mount,", "permission denied"),
        (NEARLY_ALL + " audit deny pivot_root,", "permission denied"),
    ],
    ids=["sys_admin", "mount", "pivot_root"],
)
def test_what_else_a_profile_of_the_caller_may_deny(
    runtime: Runtime, bundle: MakeBundle, confine: Confine, rules: str, words: str
) -> None:
    container = runtime.create(bundle().sh("true"), check=False, tracer=confine(rules))
    assert words in one_sentence(container.result)
    assert not (runtime.root / container.id).exists()
