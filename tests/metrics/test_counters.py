"""dcgm-exporter's file of counters: what it chooses and renames, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpurun.errors import ConfigError
from gpurun.gpu.nvidia.host.nvml import query
from gpurun.metrics.counters import LEGACY, Counter, CountersFile, counters
from gpurun.metrics.fields import FIELDS, LABEL_FIELDS, words
from gpurun.metrics.gpus import gpu_samples
from gpurun.metrics.samples import Sample
from tests.needs_nodes import needs_nodes
from tests.nvml import compile_stub
from tests.simdriver import Options, make

FILE = """\
# Format
# DCGM FIELD, type, help

DCGM_FI_DEV_GPU_TEMP,   gauge, How warm it is.
DCGM_FI_DEV_DEC_UTIL ,  gauge,"Decoder, in %; \"\"all\"\" of it."
dcgm_sm_clock, counter, Clock.
DCGM_FI_DEV_VGPU_LICENSE_STATUS, gauge, vGPU License status
DCGM_FI_DEV_BRAND, label, Device Brand
"""


def read(text: str) -> tuple[Counter, ...]:
    return counters(text.encode(), "f", FIELDS, LABEL_FIELDS).metrics


def test_what_a_file_says() -> None:
    found = counters(FILE.encode(), "counters.csv", FIELDS, LABEL_FIELDS)
    assert found.metrics == (
        Counter("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP", "gauge", "How warm it is."),
        Counter("DCGM_FI_DEV_DEC_UTIL", "DCGM_FI_DEV_DEC_UTIL", "gauge", 'Decoder, in %; "all" of it.'),
        Counter("dcgm_sm_clock", "DCGM_FI_DEV_SM_CLOCK", "counter", "Clock."),
    )
    assert found.labels == ("DCGM_FI_DEV_BRAND",)
    assert found.warnings == (
        "counters.csv: line 7: DCGM_FI_DEV_VGPU_LICENSE_STATUS cannot be had without DCGM and is left out",
    )
    assert set(LEGACY.values()) <= FIELDS


def test_it_chooses_and_renames(tmp_path: Path) -> None:
    answer = query(str(compile_stub(tmp_path / "nvml.so", mig=True, events=tmp_path / "events")), "metrics")
    found = counters(FILE.encode(), "f", FIELDS, LABEL_FIELDS)
    assert words(frozenset([one.field for one in found.metrics])) == ()
    other = Sample("container_processes", "gauge", "h", (), 1.0)
    samples = found.chosen([other, *gpu_samples(answer, "n", labels=found.labels)])
    samples = [sample for sample in samples if not sample.name.startswith("gpurun_")]
    # These cards have no decoder to tell of.
    names = ["DCGM_FI_DEV_GPU_TEMP"] * 2 + ["dcgm_sm_clock"] * 2 + ["container_processes"]
    assert [sample.name for sample in samples] == names
    assert samples[0].help == "How warm it is." and samples[2].kind == "counter" and samples[-1] is other
    labels = dict(samples[0].labels)
    assert labels["DCGM_FI_DEV_BRAND"] == answer["gpus"][0]["brand"] and "DCGM_FI_DRIVER_VERSION" not in labels


def test_what_takes_time_is_asked_for_by_name() -> None:
    def asked(*fields: str) -> tuple[str, ...]:
        return words(frozenset(fields))

    assert asked("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_PROF_UNKNOWN") == ()
    assert asked("DCGM_FI_DEV_PCIE_TX_THROUGHPUT") == ("pcie",)
    assert asked("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_DEV_PCIE_RX_THROUGHPUT") == ("pcie", "gpm")


def test_twice_and_the_wrong_kind_are_told() -> None:
    temperature = "DCGM_FI_DEV_GPU_TEMP,gauge,"
    text = f"{temperature}a\n{temperature}b\nDCGM_FI_DEV_SM_CLOCK,label,c\nDCGM_FI_DEV_BRAND,gauge,d\n"
    found = counters(text.encode(), "f", FIELDS, LABEL_FIELDS)
    assert [(one.field, one.help) for one in found.metrics] == [("DCGM_FI_DEV_GPU_TEMP", "a")] and not found.labels
    assert [text.partition(": ")[2] for text in found.warnings] == [
        "line 2: DCGM_FI_DEV_GPU_TEMP is there already, this line is left out",
        "line 3: DCGM_FI_DEV_SM_CLOCK is not a label and is left out",
        "line 4: DCGM_FI_DEV_BRAND is only a label and is left out",
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("DCGM_FI_DEV_GPU_TEMP, gauge", "is not DCGM FIELD, type, help"),
        ("DCGM_FI_DEV_GPU_TEMP, gauge, a, b", "is not DCGM FIELD, type, help"),
        ('DCGM_FI_DEV_GPU_TEMP, gauge, "a, b"', "right behind the comma"),
        ('DCGM_FI_DEV_GPU_TEMP,gauge,"a', "right behind the comma"),
        (" # a comment", "is not DCGM FIELD"),
        ("temperature, gauge, a", '"temperature" is not a field of DCGM'),
        (", gauge, a", '"" is not a field of DCGM'),
        ("DCGM_FI_DEV_GPU_TEMP, histogram, a", '"histogram" is not gauge, counter or label'),
        ("DCGM_FI_DEV_GPU_TEMP, , a", '"" is not gauge'),
    ],
)
def test_what_is_refused(line: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as e:
        read(f"# first\n{line}\n")
    assert "f: line 2: " in str(e.value) and sentence in str(e.value)


def test_files_that_are_none() -> None:
    for data, sentence in ((b"", "names no field"), (b"# all of it\n", "names no field"), (b"\xff", "is not UTF-8")):
        with pytest.raises(ConfigError, match=sentence):
            counters(data, "f", FIELDS, LABEL_FIELDS)


def test_a_file_that_changes(tmp_path: Path) -> None:
    path = tmp_path / "counters.csv"
    path.write_text(FILE)
    file = CountersFile(str(path), FIELDS, LABEL_FIELDS)
    path.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, t\n")
    assert [one.help for one in file.now().metrics] == ["t"]
    path.write_text("nothing\n")
    assert [one.help for one in file.now().metrics] == ["t"]
    path.unlink()
    assert [one.help for one in file.now().metrics] == ["t"]
    os.mkfifo(path)
    with pytest.raises(ConfigError, match=r"counters\.csv: not a regular file"):
        CountersFile(str(path), FIELDS, LABEL_FIELDS)


@needs_nodes
def test_the_command_asks_for_what_takes_time(tmp_path: Path) -> None:
    driver = make(tmp_path / "host", Options(gpus=2))
    library = next(path for path in driver.path.rglob("libnvidia-ml.so.*") if not path.is_symlink())
    library.unlink()
    compile_stub(library, events=tmp_path / "events")
    path = tmp_path / "counters.csv"
    path.write_text("DCGM_FI_PROF_SM_ACTIVE, gauge, SMs\nDCGM_FI_DEV_PCIE_TX_THROUGHPUT, gauge, PCIe\n")
    env = os.environ | driver.env | {"PYTHONPATH": "src"}
    command = [sys.executable, "-m", "gpurun", "--root", str(tmp_path / "state"), "metrics", "--once", "-f", str(path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stdout.splitlines() if line.startswith("DCGM_")]
    assert [(line.partition("{")[0], line.rpartition(" ")[2]) for line in lines] == [
        ("DCGM_FI_PROF_SM_ACTIVE", "0.02"),
        ("DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "1000.0"),
        ("DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "1000.0"),
    ], done.stderr


@pytest.mark.parametrize("option", ["-f", "--collectors"])
def test_the_command_names_the_line(tmp_path: Path, option: str) -> None:
    path = tmp_path / "counters.csv"
    path.write_text("DCGM_FI_DEV_GPU_TEMP, gauge\n")
    env = os.environ | {"PYTHONPATH": "src", "GPURUN_SYSROOT": str(tmp_path)}
    command = [sys.executable, "-m", "gpurun", "--root", str(tmp_path / "state"), "metrics", "--once", option, str(path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "counters.csv: line 1: " in done.stderr and "Traceback" not in done.stderr
