"""A host whose GPUs MIG can divide, and what its library has been asked to do."""

from __future__ import annotations

from pathlib import Path

from gpurun.gpu.nvidia.host.nvml import change_mig
from gpurun.gpu.nvidia.mig.config import MigEntry, read_configs
from gpurun.gpu.nvidia.mig.plan import plan_config
from gpurun.gpu.nvidia.mig.state import MigGpu, read_state
from tests.nvml import compile_mig
from tests.simcards.machines import MAJOR
from tests.simdriver import VERSION, Options, SimulatedDriver, make


class MigHost:
    """*library* is its NVML; what it writes is in *directory* (see tests/nvml/mig.c)."""

    def __init__(self, directory: Path, gpus: int = 2, unable: int = 0) -> None:
        self.directory = directory / "nvml"
        self.directory.mkdir(parents=True)
        self.driver: SimulatedDriver = make(directory / "host", Options(gpus=gpus, major=MAJOR))
        capabilities = self.driver.path / "proc/driver/nvidia/capabilities"
        capabilities.mkdir()
        found = next(self.driver.path.rglob(f"libnvidia-ml.so.{VERSION}"))
        found.unlink()
        self.library = str(compile_mig(found, self.directory, self.driver.path, gpus=gpus, unable=unable))

    def control(self, *lines: str) -> None:
        """Say what the library is to do; nothing special with no *lines*."""
        (self.directory / "control").write_text("".join([f"{line}\n" for line in lines]))

    def gpus(self) -> tuple[MigGpu, ...]:
        return read_state(self.library)

    def log(self) -> list[str]:
        """The calls that have changed something, as words; empties the log."""
        file = self.directory / "log"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [line.rstrip() for line in lines]

    def devices(self, index: int = 0) -> dict[str, int]:
        return {profile.name: count for profile, count in self.gpus()[index].devices().items()}

    def divide(self, *devices: str, index: int = 0) -> None:
        """Have the GPU *index* divided into these, by the library alone."""
        names = ", ".join([f"{name}: {devices.count(name)}" for name in dict.fromkeys(devices)])
        wanted = entries(f"{{devices: [{index}], mig-enabled: true, mig-devices: {{{names}}}}}")
        for first in (True, False):
            for change in plan_config(self.gpus(), wanted):
                assert not change_mig(self.library, change.words(first))["failed"]
        self.log()


def entries(*texts: str) -> tuple[MigEntry, ...]:
    """The entries of a configuration, each as YAML in one line."""
    listed = "".join([f"  - {text}\n" for text in texts])
    return read_configs(f"version: v1\nmig-configs:\n  it:\n{listed}".encode(), "file")["it"]
