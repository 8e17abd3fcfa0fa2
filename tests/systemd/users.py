"""A user of the guest whose service manager runs without a login, with the controllers that an administrator delegates."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

UID, NAME = 4242, "gpuruntest"
RUNTIME_DIR = f"/run/user/{UID}"
MANAGER = Path(f"/sys/fs/cgroup/user.slice/user-{UID}.slice/user@{UID}.service")
CONTROLLERS = "cpu cpuset io memory pids"
_DROP_IN = Path(f"/run/systemd/system/user@{UID}.service.d/gpurun.conf")


def systemctl(*args: str) -> None:
    subprocess.run(["systemctl", *args], check=True, capture_output=True)


def delegate(controllers: str) -> None:
    """Give the user's manager *controllers*, as an administrator does with `systemctl edit user@.service`."""
    _DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    _DROP_IN.write_text(f"[Service]\nDelegate=\nDelegate={controllers}\n")
    systemctl("daemon-reload")
    systemctl("restart", f"user@{UID}.service")


@contextmanager
def lingering_user() -> Iterator[None]:
    """Make the user, and remove it with all that it runs and has. Only for the guest: elsewhere nobody wants one made."""
    subprocess.run(["useradd", "--uid", str(UID), "--create-home", NAME], check=True)
    subprocess.run(["loginctl", "enable-linger", NAME], check=True)
    try:
        delegate(CONTROLLERS)
        yield
    finally:
        subprocess.run(["loginctl", "disable-linger", NAME], check=True)
        systemctl("stop", f"user-{UID}.slice")
        shutil.rmtree(_DROP_IN.parent)
        systemctl("daemon-reload")
        subprocess.run(["userdel", "--remove", NAME], check=False, capture_output=True)


def run_as_user(
    argv: Sequence[str], environment: Mapping[str, str], directory: Path, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run *argv* as the user, in *directory* and with this *environment* alone; what it has said is in ``stdout``."""
    with tempfile.TemporaryFile() as out:  # a container that goes on would hold a pipe open
        done = subprocess.run(
            argv,
            user=UID,
            group=UID,
            extra_groups=[],
            env=environment,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=timeout,
        )
        out.seek(0)
        return subprocess.CompletedProcess(argv, done.returncode, out.read().decode())
