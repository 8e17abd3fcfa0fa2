"""What Docker, Podman and containerd do to a container that runs: exec, top, pause, update."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.bed import IMAGE, ClientBed
from tests.clients.test_clients import clients as clients
from tests.native.runtime import Result

pytestmark = [pytest.mark.native, pytest.mark.clients]

FOREVER = "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done"


class Client:
    """One of the clients, and a container that it runs."""

    def __init__(self, name: str, bed: ClientBed) -> None:
        self.name, self.bed = name, bed
        self.container = f"t{secrets.token_hex(4)}"
        if name == "ctr":
            self.program = ["ctr"]
            run = ["run", "-d", "--runc-binary", str(bed.wrapper), f"docker.io/{IMAGE}", self.container]
        else:
            self.program = ["docker"] if name == "docker" else ["podman", "--runtime", str(bed.wrapper)]
            runtime = ["--runtime", "test"] if name == "docker" else []
            run = ["run", "-d", "--name", self.container, *runtime, "--network", "none", IMAGE]
        self._expect(*run, "sh", "-c", FOREVER)

    def __call__(self, *argv: str) -> Result:
        return self.bed.run(*self.program, *argv)

    def _expect(self, *argv: str) -> str:
        result = self(*argv)
        assert result.rc == 0, result.text
        return result.out

    def exec(self, *argv: str, options: tuple[str, ...] = ()) -> Result:
        if self.name == "ctr":
            return self("tasks", "exec", "--exec-id", f"e{secrets.token_hex(4)}", *options, self.container, *argv)
        return self("exec", *options, self.container, *argv)

    def remove(self) -> None:
        if self.name == "ctr":
            self("tasks", "kill", "-s", "KILL", self.container)
            for _ in range(100):
                if self("tasks", "rm", self.container).rc == 0:
                    break
            self._expect("containers", "rm", self.container)
        else:
            self._expect("rm", "-f", "-t", "0", self.container) if self.name == "podman" else self._expect(
                "rm", "-f", self.container
            )


@pytest.fixture(params=["ctr", "docker", "podman"])
def client(request: pytest.FixtureRequest, clients: ClientBed) -> Iterator[Client]:  # noqa: F811
    made = Client(request.param, clients)
    yield made
    made.remove()


def test_exec(client: Client) -> None:
    assert client.exec("echo", "hello") == (0, "hello\n", "")
    assert client.exec("sh", "-c", "exit 42").rc == 42
    assert "PID" in client.exec("ps").out


def test_exec_of_what_is_not_there(client: Client) -> None:
    result = client.exec("nosuchcommand")
    # Some versions of Docker say 126 here, with runc too.
    assert result.rc in {"ctr": (1,), "docker": (126, 127), "podman": (127,)}[client.name]
    assert "executable file not found in $PATH" in result.text


def test_exec_of_what_may_not_run(client: Client) -> None:
    result = client.exec("/etc/passwd")
    assert result.rc == (1 if client.name == "ctr" else 126)
    assert "permission denied" in result.text.lower()


def test_exec_as_a_user_with_variables(client: Client) -> None:
    if client.name == "ctr":
        result = client.exec("id", "-u", options=("--user", "1000"))
        assert (result.rc, result.out) == (0, "1000\n")
        return
    result = client.exec("sh", "-c", "id -u; pwd; echo $X", options=("--user", "1000", "-w", "/tmp", "-e", "X=y z"))
    assert (result.rc, result.out) == (0, "1000\n/tmp\ny z\n")


def test_exec_with_a_terminal(client: Client) -> None:
    if client.name == "ctr":
        pytest.skip("ctr wants a terminal of its own for that")
    result = client.exec("sh", "-c", "test -t 1 && tty", options=("-t",))
    assert result.rc == 0, result.text
    assert "/dev/pts/" in result.out


def test_exec_privileged(client: Client) -> None:
    if client.name == "ctr":
        pytest.skip("ctr has no such option")
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    if f"CapEff:\t{(1 << last + 1) - 1:016x}" not in Path("/proc/self/status").read_text():
        pytest.skip("root lacks capabilities here, so no process can have them all")
    plain = client.exec("sh", "-c", "grep CapEff /proc/self/status").out
    result = client.exec("sh", "-c", "grep CapEff /proc/self/status", options=("--privileged",))
    assert result.rc == 0, result.text
    assert int(result.out.split()[1], 16) & 1 << 21 and not int(plain.split()[1], 16) & 1 << 21


def test_health_check_style_execs(client: Client) -> None:
    for _ in range(10):
        assert client.exec("true").rc == 0
    assert len(client.exec("ps").out.splitlines()) <= 5, "nothing piles up"


def test_pause(client: Client) -> None:
    pause = ("tasks", "pause") if client.name == "ctr" else ("pause",)
    resume = ("tasks", "resume") if client.name == "ctr" else ("unpause",)
    assert client(*pause, client.container).rc == 0
    assert client.exec("true").rc != 0
    assert client(*resume, client.container).rc == 0
    assert client.exec("true").rc == 0


def test_processes(client: Client) -> None:
    top = ("tasks", "ps") if client.name == "ctr" else ("top",)
    result = client(*top, client.container)
    assert result.rc == 0, result.text
    assert len(result.out.splitlines()) >= 2


def test_update(client: Client) -> None:
    if client.name != "docker":
        pytest.skip("docker's is the one that needs no controller")
    result = client("update", "--restart", "no", client.container)
    assert result.rc == 0, result.text
