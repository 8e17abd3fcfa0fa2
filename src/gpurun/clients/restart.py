"""How a running client comes to read its new configuration, and which containers that ends."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

from gpurun.clients import files
from gpurun.errors import ConfigError, GpurunError, UsageError, program_error_text
from gpurun.paths import runtime_directory

RESTART, RELOAD = "restart", "reload"
_DOCKER_PID = "/run/docker.pid"
#: How many containers a sentence names.
_NAMED = 8


def check(clients: set[str], asked: str) -> None:
    """Whether *clients* can do what is *asked* (:data:`RESTART`, :data:`RELOAD`, empty).  Raises :class:`GpurunError`."""
    if asked == RELOAD and "docker" not in clients:
        raise UsageError(
            f"--reload is for docker: {', '.join(sorted(clients))} cannot reload; a restart leaves their containers running"
        )
    if asked == RESTART and clients - {"podman"} and not _systemd():
        raise GpurunError(f"--restart needs systemd, which does not run here: restart {', '.join(sorted(clients))} by hand")


def command(client: str, whole: bool, asked: str = "") -> tuple[str, ...]:
    """What makes the running *client* read its configuration; *whole*: more has changed than a reload reads."""
    if client == "podman":
        return ()
    reload = client == "docker" and (not whole or asked == RELOAD)
    return (*_systemctl(), "reload" if reload else "restart", client)


def consequences(words: tuple[str, ...]) -> str:
    """Which running containers the command *words* ends, and how they would go on; empty when none do."""
    if words[-2:] != ("restart", "docker"):
        return ""  # containerd, CRI-O: their containers belong to shims and to conmon, which go on
    running = _docker("ps", "--format", "{{.Names}}")
    live = _docker("info", "--format", "{{.LiveRestoreEnabled}}")
    if running is None or live is None:
        return "it ends running containers, if there are any and live-restore is not on" if _runs("docker") else ""
    names = running.split()
    if not names or live.strip() == "true":
        return ""
    shown = ", ".join([*names[:_NAMED], *(["…"] if len(names) > _NAMED else [])])
    return (
        f"it ends {len(names)} running container{'s' if len(names) > 1 else ''} ({shown}); they go on if daemon.json has "
        '"live-restore": true and `systemctl reload docker` has read that first; --reload in place of --restart ends none'
    )


def what_reload_misses(words: tuple[str, ...], whole: bool) -> str:
    """What the client does not know yet after the command *words*."""
    if whole and words[-2:] == ("reload", "docker"):
        return "Docker looks for what `--gpus` needs, and reads `features`, only when it is started"
    return ""


def run(words: tuple[str, ...]) -> str:
    """Run the command *words*, and return what has been done.  Raises :class:`GpurunError`."""
    action, client = words[-2:]
    if action == RELOAD and not _runs(client):
        return f"{client} does not run; it reads its configuration when it starts: {' '.join(_systemctl())} start {client}"
    if not _systemd():  # a reload, as :func:`check` has seen to
        os.kill(_docker_pid(), signal.SIGHUP)
        return "done: SIGHUP to dockerd"
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as e:
        raise GpurunError(
            f"`{' '.join(words)}` failed: {program_error_text(e)}: the configuration is written, and read at the next start"
        ) from None
    if done.returncode != 0:
        raise GpurunError(f"`{' '.join(words)}` failed: {done.stderr.strip()}: journalctl -u {client} says why")
    return f"done: {' '.join(words)}"


def has_read(client: str, since_ns: int) -> bool:
    """Whether systemd has started *client* after *since_ns* (CLOCK_MONOTONIC); False where that is not known."""
    show = (*_systemctl(), "show", "--value", "-p", "ExecMainStartTimestampMonotonic", client)
    text = (_output(show) or "").strip() if _systemd() else ""
    return text.isdecimal() and text.isascii() and int(text) * 1000 > since_ns


def _systemctl() -> tuple[str, ...]:
    """Whose clients are meant: root's are the system's services, a user's are the user's."""
    return ("systemctl", "--user") if os.geteuid() else ("systemctl",)


def _systemd() -> bool:
    return os.path.isdir("/run/systemd/system")


def _runs(client: str) -> bool:
    if _systemd():
        return _output((*_systemctl(), "is-active", "--quiet", client)) is not None
    return client != "docker" or _docker_pid() > 0


def _docker_pid() -> int:
    """The process that dockerd's pid file names, if that is dockerd; else 0."""
    with suppress(OSError, ConfigError):
        text = (files.read(f"{_run()}/docker.pid" if os.geteuid() else _DOCKER_PID) or "").strip()
        if (
            text.isdecimal()
            and text.isascii()
            and len(text) < 10
            and (files.read(f"/proc/{text}/comm") or "") == "dockerd\n"
        ):
            return int(text)
    return 0


def _docker(*words: str) -> str | None:
    return _output(("docker", "--host", f"unix://{_run()}/docker.sock", *words))


def _run() -> str:
    """Where dockerd has its socket and its pid file."""
    return runtime_directory(os.environ.get("XDG_RUNTIME_DIR", ""), os.geteuid()) if os.geteuid() else "/run"


def _output(words: tuple[str, ...]) -> str | None:
    """What *words* prints; None when it cannot be run, fails, or takes longer than 20 s."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
