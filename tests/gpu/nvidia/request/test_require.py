"""NVIDIA_REQUIRE_* expressions."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.errors import ConfigError
from gpurun.gpu.nvidia.request.require import Properties, check, properties, with_nvml_properties
from gpurun.gpu.resolve import Inquiry, gpu_edits
from tests.nvml import compile_stub
from tests.simdriver import VERSION, Options, make

GEFORCE = properties("550.163.01", "NVIDIA GeForce RTX 4090")
A100 = properties("535.104.05", "NVIDIA A100-SXM4-40GB")

#: As official images have it, shortened.
OFFICIAL = "cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=unknown,driver>=470,driver<471 brand=geforcertx,driver>=535"


@pytest.mark.parametrize(
    "expression",
    [
        "cuda>=12.4",
        "cuda=12.4.0",
        "cuda!=12.5",
        "CUDA<13",
        "driver>=550.163.1,driver<551",
        "driver>549",
        "brand=GeForceRTX",
        "brand!=tesla",
        "arch>=99",
        "cuda>=99 driver>=550",
        "cuda>=99,driver>=550 ,cuda<=12.4,",
        OFFICIAL,
        "",
        " , ",
    ],
)
def test_met(expression: str) -> None:
    check((expression,), (GEFORCE,))


@pytest.mark.parametrize(
    "expression", ["cuda>=12.5", "cuda>12.4", "driver<550", "brand=tesla", "brand!=geforcertx", "cuda>=12.4,driver<550"]
)
def test_not_met(expression: str) -> None:
    with pytest.raises(ConfigError, match="requirement error: unsatisfied condition: "):
        check((expression,), (GEFORCE,))


def test_the_text_that_people_search_for() -> None:
    with pytest.raises(ConfigError) as e:
        check(("cuda>=12.9 brand=tesla",), (GEFORCE,))
    assert str(e.value) == (
        "requirement error: unsatisfied condition: cuda>=12.9, please update your driver to a newer version, "
        "or use an earlier cuda container"
    )
    with pytest.raises(ConfigError) as e:
        check(("driver>=600",), (GEFORCE,))
    assert str(e.value) == "requirement error: unsatisfied condition: driver>=600"


def test_all_expressions_and_all_gpus_must_pass() -> None:
    check(("cuda>=12.2",), (GEFORCE, A100))
    with pytest.raises(ConfigError):
        check(("cuda>=12.4",), (GEFORCE, A100))
    with pytest.raises(ConfigError):
        check(("cuda>=12.4", "driver<550"), (GEFORCE,))


def test_what_is_not_known_passes() -> None:
    check(("cuda>=99,driver>=9999,brand=tesla,arch>=10",), (Properties(),))
    check(("cuda>=99",), (properties("999.88.77"),))
    assert A100.brand is None


@pytest.mark.parametrize(
    "term",
    ["cuda==12", "cuda", "cuda>=", "cuda>=twelve", "brand>tesla", "brand=", "kernel>=", "=12", "cuda=>12", "cuda>=1.²"],
)
def test_malformed(term: str) -> None:
    with pytest.raises(ConfigError, match="invalid expression"):
        check((f"driver>1 {term}",), (GEFORCE,))


@pytest.mark.parametrize(
    ("expression", "met"),
    [
        ("kernel>=6", True),
        ("foo=bar,driver>=535", True),
        ("foo=bar,driver>=999", False),
        ("driver>=999 foo=bar", False),  # an alternative that says nothing is none
        ("foo=bar cuda>=1", True),
        ("cuda>=v12.2", True),
        ("driver>=v999", False),
    ],
)
def test_a_property_of_another_name_is_as_if_it_were_not_there(expression: str, met: bool) -> None:
    if met:
        check((expression,), (GEFORCE,))
        return
    with pytest.raises(ConfigError, match="unsatisfied"):
        check((expression,), (GEFORCE,))


def test_a_branch_newer_than_the_table_has_at_least_the_newest_cuda() -> None:
    future = properties("999.88.77")
    for met in ("cuda>=12.4", "cuda>13.0", "cuda!=12.4", "cuda>=99"):
        check((met,), (future,))
    for not_met in ("cuda<13.1", "cuda<=12.9", "cuda=12.4"):
        with pytest.raises(ConfigError, match="unsatisfied"):
            check((not_met,), (future,))
    between = properties("540.1")  # of 535 or newer
    check(("cuda>=12.2,cuda!=12.1",), (between,))
    assert properties("100.1").cuda is None and not properties("550.1").cuda_or_newer


@pytest.mark.parametrize(
    ("expression", "asked", "met"),
    [
        ("cuda>=12.4", 0, True),
        ("cuda>=12.9", 0, False),
        ("cuda>=12.9 brand=nvidia,driver>=470", 1, True),
        ("cuda>=12.9 brand=tesla,driver>=470", 1, False),
        ("cuda>=12.9 brand=tesla,driver>=999", 0, False),
        ("arch>=8.0", 1, True),
        ("arch>=9.1", 1, False),
        ("arch>=99 cuda>=12.4", 0, True),
    ],
)
def test_nvml_is_asked_when_the_outcome_depends_on_it(expression: str, asked: int, met: bool) -> None:
    known = properties("550.163.01", "NVIDIA H100 80GB HBM3")
    calls = []

    def learn() -> tuple[Properties, ...]:
        calls.append(1)
        return (with_nvml_properties(known, "12.4", "9.0", "Nvidia"),)

    try:
        check((expression, "brand=nvidia" if asked else ""), (known,), learn)
        assert met
    except ConfigError:
        assert not met
    assert len(calls) == asked


def test_what_nvml_does_not_tell_stays_as_it_was() -> None:
    before = properties("550.163.01", "NVIDIA GeForce RTX 4090")
    assert with_nvml_properties(before, "", "", "") == before
    assert with_nvml_properties(properties("999.88.77"), "14.2", "", "") == Properties(
        (14, 2), (999, 88, 77), None, None, False
    )


def test_the_drivers_own_nvml_answers_in_a_plan(tmp_path: Path) -> None:
    sim = make(tmp_path, Options(nodes=False))
    env = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility")
    old = (*env, "NVIDIA_REQUIRE_ARCH=arch<9.0")
    assert gpu_edits(
        Inquiry(old, {}, False, sim.env)
    )  # this library says that there is no driver: not known, so not refused
    library = next(sim.path.rglob(f"libnvidia-ml.so.{VERSION}"))
    library.unlink()
    compile_stub(library)
    assert gpu_edits(Inquiry((*env, "NVIDIA_REQUIRE_ARCH=arch>=9.0"), {}, False, sim.env))
    with pytest.raises(ConfigError, match=r"unsatisfied condition: arch<9\.0"):
        gpu_edits(Inquiry(old, {}, False, sim.env))
    assert gpu_edits(Inquiry((*old, "NVIDIA_DISABLE_REQUIRE=1"), {}, False, sim.env))
