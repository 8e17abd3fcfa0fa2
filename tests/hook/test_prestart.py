"""The stand-alone hook: its command line, and containers of the real runc and crun that get GPUs from it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpurun.cdi.edits import DeviceNode
from gpurun.hook.device_program import allowing_prefix
from gpurun.hook.prestart import is_privileged
from tests.native.bed import Bed
from tests.native.bundle import Bundle
from tests.native.listing import tree_listing
from tests.native.others import another, new_bundle, skip_if_memlock_is_raised
from tests.native.runtime import Runtime
from tests.simdriver import Options, SimulatedDriver, bus_id, minor

SOURCE = Path(__file__).resolve().parents[2] / "src"
PROGRAM = (
    f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from gpurun.hook.prestart import main; sys.exit(main(sys.argv[1:]))"
)
PYTHON = [sys.executable, "-I", "-S", "-c", PROGRAM]
HOST = Options(layout="rhel")


def call(*args: str, stdin: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PYTHON, *args], input=stdin, env=env or {}, capture_output=True, text=True, check=False)


def bundle_with(tmp_path: Path, **config: Any) -> str:
    document = {
        "ociVersion": "1.0.2",
        "process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]},
        "root": {"path": "rootfs"},
    } | config
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in document.items() if v is not None}))
    return json.dumps({"pid": os.getpid(), "bundle": str(tmp_path)})


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ((), 2, "Usage:"),
        (("other",), 2, "Usage:"),
        (("-wrong", "prestart"), 2, "Usage:"),
        (("-config",), 2, "Usage:"),
        (("poststart",), 0, ""),
        (("-debug", "poststop"), 0, ""),
        (("--version",), 0, "version"),
        (("--help",), 0, "Usage:"),
        (("-h",), 0, "Usage:"),
        (("-debug", "-help", "prestart"), 0, "poststop"),
        (("-config=/nowhere", "poststop"), 0, ""),
    ],
)
def test_command_line(args: tuple[str, ...], code: int, words: str) -> None:
    result = call(*args)
    assert result.returncode == code and words in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("stdin", "words"),
    [
        ("", "the container's state on stdin: is empty"),
        ("[]", "state: must be an object"),
        ('{"pid": 0}', "state.pid: is missing"),
        ('{"pid": 1, "bundle": "/nowhere"}', "read /nowhere/config.json: no such file or directory"),
    ],
)
def test_states_that_cannot_be(stdin: str, words: str) -> None:
    result = call("prestart", stdin=stdin)
    assert (
        (result.returncode, result.stdout) == (1, "")
        and result.stderr.startswith("gpurun hook: ")
        and words in result.stderr
    )


@pytest.mark.parametrize("missing", ["ociVersion", "process", "root"])
def test_a_config_without_what_is_needed(tmp_path: Path, missing: str) -> None:
    result = call("prestart", stdin=bundle_with(tmp_path, **{missing: None}))
    assert result.returncode == 1 and f"{missing}: is missing" in result.stderr


def test_no_gpu_container_says_nothing(tmp_path: Path) -> None:
    for env in ([], ["NVIDIA_VISIBLE_DEVICES=void"]):
        result = call("prestart", stdin=bundle_with(tmp_path, process={"env": env}))
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_old_states_name_the_bundle_differently(tmp_path: Path) -> None:
    state = json.loads(bundle_with(tmp_path, process={}))
    state["bundlePath"] = state.pop("bundle")
    assert call("prestart", stdin=json.dumps(state)).returncode == 0


def test_no_driver(tmp_path: Path) -> None:
    result = call("prestart", stdin=bundle_with(tmp_path), env={"GPURUN_SYSROOT": str(tmp_path)})
    assert result.returncode == 1 and "no NVIDIA driver" in result.stderr


def test_never_on_the_host_itself(tmp_path: Path, sim: SimulatedDriver) -> None:
    result = call("prestart", stdin=bundle_with(tmp_path), env=sim.env)
    assert result.returncode == 1 and "is in the mount namespace of the host" in result.stderr


def test_modes_and_broken_settings(tmp_path: Path, sim: SimulatedDriver) -> None:
    state = bundle_with(tmp_path)
    settings = tmp_path / "config.toml"
    settings.write_text("[nvidia-container-runtime]\nmode = 'cdi'\n")
    result = call("-config", str(settings), "prestart", stdin=state, env=sim.env)
    assert result.returncode == 1 and "invoking the NVIDIA Container Runtime Hook directly" in result.stderr
    settings.write_text("no toml")
    result = call("-config", str(settings), "prestart", stdin=state, env=sim.env)
    assert result.returncode == 1 and "config.toml: line 1" in result.stderr
    settings.write_text("accept-nvidia-visible-devices-envvar-when-unprivileged = false\n")
    result = call("-config", str(settings), "prestart", stdin=state, env=sim.env)
    assert result.returncode == 0 and "Ignoring devices requested" in result.stderr


@pytest.mark.parametrize(
    ("process", "expected"),
    [
        ({}, False),
        ({"capabilities": {"effective": ["CAP_SYS_ADMIN"]}}, False),
        ({"capabilities": {"bounding": ["CAP_KILL", "CAP_SYS_ADMIN"]}}, True),
        ({"capabilities": ["CAP_SYS_ADMIN"]}, True),
    ],
)
def test_privileged(process: dict[str, Any], expected: bool) -> None:
    assert is_privileged(process) is expected


def test_nodes_without_permissions_get_no_instructions() -> None:
    bare = allowing_prefix(())
    assert allowing_prefix((DeviceNode("/dev/a", "", "c", 1, 2, permissions=""),)) == bare
    assert len(allowing_prefix((DeviceNode("/dev/a", "", "c", 1, 2),))) == len(bare) + 6 * 8
    assert len(allowing_prefix((DeviceNode("/dev/a", "", "c", 1, 2, permissions="rwm"),))) == len(bare) + 5 * 8


# With real runtimes from here on.

SCRIPT = """
ls /dev | grep nvidia | tr '\\n' ' '; echo
ls /proc/driver/nvidia/gpus
grep Modify /proc/driver/nvidia/params
nvidia-smi -L
head -c 20 /etc/ld.so.cache; echo
readlink $LIB/libcuda.so
mknod /root/other c 195 77 2>/dev/null
for n in /dev/nvidia* /root/other /dev/null; do (: <>$n) 2>&1 && echo "$n opened"; done
touch $LIB/libcuda.so.1 2>&1 || true
"""


@pytest.fixture(params=["runc", "crun"])
def other_runtime(request: pytest.FixtureRequest, bed: Bed, place: Path, busybox: Path) -> Iterator[Runtime]:
    with another(request.param, bed, place) as made:
        skip_if_memlock_is_raised(made, busybox)
        yield made


@pytest.fixture
def gpu_bundle(other_runtime: Runtime, busybox: Path, host: SimulatedDriver) -> Callable[..., Bundle]:
    def build(*env: str) -> Bundle:
        made = new_bundle(other_runtime, busybox)
        made.process["env"] += [*env, "LIB=/usr/lib64"]
        made.config["hooks"] = {
            "prestart": [{"path": sys.executable, "args": [*PYTHON, "prestart"], "env": [f"GPURUN_SYSROOT={host.path}"]}]
        }
        return made.capabilities("CAP_MKNOD").sh(SCRIPT)

    return build


def opened(text: str) -> dict[str, str]:
    """Node → what opening it said, of the lines of :data:`SCRIPT`."""
    found = {}
    for line in text.splitlines():
        for node in ("/dev/nvidia", "/root/other", "/dev/null"):
            if node in line:
                name = next(word.rstrip(":") for word in line.replace("'", " ").split() if word.startswith(node))
                found[name] = line.rpartition(": ")[2] if ": " in line else "opened"
    return found


@pytest.mark.native
def test_a_container_of_another_runtime(other_runtime: Runtime, gpu_bundle: Callable[..., Bundle]) -> None:
    out = other_runtime.output(gpu_bundle("NVIDIA_VISIBLE_DEVICES=1"))
    lines = out.splitlines()
    node = f"/dev/nvidia{minor(1, 2)}"
    assert lines[:6] == [
        f"nvidia-uvm nvidia-uvm-tools {node[5:]} nvidiactl ",
        bus_id(1),
        "ModifyDeviceFiles: 0",
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-00000001-5197-4a6f-8c59-0a1b2c3d4e5f)",
        "glibc-ld.so.cache1.1",
        "libcuda.so.1",
    ]
    assert "Read-only file system" in lines[-1]
    # No driver serves these numbers: ENXIO says that the device cgroup let us pass, EPERM that it did not.
    assert opened(out) == {
        "/dev/nvidiactl": "No such device or address",
        "/dev/nvidia-uvm": "No such device or address",
        "/dev/nvidia-uvm-tools": "No such device or address",
        node: "No such device or address",
        "/root/other": "Operation not permitted",
        "/dev/null": "opened",
    }


@pytest.mark.native
def test_a_container_with_a_user_namespace(other_runtime: Runtime, gpu_bundle: Callable[..., Bundle]) -> None:
    bundle = gpu_bundle("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility").user_namespace()
    bundle.sh("ls -ln /dev/nvidiactl /usr/lib64; (: <>/dev/nvidiactl) 2>&1; nvidia-smi -L")
    out = other_runtime.output(bundle, stdin=b"")  # some crun give the host's /dev/null to the container's root
    assert "GPU 0: NVIDIA A100" in out and "No such device or address" in out
    assert " 65534 " not in "".join(line for line in out.splitlines() if "->" in line), (
        "links belong to the container's root"
    )


@pytest.mark.native
@pytest.mark.parametrize("user_namespace", [False, True])
def test_nodes_that_the_host_lacks(
    other_runtime: Runtime, gpu_bundle: Callable[..., Bundle], host: SimulatedDriver, user_namespace: bool
) -> None:
    shutil.rmtree(host.path / "dev")
    (host.path / "dev").mkdir()
    bundle = gpu_bundle("NVIDIA_VISIBLE_DEVICES=all")
    if user_namespace:
        bundle.user_namespace()
    out = other_runtime.output(bundle.sh("stat -c '%n %t:%T %a %u' /dev/nvidia*; (: <>/dev/nvidia1) 2>&1; true"), stdin=b"")
    assert out.splitlines()[:5] == [
        "/dev/nvidia-uvm 1fe:0 666 0",
        "/dev/nvidia-uvm-tools 1fe:1 666 0",
        "/dev/nvidia0 c3:0 666 0",
        "/dev/nvidia1 c3:1 666 0",
        "/dev/nvidiactl c3:ff 666 0",
    ]
    assert "No such device or address" in out


@pytest.mark.native
@pytest.mark.parametrize("fails", [False, True])
def test_poststop_leaves_the_image_as_it_was(other_runtime: Runtime, gpu_bundle: Callable[..., Bundle], fails: bool) -> None:
    """Only where the config calls it: without, nobody would ever take the journal away."""
    bundle = gpu_bundle("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
    hooks = bundle.config["hooks"]
    prestart = hooks["prestart"][0]
    hooks["poststop"] = [prestart | {"args": [*PYTHON, "poststop"]}]
    if fails:  # in the middle of what the hook makes: this cannot be covered by a file
        (bundle.rootfs / "etc/ld.so.cache").mkdir()
    else:
        (bundle.rootfs / "etc/ld.so.cache").write_bytes(b"the image's")
    (bundle.rootfs / "etc/ld.so.conf.d").mkdir()
    before = tree_listing(bundle.rootfs, exact=True)
    if fails:
        assert other_runtime.create(bundle, check=False).result.rc != 0
    else:
        assert "nvidia" in other_runtime.output(bundle.sh("ls /dev /etc/ld.so.conf.d; head -c 20 /etc/ld.so.cache"))
    after = tree_listing(bundle.rootfs, exact=True)
    assert {k: (before.get(k), after.get(k)) for k in before.keys() | after.keys() if before.get(k) != after.get(k)} == {}
    assert not list(Path("/run/gpurun-hook").glob("t*"))


@pytest.mark.native
def test_nothing_asked_nothing_given(other_runtime: Runtime, gpu_bundle: Callable[..., Bundle]) -> None:
    bundle = gpu_bundle("NVIDIA_VISIBLE_DEVICES=void")
    assert other_runtime.output(bundle.sh("ls /dev; ls /usr")).count("nvidia") == 0


@pytest.mark.native
def test_a_failing_hook_fails_the_container(other_runtime: Runtime, gpu_bundle: Callable[..., Bundle]) -> None:
    container = other_runtime.create(gpu_bundle("NVIDIA_VISIBLE_DEVICES=7"), check=False)
    assert container.result.rc != 0 and not (other_runtime.root / container.id).exists()
    if other_runtime.name == "runc":  # crun 1.28 does not tell what the hook said
        assert re.search(r"error running (prestart )?hook #0: (error running hook: )?exit status 1,", container.result.text)
        assert "7: unknown device" in container.result.text
