"""What the site says of leases: GPUs that are never leased, limits, a longest time, and whether who comes too late waits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.gpu.leases.asked import Start, asking, end, got, leases, refused, site
from tests.gpu.leases.conftest import MakeHost
from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.native.waiting import wait_until
from tests.simdriver import SimulatedDriver, uuid

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


def test_what_the_site_never_leases(
    runtime: Runtime, bundle: MakeBundle, start: Start, host: SimulatedDriver, tmp_path: Path
) -> None:
    env = site(tmp_path, f'never = ["0", "{uuid(2)}"]')
    assert got(start("free:2", **env)) == [uuid(1), uuid(3)]
    assert "GPU 0, 2: the site never leases it" in refused(runtime, bundle(), host, "free", **env)


def test_containers_that_do_not_count(start: Start, tmp_path: Path) -> None:
    start("all", config=lambda b: b.linux.update(cgroupsPath="/gpurun-test-monitor"))
    assert len(got(start("free:4", **site(tmp_path, 'ignore = ["gpurun-test-mon*"]')))) == 4


@pytest.mark.parametrize("shared", ["warn", "refuse"])
def test_gpus_named_while_they_are_leased(
    runtime: Runtime,
    bundle: MakeBundle,
    make_host: MakeHost,
    start: Start,
    tmp_path: Path,
    shared: str,
) -> None:
    host = make_host(40, major=195)  # with minors that no other test's containers have
    env = site(tmp_path, f'shared = "{shared}"')
    held = start("free", on=host, **env)
    assert got(held) == [uuid(0)]
    said = f"GPU 0: leased by {held.id} since"
    if shared == "refuse":
        text = refused(runtime, bundle(), host, "0", **env)
        assert said in text and "does not share leased GPUs: ask for free:1" in text
        assert said in refused(runtime, bundle(), host, "all", **env)
    else:
        assert said in start("0", on=host, **env).err
    other = start("5", on=host, **env)
    rest = start("free:2", on=host, **env)
    assert uuid(5) not in got(rest) and other.err == ""
    assert ("named", other.id) in [(lease["kind"], lease["id"]) for lease in leases(runtime, host)]


def test_limits(runtime: Runtime, bundle: MakeBundle, start: Start, host: SimulatedDriver, tmp_path: Path) -> None:
    label = "io.kubernetes.pod.namespace"

    def of(team: str) -> Callable[[Bundle], None]:
        return lambda b: b.config.update(annotations={label: team, "io.kubernetes.container.name": "web"})

    env = site(tmp_path, f'per-user = 3\nper-label = ["{label}=1"]')
    start("free", config=of("a"), **env)
    b = bundle()
    of("a")(b)
    text = refused(runtime, b, host, "free", **env)
    assert f"the site lets containers with {label}=a lease 1 GPUs at a time, 1 are leased now" in text
    start("free", config=of("b"), **env)
    text = refused(runtime, bundle(), host, "free:2", **env)
    assert "the site lets user 0 lease 3 GPUs at a time, 2 are leased now" in text
    assert [lease["name"] for lease in leases(runtime, host)] == ["a/web", "b/web"]


def test_a_longest_time(runtime: Runtime, bundle: MakeBundle, start: Start, host: SimulatedDriver, tmp_path: Path) -> None:
    env = site(tmp_path, 'longest = "8h"\nat-end = "end"\ngrace = "0"')
    everything = ENVIRONMENT | host.env | env
    other = start("free", **env)
    start("free;for<=1s", **env)  # the first process of a pid namespace, which SIGTERM does not end
    times = {one["id"]: one["until"] for one in leases(runtime, host)}
    assert all(times.values()) and "free;for<=1s, until 20" in runtime("gpu", "leases", env=everything).out
    said = []

    def is_over() -> bool:
        said.append(runtime("gpu", "leases", "--expire", env=everything).err)
        return [one["id"] for one in leases(runtime, host)] == [other.id]

    wait_until(is_over)
    text = "".join(said)
    assert "is over: its container gets SIGTERM, and SIGKILL in 0s" in text and "gets SIGKILL, " in text
    assert "the site leases GPUs for 8h at the most" in refused(runtime, bundle(), host, "free;for<=9h", **env)


def test_waiting_in_order_of_arrival(
    runtime: Runtime, bundle: MakeBundle, start: Start, host: SimulatedDriver, tmp_path: Path
) -> None:
    env = ENVIRONMENT | host.env | site(tmp_path, 'wait = "30s"')
    first = start("free:3")
    waiting = []
    for number, count in enumerate((4, 1, 1)):  # the one of the second would be free now, but the first came before
        b = asking(bundle(), f"free:{count}", "echo $NVIDIA_VISIBLE_DEVICES; sleep 0.3")
        runtime.prepare(b, f"waits{number}")
        files = runtime.new_files()
        command = ("run", "--bundle", str(b.directory), f"waits{number}")
        waiting.append((runtime.popen(*command, files=files, env=env), files))
        wait_until(lambda n=number: len(json.loads(runtime("gpu", "leases", "--json", env=env).out)["waiting"]) == n + 1)  # type: ignore[misc]
    assert all(process.poll() is None for process, _ in waiting)
    begin = time.monotonic()
    end(first)
    ended = []
    for process, files in waiting:
        assert process.wait(30) == 0, (files / "err").read_text()
        ended.append((files / "out").stat().st_mtime_ns)
    assert ended[0] < ended[1] and ended[0] < ended[2] and time.monotonic() - begin < 30
    assert json.loads(runtime("gpu", "leases", "--json", env=env).out) == {"leases": [], "waiting": []}


def test_who_waits_for_one_kind_does_not_hold_up_the_others(
    runtime: Runtime, bundle: MakeBundle, start: Start, host: SimulatedDriver, tmp_path: Path
) -> None:
    env = site(tmp_path, 'wait = "60s"')
    only = start("free;product=GeForce*", **env)
    assert got(only) == [uuid(2)]
    b = asking(bundle(), "free;product=GeForce*", "echo $NVIDIA_VISIBLE_DEVICES")
    runtime.prepare(b, "waits")
    files = runtime.new_files()
    waiting = runtime.popen("run", "--bundle", str(b.directory), "waits", files=files, env=ENVIRONMENT | host.env | env)
    wait_until(lambda: len(json.loads(runtime("gpu", "leases", "--json", env=host.env).out)["waiting"]) == 1)
    assert got(start("free:3", **env)) == [uuid(0), uuid(1), uuid(3)] and waiting.poll() is None
    end(only)
    assert waiting.wait(60) == 0 and (files / "out").read_text().strip() == uuid(2)


def test_waiting_ends(runtime: Runtime, bundle: MakeBundle, start: Start, host: SimulatedDriver, tmp_path: Path) -> None:
    start("free:4")
    env = site(tmp_path, 'wait = "1s"')
    begin = time.monotonic()
    assert "1 GPU wanted, 0 of 4 free after 1 s: GPU 0" in refused(runtime, bundle(), host, "free", **env)
    assert 1 <= time.monotonic() - begin < 30
    assert " after " not in refused(runtime, bundle(), host, "free:5", **env), "there are only four: nobody waited"
    env = site(tmp_path, 'wait = "60s"')
    never = time.monotonic()
    assert "0 of 4 free" in refused(runtime, bundle(), host, "free;product=B200", **env)
    assert time.monotonic() - never < 30, "who waits for what there is not waits for nothing"
