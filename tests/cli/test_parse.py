"""The machine parser takes what runc's callers send, in every form they send it, and refuses the rest in runc's words."""

from __future__ import annotations

import posix

import pytest

from gpurun.cli.parse import CommandUsageError, UnknownCommand, default_root, parse
from gpurun.cli.rows import command, global_options
from gpurun.cli.table import COMMANDS, GROUPS
from gpurun.errors import GpurunError


def test_what_the_shim_sends() -> None:
    line = (
        "--root /run/containerd/runc/k8s.io --log /b/log.json --log-format json --systemd-cgroup"
        " create --bundle /b --pid-file /b/init.pid --console-socket /tmp/s abc"
    )
    found = parse(line.split())
    assert found.command == "create"
    assert found.args == ("abc",)
    assert found.options == {"bundle": "/b", "pid-file": "/b/init.pid", "console-socket": "/tmp/s"}
    assert found.globals.root == "/run/containerd/runc/k8s.io"
    assert found.globals.root_given
    assert (found.globals.log, found.globals.log_format) == ("/b/log.json", "json")
    assert found.globals.systemd_cgroup


@pytest.mark.parametrize(
    "words",
    ["--bundle /b", "--bundle=/b", "-bundle /b", "-bundle=/b", "-b /b", "-b=/b", "--b /b", "--bundle /a --bundle /b"],
)
def test_forms_of_an_option(words: str) -> None:
    assert parse(["create", *words.split(), "abc"]).options == {"bundle": "/b"}
    assert parse(["create", "abc", *words.split()]).options == {"bundle": "/b"}, "options may follow the id"


@pytest.mark.parametrize(
    ("word", "value"),
    [("--force", True), ("-f", True), ("-force", True), ("--force=true", True), ("--force=1", True), ("--force=T", True)]
    + [("--force=false", False), ("-f=0", False), ("--force=F", False)],
)
def test_forms_of_a_switch(word: str, value: bool) -> None:
    found = parse(["delete", word, "abc"])
    assert found.flag("force") is value
    assert found.args == ("abc",), "a switch does not take the next word"


def test_single_dash_long_option() -> None:
    assert parse(["run", "-no-subreaper", "abc"]).flag("no-subreaper")


def test_repeated_globals_last_wins() -> None:
    found = parse(["--root=/a", "--systemd-cgroup", "--root", "/b", "--systemd-cgroup=false", "state", "abc"])
    assert found.globals.root == "/b"
    assert not found.globals.systemd_cgroup


@pytest.mark.parametrize("line", ["--rootless=true", "--rootless auto", "--criu /x", "--debug", "--log-level debug"])
def test_accepted_globals(line: str) -> None:
    assert parse([*line.split(), "state", "abc"]).command == "state"


def test_cgroup_manager() -> None:
    assert parse(["--cgroup-manager", "systemd", "state", "a"]).globals.systemd_cgroup
    assert parse(["--cgroup-manager=disabled", "state", "a"]).globals.cgroup_manager == "disabled"
    with pytest.raises(GpurunError, match="invalid cgroup-manager: x"):
        parse(["--cgroup-manager", "x", "state", "a"])


def test_kill_ends_options_at_the_id() -> None:
    assert parse(["kill", "abc", "-9"]).args == ("abc", "-9")
    found = parse(["kill", "--all", "abc", "9"])
    assert found.flag("all")
    assert found.args == ("abc", "9")


def test_exec_collects_what_may_be_given_again() -> None:
    found = parse(["exec", "-e", "A=1,2", "--env=B=2", "--cap", "CAP_KILL", "abc", "ls", "-e", "x"])
    assert found.options == {"env": ("A=1,2", "B=2"), "cap": ("CAP_KILL",)}, "commas do not split"
    assert found.args == ("abc", "ls", "-e", "x")


def test_double_dash_ends_options() -> None:
    found = parse(["delete", "--", "--force"])
    assert found.args == ("--force",)
    assert not found.flag("force")


def test_numbers() -> None:
    assert parse(["create", "--preserve-fds", "3", "abc"]).number("preserve-fds") == 3
    with pytest.raises(CommandUsageError, match='invalid value "x" for flag -preserve-fds: parse error'):
        parse(["create", "--preserve-fds", "x", "abc"])
    with pytest.raises(CommandUsageError, match="for flag -preserve-fds: parse error"):
        parse(["create", "--preserve-fds", "9" * 5000, "abc"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("create", 'gpurun: "create" requires exactly 1 argument(s)'),
        ("state a b", 'gpurun: "state" requires exactly 1 argument(s)'),
        ("kill", 'gpurun: "kill" requires a minimum of 1 argument(s)'),
        ("kill a b c", 'gpurun: "kill" requires a maximum of 2 argument(s)'),
        ("list a", 'gpurun: "list" requires exactly 0 argument(s)'),
        ("create --bogus a", "flag provided but not defined: -bogus"),
        ("--bogus list", "flag provided but not defined: -bogus"),
        ("start --bundle /b a", "flag provided but not defined: -bundle"),
        ("create a --bundle", "flag needs an argument: -bundle"),
        ("create a -b", "flag needs an argument: -b"),
        ("delete --force=maybe a", 'invalid boolean value "maybe" for -force: parse error'),
        ("create --=x a", "bad flag syntax: --=x"),
        ("create ---x a", "bad flag syntax: ---x"),
    ],
)
def test_wrong_command_lines(line: str, message: str) -> None:
    with pytest.raises(CommandUsageError) as caught:
        parse(line.split())
    assert str(caught.value) == message
    assert caught.value.exit_code == 1


def test_unknown_command() -> None:
    with pytest.raises(UnknownCommand, match="No help topic for 'frobnicate'") as caught:
        parse(["frobnicate", "--x"])
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("line", ["", "--help", "-h", "help", "--debug", "--help create"])
def test_help(line: str) -> None:
    assert parse(line.split()).command == "help"


@pytest.mark.parametrize("line", ["create --help", "create a -h", "help create", "create -b /b -h"])
def test_help_of_a_command(line: str) -> None:
    found = parse(line.split())
    assert (found.command, found.args) == ("help", ("create",))


def test_help_after_the_id_of_kill_is_an_argument() -> None:
    assert parse(["kill", "a", "-h"]).args == ("a", "-h")


@pytest.mark.parametrize("line", ["--version", "-v", "--debug -v"])
def test_version(line: str) -> None:
    assert parse(line.split()).command == "version"


def test_empty_value_and_lone_dash() -> None:
    found = parse(["create", "--bundle=", "-"])
    assert found.option("bundle", "x") == ""
    assert found.args == ("-",)


def test_root_is_absolute_and_not_the_root() -> None:
    assert parse(["--root", "a/../b//c/", "list"]).globals.root == f"{posix.getcwd()}/b/c"
    for root in ("/", "//", "/a/.."):
        with pytest.raises(GpurunError, match="should not be set to /"):
            parse(["--root", root, "list"])


@pytest.mark.parametrize(
    ("environ", "euid", "nested", "root"),
    [
        ({}, 0, False, "/run/gpurun"),
        ({}, 1000, False, "/run/user/1000/gpurun"),
        ({}, 0, True, "/run/gpurun"),
        ({b"XDG_RUNTIME_DIR": b"/run/user/0"}, 0, False, "/run/gpurun"),
        ({b"XDG_RUNTIME_DIR": b"/run/user/1000"}, 1000, False, "/run/user/1000/gpurun"),
        ({b"XDG_RUNTIME_DIR": b"/run/user/1000", b"USER": b"me"}, 0, True, "/run/user/1000/gpurun"),
        ({b"XDG_RUNTIME_DIR": b"/run/user/1000"}, 0, True, "/run/user/1000/gpurun"),
        ({b"XDG_RUNTIME_DIR": b"/run/user/0", b"USER": b"root"}, 0, True, "/run/gpurun"),
        ({b"XDG_RUNTIME_DIR": b""}, 1000, False, "/run/user/1000/gpurun"),
    ],
)
def test_default_root(environ: dict[bytes, bytes], euid: int, nested: bool, root: str) -> None:
    assert default_root(environ, euid, lambda: nested) == root


def test_log_format() -> None:
    assert parse(["--log-format=", "list"]).globals.log_format == "text"
    with pytest.raises(GpurunError, match="invalid log-format: xml"):
        parse(["--log-format", "xml", "list"])


def test_the_table_is_sound() -> None:
    every = [global_options(), *[command(name).options for name in COMMANDS if name not in GROUPS]]
    for group in GROUPS:
        every += [tuple([o for o in command(group).options if one in o.takers]) for one in GROUPS[group]]
        forms = {(o.name, o.short, o.kind) for o in command(group).options}
        assert len(forms) == len({name for name, _, _ in forms}), "what means something else for another is read alike"
    for options in every:
        names = [n for o in options for n in (o.name, o.short) if n]
        assert len(names) == len(set(names))
        assert {o.kind for o in options} <= {"switch", "text", "texts", "number", "file", "dir"}
    for name in COMMANDS:
        row = command(name)
        assert row.most < 0 or row.least <= row.most
        assert row.handler.startswith("gpurun.") and row.handler.count(":") == 1


@pytest.mark.parametrize(
    ("line", "args", "options"),
    [
        ("bundle -o D image.tar sh -c ls", ("image.tar", "sh", "-c", "ls"), {"output": "D"}),
        ("bundle image.tar -o D sh -c -o", ("image.tar", "sh", "-c", "-o"), {"output": "D"}),
        ("bundle image.tar --output=D", ("image.tar",), {"output": "D"}),
        ("bundle -o D image.tar -- sh -c ls", ("image.tar", "sh", "-c", "ls"), {"output": "D"}),
        ("bundle -o D image.tar sh -- -c", ("image.tar", "sh", "--", "-c"), {"output": "D"}),
    ],
)
def test_options_of_bundle_end_at_the_first_word_of_the_command(
    line: str, args: tuple[str, ...], options: dict[str, str]
) -> None:
    found = parse(line.split())
    assert (found.args, found.options) == (args, options)
