"""``nvidia-container-cli``: what it prints, what it refuses, and containers that get GPUs from it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gpurun.cdi.edits import ContainerEdits
from gpurun.gpu.host.reads import HostNode
from gpurun.gpu.nvidia.host.driver import Driver, read_driver
from gpurun.gpu.nvidia.host.gpus import Gpu
from gpurun.gpu.nvidia.host.nvml_library import BRANDS
from gpurun.gpu.nvidia.host.roots import Roots
from gpurun.toolkit import container_cli
from gpurun.toolkit.container_cli import _configure_parser as configure_parser
from gpurun.toolkit.container_cli import info_csv, info_text, request_variables
from gpurun.toolkit.inventory import NvmlAnswer, ask_nvml
from tests.nvml import compile_stub
from tests.simdriver import VERSION, Options, SimulatedDriver, bus_id, make, mig_minor, minor, uuid

from .conftest import Call


def with_nvml(path: Path, mode: str = "well") -> SimulatedDriver:
    """A host whose libnvidia-ml answers, as the compiled stub of the tests does."""
    made = make(path, Options(nodes=False))
    library = next(made.path.rglob(f"libnvidia-ml.so.{VERSION}"))
    library.unlink()
    compile_stub(library, mode=mode)
    return made


def test_info(call: Call, tmp_path: Path) -> None:
    driver = with_nvml(tmp_path / "host")
    done = call("nvidia-container-cli", "info", env=driver.env)
    assert (done.returncode, done.stderr) == (0, "")
    blocks = done.stdout.split("\n\n")
    assert blocks[0] == "NVRM version:   999.88.77\nCUDA version:   13.1"
    assert blocks[1].splitlines() == [
        "Device Index:   0",
        f"Device Minor:   {minor(0, 2)}",
        "Model:          NVIDIA A100-SXM4-40GB",
        "Brand:          Nvidia",
        f"GPU UUID:       {uuid(0)}",
        f"Bus Location:   0000{bus_id(0)}",
        "Architecture:   9.0",
    ]
    done = call("nvidia-container-cli", "--load-kmods", "info", "--csv", env=driver.env)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["NVRM version,CUDA version", "999.88.77,13.1"] and lines[2] == ""
    assert lines[4] == f"0,{minor(0, 2)},NVIDIA A100-SXM4-40GB,Nvidia,{uuid(0)},0000{bus_id(0)},9.0" and len(lines) == 6


def test_info_without_nvml(call: Call, host: SimulatedDriver) -> None:
    """procfs knows nearly all of it: only brand and architecture are missing, and stderr says why."""
    done = call("nvidia-container-cli", "info")
    assert done.returncode == 0 and done.stdout.count("Brand:          Unknown") == 2
    assert "brand and architecture are not known: NVML error" in done.stderr
    driver = read_driver(Roots(sysroot=str(host.path)))
    assert "CUDA version:   12.4" in info_text(driver, NvmlAnswer({}, "12.4"))
    assert ",Unknown," in info_csv(driver, ask_nvml(Roots(sysroot="/nowhere")))


def test_brands_as_nvidia_writes_them() -> None:
    """NVML's numbers of brands have names with their own capitals; what is not known is Unknown."""
    gpu = Gpu(0, 0, "GPU-0", "0000:07:00.0", "Model", -1, HostNode("/dev/nvidia0", "/dev/nvidia0", 195, 0, True))
    driver = Driver("550.0", (gpu,), ())
    shown = [
        info_csv(driver, NvmlAnswer({gpu.bus_id: {"brand": brand}})).splitlines()[4].split(",")[3]
        for brand in [*BRANDS.values(), "new", None]
    ]
    assert shown[:7] == ["Unknown", "Quadro", "Tesla", "NVS", "GRID", "GeForce", "TITAN"]
    assert shown[12:17] == ["QuadroRTX", "NvidiaRTX", "Nvidia", "GeForceRTX", "TitanRTX"] and shown[-2:] == ["Unknown"] * 2


CONTROL = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"]


def test_list_of_everything(call: Call) -> None:
    lines = call("nvidia-container-cli", "list").stdout.splitlines()
    assert lines[:6] == [*CONTROL, "/dev/nvidia1", "/dev/nvidia0"]
    kinds = ["/usr/bin/nvidia-smi", f"libcuda.so.{VERSION}", "/run/nvidia-persistenced/socket", "gsp_ga10x.bin"]
    places = [next(i for i, line in enumerate(lines) if line.endswith(kind)) for kind in kinds]
    assert places == sorted(places) and places[0] == 6, "programs, libraries, sockets, firmware"
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize(
    ("args", "lines"),
    [
        (["--device=0"], [*CONTROL, f"/dev/nvidia{minor(0, 2)}"]),
        (["-d", uuid(1)], [*CONTROL, f"/dev/nvidia{minor(1, 2)}"]),
        (["--dev", "ALL"], [*CONTROL, f"/dev/nvidia{minor(0, 2)}", f"/dev/nvidia{minor(1, 2)}"]),
        (["-d", ","], CONTROL),
        (["--ipcs"], ["/run/nvidia-persistenced/socket", "/tmp/nvidia-mps"]),
        (["-i", "--no-persistenced"], ["/tmp/nvidia-mps"]),
        (
            ["--firmwares"],
            [f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin", f"/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin"],
        ),
        (["-f", "--no-gsp-firmware"], []),
        (
            ["--imex-channel=0,3", "-i", "--no-persistenced"],
            [*[f"/dev/nvidia-caps-imex-channels/channel{n}" for n in (0, 3)], "/tmp/nvidia-mps"],
        ),
        (["--mig-config=all", "--mig-monitor", "all"], []),  # no GPU of this host is divided
    ],
)
def test_list(call: Call, args: list[str], lines: list[str]) -> None:
    done = call("nvidia-container-cli", "-u", "list", *args)
    assert (done.returncode, done.stderr, done.stdout.splitlines()) == (0, "", lines)


def test_imex_channels_alone(call: Call) -> None:
    """Are listed beside everything else, as in NVIDIA's program."""
    lines = call("nvidia-container-cli", "list").stdout.splitlines()
    channels = ["/dev/nvidia-caps-imex-channels/channel7"]
    assert call("nvidia-container-cli", "list", "--imex-channel=7").stdout.splitlines() == lines[:6] + channels + lines[6:]


def test_list_of_mig_devices(call: Call, tmp_path: Path) -> None:
    """The capability files and nodes of the device; for administration those of all that the GPU could have."""
    made = make(tmp_path / "host", Options(gpus=2, mig=((0, 1, 0),), nodes=False))
    number, caps = minor(0, 2), "/dev/nvidia-caps/nvidia-cap"
    base = f"/proc/driver/nvidia/capabilities/gpu{number}/mig"
    own = [f"{base}/gi1/access", f"{base}/gi1/ci0/access"]
    own += [f"{caps}{mig_minor(number, 1)}", f"{caps}{mig_minor(number, 1, 0)}"]
    device = f"MIG-{uuid(0)}/1/0"
    lines = call("nvidia-container-cli", "list", f"--device={device}", env=made.env).stdout.splitlines()
    assert lines == [*CONTROL, f"/dev/nvidia{number}", *own]
    for name, cap in (("config", 1), ("monitor", 2)):
        done = call("nvidia-container-cli", "list", "--device=all", f"--mig-{name}=all", env=made.env)
        lines = done.stdout.splitlines()
        assert lines[:6] == [*CONTROL, f"/dev/nvidia{number}", f"/dev/nvidia{minor(1, 2)}"]
        head = [f"/proc/driver/nvidia/capabilities/mig/{name}", f"{caps}{cap}", base, "/dev/nvidia-caps"]
        assert lines[6:10] == head and set(own[2:]) < set(lines[10:]) and len(set(lines)) == len(lines)
        assert call("nvidia-container-cli", "list", f"--mig-{name}=all", env=made.env).stdout == "", "of which GPUs?"
        done = call("nvidia-container-cli", "list", f"-d{device}", f"--mig-{name}=ALL", env=made.env)
        words = f"nvidia-container-cli: mig-{name} error: all: cannot enable mig-{name} with specific MIG devices selected\n"
        assert (done.returncode, done.stdout, done.stderr) == (1, "", words)
        done = call("nvidia-container-cli", "configure", f"-d{device}", f"--mig-{name}=all", tmp_path, env=made.env)
        assert done.returncode == 1 and f": mig-{name} error: cannot enable mig-{name} with specific" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(no_module=True), "initialization error: nvml error: driver not loaded"),
        (Options(version_mismatch=True, nodes=False), "initialization error: nvml error: driver/library version mismatch"),
        (
            Options(no_userspace=True, nodes=False),
            "initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file: no such file or",
        ),
    ],
)
@pytest.mark.parametrize("command", [("list",), ("info",), ("configure", "--device=all", "/rootfs")])
def test_a_host_that_cannot(call: Call, tmp_path: Path, options: Options, words: str, command: tuple[str, ...]) -> None:
    driver = make(tmp_path / "host", options)
    done = call("nvidia-container-cli", *command, env=driver.env)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.startswith(f"nvidia-container-cli: {words}")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "a command is missing"),
        (("frobnicate",), "unrecognized arguments: frobnicate"),
        (("list", "--frobnicate"), "unrecognized arguments"),
        (("configure",), "ROOTFS"),
        (("configure", "relative"), "input error: invalid rootfs directory"),
        (("configure", "/"), "input error: invalid rootfs directory"),
        (("configure", "--device=9", "/rootfs"), "device error: 9: unknown device (--device)"),
        (
            ("configure", "--device=0", "--require=driver>=1000", "/x"),
            "requirement error: unsatisfied condition: driver>=1000",
        ),
        (("configure", "--device=0", "--compute", "--pid=999999999", "/x"), "error: "),
        (("list", "--device=nonsense"), "device error: nonsense: unknown device (--device)"),
        (("list", "-d", "none"), "device error: none: unknown device"),
        (("configure", "-d", "none", "/x"), "device error: none: unknown device"),
        (("configure", "-d", "0,void", "/x"), "device error: void: unknown device"),
        (("configure", "-d", "nvidia.com/gpu=0", "/x"), "device error: nvidia.com/gpu=0: unknown device"),
        (("list", "--mig-config=mig0"), "mig-config error: mig0: only 'all' devices are currently supported"),
        (("list", "--mig-monitor=0"), "mig-monitor error: 0: only 'all' devices are currently supported"),
        (("configure", "--mig-config=mig0", "/x"), "mig-config error: mig0: only 'all' devices are currently supported"),
        (("configure", "--mig-monitor=GPU-1", "/x"), "mig-monitor error: GPU-1: only 'all' devices are currently supported"),
        (("list", "--imex-channel=x"), "input error: --imex-channel=x: it must be a number from 0"),
    ],
)
def test_refused(call: Call, args: tuple[str, ...], words: str) -> None:
    done = call("nvidia-container-cli", *args)
    assert done.returncode == 1 and "nvidia-container-cli" in done.stderr and words in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""


def test_options_say_what_variables_say() -> None:
    words = "--device=0 -d GPU-1 -cu --ngx --require cuda>=12 -r driver>=535 --mig-config=all --ldconfig=@/sbin/ldconfig "
    chosen = configure_parser().parse_args([*words.split(), "--pid=7", "/rootfs"])
    assert request_variables(chosen) == {
        "NVIDIA_VISIBLE_DEVICES": "0,GPU-1",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility,ngx",
        "NVIDIA_REQUIRE_0": "cuda>=12",
        "NVIDIA_REQUIRE_1": "driver>=535",
        "NVIDIA_MIG_CONFIG_DEVICES": "all",
    }
    assert (chosen.pid, chosen.rootfs) == (7, "/rootfs")


def test_without_a_capability_nothing_is_said_of_one() -> None:
    chosen = configure_parser().parse_args(["--device=0", "/rootfs"])
    assert request_variables(chosen) == {"NVIDIA_VISIBLE_DEVICES": "0"}


def test_every_short_option() -> None:
    chosen = configure_parser().parse_args("-cuvgDn --no-gsp-firmware /rootfs".split())
    assert request_variables(chosen)["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility,video,graphics,display,ngx"
    assert chosen.no_gsp_firmware


@pytest.mark.parametrize("command", [(), ("info",), ("list",), ("configure",)])
def test_help_and_usage(call: Call, command: tuple[str, ...]) -> None:
    """As every program that uses argp: ``--help``, ``-?`` and ``--usage``, exit code 0."""
    whole = call("nvidia-container-cli", *command, "--help")
    assert whole.returncode == 0 and whole.stdout == call("nvidia-container-cli", *command, "-?").stdout
    short = call("nvidia-container-cli", *command, "--usage")
    assert short.returncode == 0 and whole.stdout.startswith(short.stdout) and short.stdout < whole.stdout
    assert "nvidia-container-cli" in short.stdout and short.stdout.lower().startswith("usage:")
    wrong = call("nvidia-container-cli", *command, "--frobnicate")
    assert wrong.returncode == 1 and "--usage' for more information" in wrong.stderr


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    made = tmp_path / "rootfs"
    for name in ("proc", "dev", "etc", "usr/lib"):
        (made / name).mkdir(parents=True)
    return made


def run_in(command: list[str], script: str, host: SimulatedDriver) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, "sh", "-c", script], env=os.environ | host.env, capture_output=True, text=True, timeout=60, check=False
    )


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mount namespaces need root")
CONFIGURE = "--load-kmods --user configure --ldconfig=@/sbin/ldconfig --device=0 --compute --utility --no-cgroups"


@needs_root
@pytest.mark.native
def test_configure_in_the_callers_namespaces(names: Path, host: SimulatedDriver, rootfs: Path) -> None:
    """As enroot, LXC and Apptainer call it: inside the mount namespace, without --pid."""
    script = (
        f"mount --make-rprivate / && mount --bind {rootfs} {rootfs} && mount -t proc proc {rootfs}/proc && "
        f"{names}/nvidia-container-cli {CONFIGURE} {rootfs} && ls {rootfs}/dev && cat {rootfs}/proc/driver/nvidia/params && "
        f"ls {rootfs}/proc/driver/nvidia/gpus && find {rootfs}/usr -name 'libcuda.so*'"
    )
    done = run_in(["unshare", "-m"], script, host)
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert {"nvidiactl", f"nvidia{minor(0, 2)}", "nvidia-uvm", bus_id(0)} <= set(words)
    assert f"nvidia{minor(1, 2)}" not in words and bus_id(1) not in words
    assert "ModifyDeviceFiles: 0" in done.stdout and "/libcuda.so.1" in done.stdout


@needs_root
@pytest.mark.native
def test_configure_a_process(names: Path, host: SimulatedDriver, rootfs: Path) -> None:
    """As containerd's oci-hook calls it: --pid of a process that has the container's mount namespace."""
    script = (
        f"mount --make-rprivate / && mount --bind {rootfs} {rootfs} && mount -t proc proc {rootfs}/proc && echo && read x"
    )
    with subprocess.Popen(
        ["unshare", "-m", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as container:
        assert container.stdout and container.stdout.readline() == "\n"
        words = [*CONFIGURE.split(), f"--pid={container.pid}", str(rootfs)]
        done = subprocess.run(
            [names / "nvidia-container-cli", *words], env=os.environ | host.env, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        inside = set(os.listdir(f"/proc/{container.pid}/root{rootfs}/dev"))
        container.communicate("\n", timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert {"nvidiactl", f"nvidia{minor(0, 2)}"} <= inside


@needs_root
@pytest.mark.native
def test_configure_never_touches_the_host(names: Path, host: SimulatedDriver, rootfs: Path) -> None:
    """Where the caller's mount namespace is that of process 1, the mounts would be everybody's."""
    script = f"{names}/nvidia-container-cli configure --device=0 --utility {rootfs}; echo $?; cat /proc/self/mounts"
    done = run_in(["unshare", "-mpf", "--mount-proc"], script, host)
    assert done.stdout.startswith("1\n") and str(rootfs) not in done.stdout
    assert "mount error: this is the mount namespace of the host" in done.stderr and not list((rootfs / "dev").iterdir())


def test_it_needs_no_other_program(host: SimulatedDriver, names: Path) -> None:
    """An empty PATH and environment, as a hook gets them."""
    done = subprocess.run(
        [names / "nvidia-container-cli", "list", "-l"], env=host.env, capture_output=True, text=True, check=True
    )
    assert f"libcuda.so.{VERSION}" in done.stdout


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        ("", {"firmware"}),
        ("--no-gsp-firmware", set()),
        ("--utility", {"firmware", "nvidia-smi", "libnvidia-ml.so", "socket"}),
        ("-u --no-gsp-firmware --no-persistenced", {"nvidia-smi", "libnvidia-ml.so"}),
    ],
)
def test_what_configure_mounts(
    words: str, kinds: set[str], rootfs: Path, host: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a capability there are the nodes and procfs, and nothing of the driver is mounted but the GPUs' firmware."""
    applied: list[ContainerEdits] = []
    monkeypatch.setenv("GPURUN_SYSROOT", str(host.path))
    monkeypatch.setattr(container_cli, "apply_here", lambda rootfs, edits: applied.append(edits))
    assert container_cli.main(["configure", "--device=0", *words.split(), str(rootfs)]) == 0
    (made,) = applied
    marks = ("firmware", "nvidia-smi", "libnvidia-ml.so", "socket")
    assert {mark for mount in made.mounts for mark in marks if mark in mount.container_path} == kinds
    assert bool(made.mounts) == bool(kinds) and bool(made.ldcache) == ("libnvidia-ml.so" in kinds)
    assert [node.path for node in made.device_nodes] == ["/dev/nvidiactl", f"/dev/nvidia{minor(0, 2)}"]
    assert made.proc_trees


@pytest.mark.parametrize(
    ("words", "forward"),
    [("", True), ("--cuda-compat-mode=mount", True), ("--cuda-compat-mode=disabled", False), ("--no-cntlibs", False)],
)
def test_compatibility_libraries_of_the_image(
    words: str, forward: bool, rootfs: Path, host: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The edits that would be applied have the rule for them, or not."""
    applied: list[ContainerEdits] = []
    monkeypatch.setenv("GPURUN_SYSROOT", str(host.path))
    monkeypatch.setattr(container_cli, "apply_here", lambda rootfs, edits: applied.append(edits))
    assert container_cli.main(["configure", "--device=0", "--compute", *words.split(), str(rootfs)]) == 0
    assert (applied[0].forward_compat is not None) == forward


def test_an_unknown_compatibility_mode(call: Call) -> None:
    done = call("nvidia-container-cli", "configure", "--device=0", "--cuda-compat-mode=never", "/rootfs")
    assert done.returncode == 1 and "invalid choice" in done.stderr


def test_another_cache_of_the_driver_root(call: Call, tmp_path: Path) -> None:
    """``--ldcache`` names the cache of the driver root to look in: with an empty one the directories are looked through."""
    made = make(tmp_path / "host", Options(nodes=False))
    whole = call("nvidia-container-cli", "list", "--libraries", env=made.env).stdout
    (made.path / "etc/ld.so.cache").rename(made.path / "etc/other.cache")
    elsewhere = call("nvidia-container-cli", "--ldcache=/etc/other.cache", "list", "--libraries", env=made.env)
    assert elsewhere.stdout == whole and whole.count("\n") > 3
    (made.path / "etc/other.cache").write_bytes(b"no cache")
    broken = call("nvidia-container-cli", "--ldcache=/etc/other.cache", "list", "--libraries", env=made.env)
    assert sorted(broken.stdout.split()) == sorted(whole.split())
