"""gpu attach and gpu detach that are killed at a system call: no access without a record, no lease lost, and the next makes
it whole.

``make test`` takes a few calls of each, ``make test-faults`` (GPURUN_FAULTS) more or all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.faults.sweep import calls_made, chosen
from tests.gpu.leases.conftest import make_host  # noqa: F401
from tests.gpu.leases.test_attach import NO_DRIVER, Box, box, host  # noqa: F401
from tests.native.inject import Injection
from tests.native.runtime import Runtime

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

SHORT = 2


def leased(one: Box) -> list[list[int]]:
    """The indices of the GPUs of each lease."""
    listed = json.loads(one.runtime("gpu", "leases", "--json", env=one.env).out)["leases"]
    return [[gpu["index"] for gpu in lease["gpus"]] for lease in listed]


@pytest.mark.parametrize("what", ["attach", "detach"])
def test_killed_at_each_call(
    box: Callable[..., Box],  # noqa: F811
    runtime: Runtime,
    bundle: MakeBundle,
    tmp_path: Path,
    what: str,
) -> None:
    one = box(script="exec sleep 86400")  # all calls take longer than ten minutes
    site = tmp_path / "site.toml"
    site.write_text('[leases]\nnever = ["1", "2", "3"]\n')
    one.env["GPURUN_CONFIG"] = str(site)
    log = tmp_path / "strace"
    words = ("gpu", what, one.id, "free" if what == "attach" else "0")

    def prepare() -> None:
        if what == "detach":
            one.attach("free")

    def clear() -> None:
        if what == "attach":
            one.detach("0")

    one.attach("free")  # the first one brings the driver's files as well
    one.detach("0")
    prepare()
    traced = runtime(
        *words, env=one.env, tracer=["strace", "-f", "-qq", "-D", "-I", "2", "-o", str(log), "-e", "signal=none"]
    )
    assert traced.rc == 0, traced
    clear()
    calls = calls_made(log, Path(runtime.path))
    assert len(calls) > 50
    rules = [call for call in calls if call.name == "bpf"][:1]  # when the device program is about to be another
    calls = chosen([call for call in calls if call not in rules], SHORT) + rules
    killed = 0
    for call in calls:
        prepare()
        with Injection(log, call.name, "", str(call.number), children=call.child, signal="KILL") as tracer:
            log.write_text("")
            result = one.runtime(*words, env=one.env, tracer=tracer)
        killed += result.rc != 0
        where = f"{what} killed at {call.name} #{call.number} of {'a child' if call.child else 'the caller'}: {result}"
        time.sleep(0.05)  # a child in the container's namespaces goes on to its end
        record = runtime.root / one.id / "attached"
        gpus = json.loads(record.read_text())["gpus"] if record.exists() else []
        if one.opens(0) == NO_DRIVER:
            assert gpus, f"{where}: access that is not recorded"
        held = leased(one)
        assert held in ([], [[0]]), f"{where}: {held}"
        if held:
            # What is leased can be given back, by its name.
            done = one.gpu("detach", "0")
            assert done.rc == 0, f"{where}: {done.text}"
        else:
            one.gpu("detach", "0")
        assert leased(one) == [], where
        one.attach("free")
        assert leased(one) == [[0]], where
        seen = one.sees()
        assert len(seen["names"]) == 1 and len(seen["nodes"]) == 1 and len(seen["gpus"]) == 1, f"{where}: {seen}"
        one.detach("0")
        seen = one.sees()
        assert not seen["nodes"] and not seen["gpus"] and seen["names"] == ["none"], f"{where}: {seen}"
    assert killed
    one.attach("0")
    one.has(0)
    one.detach("0")
    one.has()
