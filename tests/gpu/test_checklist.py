"""What the tests of others look for in a stack for NVIDIA's GPUs, as a table: each row has a test here or names one.

Rows that containers of another room show better (real engines, systemd, images of distributions) are in :data:`ELSEWHERE`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compiled import compile_c
from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.bundle import Bundle
from tests.native.images import debian_tar, unpack
from tests.native.leaks import Leaks
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.simdriver import MULTIARCH, VERSION, Options, SimulatedDriver, bus_id, make, minor, uuid

TESTS = Path(__file__).parents[1]
LIB = f"/usr/lib/{MULTIARCH[os.uname().machine]}/nvidia/current"
native = pytest.mark.native
pytestmark = pytest.mark.gpurun_only

ROWS = {
    1: "no variables of NVIDIA's: nothing changes, no GPU code imported",
    2: "void and the empty value: the same",
    3: "none: libraries and control nodes, no GPU",
    4: "one GPU of two: the other is not there and cannot be opened",
    5: "a UUID in either case",
    6: "an unknown id fails with its text",
    7: "where the site wants it, unprivileged containers get none, with a warning",
    8: "device lists as volume mounts",
    9: "capabilities: no more libraries than asked for; unknown ones fail",
    10: "requirements: the text, and the way round",
    11: "params says that nobody makes nodes, read-only",
    12: "gpus of procfs are the container's",
    13: "libcuda.so, .so.1 and the loader's cache",
    14: "libraries that are not NVIDIA's are found in the order as before",
    15: "forward compatibility by version",
    16: "links of the image lead nowhere",
    17: "LD_PRELOAD of the image runs nothing outside",
    18: "a shared rootfs leaks no mount",
    19: "read-only, distroless, musl, RHEL, Debian, empty images",
    20: "reload of systemd and update",
    21: "docker --gpus, --runtime, CDI, podman, ctr",
    22: "hook, variable and CDI together: everything once",
    23: "generated twice: the same bytes",
    24: "NVIDIA's file with us, ours with others",
    25: "no driver: one sentence, and other containers are not concerned",
}
ELSEWHERE = {
    3: ("gpu/test_containers.py::test_none_and_void",),
    4: ("gpu/test_containers.py::test_one_gpu_of_two",),
    6: ("gpu/test_containers.py::test_refused_before_anything_is_made",),
    8: ("gpu/test_container_devices.py::test_devices_as_volume_mounts",),
    15: (
        "gpu/test_images.py::test_forward_compatibility",
        "hook/test_compat.py::test_newer_libraries_go_first_by_their_real_path",
    ),
    19: (
        "gpu/test_images.py::test_read_only_root",
        "gpu/test_images.py::test_an_image_with_nothing",
        "gpu/test_images.py::test_an_image_without_etc",
        "gpu/test_images.py::test_a_musl_image",
        "gpu/test_images.py::test_a_rhel_image_on_a_debian_host",
        "gpu/test_images.py::test_a_debian_image_is_the_same_to_the_byte_afterwards",
    ),
    20: (
        "systemd/test_systemd.py::test_a_gpu_outlives_reload_set_property_and_update",
        "systemd/test_docker.py::test_a_gpu_outlives_reload_set_property_and_update",
    ),
    21: (
        "toolkit/test_docker.py::test_one_gpu_and_nothing_twice",
        "toolkit/test_docker.py::test_ctr_gpus",
        "clients/test_gpu.py::test_one_gpu",
        "clients/test_cdi.py::test_one_gpu",
    ),
    22: (
        "gpu/nvidia/cdi/test_containers.py::test_annotations_in_mode_cdi",
        "gpu/test_containers.py::test_nvidias_own_hook_is_replaced",
    ),
    23: ("gpu/nvidia/cdi/test_generate.py::test_twice_the_same_bytes",),
    24: (
        "cdi/test_document.py::test_a_file_as_nvidias_generator_writes_it",
        "clients/test_cdi.py::test_one_gpu",
        "gpu/nvidia/cdi/test_containers.py::test_our_hooks_under_another_runtime",
    ),
    25: ("gpu/test_containers.py::test_no_driver_on_the_host",),
}


def test_every_row_is_shown() -> None:
    text = Path(__file__).read_text()
    here = {int(n) for names in re.findall(r"^def test_rows?_([\d_]+)_", text, re.MULTILINE) for n in names.split("_")}
    assert here | ELSEWHERE.keys() == ROWS.keys() == set(range(1, 26))
    for test in [test for tests in ELSEWHERE.values() for test in tests]:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (TESTS / file).read_text(), f"{test} is not there any more"


@pytest.fixture
def site(host: SimulatedDriver) -> Callable[[str], None]:
    """``site(text)`` writes the configuration of NVIDIA's toolkit."""

    def write(text: str) -> None:
        file = host.path / "etc/nvidia-container-runtime/config.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return write


@pytest.fixture
def run(runtime: Runtime, host: SimulatedDriver) -> Callable[[Bundle], str]:
    return lambda bundle: runtime.output(bundle, env=ENVIRONMENT | host.env)


@pytest.fixture
def asking(bundle: MakeBundle) -> Callable[..., Bundle]:
    def build(*env: str) -> Bundle:
        made = bundle()
        made.process["env"] += env
        return made

    return build


def all_that_create_would_do(runtime: Runtime, bundle: Bundle, host: SimulatedDriver) -> dict[str, object]:
    bundle.write()
    done = runtime("explain", "--json", "--bundle", str(bundle.directory), env=ENVIRONMENT | host.env)
    assert done.rc == 0, done.text
    told: dict[str, object] = json.loads(done.out)
    return told


@native
def test_rows_1_2_who_asks_for_nothing_gets_nothing(
    runtime: Runtime, asking: Callable[..., Bundle], run: Callable[[Bundle], str], host: SimulatedDriver
) -> None:
    """The plan is the same to the last word, but for the variable (what is imported: test_imports.py)."""
    made = asking("X")
    for value in ("void", "", " , ,", "0,void"):
        plans = []
        for name in ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_NOTHING"):
            made.process["env"][-1] = f"{name}={value}"
            plans.append(json.dumps(all_that_create_would_do(runtime, made, host)).replace(name, "NAME"))
        assert plans[0] == plans[1]
    assert "nvidia" not in run(asking("NVIDIA_VISIBLE_DEVICES=").sh("ls /dev /usr; cat /proc/mounts"))


@native
@pytest.mark.parametrize("spelled", [uuid(1), uuid(1).lower(), uuid(1).upper()])
def test_row_5_a_uuid_in_either_case(run: Callable[[Bundle], str], asking: Callable[..., Bundle], spelled: str) -> None:
    out = run(asking(f"NVIDIA_VISIBLE_DEVICES={spelled}").sh("nvidia-smi -L; ls /dev"))
    assert re.findall(r"^nvidia\d+$", out, re.MULTILINE) == [f"nvidia{minor(1, 2)}"] and uuid(1) in out


@native
def test_row_7_unprivileged_where_the_site_says_no(
    runtime: Runtime, asking: Callable[..., Bundle], host: SimulatedDriver, site: Callable[[str], None]
) -> None:
    site("accept-nvidia-visible-devices-envvar-when-unprivileged = false\n")
    script = "ls /dev; ls /usr/bin | grep -c nvidia; true"
    log = runtime.directory / "log"
    done = runtime.run(asking("NVIDIA_VISIBLE_DEVICES=all").sh(script), env=ENVIRONMENT | host.env)
    assert done.rc == 0 and "nvidia" not in done.out
    assert "Ignoring devices requested by environment variable(s) in unprivileged container: [NVIDIA_VISIBLE_DEVICES]" in (
        done.text + (log.read_text() if log.exists() else "")
    )
    trusted = asking("NVIDIA_VISIBLE_DEVICES=all").capabilities("CAP_SYS_ADMIN").sh(script)
    assert "nvidia0" in runtime.output(trusted, env=ENVIRONMENT | host.env)


@native
def test_row_9_capabilities(
    runtime: Runtime, run: Callable[[Bundle], str], asking: Callable[..., Bundle], host: SimulatedDriver
) -> None:
    look = f"ls {LIB} /dev /usr/bin"
    utility = run(asking("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility").sh(look))
    assert "libnvidia-ml.so.1" in utility and "nvidia-smi" in utility
    assert "libcuda" not in utility and "nvidia-uvm" not in utility
    compute = run(asking("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES= compute ,").sh(look))
    assert "libcuda.so.1" in compute and "nvidia-uvm" in compute and "nvidia-smi" not in compute
    wrong = asking("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute,bogus")
    text = runtime.refused(wrong, env=ENVIRONMENT | host.env)
    assert (
        "unsupported capabilities found in 'compute,bogus' (allowed 'compat32,compute,display,graphics,ngx,utility,video')"
        in text
    )


@native
def test_row_10_requirements(
    runtime: Runtime,
    run: Callable[[Bundle], str],
    asking: Callable[..., Bundle],
    host: SimulatedDriver,
    site: Callable[[str], None],
) -> None:
    asked = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=99 driver<2")
    # The simulated driver is newer than any branch that is known: what it can at most is not.
    for file in (host.path / "proc/driver/nvidia/version", host.path / "sys/module/nvidia/version"):
        assert VERSION in file.read_text()
    text = runtime.refused(asking("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_X=driver<2"), env=ENVIRONMENT | host.env)
    assert "requirement error: unsatisfied condition: driver<2" in text and "please update" not in text
    old = make(host.path / "old", Options(version="470.57.02"))
    text = runtime.refused(asking(*asked), env=ENVIRONMENT | old.env)
    hint = ", please update your driver to a newer version, or use an earlier cuda container"
    assert f"requirement error: unsatisfied condition: cuda>=99{hint}" in text
    for way in ("NVIDIA_DISABLE_REQUIRE=1", "NVIDIA_DISABLE_REQUIRE=true"):
        assert runtime.run(asking(*asked, way).sh("true"), env=ENVIRONMENT | old.env).rc == 0
    runtime.refused(asking(*asked, "NVIDIA_DISABLE_REQUIRE=yes"), env=ENVIRONMENT | old.env)


@native
def test_rows_11_12_procfs(run: Callable[[Bundle], str], asking: Callable[..., Bundle]) -> None:
    script = (
        "cd /proc/driver/nvidia; grep ModifyDeviceFiles params; (: >>params) 2>&1; chmod 644 params 2>&1; ls gpus; "
        "rm -r gpus 2>&1; grep -h UUID gpus/*/information"
    )
    made = asking("NVIDIA_VISIBLE_DEVICES=1").capabilities("CAP_DAC_OVERRIDE", "CAP_FOWNER")
    lines = run(made.sh(script)).splitlines()
    assert lines[0] == "ModifyDeviceFiles: 0" and all("Read-only file system" in line for line in lines[1:3])
    assert lines[3] == bus_id(1) and uuid(1) in lines[-1]


@native
def test_row_13_names_of_libcuda(run: Callable[[Bundle], str], asking: Callable[..., Bundle]) -> None:
    """An image with busybox alone has the links too; ``ldconfig -p`` of a Debian image: test_images.py."""
    out = run(
        asking("NVIDIA_VISIBLE_DEVICES=0").sh(
            f"cd {LIB}; for n in libcuda.so libcuda.so.1; do realpath $n; done; ls -l libcuda*"
        )
    )
    assert out.splitlines()[:2] == [f"{LIB}/libcuda.so.{VERSION}"] * 2


@native
def test_row_14_the_order_of_the_images_own_libraries(
    bundle: MakeBundle, run: Callable[[Bundle], str], leaks: Leaks
) -> None:
    """Two directories of the image have a library of one name: which one wins is what it was, also after ldconfig."""
    leaks.allow_rootfs_changes()
    tar = debian_tar()

    def found(*env: str) -> list[list[str]]:
        made = bundle()
        unpack(tar, made.rootfs)
        libc = next((made.rootfs / "usr/lib").glob("*-linux-gnu/libbz2.so.1.0*"))
        for place in ("opt/b", "opt/a", "usr/local/lib"):
            (made.rootfs / place).mkdir(parents=True, exist_ok=True)
            shutil.copy(libc, made.rootfs / place / "libbz2.so.1.0")
        (made.rootfs / "etc/ld.so.conf.d/x.conf").write_text("/opt/b\n/opt/a\n")
        made.process["env"] += env
        made.capabilities("CAP_DAC_OVERRIDE", "CAP_CHOWN", "CAP_FOWNER")
        parts = run(made.sh("ldconfig -p; echo =; ldconfig; ldconfig -p")).split("=\n")
        return [
            [line for line in part.splitlines() if "=>" in line and "nvidia" not in line and "libcuda" not in line]
            for part in parts
        ]

    before, after = found(), found("NVIDIA_VISIBLE_DEVICES=0")
    own = {line.split()[0] for line in before[1]}
    same = [[line for line in part if line.split()[0] in own] for part in after]
    assert len([line for line in before[1] if "libbz2.so.1.0 " in line]) >= 4
    assert same == before


@native
def test_rows_16_17_a_hostile_image(
    runtime: Runtime, run: Callable[[Bundle], str], asking: Callable[..., Bundle], leaks: Leaks
) -> None:
    leaks.allow_rootfs_changes()
    outside = runtime.directory / "outside"
    (outside / "nvidia").mkdir(parents=True)
    made = asking("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all", "LD_PRELOAD=/proc/self/cwd/poc.so")
    source = f'#include <fcntl.h>\n__attribute__((constructor)) void f(void) {{ creat("{outside}/owned", 0600); }}\n'
    compile_c(source, made.rootfs / "poc.so", "-shared", "-fPIC")
    # It works, where it is let: the proof that its absence means something.
    probe = {"LD_PRELOAD": str(made.rootfs / "poc.so")}
    subprocess.run([shutil.which("true") or "true"], env=probe, check=True)
    assert (outside / "owned").exists()
    (outside / "owned").unlink()
    shutil.copy(made.rootfs / "poc.so", made.directory / "poc.so")
    (made.rootfs / "lib").mkdir(exist_ok=True)
    (made.rootfs / "lib/firmware").symlink_to(outside)
    (made.rootfs / "usr/lib").mkdir(parents=True, exist_ok=True)
    (made.rootfs / "etc/ld.so.conf.d").symlink_to(outside)
    (made.rootfs / "usr/share").symlink_to(f"../../../../../../../../..{outside}")
    hidden = "unset LD_PRELOAD; nvidia-smi -L; ls -d /lib/firmware"
    result = run(made.sh(hidden))
    assert "GPU 1:" in result
    assert sorted(str(p.relative_to(outside)) for p in outside.rglob("*")) == ["nvidia"], "nothing was written, nothing run"


@native
def test_row_18_a_shared_rootfs(runtime: Runtime, asking: Callable[..., Bundle], host: SimulatedDriver, bed: Bed) -> None:
    made = asking("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
    made.linux["rootfsPropagation"] = "shared"
    rootfs = str(made.rootfs)

    def in_bed(*argv: str) -> None:
        subprocess.run(argv, check=True, preexec_fn=bed.enter())

    in_bed("mount", "--bind", rootfs, rootfs)
    in_bed("mount", "--make-shared", rootfs)
    try:
        before = bed.mounts()
        container = runtime.start(made.sh("nvidia-smi -L; while :; do sleep 0.01; done"), env=ENVIRONMENT | host.env)
        container.wait_for("GPU 1:")
        during = bed.mounts()
        assert container.delete("--force").rc == 0
        assert not [line for line in during if "nvidia" in line.split(" - ")[0] and line not in before]
        assert bed.mounts() == before
    finally:
        in_bed("umount", rootfs)
