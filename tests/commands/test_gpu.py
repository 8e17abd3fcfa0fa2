"""``gpurun gpu list`` and ``gpurun gpu doctor`` on simulated hosts."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.__main__ import main
from gpurun.gpu.doctor import examine
from tests.needs_nodes import needs_nodes
from tests.nvml import compile_stub
from tests.simdriver import Options, SimulatedDriver, bus_id, make, make_tegra, make_wsl, uuid


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("XDG_CONFIG_HOME", "NVIDIA_CTK_CONFIG_FILE_PATH", "GPURUN_SYSROOT"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def call(capfd: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["gpurun", "gpu", *args])
    out, err = capfd.readouterr()
    return code, out, err


def verdicts(path: Path) -> dict[str, str]:
    return {f.subject: f.verdict for f in examine({"GPURUN_SYSROOT": str(path)}) if f.subject not in ("cgroup", "BPF")}


def test_list(tmp_path: Path, capfd: pytest.CaptureFixture[str], clean: pytest.MonkeyPatch) -> None:
    clean.setenv("GPURUN_SYSROOT", str(make(tmp_path, Options(nodes=False)).path))
    code, out, _ = call(capfd, "list")
    assert code == 0 and [line.split()[:3] for line in out.splitlines()[1:]] == [
        [str(i), uuid(i), bus_id(i)] for i in (0, 1)
    ]
    code, out, _ = call(capfd, "list", "--format", "json")
    document = json.loads(out)
    assert document["driverVersion"] == "999.88.77" and document["gpus"][1]["uuid"] == uuid(1)


def test_list_without_a_driver(tmp_path: Path, capfd: pytest.CaptureFixture[str], clean: pytest.MonkeyPatch) -> None:
    clean.setenv("GPURUN_SYSROOT", str(tmp_path))
    assert call(capfd, "list", "-f", "json")[:2] == (0, '{\n  "driverVersion": "",\n  "gpus": []\n}\n')


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (lambda path: None, ("no card of NVIDIA's, AMD's or Intel's is on the PCI bus (", "`gpurun gpu doctor` looks")),
        (
            lambda path: make(path, Options(no_module=True)),
            ("kernel module is not loaded", "`modprobe nvidia`; `gpurun gpu doctor` looks"),
        ),
        (
            lambda path: make(path, Options(gpus=0)),
            ("the driver 999.88.77 is loaded and has none in", "/proc/driver/nvidia/gpus", "lspci -d 10de:"),
        ),
        (make_wsl, ("this is WSL 2", "NVIDIA_VISIBLE_DEVICES=all")),
        (make_tegra, ("this is a Tegra", "NVIDIA_VISIBLE_DEVICES=0")),
    ],
)
def test_a_list_of_nothing_says_why(
    tmp_path: Path,
    host: Callable[[Path], object],
    words: tuple[str, ...],
    capfd: pytest.CaptureFixture[str],
    clean: pytest.MonkeyPatch,
) -> None:
    host(tmp_path)
    clean.setenv("GPURUN_SYSROOT", str(tmp_path))
    code, out, err = call(capfd, "list")
    assert (code, out) == (0, "") and all(text in err for text in words), err
    assert err.count("\n") == 1


def test_a_card_of_another_driver_is_named_where_none_is_listed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], clean: pytest.MonkeyPatch
) -> None:
    card = make(tmp_path, Options(gpus=0, nodes=False)).path / "sys/bus/pci/devices/0000:01:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030000\n")
    (card / "driver").symlink_to("../../drivers/vfio-pci")
    clean.setenv("GPURUN_SYSROOT", str(tmp_path))
    assert "the card 0000:01:00.0 is bound to vfio-pci" in call(capfd, "list")[2]


@pytest.mark.parametrize("args", [("other",), ("list", "--format", "xml"), ()])
def test_wrong_usage(args: tuple[str, ...], capfd: pytest.CaptureFixture[str], clean: pytest.MonkeyPatch) -> None:
    code, _, err = call(capfd, *args)
    assert code != 0 and err


def test_a_healthy_host(tmp_path: Path, capfd: pytest.CaptureFixture[str], clean: pytest.MonkeyPatch) -> None:
    clean.setenv("GPURUN_SYSROOT", str(make(tmp_path, Options(nodes=False)).path))
    _, out, _ = call(capfd, "doctor")
    assert "ok    kernel module: version 999.88.77\n" in out and "ok    GPUs: 2: 0 = NVIDIA A100-SXM4-40GB" in out
    clean.setenv("PATH", str(tmp_path))  # where no cuda-checkpoint is
    assert verdicts(tmp_path) == {
        "configuration": "ok", "kernel module": "ok", "libraries": "ok", "GPUs": "ok", "CUDA": "ok", "device nodes": "note",
        "kernel modules": "ok", "checkpoint": "note",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "failing"),
    [
        (Options(no_module=True), {"kernel module", "libraries"}),
        (Options(no_userspace=True), {"libraries"}),
        (Options(version_mismatch=True), {"libraries"}),
        (Options(no_uvm=True), {"CUDA"}),
        (Options(gpus=0), {"GPUs"}),
    ],
)
def test_what_is_broken(
    tmp_path: Path, options: Options, failing: set[str], capfd: pytest.CaptureFixture[str], clean: pytest.MonkeyPatch
) -> None:
    clean.setenv("GPURUN_SYSROOT", str(make(tmp_path, options).path))
    assert {subject for subject, verdict in verdicts(tmp_path).items() if verdict == "fail"} == failing
    code, out, _ = call(capfd, "doctor", "--format", "json")
    assert code == 1 and {f["subject"] for f in json.loads(out) if f["verdict"] == "fail"} >= failing


def test_a_key_that_nobody_knows(tmp_path: Path) -> None:
    driver = make(tmp_path, Options(nodes=False))
    file = driver.path / "etc/nvidia-container-runtime/config.toml"
    file.parent.mkdir()
    file.write_text("rooot = '/'\n[nvidia-container-runtime]\nmode = 'foo'\n")
    assert [(verdict, text.partition(" is not known")[0]) for verdict, text in findings(driver, "configuration")] == [
        ("note", f'{file}: nvidia-container-runtime.mode: "foo"'),
        ("note", f"{file}: the key rooot"),
    ]


@pytest.mark.parametrize("text", [None, "[leases]\nshared = 'perhaps'\n"])
def test_gpurun_s_own_file(
    tmp_path: Path, text: str | None, capfd: pytest.CaptureFixture[str], clean: pytest.MonkeyPatch
) -> None:
    """One that is named and is not there, and one that every create will refuse."""
    clean.setenv("GPURUN_SYSROOT", str(make(tmp_path / "host", Options(nodes=False)).path))
    clean.setenv("GPURUN_CONFIG", str(tmp_path / "site.toml"))
    if text is not None:
        (tmp_path / "site.toml").write_text(text)
    code, out, _ = call(capfd, "doctor", "--json")
    found = [f["text"] for f in json.loads(out) if f["subject"] == "configuration" and f["verdict"] == "fail"]
    assert code == 1 and len(found) == 1 and "site.toml" in found[0], out


def test_site_policy_is_told(tmp_path: Path) -> None:
    file = make(tmp_path, Options()).path / "etc/nvidia-container-runtime/config.toml"
    file.parent.mkdir()
    file.write_text("accept-nvidia-visible-devices-envvar-when-unprivileged = false\n")
    assert verdicts(tmp_path)["configuration"] == "note"
    file.write_text("broken")
    assert verdicts(tmp_path)["configuration"] == "fail"


def test_every_mistake_in_the_toolkits_file(tmp_path: Path) -> None:
    """create stops at the first one; who repairs the file wants to see all."""
    driver = make(tmp_path, Options())
    file = driver.path / "etc/nvidia-container-runtime/config.toml"
    file.parent.mkdir()
    file.write_text(
        'disable-require = "no"\nsupported-driver-capabilities = "compute,all-of-them"\n[nvidia-container-cli]\n'
        'root = "run/driver"\nenvironment = ["A"]\n[nvidia-container-runtime.modes.cdi]\nspec-dirs = "/etc/cdi"\n'
    )
    found = [text for verdict, text in findings(driver, "configuration") if verdict == "fail"]
    keys = "disable-require supported-driver-capabilities root environment spec-dirs".split()
    assert len(found) == len(keys) and all(any(f"{key}: " in text for text in found) for key in keys), found


def test_list_of_a_divided_gpu(tmp_path: Path, capfd: pytest.CaptureFixture[str], clean: pytest.MonkeyPatch) -> None:
    driver = make(tmp_path, Options(nodes=False, mig=((0, 1, 0), (0, 2, 0))))
    clean.setenv("GPURUN_SYSROOT", str(driver.path))
    first, second = json.loads(call(capfd, "list", "--json")[1])["gpus"]
    assert [(m["gpuInstance"], m["computeInstance"], m["uuid"]) for m in first["migDevices"]] == [(1, 0, None), (2, 0, None)]
    assert all(len(m["nodes"]) == 2 for m in first["migDevices"]) and second["migDevices"] == []
    lines = call(capfd, "list")[1].splitlines()
    assert [line.strip() for line in lines[2:4]] == ["MIG device 1/0", "MIG device 2/0"] and lines[4].startswith("1 ")


def with_stub(path: Path, **how: Any) -> SimulatedDriver:
    driver = make(path, Options(nodes=False, mig=((0, 1, 0), (0, 2, 0)) if how.get("mig") else ()))
    library = next(path.rglob("libnvidia-ml.so.999.88.77"))
    library.unlink()
    compile_stub(library, **how)
    return driver


def test_processes(tmp_path: Path, capfd: pytest.CaptureFixture[str], clean: pytest.MonkeyPatch) -> None:
    clean.setenv("GPURUN_SYSROOT", str(with_stub(tmp_path, mig=True).path))
    code, out, _ = call(capfd, "list", "--processes", "--json")
    document = json.loads(out)
    gpu = document["gpus"][0]
    assert code == 0 and document["nvml"] is None
    assert gpu["memory"] == {"total": 80 << 30, "used": 3 << 30} and gpu["utilization"] is None
    assert gpu["processes"][1] == {"pid": 1001, "command": None, "container": None, "memory": 1 << 20}
    assert [m["profile"] for m in gpu["migDevices"]] == ["1g.10gb", "1c.2g.20gb"]
    out = call(capfd, "list", "--processes")[1]
    assert (
        "3072 of 81920 MiB in use" in out and "process 1001 ? 1 MiB" in out and "MIG device 1/0 1g.10gb MIG-00000065" in out
    )


def test_a_list_does_not_need_nvml(tmp_path: Path, capfd: pytest.CaptureFixture[str], clean: pytest.MonkeyPatch) -> None:
    """Without --processes the library is not even loaded; with it, a library that is not well costs only what it knew."""
    clean.setenv("GPURUN_SYSROOT", str(with_stub(tmp_path, mode="crash").path))
    assert len(json.loads(call(capfd, "list", "--json")[1])["gpus"]) == 2
    code, out, _ = call(capfd, "list", "--processes", "--json")
    document = json.loads(out)
    assert code == 0 and "crashed with signal 11" in document["nvml"]
    assert document["gpus"][0]["memory"] is None and document["gpus"][0]["processes"] == []
    assert "memory and load are not known: NVML crashed" in call(capfd, "list", "--processes")[1]


def findings(driver: SimulatedDriver, subject: str) -> list[tuple[str, str]]:
    return [(f.verdict, f.text) for f in examine(driver.env) if f.subject == subject]


@needs_nodes
def test_nodes_and_their_links(tmp_path: Path) -> None:
    driver = make(tmp_path, Options())
    assert findings(driver, "device nodes") == [("ok", "all there")]
    [(verdict, text)] = findings(driver, "/dev/char")
    assert verdict == "note" and "no link to /dev/nvidiactl, /dev/nvidia-uvm" in text and "create-dev-char-symlinks" in text
    (tmp_path / "dev/char").mkdir()
    for node in (tmp_path / "dev").glob("nvidia*"):
        number = node.stat().st_rdev
        (tmp_path / f"dev/char/{os.major(number)}:{os.minor(number)}").symlink_to(f"../{node.name}")
    assert findings(driver, "/dev/char") == [("ok", "every node has its link")]
    (tmp_path / "dev/char/195:0").unlink()
    (tmp_path / "dev/char/195:0").symlink_to("../nvidiactl")
    assert "no link to /dev/nvidia0:" in findings(driver, "/dev/char")[0][1], "a link to another node is none"


@needs_nodes
def test_a_node_of_another_boot(tmp_path: Path) -> None:
    driver = make(tmp_path, Options())
    uvm = tmp_path / "dev/nvidia-uvm"
    uvm.unlink()
    os.mknod(uvm, stat.S_IFCHR | 0o666, os.makedev(509, 0))
    assert [
        f for f in examine(driver.env) if f.verdict == "fail" and "invalid device node" in f.text and "nvidia-uvm" in f.text
    ]


def test_cards_of_others(tmp_path: Path) -> None:
    driver = make(tmp_path, Options(nodes=False))
    (tmp_path / "sys/bus/pci/devices" / bus_id(1) / "driver").symlink_to("../../../bus/pci/drivers/vfio-pci")
    (tmp_path / "proc/modules").write_text("nouveau 1 0 - Live 0x0\nnvidia 1 0 - Live 0x0\n")
    assert ("note", f"the card {bus_id(1)} is bound to vfio-pci: containers cannot have it") in findings(driver, "GPUs")
    assert any("nouveau is loaded" in text for _, text in findings(driver, "kernel modules"))
    devices = tmp_path / "proc/devices"
    devices.write_text(devices.read_text().replace("nvidia-modeset", "other"))
    assert any("nvidia-modeset is not loaded" in text for _, text in findings(driver, "kernel modules"))


@needs_nodes
def test_a_platform_needs_no_module(tmp_path: Path) -> None:
    """Nobody is told to load NVIDIA's module where there is none, and where it would do harm."""
    wsl, tegra = make_wsl(tmp_path / "wsl"), make_tegra(tmp_path / "tegra")
    for driver, title, nodes in ((wsl, "WSL 2", "/dev/dxg"), (tegra, "Tegra", "/dev/nvhost-ctrl, /dev/nvmap")):
        [(verdict, text)] = findings(driver, title)
        assert verdict == "ok" and text.startswith(f"containers get {nodes} and ") and text.endswith(" files of the driver")
        assert not [finding for finding in examine(driver.env) if "modprobe" in finding.text or finding.verdict == "fail"]
    for library in (tmp_path / "wsl").rglob("libcuda*"):
        library.unlink()
    [(verdict, text)] = findings(wsl, "WSL 2")
    assert verdict == "fail" and "install NVIDIA's driver on Windows (none in Linux)" in text


def test_a_card_that_the_driver_has_lost(tmp_path: Path) -> None:
    driver = make(tmp_path, Options(nodes=False))
    assert len(findings(driver, "GPUs")) == 1
    shutil.rmtree(tmp_path / "proc/driver/nvidia/gpus" / bus_id(1))
    text = f"the card {bus_id(1)} is on the PCI bus, and the driver does not have it: `dmesg` says why (NVRM, Xid)"
    assert findings(driver, "GPUs")[1:] == [("note", text)]
    card = tmp_path / "sys/bus/pci/devices" / bus_id(1)
    (card / "driver").symlink_to("../../../bus/pci/drivers/nvidia")
    assert findings(driver, "GPUs")[1:] == [("fail", text)]
    (card / "physfn").symlink_to(f"../{bus_id(0)}")  # a part of a GPU that is there
    assert len(findings(driver, "GPUs")) == 1


def test_the_doctor_sends_nobody_to_the_doctor(tmp_path: Path) -> None:
    env = {"GPURUN_SYSROOT": str(tmp_path / "nowhere")}
    texts = [finding.text for finding in examine(env)]
    assert any("nowhere does not exist" in text for text in texts) and not any("gpu doctor" in text for text in texts)


def test_mig_findings(tmp_path: Path) -> None:
    driver = make(tmp_path, Options(nodes=False, mig=((0, 1, 0), (0, 2, 0))))
    [(verdict, text)] = findings(driver, "MIG")
    assert verdict == "note" and "/dev/nvidia-caps/nvidia-cap" in text
    devices = tmp_path / "proc/devices"
    devices.write_text(devices.read_text().replace("nvidia-caps", "other"))
    assert findings(driver, "MIG")[0][0] == "fail"


def test_persistence(tmp_path: Path) -> None:
    driver = make(tmp_path, Options(nodes=False))
    assert findings(driver, "persistence") == []
    (tmp_path / "run/nvidia-persistenced/socket").unlink()
    assert findings(driver, "persistence")[0][0] == "note"


def test_the_kernel_is_asked(tmp_path: Path) -> None:
    [(verdict, text)] = findings(make(tmp_path, Options(nodes=False)), "BPF")
    assert verdict in ("ok", "note", "fail") and (verdict == "ok") == (text == "a device program can be loaded")
    if os.geteuid() == 0:
        capable = subprocess.run(["capsh", "--has-p=cap_sys_admin"], capture_output=True, check=False).returncode == 0
        assert (verdict == "ok") == capable


def test_cdi_files(tmp_path: Path, capfd: pytest.CaptureFixture[str], clean: pytest.MonkeyPatch) -> None:
    """A file of this driver is good; after an update of the driver it is stale; one that nobody can read is told of."""
    driver = make(tmp_path, Options(nodes=False))
    assert findings(driver, "CDI") == []
    clean.setenv("GPURUN_SYSROOT", str(tmp_path))
    (tmp_path / "etc/cdi").mkdir()
    assert main(["gpurun", "cdi", "generate", f"--output={tmp_path}/etc/cdi/nvidia.yaml"]) == 0
    capfd.readouterr()
    [(verdict, text)] = findings(driver, "CDI")
    assert verdict == "ok" and text.startswith("1 files, ")
    file = tmp_path / "etc/cdi/nvidia.yaml"
    file.write_text(file.read_text().replace("999.88.77", "888.66.55"))
    [(verdict, text)] = findings(driver, "CDI")
    assert verdict == "note" and "was written for the NVIDIA driver 888.66.55" in text
    file.write_text("kind: [")
    [(verdict, text)] = findings(driver, "CDI")
    assert verdict == "note" and "nvidia.yaml" in text


def test_an_unusable_directory_of_leases_is_not_the_same_as_no_lease(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], clean: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run/gpurun-leases").mkdir(parents=True)
    (tmp_path / "run/gpurun-leases").chmod(0o777)
    clean.setenv("GPURUN_SYSROOT", str(tmp_path))
    clean.setenv("XDG_RUNTIME_DIR", "/run")  # of one who is not root
    code, _, err = call(capfd, "leases")
    assert code == 1 and "run/gpurun-leases: other users can write here, so no GPU is leased: remove it" in err
    assert "leases are not shown: " in call(capfd, "list")[2]
