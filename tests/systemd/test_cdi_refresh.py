"""The units that the packages install keep the CDI file right: under a real systemd, on a simulated driver."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.cdi.files import read_spec_file
from tests.conftest import REPOSITORY, runtime_path
from tests.native.waiting import wait_until
from tests.simdriver import Options, SimulatedDriver, make

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only, pytest.mark.needs("systemd")]

UNITS = Path("/run/systemd/system")
NAME, KICK = "gpurun-cdi-refresh", "gpurun-cdi-changed.service"
OWN = (f"{NAME}.service", f"{NAME}.path", KICK)


def systemctl(*words: str) -> None:
    subprocess.run(["systemctl", *words], check=True, timeout=60)


def drop_in(unit: str, text: str) -> None:
    directory = UNITS / f"{unit}.d"
    directory.mkdir(parents=True)
    (directory / "test.conf").write_text(text)


@pytest.fixture
def host() -> Iterator[SimulatedDriver]:
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
    yield make(directory, Options())
    shutil.rmtree(directory)


@pytest.fixture
def output(host: SimulatedDriver) -> Iterator[Path]:
    """The file that the service writes; the units are the package's but for who is called, and where the driver is."""
    made = host.path / "made/nvidia.yaml"
    for unit in OWN:
        shutil.copy(REPOSITORY / f"deploy/systemd/{unit}", UNITS)
    environment = "".join(f"Environment={name}={value}\n" for name, value in host.env.items())
    command = f"{os.path.abspath(runtime_path())} cdi refresh --output {made}"
    drop_in(f"{NAME}.service", f"[Service]\n{environment}ExecStart=\nExecStart={command}\n")
    drop_in(f"{NAME}.path", f"[Path]\nPathChanged={host.path}/dev/nvidia-caps\n")
    systemctl("daemon-reload")
    yield made
    systemctl("stop", f"{NAME}.path")
    systemctl("stop", KICK, f"{NAME}.service")
    for unit in OWN:
        (UNITS / unit).unlink()
        shutil.rmtree(UNITS / f"{unit}.d", ignore_errors=True)
    systemctl("daemon-reload")


def devices(file: Path) -> set[str]:
    return {device.name for device in read_spec_file(str(file)).devices} if file.exists() else set()


def test_the_file_follows_the_driver(host: SimulatedDriver, output: Path) -> None:
    gpus = host.path / "proc/driver/nvidia/gpus"
    (host.path / "dev/nvidia-caps").mkdir(exist_ok=True)
    systemctl("start", f"{NAME}.service")
    assert {"0", "1", "all"} <= devices(output)
    systemctl("start", f"{NAME}.path")
    os.rename(gpus / sorted(os.listdir(gpus))[1], host.path / "gone")
    (host.path / "dev/nvidia-caps/nvidia-cap7").touch()  # as when MIG devices are made
    wait_until(lambda: "1" not in devices(output), 30)
    assert "0" in devices(output)
    (host.path / "proc/driver/nvidia/version").unlink()
    (host.path / "sys/module/nvidia/version").unlink(missing_ok=True)
    subprocess.run(["ldconfig"], check=True)  # as when the libraries of a driver are removed
    wait_until(lambda: not output.exists(), 30)


def test_the_units_are_what_systemd_understands(output: Path) -> None:
    files = [str(REPOSITORY / f"deploy/systemd/{unit}") for unit in OWN]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *files], capture_output=True, text=True, timeout=60)
    told = [line for line in done.stderr.splitlines() if "/usr/bin/gpurun" not in line]  # which may not be installed here
    assert told == []


def rules() -> list[list[str]]:
    """The commands of the rules of udev that the packages install."""
    text = (REPOSITORY / "deploy/systemd/60-gpurun.rules").read_text()
    return [command.split() for command in re.findall(r'RUN\+="([^"]*)"', text)]


@pytest.fixture
def slow(host: SimulatedDriver, output: Path) -> Path:
    """The service has not ended when it has written, until there is the file beside this one, which says that it has."""
    second, sleeps = host.path / "second", host.path / "sleeps"
    command = f"{os.path.abspath(runtime_path())} cdi refresh --output {output}"
    line = f"/bin/sh -c '{command} || exit 1; [ -e {second} ] || {{ touch {sleeps}; exec sleep 1000; }}'"
    (UNITS / f"{NAME}.service.d/zslow.conf").write_text(f"[Service]\nExecStart=\nExecStart={line}\n")
    systemctl("daemon-reload")
    return sleeps


def second_gpu_goes(host: SimulatedDriver) -> None:
    gpus = host.path / "proc/driver/nvidia/gpus"
    os.rename(gpus / sorted(os.listdir(gpus))[1], host.path / "gone")


@pytest.mark.parametrize("number", range(len(rules())))
def test_a_gpu_that_goes_while_the_service_runs(host: SimulatedDriver, output: Path, slow: Path, number: int) -> None:
    """It has read the GPUs already and has not ended: the rule's command has it begin again."""
    systemctl("start", "--no-block", f"{NAME}.service")
    wait_until(slow.exists, 30)
    assert {"0", "1"} <= devices(output)
    second_gpu_goes(host)
    slow.with_name("second").touch()
    subprocess.run(rules()[number], check=True, timeout=60)
    wait_until(lambda: "1" not in devices(output), 30)
    assert "0" in devices(output)


def test_a_path_that_changes_while_the_service_runs(host: SimulatedDriver, output: Path, slow: Path) -> None:
    """The same of what the path unit watches."""
    caps = host.path / "dev/nvidia-caps"
    caps.mkdir(exist_ok=True)
    systemctl("start", f"{NAME}.path")
    (caps / "nvidia-cap7").touch()
    wait_until(slow.exists, 30)
    assert {"0", "1"} <= devices(output)
    second_gpu_goes(host)
    slow.with_name("second").touch()
    (caps / "nvidia-cap8").touch()
    wait_until(lambda: "1" not in devices(output), 30)
    assert "0" in devices(output)


def test_a_path_that_changes_before_the_paths_are_watched_again(host: SimulatedDriver, output: Path) -> None:
    """The service does not look before: nobody would tell it of what changes in between."""
    caps, held, go_on = host.path / "dev/nvidia-caps", host.path / "held", host.path / "go-on"
    caps.mkdir(exist_ok=True)
    os.mkfifo(go_on)
    hold = f"/bin/sh -c 'systemctl restart --no-block {NAME}.service; touch {held}; read line <{go_on}'"
    drop_in(KICK, f"[Service]\nExecStart=\nExecStart={hold}\n")
    systemctl("daemon-reload")
    systemctl("start", f"{NAME}.path")
    (caps / "nvidia-cap7").touch()
    wait_until(held.exists, 30)
    shown = subprocess.run(["systemctl", "list-jobs", "--no-legend"], capture_output=True, text=True, timeout=60).stdout
    assert re.search(rf"{NAME}.service +\w+ +waiting", shown), shown
    second_gpu_goes(host)
    (caps / "nvidia-cap8").touch()
    go_on.write_text("\n")
    wait_until(output.exists, 30)
    wait_until(lambda: "0" in devices(output), 30)
    assert "1" not in devices(output)
