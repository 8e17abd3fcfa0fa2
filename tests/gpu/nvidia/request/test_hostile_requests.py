"""What an image's environment says of GPUs, at its worst: a plan, or one sentence.  Never a traceback, nor hours of work."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator

import pytest

from gpurun.errors import GpurunError
from gpurun.gpu.nvidia.request.environment import EXTRA_VARIABLES, MAX_REQUIREMENTS
from gpurun.gpu.resolve import Inquiry, gpu_edits
from tests.simdriver import Options, SimulatedDriver, make, mig_uuid, uuid

VARIABLES = (
    "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_CUDA", "NVIDIA_REQUIRE_X", "CUDA_VERSION",
    "NVIDIA_REQUIRE_JETPACK", "NVIDIA_DISABLE_REQUIRE", "NVIDIA_DISABLE_CUDA_COMPAT", "CUDA_MPS_PIPE_DIRECTORY",
    *EXTRA_VARIABLES,
)  # fmt: skip
LONG = 1 << 20
#: What a value may begin, go on and end with; letters that are digits to Unicode, and what ends or changes a line.
PIECES = (
    "0", "1", "all", "none", "void", "GPU-", "MIG-", "MIG-GPU-", uuid(0), mig_uuid(1, 1, 0), "/1/0", ":", "0:1", ",", " ",
    "\t", "=", "nvidia.com/gpu=", "runtime.nvidia.com/gpu=", "a/b=c", "../", "/", "..", "\n", "\r", "\x1b[31m", "\u2028",
    "\u202e", "\x85", "\udcff", "\u00b2", "\uff11\uff12", "\u0663", "-1", "+1", "0x10", "1e9", "9" * 40, "cuda", "driver",
    "brand", "arch", ">=", "<", "==", "!=", "!", "12.4", "enabled", "channel", "compute", "utility", "%s%n", "{0}", "$(id)",
    "\\", '"', "'", "\u00df", "\u0130",
)  # fmt: skip
DEADLINE_S = 60  # of the processor's time: others may have the machine


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> SimulatedDriver:
    return make(tmp_path_factory.mktemp("hostile") / "host", Options(gpus=2, mig=((1, 1, 0),), nodes=False))


@pytest.fixture(autouse=True)
def _no_hours() -> Iterator[None]:
    """A question that takes more than a minute's work is as good as a hang."""

    def too_long(_number: int, _frame: object) -> None:
        raise TimeoutError(f"not answered in {DEADLINE_S} s of work")

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, DEADLINE_S)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def said(host: SimulatedDriver, *env: str, privileged: bool = False) -> str:
    """Why *env* is refused, empty when it is not: one line without control characters, and no page of it."""
    try:
        gpu_edits(Inquiry(env, {}, privileged, host.env))
    except GpurunError as e:
        text = str(e)
        assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u2028\u2029" for c in text), repr(text)
        assert 10 < len(text) < 4096, f"{len(text)} characters: {text[:300]!r}"
        return text
    return ""


@pytest.mark.sweep(40)
@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize(
    "content", ["9", "x", ",", " ", ".", "0,", "a/b=c,", "cuda>=1 ", "cuda>=1,", "GPU-", "<", "=", "\n", "\uff11"]
)
def test_a_megabyte_of_anything(host: SimulatedDriver, name: str, content: str) -> None:
    value = (content * (LONG // len(content) + 1))[:LONG]
    said(host, "NVIDIA_VISIBLE_DEVICES=0", f"{name}={value}")
    said(host, f"{name}={value}", "NVIDIA_VISIBLE_DEVICES=0", privileged=True)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", range(8))
def test_random_values(host: SimulatedDriver, seed: int) -> None:
    chance = random.Random(seed)
    refused = 0
    for _ in range(400):
        value = "".join(chance.choices(PIECES, k=chance.randrange(1, 9)))
        env = ["NVIDIA_VISIBLE_DEVICES=0", f"{chance.choice(VARIABLES)}={value}"]
        refused += bool(said(host, *env, privileged=chance.random() < 0.5))
    assert 40 < refused < 390, "both ways are taken"


def test_one_gpu_by_all_its_names_is_one(host: SimulatedDriver) -> None:
    """As many forms of one id as fit: each is found, and the node is there once."""
    chance = random.Random(7)
    forms = {"".join(chance.choice((c.lower(), c.upper())) for c in uuid(0)) for _ in range(1400)}
    made = gpu_edits(
        Inquiry((f"NVIDIA_VISIBLE_DEVICES={','.join([*sorted(forms), '0', '00', '000'])}",), {}, False, host.env)
    )
    assert made is not None and len([n for n in made.device_nodes if n.path[11:].isdigit()]) == 1
    assert len({bind.container_path for bind in made.proc_trees[0].binds}) == len(made.proc_trees[0].binds) == 1


def test_requirements_have_a_bound(host: SimulatedDriver) -> None:
    """Within it they are evaluated for every GPU, whatever they are made of; beyond it nobody reads them."""
    term = "brand=tesla,driver>=999999999,driver<1 "
    most = term * (MAX_REQUIREMENTS // len(term))
    env = "NVIDIA_VISIBLE_DEVICES=all"
    assert "unsatisfied condition: brand=tesla" in said(host, env, f"NVIDIA_REQUIRE_CUDA={most}")
    halves = [f"NVIDIA_REQUIRE_{name}={most}" for name in ("A", "B")]
    assert "characters long" in said(host, env, *halves)
    assert said(host, env, *halves, "NVIDIA_DISABLE_REQUIRE=1") == ""
    assert "invalid expression" in said(host, env, "NVIDIA_REQUIRE_CUDA=" + "cuda>=" + "9" * (MAX_REQUIREMENTS - 6))
    assert said(host, env, "NVIDIA_REQUIRE_CUDA=driver>=1" + ".0" * (MAX_REQUIREMENTS // 3)) == ""


@pytest.mark.parametrize(
    "name", ["nvidia.com/gpu=../../etc/shadow", "nvidia.com/gpu=a\nb", "nvidia.com/gpu=\u202etxt", "a/b=%s"]
)
def test_cdi_names_are_no_paths(host: SimulatedDriver, name: str) -> None:
    assert "is not a CDI device name" in said(host, f"NVIDIA_VISIBLE_DEVICES={name}")


def test_thousands_of_cdi_devices_that_nobody_has(host: SimulatedDriver) -> None:
    names = ",".join([f"nvidia.com/gpu=x{i}" for i in range(2000)])
    text = said(host, f"NVIDIA_VISIBLE_DEVICES={names}")
    assert text.startswith("unresolvable CDI devices nvidia.com/gpu=x0, ") and "x15 and 1984 more" in text
    assert said(host, f"NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu={'x' * 60000}").startswith(
        "unresolvable CDI devices nvidia.com"
    )
