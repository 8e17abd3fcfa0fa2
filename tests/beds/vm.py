"""A throw-away QEMU guest: Debian with systemd as process 1, a pure cgroup v2 tree with all controllers, all capabilities.

    with VM() as vm:                        # resumes the saved state when there is one, else boots
        vm.put(Path("."), "/src")
        status = vm.run(["python3", "-m", "pytest"], cwd="/src", timeout=600)

Nothing a guest does is kept: disk writes go to a temporary overlay, memory is a private map of the saved one.  The guest is
emulated (no KVM needed): a process start costs it 50 to 100 ms, so one guest serves many tests.

``GPURUN_VM`` is where images are kept (``~/.cache/gpurun-vm``), ``GPURUN_VM_APPEND`` is added to the kernel's command line
(of a boot: a saved state has its own), ``GPURUN_QEMU`` is the emulator.  QEMU 7.2 of Debian 12 crashes
such guests at random: take 10 from its backports (``tests/beds/vm-deps``).
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

HERE = Path(__file__).resolve().parent
QEMU = os.environ.get("GPURUN_QEMU", "qemu-system-x86_64")
# Plain page tables and no SMAP: some 30 % off the emulated CPU's time.
CPU = "max,la57=off,pku=off,smap=off,smep=off,umip=off"
APPEND = (
    "root=/dev/vda rw console=ttyS0 quiet loglevel=3 mitigations=off panic=-1 oops=panic random.trust_cpu=on tsc=reliable "
    "clocksource=tsc no_timer_check cryptomgr.notests nokaslr nowatchdog systemd.show_status=no "
    "systemd.log_target=kmsg"
)
BOOT_TIMEOUT = 120.0  # seconds
EXCLUDED = (".git", "__pycache__", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache")


class VMError(Exception):
    """The guest could not be started, or died; the text says what is known."""


def image() -> Path:
    """The directory of the guest's image; it is built when it is not there (about a minute)."""
    built = subprocess.run([HERE / "vm-build"], stdout=subprocess.PIPE, check=True, text=True)
    return Path(built.stdout.split()[-1])


def qemu_version() -> str:
    return subprocess.run([QEMU, "--version"], stdout=subprocess.PIPE, check=True, text=True).stdout.partition("\n")[0]


class VM:
    """A guest, running from ``__enter__`` to ``__exit__``.  *memory* in MiB; *fresh* boots even where a saved state is.

    SIGTERM is an exception from then on, so that the emulator ends with the program that has started it.
    """

    def __init__(self, memory: int = 2048, processors: int = 2, append: str = "", fresh: bool = False) -> None:
        self.image = image()
        self.memory, self.processors, self.append = memory, processors, append or os.environ.get("GPURUN_VM_APPEND", "")
        self.state: Path | None = None if fresh else self._saved_state()
        self.saving: Path | None = None
        self.boot_seconds = 0.0
        self._directory = Path(tempfile.mkdtemp(prefix="gpurun-vm.", dir="/var/tmp"))
        self._process: subprocess.Popen[bytes] | None = None
        self._qmp_file: IO[str] | None = None

    def _saved_state(self) -> Path | None:
        """The saved state, if the emulator that saved it is the one that would resume it."""
        try:
            done = json.loads((self.image / "state/done").read_text())
        except FileNotFoundError:
            return None
        if done["qemu"] != qemu_version():
            return None
        self.memory, self.processors = done["memory"], done["processors"]
        return self.image / "state"

    def _argv(self) -> list[str]:
        kept = self.saving or self.state
        backend = f"memory-backend-ram,id=ram,size={self.memory}M"
        if kept:
            share = "on" if self.saving else "off"
            backend = f"memory-backend-file,id=ram,size={self.memory}M,mem-path={kept}/ram,share={share}"
        disk = kept / "disk" if kept else self.image / "root.ext4"
        snapshot = "" if self.saving else ",snapshot=on"
        argv = [QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        argv += ["-M", "q35,memory-backend=ram", "-object", backend, "-m", str(self.memory), "-smp", str(self.processors)]
        argv += ["-accel", "tcg,thread=multi,tb-size=512", "-cpu", CPU]
        argv += ["-kernel", f"{self.image}/vmlinux", "-initrd", f"{self.image}/initrd.gz"]
        argv += ["-append", f"{APPEND} {self.append}".strip()]
        argv += ["-drive", f"file={disk},format=raw,if=none,id=root,cache=unsafe,discard=unmap{snapshot}"]
        argv += ["-device", "virtio-blk-pci,drive=root", "-device", "virtio-serial-pci"]
        argv += ["-chardev", f"socket,id=port,path={self._directory}/port.sock,server=on,wait=off"]
        argv += ["-device", "virtserialport,chardev=port,name=gpurun"]
        argv += ["-chardev", f"file,id=console,path={self._directory}/console.log", "-serial", "chardev:console"]
        argv += ["-qmp", f"unix:{self._directory}/qmp.sock,server=on,wait=off"]
        return [*argv, "-incoming", "defer"] if self.state and not self.saving else argv

    def __enter__(self) -> Self:
        began = time.monotonic()
        environment = os.environ | {"TMPDIR": str(self._directory)}
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        try:
            self._process = subprocess.Popen(self._argv(), stdin=subprocess.DEVNULL, env=environment)
            if self.state and not self.saving:
                self._resume(self.state)
            self._socket = self._connect("port.sock")
            self._send(b"J", json.dumps({"op": "hello", "time": time.time()}).encode())
            while self._receive(began + BOOT_TIMEOUT)[0] != b"R":
                pass
        except BaseException:
            sys.stderr.write(self.console()[-4000:])
            self.kill()
            raise
        self.boot_seconds = time.monotonic() - began
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._process is not None
        try:
            if self._process.poll() is None and kind is None:
                self._send(b"J", json.dumps({"op": "poweroff"}).encode())
                self._process.wait(60)
        except (OSError, subprocess.TimeoutExpired):
            pass  # nothing of it is kept, so it may as well be killed
        finally:
            self.kill()

    def kill(self) -> None:
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def console(self) -> str:
        """What the guest has written to its console so far."""
        try:
            return (self._directory / "console.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    # The saved state: memory as a file that is mapped, devices as a migration stream.

    def _resume(self, state: Path) -> None:
        self.qmp("migrate-set-capabilities", capabilities=[{"capability": "x-ignore-shared", "state": True}])
        self.qmp("migrate-incoming", uri=f"file:{state}/devices")
        while self.qmp("query-status")["status"] == "inmigrate":
            time.sleep(0.02)
        self.qmp("cont")

    @classmethod
    def save(cls, setup: Callable[[VM], None], memory: int = 2048) -> None:
        """Boot, let *setup* prepare the guest (start daemons, load images), and save the running machine."""
        vm = cls(memory=memory, fresh=True)
        kept = vm.image / "state"
        vm.saving = vm.image / "state.tmp"
        shutil.rmtree(vm.saving, ignore_errors=True)
        vm.saving.mkdir(parents=True)
        subprocess.run(["cp", "--sparse=always", vm.image / "root.ext4", vm.saving / "disk"], check=True)
        with vm:
            setup(vm)
            vm.run(["sync"])
            vm.qmp("stop")
            vm.qmp("migrate-set-capabilities", capabilities=[{"capability": "x-ignore-shared", "state": True}])
            vm.qmp("migrate", uri=f"file:{vm.saving}/devices")
            while (status := vm.qmp("query-migrate").get("status")) != "completed":
                if status in ("failed", "cancelled"):
                    raise VMError(f"saving the guest: {status}")
                time.sleep(0.05)
            vm.kill()
        done = {"memory": vm.memory, "processors": vm.processors, "qemu": qemu_version()}
        (vm.saving / "done").write_text(json.dumps(done))
        shutil.rmtree(kept, ignore_errors=True)
        vm.saving.rename(kept)

    # What is said to QEMU and to the guest.

    def _connect(self, name: str) -> socket.socket:
        assert self._process is not None
        made = socket.socket(socket.AF_UNIX)
        end = time.monotonic() + 30
        while True:
            try:
                made.connect(str(self._directory / name))
                return made
            except OSError as e:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise VMError(f"QEMU did not start: {e}") from None
                time.sleep(0.01)

    def qmp(self, command: str, **arguments: Any) -> Any:
        """A command of the QEMU machine protocol; its ``return``."""
        if self._qmp_file is None:
            self._qmp_file = self._connect("qmp.sock").makefile("rw")
            self._qmp_file.readline()
            self.qmp("qmp_capabilities")
        self._qmp_file.write(json.dumps({"execute": command, "arguments": arguments}))
        self._qmp_file.flush()
        while True:
            answer = json.loads(self._qmp_file.readline() or '{"error": {"desc": "QEMU has gone"}}')
            if "error" in answer:
                raise VMError(f"{command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]

    def _send(self, kind: bytes, data: bytes = b"") -> None:
        self._socket.settimeout(None)
        self._socket.sendall(kind + struct.pack(">I", len(data)) + data)

    def _exactly(self, size: int, end: float) -> bytes:
        received = bytearray()
        while len(received) < size:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError("time limit of the guest")
            self._socket.settimeout(min(left, 1))
            try:
                chunk = self._socket.recv(size - len(received))
            except TimeoutError:
                continue
            if not chunk:
                raise VMError("the guest died")
            received += chunk
        return bytes(received)

    def _receive(self, end: float) -> tuple[bytes, bytes]:
        header = self._exactly(5, end)
        return header[:1], self._exactly(struct.unpack(">I", header[1:])[0], end)

    # Operations.

    def run(
        self,
        argv: Sequence[str],
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 600,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
    ) -> int:
        """Exit status of *argv* in the guest; its output goes to *stdout* and *stderr* (ours by default) as it comes."""
        files = {b"O": stdout or sys.stdout.buffer, b"S": stderr or sys.stderr.buffer}
        end = time.monotonic() + timeout
        self._send(b"J", json.dumps({"op": "run", "argv": list(argv), "cwd": cwd, "env": dict(env or {})}).encode())
        while True:
            kind, data = self._receive(end)
            if kind == b"X":
                return int(data)
            files[kind].write(data)
            files[kind].flush()

    def output(self, argv: Sequence[str], **how: Any) -> tuple[int, str]:
        """Exit status and all output of *argv*."""
        written = io.BytesIO()
        status = self.run(argv, stdout=written, stderr=written, **how)
        return status, written.getvalue().decode(errors="replace")

    def put(self, source: Path, destination: str, timeout: float = 120) -> None:
        """Copy the directory *source* into the guest, without caches and version control."""
        self._send(b"J", json.dumps({"op": "put", "dir": destination}).encode())
        command = [
            "tar",
            "-c",
            "--owner=0",
            "--group=0",
            *[f"--exclude={name}" for name in EXCLUDED],
            "-C",
            str(source),
            ".",
        ]
        tar = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert tar.stdout is not None
        while data := tar.stdout.read(1 << 16):
            self._send(b"D", data)
        self._send(b"E")
        if tar.wait() or self._receive(time.monotonic() + timeout)[1] != b"0":
            raise VMError(f"copying {source} into the guest failed")

    def get(self, source: str, destination: Path, timeout: float = 120) -> None:
        """Copy the guest's directory *source* to *destination*."""
        destination.mkdir(parents=True, exist_ok=True)
        self._send(b"J", json.dumps({"op": "get", "dir": source}).encode())
        tar = subprocess.Popen(["tar", "-x", "--no-same-owner", "-C", str(destination)], stdin=subprocess.PIPE)
        assert tar.stdin is not None
        end = time.monotonic() + timeout
        while True:
            kind, data = self._receive(end)
            if kind == b"X":
                break
            tar.stdin.write(data)
        tar.stdin.close()
        if tar.wait() or data != b"0":
            raise VMError(f"copying {source} out of the guest failed")
