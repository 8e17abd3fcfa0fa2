"""NVIDIA_REQUIRE_* expressions."""

from __future__ import annotations

import pytest

from gpurun.errors import ConfigError
from gpurun.hook.require import Properties, check, properties

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
    ["cuda==12", "cuda", "cuda>=", "cuda>=twelve", "brand>tesla", "brand=", "kernel>=6", "=12", "cuda=>12", "cuda>=1.²"],
)
def test_malformed(term: str) -> None:
    with pytest.raises(ConfigError, match="invalid expression"):
        check((f"driver>1 {term}",), (GEFORCE,))
