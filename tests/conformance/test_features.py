"""features.md and features-linux.md: what the runtime tells of itself is what it can do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.levels import must
from tests.conftest import MakeBundle
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native

#: The members of the structure in 1.2 ...
TOP = {
    "ociVersionMin",
    "ociVersionMax",
    "hooks",
    "mountOptions",
    "linux",
    "annotations",
    "potentiallyUnsafeConfigAnnotations",
}
LINUX = {"namespaces", "capabilities", "cgroup", "seccomp", "apparmor", "selinux", "intelRdt", "mountExtensions"}
#: ... and what came with 1.3.
LINUX_1_3 = {"netDevices", "memoryPolicy"}


#: capabilities(7) in the order of their numbers.
CAPABILITIES = [
    f"CAP_{name}"
    for name in """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
    NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN
    SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE
    MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
    """.split()
]


@pytest.fixture
def features(runtime: Runtime) -> dict[str, Any]:
    result = runtime("features")
    if result.rc:
        pytest.skip("this version has no `features` command")
    return json.loads(result.out)  # type: ignore[no-any-return]


def version(text: str) -> tuple[int, ...]:
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    assert match, text
    return tuple([int(number) for number in match.groups()])


@must("features.md: Specification version")
def test_features_versions_are_there(features: dict[str, Any]) -> None:
    """`ociVersionMin` and `ociVersionMax` are REQUIRED; the latter MUST NOT be less than the former"""
    assert version(features["ociVersionMin"]) <= version(features["ociVersionMax"])


@must("features.md: Specification version")
@pytest.mark.parametrize("name", ["ociVersionMin", "ociVersionMax"])
def test_features_versions_are_accepted(runtime: Runtime, bundle: MakeBundle, features: dict[str, Any], name: str) -> None:
    """MUST accept these values as `ociVersion` of config.json"""
    b = bundle().args("echo", "hi")
    b.config["ociVersion"] = features[name]
    assert runtime.output(b) == "hi\n"


@pytest.mark.not_on("crun", reason="tells of what is of 1.3")
@must("features.md: Specification version")
def test_features_has_only_what_is_defined(features: dict[str, Any]) -> None:
    """MUST NOT contain properties that are not defined in this version of the specification"""
    known = LINUX | (LINUX_1_3 if version(features["ociVersionMax"]) >= (1, 3, 0) else set())
    assert set(features) <= TOP
    assert set(features["linux"]) <= known


@must("features.md: Features Structure")
def test_features_document_is_of_the_schema(features: dict[str, Any]) -> None:
    """properties are absent, null or of their types"""
    for name in ("hooks", "mountOptions", "potentiallyUnsafeConfigAnnotations"):
        assert isinstance(features.get(name, []), list | None)
    for name in ("namespaces", "capabilities"):
        assert isinstance(features["linux"].get(name, []), list | None)
    for name in ("cgroup", "seccomp", "apparmor", "selinux", "intelRdt", "mountExtensions"):
        assert isinstance(features["linux"].get(name, {}), dict | None)


@must("features.md: Hooks")
def test_features_hooks_are_supported(runtime: Runtime, bundle: MakeBundle, features: dict[str, Any]) -> None:
    """MUST support the elements of `hooks`"""
    b = bundle().args("echo", "hi")
    b.config["hooks"] = {
        name: [{"path": "/bin/true" if name != "startContainer" else "/bin/busybox", "args": ["true"]}]
        for name in features["hooks"]
    }
    assert runtime.output(b) == "hi\n"


@pytest.mark.not_on("crun", reason="the kernel refuses some as it sets them")
@pytest.mark.not_on("runc", reason="hands `defaults` to the file system")
@must("features.md: Mount Options")
def test_features_mount_options_are_recognized(runtime: Runtime, bundle: MakeBundle, features: dict[str, Any]) -> None:
    """MUST recognize the elements of `mountOptions`"""
    special = "remount idmap ridmap mand iversion silent loud tmpcopyup copy-symlink src-nofollow dest-nofollow".split()
    options = [option for option in features["mountOptions"] if option not in special and "=" not in option]
    source = runtime.directory / "source"
    source.mkdir()
    for start in range(0, len(options), 8):
        b = bundle().args("echo", "hi")
        for option in options[start : start + 8]:
            b.mount("/tmp", str(source), "rbind", option)
        assert runtime.output(b) == "hi\n"


@must("features.md: Annotations")
def test_features_annotations_are_strings(features: dict[str, Any]) -> None:
    """MUST be a key-value map like the annotations of config.json"""
    annotations = features.get("annotations") or {}
    assert all(key and isinstance(value, str) for key, value in annotations.items())


@must("features-linux.md: MemoryPolicy")
@pytest.mark.parametrize("member", ["modes", "flags"])
@pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="this kernel has no NUMA support")
def test_features_linux_memory_policies_are_recognized(
    runtime: Runtime, bundle: MakeBundle, features: dict[str, Any], member: str
) -> None:
    """MUST recognize the elements of `memoryPolicy.modes` and `memoryPolicy.flags`"""
    names = (features["linux"].get("memoryPolicy") or {}).get(member)
    if not names:
        pytest.skip("this version does not tell of memory policies")
    for name in names:
        b = bundle().args("echo", "hi")
        if member == "modes":
            b.linux["memoryPolicy"] = {"mode": name, **({} if name in ("MPOL_DEFAULT", "MPOL_LOCAL") else {"nodes": "0"})}
        else:
            b.linux["memoryPolicy"] = {"mode": "MPOL_BIND", "nodes": "0", "flags": [name]}
        assert runtime.output(b) == "hi\n", name


@must("features-linux.md: Intel RDT, NetDevices")
def test_features_linux_of_1_3_are_booleans(features: dict[str, Any]) -> None:
    """`intelRdt.schemata`, `intelRdt.monitoring` and `netDevices.enabled` are booleans, where they are there"""
    linux = features["linux"]
    found = [(linux.get("intelRdt") or {}).get(name) for name in ("enabled", "schemata", "monitoring")]
    found.append((linux.get("netDevices") or {}).get("enabled"))
    assert all(value is None or isinstance(value, bool) for value in found)


@must("features.md: Unsafe annotations in config.json")
def test_features_unsafe_annotations_are_names_or_prefixes(features: dict[str, Any]) -> None:
    """an array of strings; a value that ends with a dot is a prefix"""
    names = features.get("potentiallyUnsafeConfigAnnotations") or []
    assert all(isinstance(name, str) and name.rstrip(".") for name in names)


@must("features-linux.md: Namespaces")
def test_features_linux_namespaces_are_recognized(runtime: Runtime, bundle: MakeBundle, features: dict[str, Any]) -> None:
    """MUST recognize the elements of `namespaces`"""
    b = bundle().args("echo", "hi")
    for kind in features["linux"]["namespaces"]:
        if kind == "user":
            b.user_namespace()
        else:
            b.namespace(kind)
    assert runtime.output(b) == "hi\n"


@must("features-linux.md: Capabilities")
def test_features_linux_capabilities_are_recognized(runtime: Runtime, bundle: MakeBundle, features: dict[str, Any]) -> None:
    """MUST recognize the elements of `capabilities`"""
    status = Path("/proc/self/status").read_text().splitlines()
    own = int(next(line for line in status if line.startswith("CapPrm")).split()[1], 16)
    names = [name for name in features["linux"]["capabilities"] if own >> CAPABILITIES.index(name) & 1]
    assert names
    result = runtime.run(bundle().capabilities(*names).args("echo", "hi"))
    assert (result.rc, result.out, result.err) == (0, "hi\n", "")


@must("features-linux.md: Seccomp")
def test_features_linux_seccomp_actions_are_recognized(
    runtime: Runtime, bundle: MakeBundle, features: dict[str, Any]
) -> None:
    """MUST recognize the elements of `seccomp.actions`"""
    for action in (features["linux"].get("seccomp") or {}).get("actions") or []:
        if action == "SCMP_ACT_NOTIFY":
            continue  # needs an agent
        b = bundle().args("echo", "hi")
        b.linux["seccomp"] = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["vhangup"], "action": action}]}
        assert runtime.output(b) == "hi\n", action


@must("features-linux.md: Seccomp")
def test_features_linux_seccomp_operators_are_recognized(
    runtime: Runtime, bundle: MakeBundle, features: dict[str, Any]
) -> None:
    """MUST recognize the elements of `seccomp.operators`"""
    operators = (features["linux"].get("seccomp") or {}).get("operators") or []
    b = bundle().args("echo", "hi")
    b.linux["seccomp"] = {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [
            {"names": ["vhangup"], "action": "SCMP_ACT_ERRNO", "args": [{"index": 0, "value": i, "valueTwo": 1, "op": op}]}
            for i, op in enumerate(operators)
        ],
    }
    assert runtime.output(b) == "hi\n"


@must("features-linux.md: Seccomp")
def test_features_linux_seccomp_architectures_are_recognized(
    runtime: Runtime, bundle: MakeBundle, features: dict[str, Any]
) -> None:
    """MUST recognize the elements of `seccomp.archs`"""
    b = bundle().args("echo", "hi")
    b.linux["seccomp"] = {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": ((features["linux"].get("seccomp") or {}).get("archs") or []),
        "syscalls": [{"names": ["vhangup"], "action": "SCMP_ACT_ERRNO"}],
    }
    result = runtime.run(b)
    # Filters of the other byte order cannot be of one program with ours: the runtime may refuse, but must know the name.
    assert result.rc == 0 or "unknown" not in result.err.lower()


@must("features-linux.md: Seccomp")
@pytest.mark.parametrize("name", ["knownFlags", "supportedFlags"])
def test_features_linux_seccomp_flags_are_recognized(
    runtime: Runtime, bundle: MakeBundle, features: dict[str, Any], name: str
) -> None:
    """MUST recognize the elements of `seccomp.knownFlags`, and support those of `supportedFlags`"""
    for flag in (features["linux"].get("seccomp") or {}).get(name) or []:
        if "WAIT_KILLABLE" in flag or (name == "knownFlags" and flag not in features["linux"]["seccomp"]["supportedFlags"]):
            continue  # for filters with an agent; of what it knows and does not support, an error is right
        b = bundle().args("echo", "hi")
        b.linux["seccomp"] = {
            "defaultAction": "SCMP_ACT_ALLOW",
            "flags": [flag],
            "syscalls": [{"names": ["vhangup"], "action": "SCMP_ACT_ERRNO"}],
        }
        assert runtime.output(b) == "hi\n", flag


@must("features-linux.md: MountExtensions")
def test_features_linux_idmap_is_told(features: dict[str, Any]) -> None:
    """`mountExtensions.idmap.enabled` MUST be true where `uidMappings` of mounts are recognized"""
    if "idmap" in (features.get("mountOptions") or []):
        assert features["linux"]["mountExtensions"]["idmap"]["enabled"] is True
