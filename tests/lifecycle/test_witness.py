"""What a process was given, as python-prctl sees it from inside: a library that has never heard of gpurun.

The other tests read /proc/PID/status with code of their own; a mistake in that, or in our numbers of capabilities, would be
in both.  The host's interpreter is bound into the container, with Debian's package python3-prctl.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.execs import execute, process_file
from tests.native.runtime import Runtime

PYTHON = "/usr/bin/python3"


def has_prctl() -> bool:
    try:
        return subprocess.run([PYTHON, "-Ic", "import prctl"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(not has_prctl(), reason="python3-prctl is not installed"),
]

WITNESS = """
import json, prctl
sets = {"bounding": prctl.capbset, "permitted": prctl.cap_permitted, "effective": prctl.cap_effective,
        "inheritable": prctl.cap_inheritable}
names = sorted(prctl.ALL_CAP_NAMES - {"last_cap"}) if isinstance(prctl.ALL_CAP_NAMES, set) else [
    name for name in prctl.ALL_CAP_NAMES if name != "last_cap"]
def has(which, name):
    try:
        return getattr(which, name)
    except ValueError:  # newer than the kernel
        return False
bits = ("keep_caps", "keep_caps_locked", "noroot", "noroot_locked", "no_setuid_fixup", "no_setuid_fixup_locked")
print(json.dumps({
    **{word: ["CAP_" + name.upper() for name in names if has(which, name)] for word, which in sets.items()},
    "securebits": [bit for bit in bits if getattr(prctl.securebits, bit)],
    "no_new_privs": bool(prctl.get_no_new_privs()), "dumpable": bool(prctl.get_dumpable()), "name": prctl.get_name(),
    "parent's death": prctl.get_pdeathsig(), "subreaper": bool(prctl.get_child_subreaper()),
}))
"""
ALL = ["CAP_CHOWN", "CAP_KILL", "CAP_NET_RAW", "CAP_SYS_CHROOT"]
SOME = ["CAP_CHOWN", "CAP_KILL"]
ONE = ["CAP_KILL"]
#: What a process is before anybody has changed anything.
FRESH = {"securebits": [], "dumpable": True, "name": "python3", "parent's death": 0, "subreaper": False}


def sets(bounding: list[str], permitted: list[str], effective: list[str], inheritable: list[str]) -> dict[str, list[str]]:
    return {"bounding": bounding, "permitted": permitted, "effective": effective, "inheritable": inheritable}


#: (process of the config, what it is to be given), by capabilities(7), "Transformation of capabilities during execve()".
GIVEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "root": (
        {"user": {"uid": 0, "gid": 0}, "noNewPrivileges": False, "capabilities": sets(ALL, ALL, ALL, [])},
        {**sets(ALL, ALL, ALL, []), "no_new_privs": False},
    ),
    "root takes all that is in the bounding set": (
        {"user": {"uid": 0, "gid": 0}, "noNewPrivileges": False, "capabilities": sets(ALL, SOME, ONE, ONE)},
        # Who gains by execve(2) cannot be traced by those who have less.
        {**sets(ALL, ALL, ALL, ONE), "no_new_privs": False, "dumpable": False},
    ),
    "root with no_new_privs": (
        {"user": {"uid": 0, "gid": 0}, "noNewPrivileges": True, "capabilities": sets(ALL, SOME, ONE, ONE)},
        {**sets(ALL, SOME, SOME, ONE), "no_new_privs": True},
    ),
    "root without any": (
        {"user": {"uid": 0, "gid": 0}, "noNewPrivileges": True, "capabilities": sets([], [], [], [])},
        {**sets([], [], [], []), "no_new_privs": True},
    ),
    "a user": (
        {"user": {"uid": 1000, "gid": 1000}, "noNewPrivileges": True, "capabilities": sets(ALL, ALL, ALL, SOME)},
        {**sets(ALL, [], [], SOME), "no_new_privs": True},
    ),
    "a user with ambient capabilities": (
        {
            "user": {"uid": 1000, "gid": 1000},
            "noNewPrivileges": False,
            "capabilities": {**sets(ALL, SOME, SOME, SOME), "ambient": ONE},
        },
        {**sets(ALL, ONE, ONE, SOME), "no_new_privs": False},
    ),
}  # fmt: skip


def with_python(b: Bundle, user_namespace: bool) -> Bundle:
    """*b* with the host's interpreter and libraries at their own places."""
    for name in ("/usr", "/lib", "/lib64"):
        if Path(name).exists():
            (b.rootfs / name[1:]).mkdir(exist_ok=True)
            b.config["mounts"].append({"destination": name, "source": name, "type": "bind", "options": ["rbind", "ro"]})
    return b.user_namespace() if user_namespace else b


def check(said: str, given: dict[str, Any]) -> None:
    found = json.loads(said)
    wanted = {**FRESH, **given}
    for word in ("bounding", "permitted", "effective", "inheritable"):
        found[word], wanted[word] = sorted(found[word]), sorted(wanted[word])
    assert found == wanted


@pytest.mark.sweep(4)
@pytest.mark.parametrize("user_namespace", [False, True], ids=["host's users", "user namespace"])
@pytest.mark.parametrize("case", GIVEN)
def test_created(runtime: Runtime, bundle: MakeBundle, case: str, user_namespace: bool) -> None:
    process, given = GIVEN[case]
    b = with_python(bundle().args(PYTHON, "-Ic", WITNESS), user_namespace)
    b.process.pop("capabilities")
    b.process.update(process)
    check(runtime.output(b), given)


@pytest.mark.parametrize("user_namespace", [False, True], ids=["host's users", "user namespace"])
def test_executed(runtime: Runtime, bundle: MakeBundle, user_namespace: bool) -> None:
    """Each in one container, whose own process has other privileges than they."""
    container = runtime.start(with_python(bundle().args("sleep", "1000"), user_namespace))
    for case, (process, given) in GIVEN.items():
        result = execute(container, options=process_file(container, **process, args=[PYTHON, "-Ic", WITNESS]))
        assert result.rc == 0, (case, result)
        check(result.out, given)
