"""How memory ended a container: the kernel's log, read for one container among all."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.cgroup.oom import OomKill, describe_oom, facts_of_kills, oom_facts, parse_kills

SCOPE = "/system.slice/docker-1.scope"


def report(
    cgroup: str, pid: int, *others: int, limited: str | None = None, usage: int = 65536, limit: int = 65536
) -> list[bytes]:
    """What Linux 6.12 says of one kill, without the middle of its stack trace and of its counters; numbers in KiB."""
    by = cgroup if limited is None else limited
    head = [
        b"dd invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        b"CPU: 1 UID: 0 PID: 504 Comm: dd Not tainted 6.12.107+deb13-cloud-amd64 #1  Debian 6.12.107-1",
        b"Call Trace:",
        b" <TASK>",
        b"[<0>] dump_stack_lvl+0x5d/0x80",
        b" </TASK>",
    ]
    if by:
        head.append(f"memory: usage {usage}kB, limit {limit}kB, failcnt 47".encode())
        head.append(b"swap: usage 0kB, limit 0kB, failcnt 0")
        head.append(f"Memory cgroup stats for {by}:".encode())
    table = [
        b"[  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj name"
    ]
    table += [
        f"[{one:7}]     0 {one:5}    51776    16621    16302      319         0   172032        0             0 dd".encode()
        for one in (*others, pid)
    ]
    where = f"CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg={by}"
    if not by:
        where = "CONSTRAINT_NONE,nodemask=(null),cpuset=x,mems_allowed=0,global_oom"
    last = f"oom-kill:constraint={where},task_memcg={cgroup},task=dd,pid={pid},uid=0"
    return [*head, b"Tasks state (memory values in pages):", *table, last.encode()]


def facts(lines: list[bytes], pid: int, unit: str = "docker-1.scope") -> dict[str, int]:
    return facts_of_kills(parse_kills(lines), unit, pid)


def test_a_report() -> None:
    killed = b"Memory cgroup out of memory: Killed process 504 (dd) total-vm:207104kB, anon-rss:65208kB, file-rss:1276kB"
    (found,) = parse_kills([b"eth0: link up", *report(SCOPE, 504, 500, 501), killed, b"[   77] said by a driver"])
    assert found == OomKill(SCOPE, SCOPE, 504, (500, 501, 504), 64 << 20, 64 << 20)


def test_the_first_process_or_another() -> None:
    expected = {"kills": 1, "limit": 64 << 20, "peak": 64 << 20}
    assert facts(report(SCOPE, 504), 504) == expected
    assert facts(report(SCOPE, 504, 500), 500) == expected


def test_several_kills() -> None:
    """The peak is the highest, the limit the last: it may have been raised in between."""
    lines = (
        report(SCOPE, 501, 500, usage=65536) + report("/other.slice", 7) + report(SCOPE, 502, 500, usage=40000, limit=98304)
    )
    assert facts(lines, 500) == {"kills": 2, "limit": 96 << 20, "peak": 64 << 20}


@pytest.mark.parametrize(
    "cgroup", ["/system.slice/docker-2.scope", "/system.slice/docker-1.scope.d", "/x-docker-1.scope", "/"]
)
def test_another_unit(cgroup: str) -> None:
    assert facts(report(cgroup, 504), 504) == {}


def test_an_id_that_was_used_before() -> None:
    """The container that had this unit before was killed; the one that is asked for was another process."""
    assert facts(report(SCOPE, 504, 500), 600) == {}
    assert facts(report(SCOPE, 504, 500) + report(SCOPE, 600), 600)["kills"] == 1


def test_whose_limit_it_was() -> None:
    """A limit above the container, or the host's own memory, is none of its own."""
    assert facts(report(SCOPE, 504, limited="/system.slice"), 504) == {"kills": 1}
    assert facts(report(SCOPE, 504, limited=""), 504) == {"kills": 1}
    assert facts(report(f"{SCOPE}/below", 504, 500, limited=SCOPE), 500)["limit"] == 64 << 20
    assert facts(report(SCOPE, 504, limit=9007199254740988), 504) == {"kills": 1, "peak": 64 << 20}


def test_below_another_root() -> None:
    """In a cgroup namespace (a cluster's node that is a container) the log names more than we see."""
    assert facts(report(f"/docker/node/kubelet.slice/{SCOPE}", 504), 504)["limit"] == 64 << 20


def test_one_report_does_not_lend_to_the_next() -> None:
    """A kill whose report is cut short has neither the processes nor the numbers of the one before."""
    cut = [b"sh invoked oom-killer: gfp_mask=0xcc0", report(SCOPE, 700)[-1]]
    assert facts(report(SCOPE, 504, 500) + cut, 500)["kills"] == 1
    assert list(parse_kills(cut)) == [OomKill(SCOPE, SCOPE, 700, ())]
    assert facts(cut, 700) == {"kills": 1}


def test_names_that_systemd_escapes() -> None:
    escaped = report(SCOPE.replace("docker-1", r"docker-a\x5cx2d1"), 504)
    assert facts(escaped, 504, r"docker-a\x2d1.scope") == {"kills": 1, "peak": 64 << 20, "limit": 64 << 20}


def test_names_that_lie() -> None:
    """A container chooses the names of its processes and of cgroups below its own; another is not to be blamed for it."""
    below = f"{SCOPE}/a,task_memcg=/system.slice/docker-2.scope"
    line = f"oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg={below},task_memcg={below},task=x,pid=9,uid=0,pid=504,uid=0"
    (found,) = parse_kills([line.encode()])
    assert found.pid == 504
    assert facts([line.encode()], 9, "docker-2.scope") == {}


@pytest.mark.parametrize(
    "line",
    [
        b"oom-kill:",
        b"oom-kill:constraint=CONSTRAINT_MEMCG",
        b"oom-kill:constraint=X,oom_memcg=/a,task_memcg=/a,task=dd,pid=,uid=0",
        b"oom-kill:constraint=X,oom_memcg=/a,task_memcg=/a,task=dd,pid=x1,uid=0",
        b"oom-kill:constraint=X,oom_memcg=/a,task_memcg=/a,task=dd,pid=" + b"9" * 5000 + b",uid=0",
        b"oom-kill:constraint=X,oom_memcg=/a,task_memcg=/a,task=dd",
        b"memory: usage kB",
        b"[",
        b"[]",
        b"",
    ],
)
def test_what_is_no_report(line: bytes) -> None:
    assert list(parse_kills([line])) == []


def test_from_the_cgroup(tmp_path: Path) -> None:
    assert oom_facts(str(tmp_path)) == {}
    events = tmp_path / "memory.events"
    events.write_text("low 0\nhigh 0\nmax 12\noom 3\noom_kill 0\n")
    assert oom_facts(str(tmp_path)) == {}
    events.write_text("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n")
    assert oom_facts(str(tmp_path)) == {"kills": 2}
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.peak").write_text("1048576\n")
    assert oom_facts(str(tmp_path)) == {"kills": 2, "peak": 1 << 20}
    (tmp_path / "memory.max").write_text("2097152\n")
    assert oom_facts(str(tmp_path)) == {"kills": 2, "peak": 1 << 20, "limit": 2 << 20}


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({}, ""),
        ({"kills": 0, "limit": 64 << 20}, "out of memory: all processes were killed; the limit is 64 MiB"),
        ({"kills": 1, "peak": 3 << 19}, "it was the memory of the host or of a cgroup above, the peak was 1.5 MiB"),
        ({"kills": 7, "limit": 1 << 20, "peak": 1 << 20}, "7 processes were killed; the limit is 1 MiB, the peak was 1 MiB"),
    ],
)
def test_in_words(facts: dict[str, int], text: str) -> None:
    assert text in describe_oom(facts) and bool(text) == bool(describe_oom(facts))
