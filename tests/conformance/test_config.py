"""config.md, without its hooks and mounts."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import pytest

from tests.conformance.levels import must, should
from tests.conformance.refused import refused
from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native

PR_CAPBSET_DROP = 24
CAP_SYS_BOOT = 22
prctl = ctypes.CDLL(None).prctl
CAPABILITIES = {"CHOWN": 0, "KILL": 5, "NET_RAW": 13, "SYS_ADMIN": 21}
LIMITS = {"CORE": "Max core file size", "FSIZE": "Max file size", "MEMLOCK": "Max locked memory", "STACK": "Max stack size"}


def status(text: str) -> dict[str, str]:
    return {k: v.strip() for k, _, v in (line.partition(":") for line in text.splitlines())}


@must("config.md: Specification version")
@pytest.mark.parametrize("version", ["1.0.0", "1.0.2", "1.1.0", "1.2.0", "1.3.0"])
def test_config_specification_version_is_accepted(runtime: Runtime, bundle: MakeBundle, version: str) -> None:
    """bundles of the versions 1.0 to 1.3 run"""
    b = bundle().args("echo", "hi")
    b.config["ociVersion"] = version
    assert runtime.output(b) == "hi\n"


@pytest.mark.not_on("gpurun", reason="create takes any version, as runc does; `gpurun validate` tells of it")
@pytest.mark.not_on("runc", reason="takes any version")
@pytest.mark.not_on("crun", reason="takes any version")
@must("config.md: Specification version")
@pytest.mark.parametrize("version", ["banana", "1", "", "1.0", "v1.0.0"])
def test_config_specification_version_that_is_no_semver(runtime: Runtime, bundle: MakeBundle, version: str) -> None:
    """`ociVersion` MUST be in SemVer v2.0.0 format"""
    b = bundle()
    b.config["ociVersion"] = version
    refused(runtime, b)


@must("config.md: Root")
def test_config_root_path_relative_is_of_the_bundle(runtime: Runtime, bundle: MakeBundle, leaks: Leaks) -> None:
    """`path` is absolute or relative to the bundle"""
    b = bundle().args("cat", "/etc/mark")
    (b.rootfs / "etc/mark").write_text("here\n")
    b.config["root"]["path"] = "./rootfs"
    assert runtime.output(b) == "here\n"
    b.config["root"]["path"] = str(b.rootfs)
    assert runtime.output(b) == "here\n"


@must("config.md: Root")
@pytest.mark.parametrize("path", ["nowhere", "config.json", "/nonexistent/rootfs"])
def test_config_root_path_is_a_directory(runtime: Runtime, bundle: MakeBundle, path: str) -> None:
    """a directory MUST exist at the path declared by the field"""
    b = bundle()
    b.config["root"]["path"] = path
    refused(runtime, b)


@must("config.md: Root")
@pytest.mark.parametrize("readonly", [True, False, None])
def test_config_root_readonly(runtime: Runtime, bundle: MakeBundle, leaks: Leaks, readonly: bool | None) -> None:
    """if `readonly` is true the root MUST be read-only inside the container; it defaults to false"""
    leaks.allow_rootfs_changes()
    b = bundle().sh("echo x >/etc/new")
    b.config["root"] = {"path": "rootfs"} if readonly is None else {"path": "rootfs", "readonly": readonly}
    assert (runtime.run(b).rc != 0) == bool(readonly)
    assert (b.rootfs / "etc/new").exists() != bool(readonly)


@must("config.md: Root")
def test_config_root_is_required(runtime: Runtime, bundle: MakeBundle) -> None:
    """`root` is REQUIRED on Linux"""
    b = bundle()
    del b.config["root"]
    refused(runtime, b)


@must("config.md: Process")
@pytest.mark.parametrize("size", [{"height": 25, "width": 80}, {"height": 0, "width": 0}])
def test_config_process_console_size_without_a_terminal(runtime: Runtime, bundle: MakeBundle, size: dict[str, int]) -> None:
    """MUST ignore `consoleSize` if `terminal` is false or unset"""
    b = bundle().args("echo", "hi")
    b.process["consoleSize"] = size
    assert runtime.output(b) == "hi\n"
    del b.process["terminal"]
    assert runtime.output(b) == "hi\n"


@must("config.md: Process")
def test_config_process_cwd(runtime: Runtime, bundle: MakeBundle) -> None:
    """`cwd` is the working directory that will be set for the executable"""
    b = bundle().args("pwd")
    b.process["cwd"] = "/usr"
    assert runtime.output(b) == "/usr\n"


@pytest.mark.not_on("crun", reason="takes it")
@must("config.md: Process")
@pytest.mark.parametrize("cwd", ["usr", "./usr", "../usr", ""])
def test_config_process_cwd_is_absolute(runtime: Runtime, bundle: MakeBundle, cwd: str) -> None:
    """`cwd` MUST be an absolute path"""
    b = bundle()
    b.process["cwd"] = cwd
    refused(runtime, b)


@must("config.md: Process")
def test_config_process_env(runtime: Runtime, bundle: MakeBundle) -> None:
    """`env` has the semantics of environ"""
    b = bundle().args("cat", "/proc/self/environ")
    b.process["env"] = ["PATH=/bin", "HOME=/", "A=1", "EMPTY=", "EQ=a=b", "TEXT=grüße", "LINES=one\ntwo"]
    assert sorted(runtime.output(b).rstrip("\0").split("\0")) == sorted(b.process["env"])


@must("config.md: Process")
def test_config_process_env_of_the_runtime_stays_outside(runtime: Runtime, bundle: MakeBundle) -> None:
    """... of `env` alone: the runtime's own environment is not the container's"""
    env = {"SECRET": "of the caller", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    assert "SECRET" not in runtime.output(bundle().args("env"), env=env)


@must("config.md: Process")
def test_config_process_args_file_is_searched_in_path(runtime: Runtime, bundle: MakeBundle) -> None:
    """the first entry of `args` is used with the semantics of execvp's file: searched in the container's PATH"""
    b = bundle().args("found")
    (b.rootfs / "usr/found").write_text("#!/bin/sh\necho found $0\n")
    (b.rootfs / "usr/found").chmod(0o755)
    b.process["env"] = ["PATH=/nowhere:/usr:/bin"]
    assert runtime.output(b) == "found /usr/found\n"


@pytest.mark.not_on("crun", reason="starts nothing without an error")
@must("config.md: Process")
@pytest.mark.parametrize("args", [[], None], ids=["empty", "absent"])
def test_config_process_args_at_least_one(runtime: Runtime, bundle: MakeBundle, args: list[str] | None) -> None:
    """at least one entry of `args` is REQUIRED"""
    b = bundle()
    b.process["args"] = args
    if args is None:
        del b.process["args"]
    refused(runtime, b)


@must("config.md: POSIX process")
@pytest.mark.parametrize("name", LIMITS)
def test_config_process_rlimits(runtime: Runtime, bundle: MakeBundle, name: str) -> None:
    """`rlim_cur` and `rlim_max` MUST match the configured values"""
    b = bundle().args("cat", "/proc/self/limits")
    b.process["rlimits"] = [{"type": f"RLIMIT_{name}", "soft": 1 << 20, "hard": 1 << 21}]
    rows = {line[:26].strip(): line[26:].split()[:2] for line in runtime.output(b).splitlines()}
    assert rows[LIMITS[name]] == [str(1 << 20), str(1 << 21)]


@pytest.mark.not_on("crun", reason="leaves the cgroup behind")
@must("config.md: POSIX process")
@pytest.mark.parametrize("name", ["RLIMIT_COFFEE", "NOFILE", "", "rlimit_nofile"])
def test_config_process_rlimits_unknown(runtime: Runtime, bundle: MakeBundle, name: str) -> None:
    """MUST generate an error for a `type` that cannot be mapped to a kernel interface"""
    b = bundle()
    b.process["rlimits"] = [{"type": name, "soft": 1, "hard": 2}]
    refused(runtime, b)


@pytest.mark.not_on("crun", reason="takes them")
@pytest.mark.not_on("runc", reason="takes them")
@must("config.md: POSIX process")
@pytest.mark.parametrize("second", [{"soft": 60, "hard": 70}, {"soft": 50, "hard": 60}], ids=["the same", "another"])
def test_config_process_rlimits_duplicated(runtime: Runtime, bundle: MakeBundle, second: dict[str, int]) -> None:
    """if `rlimits` contains duplicated entries with the same `type`, MUST generate an error"""
    b = bundle()
    b.process["rlimits"] = [{"type": "RLIMIT_NOFILE", "soft": 60, "hard": 70}, {"type": "RLIMIT_NOFILE", **second}]
    refused(runtime, b)


@must("config.md: Linux Process")
@pytest.mark.parametrize("user", [0, 1000])
@pytest.mark.parametrize("name", ["bounding", "inheritable", "permitted", "effective", "ambient"])
def test_config_process_capabilities(runtime: Runtime, bundle: MakeBundle, name: str, user: int) -> None:
    """the capability sets are those given, as execve(2) hands them on"""
    b = bundle().args("cat", "/proc/self/status")
    b.process["user"] = {"uid": user, "gid": user}
    sets = ("bounding", "inheritable", "permitted", "effective", "ambient")
    b.process["capabilities"] = {k: ["CAP_KILL", "CAP_CHOWN"] for k in sets}
    found = int(status(runtime.output(b))[{"bounding": "CapBnd", "inheritable": "CapInh", "permitted": "CapPrm",
                                           "effective": "CapEff", "ambient": "CapAmb"}[name]], 16)  # fmt: skip
    assert found == 1 << CAPABILITIES["KILL"] | 1 << CAPABILITIES["CHOWN"]


@pytest.mark.not_on("crun", reason="says nothing")
@must("config.md: Linux Process")
def test_config_process_capabilities_unknown_are_a_warning(runtime: Runtime, bundle: MakeBundle) -> None:
    """a capability that cannot be mapped to a kernel interface MUST be logged as a warning"""
    result = runtime.run(bundle().capabilities("CAP_KILL", "CAP_TELEPATHY").args("echo", "hi"))
    assert result.rc == 0
    assert "CAP_TELEPATHY" in result.err


@should("config.md: Linux Process")
def test_config_process_capabilities_that_cannot_be_granted(runtime: Runtime, bundle: MakeBundle) -> None:
    """SHOULD NOT fail if the configuration requests capabilities that cannot be granted"""
    b = bundle().args("cat", "/proc/self/status")
    names = ["CAP_KILL", "CAP_TELEPATHY"]
    b.process["capabilities"] = dict.fromkeys(("bounding", "inheritable", "permitted", "effective", "ambient"), names)
    assert int(status(runtime.output(b))["CapEff"], 16) == 1 << CAPABILITIES["KILL"]


@pytest.mark.not_on("gpurun", reason="refuses, naming the capability; runc refuses too")
@pytest.mark.not_on("runc", reason="refuses")
@should("config.md: Linux Process")
def test_config_process_capabilities_that_the_runtime_lacks(runtime: Runtime, bundle: MakeBundle) -> None:
    """... also if it is the runtime itself that lacks them"""

    def drop() -> None:
        prctl(PR_CAPBSET_DROP, CAP_SYS_BOOT, 0, 0, 0)

    b = bundle().capabilities("CAP_KILL", "CAP_SYS_BOOT").args("cat", "/proc/self/status")
    result = runtime.run(b, preexec=drop)
    assert result.rc == 0, result.text
    assert int(status(result.out)["CapEff"], 16) == 1 << CAPABILITIES["KILL"]


@must("config.md: Linux Process")
@pytest.mark.parametrize("value", [True, False, None])
def test_config_process_no_new_privileges(runtime: Runtime, bundle: MakeBundle, value: bool | None) -> None:
    """`noNewPrivileges` set to true prevents the process from gaining additional privileges"""
    b = bundle().args("cat", "/proc/self/status")
    b.process["noNewPrivileges"] = value
    if value is None:
        del b.process["noNewPrivileges"]
    assert status(runtime.output(b))["NoNewPrivs"] == str(int(bool(value)))


@must("config.md: Linux Process")
@pytest.mark.parametrize("value", [100, 1000])
def test_config_process_oom_score_adj(runtime: Runtime, bundle: MakeBundle, value: int) -> None:
    """if `oomScoreAdj` is set, MUST set oom_score_adj to the given value"""
    b = bundle().args("cat", "/proc/self/oom_score_adj")
    b.process["oomScoreAdj"] = value
    assert runtime.output(b) == f"{value}\n"


@must("config.md: Linux Process")
def test_config_process_oom_score_adj_not_set(runtime: Runtime, bundle: MakeBundle) -> None:
    """if `oomScoreAdj` is not set, MUST NOT change the value of oom_score_adj"""

    def adjust() -> None:
        with open("/proc/self/oom_score_adj", "w") as f:
            f.write("321")

    assert runtime.output(bundle().args("cat", "/proc/self/oom_score_adj"), preexec=adjust) == "321\n"


@must("config.md: POSIX-platform User")
@pytest.mark.parametrize("uid", [0, 1000, 4242])
def test_config_user_uid_and_gid(runtime: Runtime, bundle: MakeBundle, uid: int) -> None:
    """`uid` and `gid` are those in the container namespace"""
    b = bundle().args("cat", "/proc/self/status")
    b.process["user"] = {"uid": uid, "gid": uid + 1}
    found = status(runtime.output(b))
    assert found["Uid"].split() == [str(uid)] * 4
    assert found["Gid"].split() == [str(uid + 1)] * 4


@must("config.md: POSIX-platform User")
def test_config_user_in_a_user_namespace(runtime: Runtime, bundle: MakeBundle) -> None:
    """... also in a user namespace of its own"""
    b = bundle().user_namespace().args("id", "-u")
    b.process["user"] = {"uid": 1000, "gid": 1000}
    assert runtime.output(b) == "1000\n"


@must("config.md: POSIX-platform User")
@pytest.mark.parametrize("gids", [[5, 44, 4000000], []])
def test_config_user_additional_gids(runtime: Runtime, bundle: MakeBundle, gids: list[int]) -> None:
    """`additionalGids` are added to the process"""
    b = bundle().args("cat", "/proc/self/status")
    b.process["user"] = {"uid": 1000, "gid": 1000, "additionalGids": gids}
    found = set(status(runtime.output(b))["Groups"].split()) - {"1000"}
    assert found == {str(gid) for gid in gids}


@must("config.md: POSIX-platform User")
@pytest.mark.parametrize("umask", [0, 0o077, 0o027])
def test_config_user_umask(runtime: Runtime, bundle: MakeBundle, umask: int) -> None:
    """`umask` specifies the umask of the user"""
    b = bundle().sh("umask")
    b.process["user"]["umask"] = umask
    assert int(runtime.output(b), 8) == umask


@must("config.md: Hostname")
def test_config_hostname(runtime: Runtime, bundle: MakeBundle) -> None:
    """`hostname` is the hostname as seen by processes inside the container"""
    b = bundle().args("hostname")
    b.config["hostname"] = "frog"
    before = os.uname().nodename
    assert runtime.output(b) == "frog\n"
    assert os.uname().nodename == before


@pytest.mark.not_on("runc 1.1", reason="does not know the field")
@must("config.md: Domainname")
def test_config_domainname(runtime: Runtime, bundle: MakeBundle) -> None:
    """`domainname` is the domain name as seen by processes inside the container"""
    b = bundle().args("cat", "/proc/sys/kernel/domainname")
    b.config["domainname"] = "pond.example"
    assert runtime.output(b) == "pond.example\n"


@must("config.md: Annotations")
@pytest.mark.parametrize("key", ["com.example.key", "org.example.deep.er", "plain", "run.example/x"])
def test_config_annotations_unknown_keys(runtime: Runtime, bundle: MakeBundle, key: str) -> None:
    """MUST handle unknown annotation keys like any other unknown property"""
    b = bundle()
    b.config["annotations"] = {key: "value"}
    assert runtime.create(b).state()["annotations"][key] == "value"


@must("config.md: Annotations")
@pytest.mark.parametrize("value", [1, True, ["a"], {"a": "b"}])
def test_config_annotations_values_are_strings(runtime: Runtime, bundle: MakeBundle, value: Any) -> None:
    """values MUST be strings"""
    b = bundle()
    b.config["annotations"] = {"com.example.key": value}
    refused(runtime, b)


@pytest.mark.not_on("crun", reason="ignores it")
@must("config.md: Annotations")
@pytest.mark.parametrize("value", [["a"], "text", 7])
def test_config_annotations_are_a_map(runtime: Runtime, bundle: MakeBundle, value: Any) -> None:
    """annotations MUST be a key-value map"""
    b = bundle()
    b.config["annotations"] = value
    refused(runtime, b)


@pytest.mark.not_on("crun", reason="takes it")
@pytest.mark.not_on("gpurun", reason="takes it, as runc does")
@pytest.mark.not_on("runc", reason="takes it")
@must("config.md: Annotations")
def test_config_annotations_key_is_not_empty(runtime: Runtime, bundle: MakeBundle) -> None:
    """keys MUST NOT be an empty string"""
    b = bundle()
    b.config["annotations"] = {"": "value"}
    refused(runtime, b)


def _top(b: Bundle) -> Any:
    return b.config


OTHERS: dict[str, Any] = {
    "windows": {"layerFolders": ["C:\\layer"]},
    "solaris": {},
    "zos": {},
    "vm": {"kernel": {"path": "/vmlinuz"}},
}
UNKNOWN: dict[str, Any] = {
    "the config": _top,
    "root": lambda b: b.config["root"],
    "process": lambda b: b.process,
    "process.user": lambda b: b.process["user"],
    "mounts[0]": lambda b: b.config["mounts"][0],
    "linux": lambda b: b.linux,
    "linux.resources": lambda b: b.linux["resources"],
    "linux.namespaces[0]": lambda b: b.linux["namespaces"][0],
}


@must("config.md: Extensibility")
@pytest.mark.parametrize("where", UNKNOWN)
def test_config_extensibility(runtime: Runtime, bundle: MakeBundle, where: str) -> None:
    """MUST ignore unknown properties, without an error"""
    b = bundle().args("echo", "hi")
    UNKNOWN[where](b).update(comExampleText="text", comExampleObject={"a": [1]}, comExampleNull=None)
    assert runtime.output(b) == "hi\n"


@must("config.md: Extensibility")
@pytest.mark.parametrize("platform", OTHERS)
def test_config_other_platforms(runtime: Runtime, bundle: MakeBundle, platform: str) -> None:
    """what is for other platforms does not concern a runtime for Linux"""
    b = bundle().args("echo", "hi")
    b.config[platform] = OTHERS[platform]
    assert runtime.output(b) == "hi\n"


INVALID: dict[str, Any] = {
    "root.readonly": lambda b: b.config["root"].update(readonly="yes"),
    "process": lambda b: b.config.update(process=[]),
    "process.args": lambda b: b.process.update(args="true"),
    "process.args[0]": lambda b: b.process.update(args=[1]),
    "process.env": lambda b: b.process.update(env={"A": "1"}),
    "process.user.uid": lambda b: b.process.update(user={"uid": "root", "gid": 0}),
    "process.user.uid < 0": lambda b: b.process.update(user={"uid": -1, "gid": 0}),
    "process.user.gid > 32 bits": lambda b: b.process.update(user={"uid": 0, "gid": 1 << 32}),
    "process.oomScoreAdj": lambda b: b.process.update(oomScoreAdj=5000),
    "process.rlimits soft > hard": lambda b: b.process.update(rlimits=[{"type": "RLIMIT_NOFILE", "soft": 9, "hard": 5}]),
    "mounts": lambda b: b.config.update(mounts={}),
    "mounts[].options": lambda b: b.config["mounts"][0].update(options="ro"),
    "hostname": lambda b: b.config.update(hostname=7),
    "hostname too long": lambda b: b.config.update(hostname="x" * 100),
    "linux.namespaces[].type": lambda b: b.linux["namespaces"].append({"type": "colour"}),
    "linux.rootfsPropagation": lambda b: b.linux.update(rootfsPropagation="everywhere"),
    "linux.maskedPaths": lambda b: b.linux.update(maskedPaths="/proc/kcore"),
    "linux.resources.devices[].access": lambda b: b.linux["resources"]["devices"].append({"allow": True, "access": ""}),
    "linux.resources.devices[].type": lambda b: b.linux["resources"]["devices"].append(
        {"allow": True, "type": "z", "access": "r"}
    ),
    "linux.devices[].type": lambda b: b.linux.update(devices=[{"path": "/dev/x", "type": "q", "major": 1, "minor": 1}]),
}


@pytest.mark.sweep(8)
@pytest.mark.not_on("crun", reason="ignores values of another type, or leaves the cgroup behind")
@must("config.md: Valid values")
@pytest.mark.parametrize("where", INVALID)
def test_config_valid_values(runtime: Runtime, bundle: MakeBundle, where: str) -> None:
    """MUST generate an error when invalid or unsupported values are encountered"""
    b = bundle()
    INVALID[where](b)
    refused(runtime, b)


@must("config.md: Valid values")
@pytest.mark.parametrize("text", ["", "{", "[]", '"text"', "null", "{}"])
def test_config_that_is_none(runtime: Runtime, bundle: MakeBundle, text: str) -> None:
    """... and when config.json is no JSON, no object or has nothing of what is REQUIRED"""
    b = bundle()
    b.raw = text.encode()
    refused(runtime, b)
