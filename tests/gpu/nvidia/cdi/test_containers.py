"""Containers with CDI devices: under gpurun by name and as an engine leaves them, and under runc and crun by our hooks."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpurun.cdi.files import read_registry
from gpurun.cdi.inject import inject
from tests.conftest import MakeBundle, runtime_path
from tests.native.bed import Bed
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.others import another, new_bundle, skip_if_memlock_is_raised
from tests.native.runtime import ENVIRONMENT, Container, Runtime
from tests.simdriver import MULTIARCH, Options, SimulatedDriver, bus_id, make, uuid
from tests.simdriver.elf import shared_library

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

LIB = f"/usr/lib/{MULTIARCH[os.uname().machine]}/nvidia/current"
LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")
NO_DRIVER, DENIED = "No such device or address", "Operation not permitted"
SCRIPT = f"""
echo nodes $(ls /dev | grep nvidia)
echo gpus $(ls /proc/driver/nvidia/gpus)
grep Modify /proc/driver/nvidia/params
nvidia-smi -L
for n in /dev/nvidia*; do (: <>$n) 2>&1; done
readlink {LIB}/libcuda.so; readlink {LIB}/libcuda.so.1
echo visible $NVIDIA_VISIBLE_DEVICES
[ ! -e /probe.so ] || ld.so --list /probe.so
"""


@pytest.fixture
def spec_file(host: SimulatedDriver, runtime: Runtime) -> Path:
    path = host.path / "etc/cdi/nvidia.yaml"
    done = runtime("cdi", "generate", "--output", str(path), env=ENVIRONMENT | host.env)
    assert done.rc == 0, done.text
    return path


def with_probe(bundle: Bundle) -> Bundle:
    """A program for glibc's own loader, which only the composed cache can tell where its libraries are."""
    loader = next((p for p in LOADERS if os.path.exists(p)), None)
    if loader is not None:
        shutil.copy(loader, bundle.rootfs / "bin/ld.so")
        library = shared_library("probe.so", (), os.uname().machine, ("libcuda.so.1", "libnvidia-nvvm.so.4"))
        (bundle.rootfs / "probe.so").write_bytes(library)
    return bundle


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def check(out: str) -> None:
    """What :data:`SCRIPT` says in a container with the GPU 0, whose minor is 1."""
    lines = out.splitlines()
    assert "nodes nvidia-modeset nvidia-uvm nvidia-uvm-tools nvidia1 nvidiactl" in lines
    assert f"gpus {bus_id(0)}" in lines and "ModifyDeviceFiles: 0" in lines
    assert any(line.startswith("GPU 0: ") and uuid(0) in line for line in lines)
    assert out.count(NO_DRIVER) == 5 and DENIED not in out, "all five nodes may be opened"
    assert lines[lines.index("libcuda.so.1") + 1] == "libcuda.so.999.88.77"
    assert "visible void" in lines
    found = dict(line.split()[0:3:2] for line in lines if "=>" in line)
    if any(os.path.exists(p) for p in LOADERS):
        assert found == {name: f"{LIB}/{name}" for name in ("libcuda.so.1", "libnvidia-nvvm.so.4")}


def write_spec(host: SimulatedDriver, name: str, kind: str, edits: dict[str, Any], shared: dict[str, Any]) -> None:
    path = host.path / "etc/cdi" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    devices = [{"name": "d0", "containerEdits": edits}]
    path.write_text(json.dumps({"cdiVersion": "1.1.0", "kind": kind, "devices": devices, "containerEdits": shared}))


def by_nvidias_name(spec_file: Path) -> None:
    """As the file is with --nvidia-cdi-hook-path."""
    lines = [line for line in spec_file.read_text().splitlines() if line.strip() != "- hook"]
    spec_file.write_text("\n".join([line.replace("- gpurun", "- nvidia-cdi-hook") for line in lines]) + "\n")


def asking(bundle: Bundle, names: str) -> Bundle:
    bundle.process["env"].append(f"NVIDIA_VISIBLE_DEVICES={names}")
    return bundle


def test_our_own_file(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, spec_file: Path) -> None:
    made = with_probe(asking(bundle(), "nvidia.com/gpu=0"))
    check(runtime.output(made.sh(SCRIPT), env=ENVIRONMENT | host.env))


def test_documents_are_parsed_once(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, spec_file: Path) -> None:
    """PyYAML and tomllib are imported for the first container alone, and again when a file says something else."""
    config = host.path / "etc/nvidia-container-runtime/config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text('[nvidia-container-runtime]\nmode = "cdi"\n')

    def parsed() -> int:
        made = asking(bundle().sh("true"), "nvidia.com/gpu=0")
        return runtime.run(made, env=ENVIRONMENT | host.env, globals_=["--debug"]).err.count(" is parsed: ")

    assert [parsed(), parsed()] == [2, 0]
    config.write_text('[nvidia-container-runtime]\nmode = "cdi"\n# more\n')
    assert [parsed(), parsed()] == [1, 0]


def test_in_a_user_namespace(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, spec_file: Path) -> None:
    made = with_probe(asking(bundle(), "nvidia.com/gpu=0").user_namespace())
    check(runtime.output(made.sh(SCRIPT), env=ENVIRONMENT | host.env))


def waiting_with_nothing_of_the_host(runtime: Runtime, bundle: Bundle, host: SimulatedDriver) -> Container:
    """Created, with its three streams and the FIFO, and nothing else open."""
    container = runtime.create(bundle, env=ENVIRONMENT | host.env)
    assert len(os.listdir(container.proc("fd"))) == 4
    return container


def test_a_driver_that_only_the_hosts_root_can_reach(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, spec_file: Path
) -> None:
    """The init of a user namespace may not search the directory: the caller opens libraries, nodes, files of /proc."""
    made = with_probe(asking(bundle(), "nvidia.com/gpu=0").user_namespace())
    host.path.chmod(0o700)
    container = waiting_with_nothing_of_the_host(runtime, made.sh(SCRIPT), host)
    assert container.start().rc == 0 and container.wait() == 0
    check(container.out)


@pytest.mark.parametrize("there", [True, False])
def test_a_node_that_only_the_hosts_root_can_reach(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, there: bool
) -> None:
    node = host.path / "secret/node"
    node.parent.mkdir(mode=0o700)
    if there:
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
        node.chmod(0o666)  # whatever the umask
    nodes = [{"path": "/dev/other", "hostPath": str(node), "type": "c", "major": 1, "minor": 5}]
    write_spec(host, "v.json", "v.com/d", {"deviceNodes": nodes}, {})
    made = asking(bundle(), "v.com/d=d0").user_namespace().sh("head -c 3 /dev/other | od -c")
    container = waiting_with_nothing_of_the_host(runtime, made, host)
    assert container.start().rc == 0 and container.wait() == 0
    assert "\\0  \\0  \\0" in container.out


def engine_injected(bundle: Bundle, spec_file: Path, program: str | None = None) -> Bundle:
    """*bundle* as an engine leaves it that knows CDI: everything is in the config, the hooks too."""
    edits = inject(("nvidia.com/gpu=0",), read_registry((str(spec_file.parent),)))
    config = bundle.config
    config["process"]["env"] += list(edits.env)
    config["linux"]["devices"] = config["linux"].get("devices", []) + [
        {"path": n.path, "type": n.type, "major": n.major, "minor": n.minor, "fileMode": n.file_mode, "uid": 0, "gid": 0}
        for n in edits.device_nodes
    ]
    config["linux"].setdefault("resources", {}).setdefault("devices", []).extend(
        [{"allow": True, "type": n.type, "major": n.major, "minor": n.minor, "access": "rw"} for n in edits.device_nodes]
    )
    config["mounts"] += [
        {"destination": m.container_path, "source": m.host_path, "options": list(m.options)} for m in edits.mounts
    ]
    hooks = [{"path": program or h.path, "args": list(h.args), "env": list(h.env)} for h in edits.hooks]
    config["hooks"] = {"createContainer": hooks}
    return bundle


def test_hooks_of_an_engine_are_done_without_running_them(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, spec_file: Path, leaks: Leaks
) -> None:
    program = runtime.directory / "nvidia-cdi-hook"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    by_nvidias_name(spec_file)
    leaks.rootfs_may_change = True  # mount points of the config's own mounts stay, as under every runtime
    made = with_probe(engine_injected(bundle(), spec_file, str(program)))
    check(runtime.output(made.sh(SCRIPT), env=ENVIRONMENT | host.env))
    # With an argument that nobody knows it is a program like any other, and is run.
    made.config["hooks"]["createContainer"][0]["args"].append("--new")
    assert "error running createContainer hook #0: exit status 3" in runtime.refused(made, env=ENVIRONMENT | host.env)


def test_a_foreign_vendor(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> None:
    """Everything that a file can have, with hooks at every stage that this host can run."""
    log = runtime.directory / "log"
    log.touch()
    data = runtime.directory / "data"
    data.mkdir()
    (data / "file").write_text("data\n")

    def hook(stage: str) -> dict[str, Any]:
        script = f"cat >/dev/null; echo {stage} $X >>{log}"
        return {"hookName": stage, "path": "/bin/sh", "args": ["sh", "-c", script], "env": ["X=y"], "timeout": 9}

    write_spec(
        host,
        "v.json",
        "vendor.com/device",
        {
            "env": ["ADDED=device", "PATH=/bin"],
            "deviceNodes": [
                {"path": "/dev/vendor0", "type": "c", "major": 10, "minor": 229, "fileMode": 0o640, "permissions": "rw"},
                {"path": "/dev/vendor1", "hostPath": "/dev/null", "permissions": "none", "uid": 7, "gid": 8},
            ],
            "mounts": [
                {"hostPath": str(data), "containerPath": "/mnt/data", "options": ["ro", "rbind"]},
                {"hostPath": str(data / "file"), "containerPath": "/etc/vendor.conf", "options": ["ro", "bind"]},
                {"hostPath": "tmpfs", "containerPath": "/mnt", "type": "tmpfs", "options": ["size=64k"]},
            ],
            "additionalGids": [4321],
            "hooks": [hook(s) for s in ("prestart", "createRuntime", "createContainer", "poststart", "poststop")],
        },
        {"env": ["ADDED=spec", "SHARED=1"]},
    )
    made = asking(bundle(), "vendor.com/device=d0")
    (made.rootfs / "mnt").mkdir()
    made.process["user"] = {"uid": 5, "gid": 6}
    made.process["env"].append("PATH=/sbin:/usr/bin")
    text = """echo $ADDED $SHARED $PATH; id -G; cd /dev; stat -c '%n %a %u %g %t %T' vendor0 vendor1
        cat /mnt/data/file /etc/vendor.conf; touch /mnt/data/x 2>&1; stat -f -c %T /mnt"""
    out = runtime.output(made.args("/bin/busybox", "sh", "-c", text), env=ENVIRONMENT | host.env).splitlines()
    assert out[:2] == ["device 1 /bin", "6 4321"]
    assert out[2:4] == ["vendor0 640 5 6 a e5", "vendor1 666 7 8 1 3"]
    assert out[4:6] == ["data", "data"] and "Read-only file system" in out[6] and out[7] == "tmpfs"
    stages = ("prestart", "createRuntime", "createContainer", "poststart", "poststop")
    assert log.read_text().splitlines() == [f"{stage} y" for stage in stages]


def test_vfio(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> None:
    """A PCI device for user space drivers: nodes that this host need not have, and access by its rules only."""
    node = {"type": "c", "permissions": "rw"}
    group = {"deviceNodes": [{"path": "/dev/vfio/17", "major": 243, "minor": 17, **node}], "env": ["PCI=0000:01:00.0"]}
    shared = {"deviceNodes": [{"path": "/dev/vfio/vfio", "major": 10, "minor": 196, **node}]}
    write_spec(host, "vfio.json", "vendor.com/vfio", group, shared)
    made = asking(bundle(), "vendor.com/vfio=d0").capabilities("CAP_MKNOD")
    script = (
        "ls /dev/vfio; echo $PCI; mknod /root/x c 243 18; for n in /dev/vfio/17 /root/x; do (: <>$n) 2>&1; done; rm /root/x"
    )
    out = runtime.output(made.sh(script), env=ENVIRONMENT | host.env)
    assert out.split()[:3] == ["17", "vfio", "0000:01:00.0"]
    verdicts = [line.rpartition(": ")[2] for line in out.splitlines() if "create" in line or "open" in line]
    assert len(verdicts) == 2 and verdicts[0] != DENIED and verdicts[1] == DENIED


def test_nothing_is_made_for_a_device_that_is_not_there(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, spec_file: Path
) -> None:
    text = runtime.refused(asking(bundle(), "nvidia.com/gpu=0,nvidia.com/gpu=9"), env=ENVIRONMENT | host.env)
    assert "unresolvable CDI devices nvidia.com/gpu=9" in text


def test_annotations_in_mode_cdi(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, spec_file: Path, leaks: Leaks
) -> None:
    """The engine has injected the device and left its annotation: nothing is given twice."""
    settings = host.path / "etc/nvidia-container-runtime/config.toml"
    settings.parent.mkdir()
    settings.write_text("[nvidia-container-runtime]\nmode = 'cdi'\n")
    leaks.rootfs_may_change = True
    made = with_probe(engine_injected(bundle(), spec_file))
    made.config["annotations"] = {"cdi.k8s.io/x": "nvidia.com/gpu=0"}
    made.write()
    check(runtime.output(made.sh(f"{SCRIPT}\ngrep -c libcuda.so.999 /proc/mounts"), env=ENVIRONMENT | host.env))
    done = runtime("explain", "--json", "--bundle", str(made.directory), env=ENVIRONMENT | host.env)
    plan = json.loads(done.out)["init"]
    for kind, key in (("mounts", "container_path"), ("device_nodes", "path"), ("links", "path")):
        paths = [item[key] for item in plan["edits"][kind]]
        assert len(paths) == len(set(paths)), kind
    targets = {m["container_path"] for m in plan["edits"]["mounts"]}
    assert not targets & {m["destination"] for m in plan["mounts"]}
    assert not {d["path"] for d in plan["devices"]} & {n["path"] for n in plan["edits"]["device_nodes"]}


# Under other runtimes.


@pytest.fixture(params=["runc", "crun"])
def other_runtime(request: pytest.FixtureRequest, bed: Bed, place: Path, busybox: Path) -> Iterator[Runtime]:
    with another(request.param, bed, place) as made:
        skip_if_memlock_is_raised(made, busybox)
        yield made


@pytest.fixture
def plain(other_runtime: Runtime, busybox: Path) -> Callable[[], Bundle]:
    return lambda: new_bundle(other_runtime, busybox)


def test_our_hooks_under_another_runtime(
    other_runtime: Runtime, plain: Callable[[], Bundle], host: SimulatedDriver, spec_file: Path
) -> None:
    assert runtime_path() in spec_file.read_text(), "the hooks are the program that wrote the file"
    made = with_probe(engine_injected(plain(), spec_file))
    check(other_runtime.output(made.sh(SCRIPT), stdin=b""))


def test_the_hooks_by_nvidias_name(
    other_runtime: Runtime, plain: Callable[[], Bundle], host: SimulatedDriver, spec_file: Path
) -> None:
    program = other_runtime.directory / "nvidia-cdi-hook"
    program.symlink_to(runtime_path())
    by_nvidias_name(spec_file)
    check(other_runtime.output(with_probe(engine_injected(plain(), spec_file, str(program))).sh(SCRIPT), stdin=b""))


#: What images already have in the directory of the driver's libraries: name → text of a link, or the content of a file.
STUB = shared_library("libcuda.so.1", (), os.uname().machine)
LEFT_IN_IMAGES: dict[str, dict[str, str | bytes]] = {
    "plain": {},
    "dangling link": {"libcuda.so.1": "libcuda.so.470.1"},
    "link to an empty file": {"libcuda.so.470.1": b"", "libcuda.so.1": "libcuda.so.470.1", "libcuda.so": "libcuda.so.1"},
    "empty files": {"libcuda.so.1": b"", "libcuda.so": b"", "libcuda.so.999.88.77": b""},
    "stub": {"libcuda.so.1": STUB, "libcuda.so": "libcuda.so.1"},
    "stub of another name": {"libcuda.so": STUB},
    "link out of the image": {"libcuda.so.1": "/../../../../OUTSIDE", "libcuda.so": "OUTSIDE"},
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("image", LEFT_IN_IMAGES)
def test_links_that_the_image_already_has_are_replaced(
    other_runtime: Runtime, plain: Callable[[], Bundle], host: SimulatedDriver, runtime: Runtime, image: str
) -> None:
    """What loads libcuda.so.1 gets the host's, whatever the image has of that name."""
    lib = f"/usr/lib/{MULTIARCH[os.uname().machine]}"
    flat = make(host.path / "flat", Options(layout="ubuntu"))
    path = flat.path / "etc/cdi/nvidia.yaml"
    assert runtime("cdi", "generate", "--output", str(path), env=ENVIRONMENT | flat.env).rc == 0
    outside = other_runtime.directory / "outside"
    outside.write_text("untouched")
    made = with_probe(engine_injected(plain(), path))
    (made.rootfs / lib[1:]).mkdir(parents=True)
    for name, what in LEFT_IN_IMAGES[image].items():
        if isinstance(what, str):
            (made.rootfs / lib[1:] / name).symlink_to(what.replace("OUTSIDE", str(outside)))
        else:
            (made.rootfs / lib[1:] / name).write_bytes(what)
    script = f"""cd {lib}; for n in libcuda.so libcuda.so.1 libcuda.so.999.88.77; do md5sum <$n; done
        [ ! -e /probe.so ] || ld.so --list /probe.so; ls -A | grep -v '^lib'"""
    out = other_runtime.output(made.sh(script), stdin=b"").splitlines()
    assert len({*out[:3]}) == 1 and out[0].split()[0] == md5(flat.path / lib[1:] / "libcuda.so.999.88.77")
    loaded = [line.split()[2] for line in out[3:] if "libcuda.so.1 =>" in line]
    assert loaded == [f"{lib}/libcuda.so.1"] * len(loaded) and bool(loaded) == any(os.path.exists(p) for p in LOADERS)
    assert outside.read_text() == "untouched"
    names = [p.name for p in (made.rootfs / lib[1:]).iterdir()]
    assert not [n for n in names if not n.startswith(("lib", "nvidia", "vdpau", "gbm"))], "nothing of a temporary name"


def test_a_directory_in_the_place_of_a_link_is_told(
    other_runtime: Runtime, plain: Callable[[], Bundle], host: SimulatedDriver, spec_file: Path
) -> None:
    made = engine_injected(plain(), spec_file)
    (made.rootfs / LIB[1:] / "libcuda.so.1").mkdir(parents=True)
    said = other_runtime.refused(made, stdin=b"")
    if other_runtime.name == "runc":  # crun does not tell what the hook said
        assert f"make the link {LIB}/libcuda.so.1: is a directory" in said
    assert [p.name for p in (made.rootfs / LIB[1:]).iterdir() if not p.name.startswith(("lib", "nv", "vd", "gbm"))] == []


def test_a_hostile_image_leads_the_hooks_nowhere(
    other_runtime: Runtime, plain: Callable[[], Bundle], host: SimulatedDriver, spec_file: Path
) -> None:
    """Links out of the rootfs where the hooks write; a LD_PRELOAD of the image."""
    outside = other_runtime.directory / "outside"
    outside.mkdir()
    (outside / "target").write_text("untouched")
    made = engine_injected(plain(), spec_file)
    (made.rootfs / "etc/ld.so.conf.d").symlink_to(outside)
    (made.rootfs / "etc/ld.so.cache").symlink_to(outside / "target")
    (made.rootfs / "etc/nvidia").symlink_to(outside)
    made.config["hooks"]["createContainer"][0]["args"] += ["--link", f"x::/escape{outside}/made"]
    (made.rootfs / "escape").symlink_to("/")
    made.process["env"].append("LD_PRELOAD=/proc/self/cwd/evil.so")
    done = other_runtime.run(made.args("true"), stdin=b"")
    assert done.rc == 0, done.text
    assert (made.rootfs / str(outside).lstrip("/") / "made").is_symlink(), "the link is made where it leads in the rootfs"
    assert [p.name for p in outside.iterdir()] == ["target"] and (outside / "target").read_text() == "untouched"
