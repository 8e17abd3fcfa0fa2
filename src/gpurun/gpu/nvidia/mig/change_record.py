"""One change of how the GPUs of a host are divided at a time, and what they were divided into before it.

The record is written before the first call that changes something and taken away after the last one.  One that is there
when no process has the lock is of a change that was cut off: the next change goes on from what it finds, and if it fails,
goes back to what was before the first.
"""

from __future__ import annotations

import fcntl
import posix
from errno import EACCES, EAGAIN
from stat import S_ISDIR, S_ISREG

from gpurun import log
from gpurun.errors import ConfigError, GpurunError, StepError, reason
from gpurun.formats.jsontext import dumps
from gpurun.gpu.nvidia.mig.state import Instance, MigGpu
from gpurun.linux.files import O_CLOEXEC, mkdir_p, read_regular, unlink_if_there, write_atomically
from gpurun.linux.owners import is_own
from gpurun.oci.reader import as_int, as_object, as_string, get_array, get_bool, parse_json
from gpurun.record import Record, to_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Outlives a boot, as a mode that waits for one does; below the host's root.
DIRECTORY = "/var/lib/gpurun/mig"
VERSION = 1
_LIMIT = 1 << 20


class ChangeRecord(Record):
    """A change to *config* that has begun, and the GPUs as they were *before* it."""

    config: str
    before: tuple[MigGpu, ...]


class ChangeStore:
    """The lock and the record in the directory *path*; a context manager that has the lock."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = f"{path}/change.json"
        self._lock = -1

    def __enter__(self) -> ChangeStore:
        """Take the lock.  Raises :class:`GpurunError` where another process has it."""
        try:
            mkdir_p(self.path, 0o755, last_mode=0o700)
            found = posix.lstat(self.path)
            if not S_ISDIR(found.st_mode) or found.st_mode & 0o022 or not is_own(found, self.path):
                raise GpurunError(
                    f"{self.path}: others can write here, so no GPU is divided: remove it, and gpurun makes it"
                )
            lock = posix.open(f"{self.path}/lock", posix.O_RDWR | posix.O_CREAT | posix.O_NOFOLLOW | O_CLOEXEC, 0o600)
        except OSError as e:
            raise StepError("open the record of MIG changes in", self.path, e.errno) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            posix.close(lock)
            if e.errno in (EAGAIN, EACCES):
                raise GpurunError(
                    "another gpurun is dividing the GPUs of this host now: call again when it is done"
                ) from None
            raise StepError("lock", f"{self.path}/lock", e.errno) from None
        self._lock = lock
        return self

    def __exit__(self, *_: object) -> None:
        posix.close(self._lock)
        self._lock = -1

    def read(self) -> ChangeRecord | None:
        """The record of a change that was cut off; None where there is none.  One that is damaged, or that others can write,
        is none.

        Raises :class:`StepError` where it cannot be read.
        """
        try:
            found = posix.lstat(self._file)
            if S_ISREG(found.st_mode) and (found.st_mode & 0o022 or not is_own(found, self._file)):
                log.warning(f"{self._file} can be written by others and is ignored")
                return None
            data = read_regular(self._file, _LIMIT, follow=False)
        except FileNotFoundError:
            return None
        except OSError as e:
            raise StepError("read", self._file, e.errno, reason=reason(e)) from None
        try:
            document = as_object(parse_json(data, self._file), self._file)
            if as_int(document.get("version"), "version") != VERSION:
                raise ConfigError("version", f"is not {VERSION}")
            return ChangeRecord(as_string(document.get("config"), "config"), get_array(document, "before", "", _gpu))
        except ConfigError as e:
            log.warning(f"{self._file} is not a record of a MIG change and is ignored: {e}")
            return None

    def write(self, record: ChangeRecord) -> None:
        """Write *record*.  Raises :class:`StepError`."""
        gpus = [
            {"index": gpu.index, "uuid": gpu.uuid, "mode": gpu.mode, "pending": gpu.pending, "instances": gpu.instances}
            for gpu in record.before
        ]
        document = {"version": VERSION, "config": record.config, "before": to_plain(gpus)}
        try:
            write_atomically(self._file, dumps(document).encode("utf-8", "replace"), 0o600, durable=True)
        except OSError as e:
            raise StepError("write", self._file, e.errno) from None

    def remove(self) -> None:
        """The change is over.  Raises :class:`StepError`."""
        try:
            unlink_if_there(self._file)
        except OSError as e:
            raise StepError("remove", self._file, e.errno) from None


def _gpu(value: Any, where: str) -> MigGpu:
    table = as_object(value, where)
    modes = [None if table.get(key) is None else get_bool(table, key, where) for key in ("mode", "pending")]
    instances = get_array(table, "instances", where, _instance)
    return MigGpu(as_int(table.get("index"), where), as_string(table.get("uuid"), where), mode=modes[0], pending=modes[1],
                  instances=instances)  # fmt: skip


def _instance(value: Any, where: str) -> Instance:
    table = as_object(value, where)
    numbers = [as_int(table.get(key), f"{where}.{key}", 0, 1 << 16) for key in ("profile", "start", "size")]
    compute = get_array(table, "compute", where, lambda one, place: as_int(one, place, 1, 1 << 16))
    return Instance(numbers[0], numbers[1], numbers[2], compute)
