"""``gpurun cdi refresh``: the file is what ``cdi generate`` would write now, and is touched only where it is not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.__main__ import main
from gpurun.cdi.files import read_spec_file
from gpurun.commands import cdi_refresh
from gpurun.gpu.vendors import find_vendor
from tests.needs_nodes import require_nodes
from tests.simcards import amd, intel
from tests.simdriver import Options, make

Refresh = Callable[..., tuple[int, str]]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_CONFIG_HOME", "NVIDIA_CTK_CONFIG_FILE_PATH"):
        monkeypatch.delenv(name, raising=False)
    path = make(tmp_path / "host", Options(gpus=2)).path
    monkeypatch.setenv("GPURUN_SYSROOT", str(path))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cdi/nvidia.yaml"


@pytest.fixture
def refresh(file: Path, capfd: pytest.CaptureFixture[str]) -> Refresh:
    def call(*options: str) -> tuple[int, str]:
        code = main(["gpurun", "cdi", "refresh", "--output", str(file), *options])
        out, err = capfd.readouterr()
        assert out == ""
        return code, err

    return call


def unload(host: Path) -> None:
    """The kernel module goes; the libraries stay installed."""
    (host / "proc/driver/nvidia/version").unlink()
    (host / "sys/module/nvidia/version").unlink(missing_ok=True)


def test_what_generate_writes(host: Path, file: Path, refresh: Refresh, capfd: pytest.CaptureFixture[str]) -> None:
    assert refresh() == (0, f"gpurun: wrote {file}: 5 devices\n")
    assert main(["gpurun", "cdi", "generate"]) == 0
    assert file.read_text() == capfd.readouterr().out
    assert file.stat().st_mode & 0o777 == 0o644 and os.listdir(file.parent) == [file.name]


def test_a_file_that_is_right_is_not_touched(host: Path, file: Path, refresh: Refresh) -> None:
    refresh()
    os.utime(file, (1, 1))
    assert refresh() == (0, f"gpurun: {file} is as it should be\n")
    assert file.stat().st_mtime == 1


def test_a_gpu_comes_and_goes(host: Path, file: Path, refresh: Refresh, tmp_path: Path) -> None:
    refresh()
    gone = host / "proc/driver/nvidia/gpus" / sorted(os.listdir(host / "proc/driver/nvidia/gpus"))[1]
    os.rename(gone, tmp_path / "gone")
    code, said = refresh()
    assert code == 0 and said.endswith("the driver or its devices had changed\n")
    assert "1" not in {device.name for device in read_spec_file(str(file)).devices}
    os.rename(tmp_path / "gone", gone)
    refresh()
    assert "1" in {device.name for device in read_spec_file(str(file)).devices}


def test_without_a_driver_the_file_goes(host: Path, file: Path, refresh: Refresh) -> None:
    unload(host)
    code, said = refresh()
    assert code == 0 and "nothing is written" in said and not file.exists()
    file.parent.mkdir()
    file.write_text("cdiVersion: 0.5.0\nkind: example.org/other\ndevices: [{name: a, containerEdits: {env: [A=1]}}]\n")
    code, said = refresh()
    assert code == 1 and "it describes devices of the kind example.org/other" in said and file.exists()


def test_the_file_of_a_driver_that_is_unloaded_goes(host: Path, file: Path, refresh: Refresh) -> None:
    refresh()
    unload(host)
    code, said = refresh()
    assert code == 0 and said.endswith(f"{file} is gone\n") and not file.exists()


def test_a_second_file_of_the_kind(host: Path, file: Path, refresh: Refresh) -> None:
    refresh()
    other = file.with_name("other.yaml")
    other.write_bytes(file.read_bytes())
    file.unlink()
    code, said = refresh()
    assert code == 0 and f"{other} describes nvidia.com/gpu as well" in said


def test_a_name_that_no_engine_reads(host: Path, file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["gpurun", "cdi", "refresh", "--output", str(file.with_suffix(".txt"))]) == 1
    assert "must end in .json or .yaml" in capfd.readouterr().err and not file.parent.exists()


MAKERS = ("amd", "intel")


@pytest.fixture
def all_makers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with GPUs of three makers, and the directory that files are written to unless it is said where."""
    monkeypatch.setattr(cdi_refresh, "DIRECTORY", str(tmp_path / "run/cdi"))
    for name in ("XDG_CONFIG_HOME", "NVIDIA_CTK_CONFIG_FILE_PATH"):
        monkeypatch.delenv(name, raising=False)
    path = make(tmp_path / "three", Options(gpus=1)).path
    monkeypatch.setenv("GPURUN_SYSROOT", str(path))
    require_nodes(amd.beside_nvidia(path).real_nodes)
    intel.arc(path, functions=False, first=20)
    return tmp_path / "run/cdi"


def called(*words: str) -> int:
    return main(["gpurun", "cdi", "refresh", *words])


def driver_of(maker: str, host: Path) -> list[Path]:
    return [host / probe.lstrip("/") for probe in find_vendor(maker).probes]


def test_a_file_for_each_maker(all_makers: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert called() == 0
    kinds = {path.name: read_spec_file(str(path)).kind for path in all_makers.iterdir()}
    assert kinds == {f"{maker}.yaml": f"{maker}.com/gpu" for maker in ("nvidia", *MAKERS)}
    capfd.readouterr()
    assert called() == 0
    assert capfd.readouterr().err.count("is as it should be") == 3
    assert called("--mode", "amd") == 0
    assert capfd.readouterr().err == f"gpurun: {all_makers}/amd.yaml is as it should be\n"


@pytest.mark.parametrize("maker", MAKERS)
def test_the_file_is_what_generate_writes(all_makers: Path, maker: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert called("--mode", maker) == 0
    assert [path.name for path in all_makers.iterdir()] == [f"{maker}.yaml"]
    capfd.readouterr()
    assert main(["gpurun", "cdi", "generate", "--mode", maker]) == 0
    assert (all_makers / f"{maker}.yaml").read_text() == capfd.readouterr().out
    other = all_makers / "other.json"
    assert called("--mode", maker, "--output", str(other)) == 0
    assert read_spec_file(str(other)).kind == f"{maker}.com/gpu"


@pytest.mark.parametrize("maker", MAKERS)
def test_the_file_of_a_maker_goes_with_its_gpus(
    all_makers: Path, tmp_path: Path, maker: str, capfd: pytest.CaptureFixture[str]
) -> None:
    called()
    capfd.readouterr()
    for path in driver_of(maker, tmp_path / "three"):
        shutil.rmtree(path, ignore_errors=True)
    assert called() == 0
    said = capfd.readouterr().err
    assert f"no GPU of {maker}.com/gpu is there" in said and f"{all_makers}/{maker}.yaml is gone" in said
    assert len(list(all_makers.iterdir())) == 2
    assert called() == 0
    assert f"{maker}.com" not in capfd.readouterr().err, "a maker that the host has nothing of is not spoken of"
    assert called("--mode", maker) == 0
    assert "nothing is written" in capfd.readouterr().err


def test_what_is_wrong_with_one_makers_file_keeps_no_others_from_being_written(
    all_makers: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "three/dev/kfd").unlink()
    assert called() == 1
    assert {path.name for path in all_makers.iterdir()} == {"nvidia.yaml", "intel.yaml"}
    assert "/dev/kfd is not there" in capfd.readouterr().err


@pytest.mark.parametrize("maker", MAKERS)
def test_a_file_of_somebody_elses_is_not_removed(
    all_makers: Path, tmp_path: Path, maker: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for path in driver_of(maker, tmp_path / "three"):
        shutil.rmtree(path, ignore_errors=True)
    all_makers.mkdir(parents=True)
    file = all_makers / f"{maker}.yaml"
    file.write_text("cdiVersion: 0.5.0\nkind: example.org/other\ndevices: [{name: a, containerEdits: {env: [A=1]}}]\n")
    assert called() == 1
    assert "it describes devices of the kind example.org/other" in capfd.readouterr().err and file.exists()
    assert (all_makers / "nvidia.yaml").exists()
