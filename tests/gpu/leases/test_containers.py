"""Containers that ask for free GPUs: who gets which, until when, and what is said to those who get none."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpurun.gpu.leases.store import Store, directory
from gpurun.gpu.nvidia.host.nvml import TIMEOUT_S
from tests.conftest import MakeBundle
from tests.gpu.leases.asked import end, leases
from tests.gpu.leases.conftest import MakeHost
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.runtime import ENVIRONMENT, Container, Runtime
from tests.native.waiting import wait_until
from tests.simdriver import SimulatedDriver, minor, uuid

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

SLEEP = "echo $NVIDIA_VISIBLE_DEVICES; ls /dev | grep nvidia[0-9]; exec sleep 600"
Start = Callable[..., Container]


@pytest.fixture
def host(make_host: MakeHost) -> SimulatedDriver:
    return make_host(4)


@pytest.fixture
def start(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> Start:
    """``start("free:2", NAME="value")``: a container that runs and has said what it got."""

    def run(devices: str, *, on: SimulatedDriver = host, script: str = SLEEP, config: Any = None, **env: str) -> Container:
        b = asking(bundle(), devices, script)
        if config:
            config(b)
        container = runtime.start(b, env=ENVIRONMENT | on.env | env)
        container.wait_for("nvidia")
        return container

    return run


def asking(bundle: Bundle, devices: str, script: str = SLEEP) -> Bundle:
    bundle.process["env"] += [f"NVIDIA_VISIBLE_DEVICES={devices}"]
    return bundle.sh(script)


def got(container: Container) -> list[str]:
    return container.out.splitlines()[0].split(",")


def refused(runtime: Runtime, bundle: Bundle, host: SimulatedDriver, devices: str, **env: str) -> str:
    return runtime.refused(asking(bundle, devices), env=ENVIRONMENT | host.env | env)


def test_each_gets_its_own_until_none_is_left(
    runtime: Runtime, bundle: MakeBundle, start: Start, host: SimulatedDriver
) -> None:
    one, two, three = start("free"), start("free:2"), start("free:1;product=GeForce*")
    assert got(one) == [uuid(0)] and got(two) == [uuid(1), uuid(3)] and got(three) == [uuid(2)]
    assert one.out.splitlines()[1:] == ["nvidia3"]
    text = refused(runtime, bundle(), host, "free")
    assert "NVIDIA_VISIBLE_DEVICES 'free': 1 GPU wanted, 0 of 4 free" in text
    assert f"GPU 0: leased by {one.id} since 20" in text and f"GPU 2: leased by {three.id} since" in text
    end(two)  # not deleted: its end is enough
    four = start("free:2")
    assert got(four) == [uuid(1), uuid(3)]
    assert [lease["id"] for lease in leases(runtime, host)] == [one.id, three.id, four.id]


def test_exec_is_told_the_same(runtime: Runtime, start: Start) -> None:
    container = start("free:2")
    said = runtime("exec", container.id, "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES")
    assert said.out.strip().split(",") == got(container) == [uuid(0), uuid(2)]


def test_who_rested_longest_is_next(start: Start) -> None:
    order = []
    for _ in range(5):
        container = start("free")
        order += got(container)
        end(container)
    assert order == [uuid(0), uuid(1), uuid(2), uuid(3), uuid(0)]


def test_gpus_that_others_have_are_not_free(
    runtime: Runtime, bundle: MakeBundle, start: Start, host: SimulatedDriver
) -> None:
    named = start("1")
    rest = start("free:3")
    assert got(named) == ["1"] and got(rest) == [uuid(0), uuid(2), uuid(3)]
    text = refused(runtime, bundle(), host, "free")
    assert f"GPU 1: container {named.id} has it (process {named.pid})" in text
    assert got(start(uuid(0))) == [uuid(0)], "a leased GPU is shared with who names it, as long as the site says nothing"


def test_a_node_of_another_name_counts(runtime: Runtime, bundle: MakeBundle, start: Start, host: SimulatedDriver) -> None:
    """``--device /dev/nvidia2:/dev/card``: what counts is the number."""

    def renamed(b: Bundle) -> None:
        for number, name in ((minor(2, 4), "card"), (254, "nvidia-uvm")):
            node = {"path": f"/dev/{name}", "type": "c", "major": host.options.major, "minor": number, "fileMode": 0o666}
            b.linux.setdefault("devices", []).append(node)

    one = start("", config=renamed, script="echo nvidia; exec sleep 600")
    text = refused(runtime, bundle(), host, "free:4")
    assert f"3 of 4 free: GPU 2: container {one.id} has it" in text


def test_who_can_only_look_does_not_count(start: Start) -> None:
    start("all", config=lambda b: b.process["env"].append("NVIDIA_DRIVER_CAPABILITIES=utility"))
    assert len(got(start("free:4"))) == 4


def test_a_release_by_the_administrator(runtime: Runtime, start: Start, host: SimulatedDriver) -> None:
    first = start("free:4")
    env = ENVIRONMENT | host.env
    wrong = runtime("gpu", "lease", "--release", "nobody", env=env)
    assert wrong.rc == 1 and "nobody: no container with this id or name has a lease" in wrong.text
    assert runtime("gpu", "lease", first.id, env=env).rc != 0
    assert runtime("gpu", "lease", "--release", first.id, env=env).rc == 0
    second = start("free:2")
    assert got(second) == [uuid(0), uuid(2)]
    assert [lease["kind"] for lease in leases(runtime, host)] == ["released", "lease"]
    listed = json.loads(runtime("gpu", "list", "--json", env=env).out)["gpus"]
    assert [[lease["id"] for lease in gpu["leases"]] for gpu in listed] == [[first.id, second.id], [first.id]] * 2


def test_other_processes_of_the_container_hold_it(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, tmp_path: Path
) -> None:
    """Without a pid namespace of its own, the end of the first process is not that of the container."""
    b = asking(bundle(), "free:4", "(sleep 600; :) & echo nvidia; sleep 0.2")
    b.without_namespace("pid")
    container = runtime.start(b, env=ENVIRONMENT | host.env)
    container.wait()
    assert "leased by" in refused(runtime, bundle(), host, "free")
    assert container.delete().rc == 0
    assert runtime.run(asking(bundle(), "free:4", "true"), env=ENVIRONMENT | host.env).rc == 0


def test_nothing_is_left_of_a_refused_create(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> None:
    b = asking(bundle(), "free:4").args("no-such-program")
    assert "no-such-program" in runtime.refused(b, env=ENVIRONMENT | host.env)
    assert leases(runtime, host) == []
    assert runtime.run(asking(bundle(), "free:4", "true"), env=ENVIRONMENT | host.env).rc == 0


def test_by_mounts_and_not_where_images_may_not_ask(
    runtime: Runtime, bundle: MakeBundle, leaks: Leaks, host: SimulatedDriver, tmp_path: Path
) -> None:
    leaks.allow_rootfs_changes()  # what a mount needs stays, as with every runtime
    config = tmp_path / "config.toml"
    config.write_text(
        "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
        "accept-nvidia-visible-devices-as-volume-mounts = true\n"
    )
    env = ENVIRONMENT | host.env | {"NVIDIA_CTK_CONFIG_FILE_PATH": str(config)}
    b = asking(bundle(), "free:2", "echo $NVIDIA_VISIBLE_DEVICES")
    assert runtime.output(b, env=env) == "free:2\n", "refused by the site, as any device in a variable"
    b = bundle().sh("echo $NVIDIA_VISIBLE_DEVICES").mount("/var/run/nvidia-container-devices/free:2", "/dev/null", "bind")
    assert runtime.output(b, env=env) == f"{uuid(0)},{uuid(2)}\n"


def test_nvml_says_who_computes(
    runtime: Runtime, bundle: MakeBundle, start: Start, make_host: MakeHost, some_pid: int
) -> None:
    """The stub's first GPU has a process; NVLink connects 1 with 2, and 3 with 4."""
    host = make_host(6, nvml="well", pid=some_pid)
    text = refused(runtime, bundle(), host, "free:6")
    assert f"GPU 0: process {some_pid} (sleep) of the host computes on it" in text
    assert got(start("free", on=host)) == [uuid(5)], "rather one that is alone than half a pair"
    assert got(start("free:2;nvlink", on=host)) == [uuid(1), uuid(2)]
    text = refused(runtime, bundle(), host, "free:2;memory>80GiB")
    assert "2 GPUs wanted, 0 of 6 free" in text and "GPU 0, 1, 2, 3, 4, 5: it has 80 GiB of memory" in text
    text = refused(runtime, bundle(), host, "free:3;memory>=80GiB")
    assert text.count("leased by") == 2 and "GPU 1, 2: leased by" in text
    assert "GPU 5: leased by" in text and "3 of 80 GiB in use, load 42 %" in text


@pytest.fixture
def some_pid() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as living:
        yield living.pid
        living.kill()


@pytest.mark.parametrize("mode", ["hang", "crash"])
def test_without_an_answer_of_nvml(start: Start, make_host: MakeHost, mode: str) -> None:
    begin = time.monotonic()
    container = start("free:2", on=make_host(2, nvml=mode))
    assert len(got(container)) == 2 and time.monotonic() - begin < 30
    assert "without knowing which processes of the host compute: NVML" in container.err


def test_a_gpu_that_is_lost_is_not_leased(runtime: Runtime, bundle: MakeBundle, start: Start, make_host: MakeHost) -> None:
    """The stub's second GPU has fallen off the bus."""
    host = make_host(3, nvml="lost")
    assert got(start("free:2", on=host)) == [uuid(0), uuid(2)]
    assert "GPU 1: not well: NVML cannot use it: GPU is lost" in refused(runtime, bundle(), host, "free")
    env = ENVIRONMENT | host.env
    listed = json.loads(runtime("gpu", "list", "--processes", "--json", env=env).out)["gpus"]
    assert [(gpu["problem"] or "")[:15] for gpu in listed] == ["", "NVML cannot use", ""]
    assert "not well: NVML cannot use it: GPU is lost" in runtime("gpu", "list", "--processes", env=env).out
    assert "GPU 1 is unhealthy: NVML cannot use it" in runtime("gpu", "doctor", env=env).text


def test_on_a_gpu_that_hangs_a_container_ends_all_the_same(start: Start, make_host: MakeHost) -> None:
    """Whoever asks NVML of such a host waits for ever; kill and delete do not ask."""
    host = make_host(2, nvml="hang")
    container = start("1", on=host)
    begin = time.monotonic()
    assert container.kill("KILL").rc == 0
    container.wait()
    assert container.delete().rc == 0
    assert time.monotonic() - begin < TIMEOUT_S, "NVML's time to answer"


def test_mig_devices(runtime: Runtime, bundle: MakeBundle, start: Start, make_host: MakeHost) -> None:
    host = make_host(2, nvml="well", mig=((0, 1, 0), (0, 2, 0)))
    device = start("free;profile=1g.10gb", on=host)
    assert got(device)[0].startswith("MIG-")
    assert "leased by" in refused(runtime, bundle(), host, "free;profile=1g.10gb")
    assert got(start("free", on=host)) == [uuid(1)]
    assert "divided into MIG devices" in refused(runtime, bundle(), host, "free")


def site(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "site.toml").write_text(f"[leases]\n{text}\n")
    return {"GPURUN_CONFIG": str(tmp_path / "site.toml")}


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


class Watch:
    """Looks at the leases all the time: no GPU may ever be in two of them."""

    def __init__(self, host: SimulatedDriver) -> None:
        self.store = Store(directory(host.env))
        self.looks, self.twice, self.most = 0, [], 0  # type: int, list[str], int
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self.over.wait(0.002):
            keys = [unit.key for lease in self.store.leases() for unit in lease.units]
            self.looks += 1
            self.most = max(self.most, len(keys))
            self.twice += [key for key in set(keys) if keys.count(key) > 1]

    def __enter__(self) -> Watch:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


@pytest.mark.parametrize("count", [32, pytest.param(200, marks=pytest.mark.slow)])
def test_many_at_once_and_a_third_killed(
    runtime: Runtime,
    bundle: MakeBundle,
    make_host: MakeHost,
    count: int,
) -> None:
    """16 at a time ask for one or two of 8 GPUs; of each three one create or one container is killed at any moment."""
    host = make_host(8)
    moments = random.Random(17)
    jobs = [(n, moments.choice((1, 2)), moments.choice(("", "", "create", "init")), moments.random()) for n in range(count)]
    held: dict[str, str] = {}
    lock = threading.Lock()
    bundles = [bundle() for _ in range(16)]
    ran = killed = 0

    def job(number: int, gpus: int, kill: str, moment: float) -> None:
        nonlocal ran, killed
        with lock:
            b = bundles.pop()
        try:
            for _ in range(2000):
                if attempt(b, gpus, kill, moment):
                    return
                time.sleep(0.05)
            raise AssertionError(f"container {number} never got its {gpus} GPUs")
        finally:
            with lock:
                bundles.append(b)

    def attempt(b: Bundle, gpus: int, kill: str, moment: float) -> bool:
        nonlocal ran, killed
        container_id = runtime.new_id()
        b.process["env"] = [e for e in b.process["env"] if not e.startswith("NVIDIA_")]
        asking(b, f"free:{gpus}", "exec sleep 600").linux.pop("cgroupsPath", None)
        runtime.prepare(b, container_id)
        files = runtime.new_files()
        command = ("create", "--bundle", str(b.directory), "--pid-file", str(files / "pid"), container_id)
        process = runtime.popen(*command, files=files, env=ENVIRONMENT | host.env)
        if kill == "create":
            try:
                process.wait(moment * 0.6)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                with lock:
                    killed += 1
                runtime("delete", "--force", container_id)
                return True
        if process.wait():
            text = (files / "err").read_text()
            assert "wanted" in text, text
            return False
        pid = int((files / "pid").read_text())
        environ = Path(f"/proc/{pid}/environ")
        assert runtime("start", container_id).rc == 0
        wait_until(lambda: b"NVIDIA_VISIBLE_DEVICES=GPU-" in environ.read_bytes())
        names = environ.read_bytes().partition(b"NVIDIA_VISIBLE_DEVICES=")[2].partition(b"\0")[0].decode().split(",")
        assert len(names) == gpus
        with lock:
            ran += 1
            assert not [name for name in names if name in held], f"{names} are held already: {held}"
            held.update(dict.fromkeys(names, container_id))
        time.sleep(moment * 0.1)
        with lock:
            for name in names:
                del held[name]
        if kill == "init":
            os.kill(pid, signal.SIGKILL)
            with lock:
                killed += 1
            if moment < 0.5:
                return True  # never deleted, until the end of the test
        runtime("delete", "--force", container_id)
        return True

    with Watch(host) as watch, ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(job, *one) for one in jobs]:
            done.result()
    assert not watch.twice and watch.looks > count and watch.most >= 6
    to_kill = {kill: sum(job[2] == kill for job in jobs) for kill in ("create", "init")}
    # A create may end before its moment has come; then it runs as the others do.
    assert ran >= count - to_kill["create"] and killed >= to_kill["init"] > 0
    assert leases(runtime, host) == []
    assert runtime.run(asking(bundle(), "free:8", "true"), env=ENVIRONMENT | host.env).rc == 0
