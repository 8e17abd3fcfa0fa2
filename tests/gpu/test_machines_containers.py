"""The requests of machine_table.py with real containers: what is in /dev of each is what the table says, and no more."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.gpu.machine_cells import Case, Said, check_command, check_request, read_table, sentences
from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, Container, Runtime
from tests.needs_nodes import require_nodes
from tests.simcards import Host, amd
from tests.simcards.machines import MACHINES, nodes_of
from tests.simdriver import uuid

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

CASES = read_table()
REQUESTS = [case for case in CASES if case.command.startswith("ask ")]
COMMANDS = [case for case in CASES if case.command.startswith("run ")]
LIST = "cd /dev; find . -type c | sed 's|^./||' | grep -v '^pts/' | sort"
#: Machine → how GPUs are named that a running container gets, one after the other, and is then without.
CHANGES = {
    "nvidia": ("0", "1", ["N0"], ["N1"]),
    "mi210": ("amd:3", "0000:03:00.0", ["A3"], ["A0"]),
    "mi300x": ("amd:1", "0000:05:00.0/7", ["A1"], ["A7"]),
    "arc": ("intel:0", "0000:07:00.1", ["I0"], ["I2"]),
    "nv+amd": ("0", "amd:1", ["N0"], ["A1"]),
    "nv+intel": ("1", "intel:1", ["N1"], ["I1"]),
}


def name(case: Case) -> str:
    return f"{case.machine}: {case.command}"


@pytest.fixture(scope="module")
def hosts(place: Path) -> Iterator[Callable[[str], Host]]:
    made: dict[str, Host] = {}

    def of(machine: str) -> Host:
        if machine not in made:
            directory = Path(tempfile.mkdtemp(dir=place))
            directory.chmod(0o755)
            made[machine] = MACHINES[machine].build(directory)
        require_nodes(made[machine].real_nodes)
        return made[machine]

    yield of
    for host in made.values():
        shutil.rmtree(host.path)


def without_usual(out: str) -> set[str]:
    usual = {"null", "zero", "full", "random", "urandom", "tty", "console", "ptmx"}
    return {*out.split()} - usual


def in_dev(runtime: Runtime, one: str, env: dict[str, str]) -> set[str]:
    done = runtime("exec", one, "sh", "-c", LIST, env=env)
    assert done.rc == 0, done.text
    return without_usual(done.out)


@pytest.mark.parametrize("case", COMMANDS, ids=name)
def test_command(runtime: Runtime, hosts: Callable[[str], Host], case: Case) -> None:
    done = runtime(*case.command.split()[1:], env=ENVIRONMENT | hosts(case.machine).env)
    check_command(case, Said(*done))


@pytest.mark.sweep(30)
@pytest.mark.parametrize("case", REQUESTS, ids=name)
def test_request(runtime: Runtime, bundle: MakeBundle, hosts: Callable[[str], Host], case: Case) -> None:
    made: Bundle = bundle().sh(LIST)
    made.process["env"] += case.command.split()[1:]
    done = runtime.run(made, env=ENVIRONMENT | hosts(case.machine).env)
    if done.rc == 0:
        assert sentences(done.err) == [], done
        check_request(case, without_usual(done.out), "")
    else:
        (told,) = sentences(done.err)
        assert (done.rc, done.out) == (1, ""), done
        check_request(case, set(), told)


@pytest.mark.parametrize("name", CHANGES)
def test_a_life(runtime: Runtime, bundle: MakeBundle, hosts: Callable[[str], Host], name: str) -> None:
    """attach, detach, update, and what gpu list, stats, events and explain say of the container meanwhile."""
    machine, env = MACHINES[name], ENVIRONMENT | hosts(name).env
    first, second, one, other = CHANGES[name]
    container = runtime.start(bundle().args("sleep", "1000"), env=env)

    def does(*words: str) -> str:
        done = runtime(*words, env=env)
        assert (done.rc, sentences(done.err)) == (0, []), done
        return done.out

    does("gpu", "attach", container.id, first)
    does("gpu", "attach", container.id, second)
    assert in_dev(runtime, container.id, env) == nodes_of(machine, one + other)
    assert does("gpu", "list").count(container.id) == 2
    (row,) = json.loads(does("stats", "--json", "--once", container.id))
    (report,) = [json.loads(line) for line in does("events", "--stats", container.id).splitlines()]
    for gpus in (row["gpus"] or [], report["data"].get("gpus") or []):  # the simulated NVML tells of none
        assert sorted([f"{gpu['vendor'][0].upper()}{gpu['index']}" for gpu in gpus]) == sorted(
            [word for word in one + other if not word.startswith("N")]
        ), gpus
    explained = does("explain", "--running", container.id)
    assert all(f"/dev/{machine.nodes[word][-1]}" in explained for word in one + other)
    does("gpu", "detach", container.id, first)
    left = in_dev(runtime, container.id, env)
    assert {*machine.nodes[other[0]]} <= left and not {*machine.nodes[one[0]]} & left
    does("update", "--gpus", first, container.id)
    now = in_dev(runtime, container.id, env)
    assert {*machine.nodes[one[0]]} <= now and not {*machine.nodes[other[0]]} & now
    does("update", "--gpus", "none", container.id)
    assert does("gpu", "list").count(container.id) == 0


@pytest.mark.parametrize("name", ["gaudi", "idle", "none"])
def test_nothing_to_attach(runtime: Runtime, bundle: MakeBundle, hosts: Callable[[str], Host], name: str) -> None:
    env = ENVIRONMENT | hosts(name).env
    container = runtime.start(bundle().args("sleep", "1000"), env=env)
    for word in ("0", "free", "amd:0", "intel:0"):
        done = runtime("gpu", "attach", container.id, word, env=env)
        (told,) = sentences(done.err)
        assert done.rc == 1 and ("HABANA_VISIBLE_DEVICES" in told) == (name == "gaudi"), told
    assert in_dev(runtime, container.id, env) == set()


def test_accelerators_of_a_running_container(runtime: Runtime, bundle: MakeBundle, hosts: Callable[[str], Host]) -> None:
    """Given by name alone when it was made: explain says which, and which are not in its /dev now."""
    env = ENVIRONMENT | hosts("gaudi").env
    made = bundle().args("sleep", "1000")
    made.process["env"] += ["HABANA_VISIBLE_DEVICES=1,0"]
    container = runtime.start(made, env=env)

    def explained() -> str:
        done = runtime("explain", "--running", container.id, env=env)
        assert done.rc == 0, done
        return done.out

    said = explained()
    assert "GPUs        Gaudi 0, /dev/accel/accel0; Gaudi 1, /dev/accel/accel1\n" in said, said
    assert "  Gaudi 0: /dev/accel/accel0 0000:19:00.0\n  Gaudi 1: /dev/accel/accel1 0000:1a:00.0\n" in said
    assert runtime("exec", container.id, "rm", "/dev/accel/accel0").rc == 0
    assert "  Gaudi 0: /dev/accel/accel0 0000:19:00.0, whose node is not in its /dev\n  Gaudi 1:" in explained()
    told = json.loads(runtime("explain", "--json", "--running", container.id, env=env).out)["gpus"]
    assert [(one["shown"], one["name"], one["since"], one["key"]) for one in told] == [
        ("Gaudi 0", "0000:19:00.0", "hidden", ""), ("Gaudi 1", "0000:1a:00.0", "create", "")
    ]  # fmt: skip
    container.kill("KILL")
    container.wait()
    assert "GPUs        Gaudi 0, /dev/accel/accel0; Gaudi 1, /dev/accel/accel1\n" in explained()


def test_what_programs_read_of_the_gpus_of_every_maker(
    runtime: Runtime, bundle: MakeBundle, hosts: Callable[[str], Host]
) -> None:
    """What was given, not what the image says; also in a process that exec starts after a change."""
    env = ENVIRONMENT | hosts("nv+amd").env
    show = "echo $GPURUN_VISIBLE_DEVICES $AMD_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES"

    def started(value: str) -> Container:
        made = bundle().sh(f"{show}; exec sleep 1000")
        made.process["env"] += ["NVIDIA_VISIBLE_DEVICES=all", f"GPURUN_VISIBLE_DEVICES={value}"]
        return runtime.start(made, env=env)

    def told(container: Container) -> list[str]:
        done = runtime("exec", container.id, "sh", "-c", show, env=env)
        assert done.rc == 0, done
        return done.out.split()

    first, second = sorted([pci for pci, _ in amd.MI210[:2]])
    named = started("amd:1")
    named.wait_for(f"{second} {second} void\n")
    assert told(named) == [second, second, "void"]
    done = runtime("gpu", "attach", named.id, uuid(0), env=env)
    assert done.rc == 0, done
    assert told(named) == [f"{second},{uuid(0)}", second, uuid(0)]
    assert runtime("gpu", "detach", named.id, second, env=env).rc == 0
    assert told(named) == [uuid(0), "none", uuid(0)]
    free = started("free:2;vendor=amd")
    free.wait_for(f"{first},{second} {first},{second} void\n")
    started("all").wait_for(f"{uuid(0)},{uuid(1)},{first},{second} {first},{second} {uuid(0)},{uuid(1)}\n")
    started("none").wait_for("none void\n")
