"""The command lines that each client of a runtime sends, word for word, and every option that runc documents."""

from __future__ import annotations

from typing import Any

import pytest

from gpurun.cli.parse import parse

SHIM = "--root /run/containerd/runc/k8s.io --log /b/log.json --log-format json"
CRIO = "--root /run/gpurun --systemd-cgroup"
CONMON_RS = "--root=/run/r --systemd-cgroup --root=/run/r --systemd-cgroup"

#: (client, what it sends, the command, its arguments, its options), in the order in which the client writes them.
LINES: list[tuple[str, str, str, str, dict[str, Any]]] = [
    (
        "containerd-shim-runc-v2 Create",
        f"{SHIM} --systemd-cgroup create --bundle /b --pid-file /b/init.pid --no-pivot --no-new-keyring abc",
        "create",
        "abc",
        {"bundle": "/b", "pid-file": "/b/init.pid", "no-pivot": True, "no-new-keyring": True},
    ),
    (
        "containerd-shim-runc-v2 Create with a terminal and more descriptors",
        f"{SHIM} create --bundle /b --pid-file /b/p --console-socket /c --pidfd-socket /p --preserve-fds 2 abc",
        "create",
        "abc",
        {"bundle": "/b", "pid-file": "/b/p", "console-socket": "/c", "pidfd-socket": "/p", "preserve-fds": 2},
    ),
    (
        "go-runc CreateOpts.Detach",
        f"{SHIM} create --bundle /b --detach abc",
        "create",
        "abc",
        {"bundle": "/b", "detach": True},
    ),
    ("containerd-shim-runc-v2 Start", f"{SHIM} start abc", "start", "abc", {}),
    (
        "containerd-shim-runc-v2 Exec",
        f"{SHIM} exec --process /tmp/runc-process1 --console-socket /c --detach --pid-file /b/x.pid abc",
        "exec",
        "abc",
        {"process": "/tmp/runc-process1", "console-socket": "/c", "detach": True, "pid-file": "/b/x.pid"},
    ),
    ("containerd-shim-runc-v2 KillAll", f"{SHIM} kill --all abc 9", "kill", "abc 9", {"all": True}),
    ("containerd-shim-runc-v2 Delete", f"{SHIM} delete abc", "delete", "abc", {}),
    ("containerd-shim-runc-v2 cleanup", f"{SHIM} delete --force abc", "delete", "abc", {"force": True}),
    ("containerd-shim-runc-v2 Update", f"{SHIM} update --resources=- abc", "update", "abc", {"resources": "-"}),
    ("containerd-shim-runc-v2 Pids", f"{SHIM} ps --format json abc", "ps", "abc", {"format": "json"}),
    (
        "containerd-shim-runc-v2 Checkpoint",
        f"{SHIM} checkpoint --image-path /i --work-path /w --leave-running abc",
        "checkpoint",
        "abc",
        {"image-path": "/i", "work-path": "/w", "leave-running": True},
    ),
    (
        "go-runc Restore: one dash",
        f"{SHIM} restore --image-path /i --work-path /w --detach --pid-file /p -no-subreaper --bundle /b abc",
        "restore",
        "abc",
        {"image-path": "/i", "work-path": "/w", "detach": True, "pid-file": "/p", "no-subreaper": True, "bundle": "/b"},
    ),
    ("go-runc Runc.Rootless", "--root /r --rootless=true start abc", "start", "abc", {}),
    ("go-runc Events", f"{SHIM} events --interval=5s abc", "events", "abc", {"interval": "5s"}),
    ("go-runc Stats", f"{SHIM} events --stats abc", "events", "abc", {"stats": True}),
    ("containerd-shim-runc-v2 Info", "features", "features", "", {}),
    ("dockerd", "--version", "version", "", {}),
    (
        "conmon create",
        "--systemd-cgroup --root=/run/r create --bundle /b --pid-file /p --no-pivot --console-socket /c abc",
        "create",
        "abc",
        {"bundle": "/b", "pid-file": "/p", "no-pivot": True, "console-socket": "/c"},
    ),
    (
        "conmon exec",
        "--root=/run/r exec --pid-file /p --process /f --detach --preserve-fds 1 --console-socket /c abc",
        "exec",
        "abc",
        {"pid-file": "/p", "process": "/f", "detach": True, "preserve-fds": 1, "console-socket": "/c"},
    ),
    (
        "conmon restore",
        "restore --bundle /b --pid-file /p --detach --image-path /i --work-path /b --tcp-established --file-locks abc",
        "restore",
        "abc",
        {
            "bundle": "/b",
            "pid-file": "/p",
            "detach": True,
            "image-path": "/i",
            "work-path": "/b",
            "tcp-established": True,
            "file-locks": True,
        },
    ),
    (
        "Podman create, where the runtime is in runtime_supports_json",
        "--log-format=json --log /b/oci-log create --bundle /b --pid-file /p abc",
        "create",
        "abc",
        {"bundle": "/b", "pid-file": "/p"},
    ),
    ("Podman --cgroups=disabled", "--cgroup-manager disabled start abc", "start", "abc", {}),
    ("Podman kill", "kill --all abc 15", "kill", "abc 15", {"all": True}),
    ("Podman update", "update --resources=/f abc", "update", "abc", {"resources": "/f"}),
    (
        "Podman checkpoint",
        "checkpoint --image-path /i --work-path /w --leave-running --ext-unix-sk --tcp-established --file-locks abc",
        "checkpoint",
        "abc",
        {
            "image-path": "/i",
            "work-path": "/w",
            "leave-running": True,
            "ext-unix-sk": True,
            "tcp-established": True,
            "file-locks": True,
        },
    ),
    ("CRI-O state", f"{CRIO} state abc", "state", "abc", {}),
    ("CRI-O stop", f"{CRIO} kill abc 34", "kill", "abc 34", {}),
    ("CRI-O stop, in the end", f"{CRIO} kill abc KILL", "kill", "abc KILL", {}),
    ("CRI-O without a pid namespace", f"{CRIO} kill -a abc 9", "kill", "abc 9", {"all": True}),
    ("CRI-O pause", f"{CRIO} pause abc", "pause", "abc", {}),
    ("CRI-O delete", f"{CRIO} delete --force abc", "delete", "abc", {"force": True}),
    ("CRI-O update", "--root /run/r update --resources - abc", "update", "abc", {"resources": "-"}),
    ("CRI-O exec", f"{CRIO} exec --process /f abc", "exec", "abc", {"process": "/f"}),
    (
        "conmon-rs create",
        f"{CONMON_RS} create --bundle /b --pid-file /p --console-socket=/c abc",
        "create",
        "abc",
        {"bundle": "/b", "pid-file": "/p", "console-socket": "/c"},
    ),
    (
        "conmon-rs of a runtime with crun's name",
        "--log=journald:abc --log-level=debug --root=/run/r create --bundle /b --pid-file /p abc",
        "create",
        "abc",
        {"bundle": "/b", "pid-file": "/p"},
    ),
    (
        "conmon-rs exec: no process file",
        f"{CONMON_RS} exec -d --console-socket=/c --tty --pid-file=/p abc ls -d --tty",
        "exec",
        "abc ls -d --tty",
        {"detach": True, "console-socket": "/c", "tty": True, "pid-file": "/p"},
    ),
    ("buildah", "create --bundle /b --pid-file /p --no-new-keyring abc", "create", "abc", {"no-new-keyring": True}),
    ("buildkit run", "--log /l --log-format json run --bundle /b --keep abc", "run", "abc", {"bundle": "/b", "keep": True}),
]


@pytest.mark.parametrize(("line", "command", "args", "options"), [row[1:] for row in LINES], ids=[row[0] for row in LINES])
def test_what_a_client_sends(line: str, command: str, args: str, options: dict[str, Any]) -> None:
    found = parse(line.split())
    assert (found.command, " ".join(found.args)) == (command, args)
    assert options.items() <= found.options.items()
    if command not in ("create", "restore"):
        assert found.options == options


#: runc's options by command, as its manual pages and its completion have them; a word with = takes a value.
OPTIONS = {
    "checkpoint": "image-path=d work-path=d parent-path=p leave-running tcp-established tcp-skip-in-flight link-remap"
    " ext-unix-sk shell-job lazy-pages status-fd=3 page-server=a:1 file-locks pre-dump manage-cgroups-mode=soft"
    " empty-ns=network auto-dedup",
    "create": "bundle=d b=d console-socket=s pidfd-socket=s pid-file=f no-pivot no-new-keyring preserve-fds=1",
    "delete": "force f",
    "events": "interval=5s stats",
    "exec": "console-socket=s pidfd-socket=s cwd=/ env=A=b e=A=b tty t user=0 u=0 additional-gids=1 g=1 process=f p=f detach"
    " d pid-file=f process-label=l apparmor=a no-new-privs cap=CAP_KILL c=CAP_KILL preserve-fds=1 cgroup=/a ignore-paused",
    "features": "",
    "kill": "all a",
    "list": "format=json f=json quiet q",
    "pause": "",
    "ps": "format=json f=json",
    "restore": "console-socket=s image-path=d work-path=d tcp-established ext-unix-sk shell-job file-locks"
    " manage-cgroups-mode=soft bundle=d b=d detach d pid-file=f no-subreaper no-pivot empty-ns=network auto-dedup lazy-pages"
    " lsm-profile=selinux:x lsm-mount-context=x",
    "resume": "",
    "run": "bundle=d b=d console-socket=s pidfd-socket=s pid-file=f no-pivot no-new-keyring preserve-fds=1 detach d keep"
    " no-subreaper",
    "spec": "bundle=d b=d rootless",
    "start": "",
    "state": "",
    "update": "resources=f r=f blkio-weight=10 cpu-period=1 cpu-quota=1 cpu-burst=1 cpu-share=2 cpu-rt-period=1"
    " cpu-rt-runtime=1 cpuset-cpus=0 cpuset-mems=0 cpu-idle=1 kernel-memory=1 kernel-memory-tcp=1 memory=1"
    " memory-reservation=1 memory-swap=1 pids-limit=1 l3-cache-schema=x mem-bw-schema=x",
}
FORMS = [(command, word) for command, words in OPTIONS.items() for word in ("", *words.split())]


@pytest.mark.parametrize(("command", "word"), FORMS, ids=lambda v: v or "none")
def test_every_option_of_runc_in_every_form(command: str, word: str) -> None:
    """Go's flag package takes one dash or two, and a value after = or as the next word."""
    name, equals, value = word.partition("=")
    args = [] if command in ("features", "list", "spec") else ["abc"]
    plain = parse([command, *args])
    if not name:
        assert plain.command == command
        return
    seen = []
    for dashes in ("-", "--"):
        forms = [[f"{dashes}{name}={value}"], [f"{dashes}{name}", value]]
        if not equals:
            forms = [[f"{dashes}{name}"], [f"{dashes}{name}=true"]]
        for form in forms:
            found = parse([command, *form, *args])
            assert found.args == tuple(args)
            seen.append(found.options)
    assert len(seen[0]) == 1 and all(options == seen[0] for options in seen), seen
    (got,) = seen[0].values()
    assert got is True if not equals else (str(got) == value or got == (value,))


@pytest.mark.parametrize("command", [name for name in OPTIONS if name not in ("spec", "features", "list")])
def test_the_systemd_option_before_any_command(command: str) -> None:
    """CRI-O puts it before state, kill and delete too."""
    assert parse(["--systemd-cgroup", command, "abc"]).globals.systemd_cgroup
