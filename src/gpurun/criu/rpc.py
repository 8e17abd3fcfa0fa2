"""CRIU's requests and answers as records, and as the messages of its images/rpc.proto; pure."""

from __future__ import annotations

from gpurun.formats import protobuf
from gpurun.record import Record

DUMP, RESTORE, PRE_DUMP, NOTIFY, FEATURE_CHECK = 1, 2, 4, 6, 9

#: --manage-cgroups-mode → criu_cg_mode
CGROUP_MODES = {"ignore": 0, "soft": 3, "full": 4, "strict": 5}
#: --network-lock → criu_network_lock_method
NETWORK_LOCKS = {"iptables": 1, "nftables": 2, "skip": 3}


class Options(Record):
    """``criu_opts``: what CRIU is to do.  Descriptors are CRIU's own.  What is empty or None is not sent."""

    images_dir_fd: int
    work_dir_fd: int
    log_file: str = ""
    log_level: int = 4
    config_file: str = ""
    pid: int | None = None
    root: str = ""
    notify_scripts: bool = True
    orphan_pts_master: bool = True
    leave_running: bool = False
    tcp_established: bool = False
    tcp_skip_in_flight: bool = False
    tcp_close: bool = False
    link_remap: bool = False
    ext_unix_sk: bool = False
    shell_job: bool = False
    file_locks: bool = False
    auto_dedup: bool = False
    evasive_devices: bool = False
    ext_masters: bool = False
    rst_sibling: bool = False
    track_mem: bool = False
    parent_img: str = ""
    lazy_pages: bool = False
    status_fd: int | None = None
    page_server: tuple[str, int] | None = None  # (address, port)
    manage_cgroups_mode: int | None = None
    cgroup_yard: str = ""
    freeze_cgroup: str = ""
    timeout: int | None = None  # seconds; CRIU's own is 10
    network_lock: int | None = None
    empty_ns: int = 0  # CLONE_NEW* flags
    lsm_profile: str = ""
    lsm_mount_context: str = ""
    external: tuple[str, ...] = ()
    ext_mnt: tuple[tuple[str, str], ...] = ()  # (key, value)
    inherit_fd: tuple[tuple[str, int], ...] = ()  # (key, descriptor)
    join_ns: tuple[tuple[str, str], ...] = ()  # (kind, file)
    cg_root: tuple[tuple[str, str], ...] = ()  # (controller, path)


_NUMBERS = {
    "images_dir_fd": 1,
    "pid": 2,
    "leave_running": 3,
    "ext_unix_sk": 4,
    "tcp_established": 5,
    "evasive_devices": 6,
    "shell_job": 7,
    "file_locks": 8,
    "log_level": 9,
    "log_file": 10,
    "page_server": 11,
    "notify_scripts": 12,
    "root": 13,
    "parent_img": 14,
    "track_mem": 15,
    "auto_dedup": 16,
    "work_dir_fd": 17,
    "link_remap": 18,
    "ext_mnt": 23,
    "cg_root": 25,
    "rst_sibling": 26,
    "inherit_fd": 27,
    "ext_masters": 30,
    "manage_cgroups_mode": 34,
    "external": 37,
    "empty_ns": 38,
    "join_ns": 39,
    "freeze_cgroup": 44,
    "timeout": 45,
    "tcp_skip_in_flight": 46,
    "lazy_pages": 48,
    "status_fd": 49,
    "orphan_pts_master": 50,
    "config_file": 51,
    "tcp_close": 52,
    "lsm_profile": 53,
    "cgroup_yard": 60,
    "lsm_mount_context": 63,
    "network_lock": 64,
}


class Answer(Record):
    """``criu_resp``.  *script* and *pid* are those of a notification, *restored* is the pid of the restored root process."""

    kind: int
    success: bool
    errno: int = 0
    error: str = ""
    script: str = ""
    pid: int = 0
    restored: int = 0
    memory_tracking: bool = False
    lazy_pages: bool = False


def request(kind: int, options: Options) -> bytes:
    """``criu_req`` for DUMP, PRE_DUMP, RESTORE."""
    return protobuf.message([(1, kind), (2, protobuf.message(_fields(options)))])


def feature_request() -> bytes:
    """The question whether memory can be tracked and pages be left behind (:class:`Answer` has both)."""
    return protobuf.message([(1, FEATURE_CHECK), (5, protobuf.message([(1, True), (2, True)]))])


def acknowledge() -> bytes:
    """The answer to a notification: go on."""
    return protobuf.message([(1, NOTIFY), (3, True)])


def answer(data: bytes) -> Answer:
    """The record of what CRIU has sent; raises :class:`gpurun.formats.protobuf.BadMessage`."""
    found = protobuf.fields(data)
    notify = protobuf.fields(protobuf.inner(found, 5))
    features = protobuf.fields(protobuf.inner(found, 8))
    pid, restored = protobuf.number(notify, 2), protobuf.number(protobuf.fields(protobuf.inner(found, 4)), 1)
    success = bool(protobuf.number(found, 2))
    if not success:
        restored = 0  # what failed early had no root process yet, and CRIU says -1
    if not (0 <= pid < 1 << 31 and 0 <= restored < 1 << 31):
        raise protobuf.BadMessage
    return Answer(
        kind=protobuf.number(found, 1),
        success=success,
        errno=protobuf.number(found, 7),
        error=protobuf.text(found, 9),
        script=protobuf.text(notify, 1),
        pid=pid,
        restored=restored,
        memory_tracking=bool(protobuf.number(features, 1)),
        lazy_pages=bool(protobuf.number(features, 2)),
    )


def _fields(options: Options) -> list[tuple[int, int | str | bytes]]:
    out: list[tuple[int, int | str | bytes]] = []
    for name, field in _NUMBERS.items():
        value = getattr(options, name)
        if value is None or value is False or value == "" or value == () or (name == "empty_ns" and not value):
            continue
        if name == "page_server":
            out.append((field, _pair(value)))
        elif isinstance(value, tuple):
            out.extend([(field, item if isinstance(item, str) else _pair(item)) for item in value])
        else:
            out.append((field, value))
    return out


def _pair(values: tuple[int | str, int | str]) -> bytes:
    return protobuf.message([(1, values[0]), (2, values[1])])
