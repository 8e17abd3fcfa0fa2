"""What containers without root need of the host: id maps, user namespaces, a service manager, cgroups, nodes that open."""

from __future__ import annotations

import os
import pwd
import stat

from gpurun import log
from gpurun.errors import GpurunError
from gpurun.gpu.host.access import closed_nodes, group_name
from gpurun.gpu.host.finding import Finding
from gpurun.paths import runtime_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SUBIDS = 65536  # ids that an image may use (user_namespaces(7); adduser gives as many)
_FIRST_SUBID = 100000  # useradd's first (login.defs(5): SUB_UID_MIN)
_DELEGATED = ("cpu", "io", "memory", "pids")


class Places:
    """Where the files are, below *root*: "" for this host."""

    def __init__(self, root: str = "") -> None:
        self.root = root

    def text(self, path: str) -> str:
        """The content of *path*; "" where it cannot be read."""
        try:
            with open(self.root + path, encoding="utf-8", errors="surrogateescape") as file:
                return file.read(1 << 20)
        except OSError:
            return ""


def examine_rootless(env: Mapping[str, str], nodes: Iterable[str], root: str = "") -> tuple[Finding, ...]:
    """All findings for the user who calls.  *nodes* are the GPUs' device nodes; *root* is where the host's files are, for
    tests.  Changes nothing, raises nothing.
    """
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    places = Places(root)
    found = [_user_namespaces(places)]
    if uid:
        found += [*_mappers(places), *_ranges(places, name, uid)]
    else:
        text = "this is root: the findings about id ranges, sessions and nodes are a user's, so call it as that user"
        found.append(Finding("user", "note", text))
    found += [_runtime_dir(env, places, name, uid), *_manager(places, name, uid), _cgroups(name), _fuse(places)]
    closed = closed_nodes(nodes)
    if closed:
        found.append(Finding("device nodes", "fail", f"user {name} cannot open all: {closed}"))
    elif nodes:
        found.append(Finding("device nodes", "ok", f"user {name} can open all that are there"))
    return tuple(found)


def _user_namespaces(places: Places) -> Finding:
    subject = "user namespaces"
    if places.text("/proc/sys/user/max_user_namespaces").strip() == "0":
        text = "none may be made: `sysctl -w user.max_user_namespaces=15000`, and the same in /etc/sysctl.d"
        return Finding(subject, "fail", text)
    if places.text("/proc/sys/kernel/unprivileged_userns_clone").strip() == "0":
        text = "users may make none: `sysctl -w kernel.unprivileged_userns_clone=1`, and the same in /etc/sysctl.d"
        return Finding(subject, "fail", text)
    if places.text("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").strip() == "1":
        if places.text("/etc/apparmor.d/gpurun"):
            return Finding(subject, "ok", "AppArmor restricts them, and gpurun has a profile (/etc/apparmor.d/gpurun)")
        text = (
            "AppArmor gives their root no capabilities (Ubuntu): copy debian/apparmor/gpurun to /etc/apparmor.d, with the "
            "path of gpurun in it, and `apparmor_parser -r /etc/apparmor.d/gpurun`; or "
            "`sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
        )
        return Finding(subject, "fail", text)
    return Finding(subject, "ok", "users may make them")


def _mappers(places: Places) -> list[Finding]:
    found = []
    for name, capability in (("newuidmap", "cap_setuid"), ("newgidmap", "cap_setgid")):
        path = f"/usr/bin/{name}"
        try:
            mode = os.stat(places.root + path).st_mode
        except OSError:
            text = "is missing: containers have only one user: `apt install uidmap` (Fedora: shadow-utils)"
            found.append(Finding(name, "note", text))
            continue
        if mode & stat.S_ISUID or _has_file_capabilities(places.root + path):
            found.append(Finding(name, "ok", f"{path} may write maps"))
            continue
        text = f"{path} is neither setuid root nor has {capability}: `chmod u+s {path}` or `setcap {capability}+ep {path}`"
        found.append(Finding(name, "fail", text))
    return found


def _has_file_capabilities(path: str) -> bool:
    try:
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False


def _ranges(places: Places, name: str, uid: int) -> list[Finding]:
    found = []
    for path, option in (("/etc/subuid", "--add-subuids"), ("/etc/subgid", "--add-subgids")):
        ranges = _given_ranges(places.text(path))
        count = sum([size for who, _, size in ranges if who in (name, str(uid))])
        if count >= _SUBIDS:
            found.append(Finding(path, "ok", f"{count} ids for {name}"))
            continue
        first = _first_free(ranges)
        free = f"{first}-{first + _SUBIDS - 1}"
        text = f"{count or 'no'} ids for {name}, images use {_SUBIDS}: `usermod {option} {free} {name}`"
        if "subid:" in places.text("/etc/nsswitch.conf"):
            text += " (unless another source of /etc/nsswitch.conf has them)"
        found.append(Finding(path, "note", text))
    return found


def _given_ranges(text: str) -> list[tuple[str, int, int]]:
    """(user, first id, number of ids) of each line of subuid(5) or subgid(5); other lines are left out."""
    found = []
    for line in text.splitlines():
        who, *numbers = [field.strip() for field in line.split(":")]
        if len(numbers) == 2 and all(one.isascii() and one.isdigit() for one in numbers):
            found.append((who, int(numbers[0][:10]), int(numbers[1][:10])))
    return found


def _first_free(ranges: list[tuple[str, int, int]]) -> int:
    """Where a new range may begin: usermod(8) itself does not ask whether the ids are another user's already."""
    first = _FIRST_SUBID
    for _, start, size in sorted(ranges, key=lambda one: one[1]):
        if start < first + _SUBIDS and first < start + size:
            first = start + size
    return first


def _runtime_dir(env: Mapping[str, str], places: Places, name: str, uid: int) -> Finding:
    subject = "XDG_RUNTIME_DIR"
    given = env.get("XDG_RUNTIME_DIR", "")
    path = runtime_directory(given, uid)
    if not path:
        return Finding(subject, "ok", "root's state is in /run")
    if not os.access(places.root + path, os.W_OK | os.X_OK, effective_ids=True):
        text = f"{path} is not there, or another user's: log in (not by su or sudo), or `loginctl enable-linger {name}`"
        return Finding(subject, "fail", text)
    if not given:
        text = f"is not set: gpurun takes {path}, engines may not: `export XDG_RUNTIME_DIR={path}`"
        return Finding(subject, "note", text)
    return Finding(subject, "ok", path)


def _manager(places: Places, name: str, uid: int) -> list[Finding]:
    if not uid:
        return []
    if os.path.exists(f"{places.root}/var/lib/systemd/linger/{name}"):
        return [Finding("linger", "ok", f"containers of {name} stay when the last session ends")]
    text = f"containers of {name} end with the last session: `loginctl enable-linger {name}`"
    return [Finding("linger", "note", text)]


def _cgroups(name: str) -> Finding:
    from gpurun.cgroup.service_manager import wants_user_manager
    from gpurun.cgroup.systemd import find_user_manager
    from gpurun.cgroup.tree import find_tree
    from gpurun.linux.procfs import in_user_namespace

    subject = "cgroup delegation"
    try:
        tree = find_tree()
        if tree.bound_to_v1:
            text = (
                f"cgroup v1 has {', '.join(tree.bound_to_v1)} (a hybrid host), which users cannot use: no limits without "
                "root until the host boots with systemd.unified_cgroup_hierarchy=1"
            )
            return Finding(subject, "note", text)
        if not wants_user_manager("auto", os.geteuid(), in_user_namespace):
            return Finding(subject, "ok", "root's own manager")
    except GpurunError as e:
        return Finding(subject, "note", f"{e}: no limits without root")
    try:
        controllers = find_user_manager(tree.root).controllers
    except GpurunError as e:
        log.debug(str(e))
        text = f"no limits without root, for no service manager of {name}'s runs: log in, or `loginctl enable-linger {name}`"
        return Finding(subject, "note", text)
    lacking = [one for one in _DELEGATED if one not in controllers]
    if lacking:
        text = (
            f"limits of {', '.join(lacking)} are refused: `systemctl edit user@.service` with [Service] and "
            "Delegate=cpu cpuset io memory pids, and a new login"
        )
        return Finding(subject, "note", text)
    return Finding(subject, "ok", " ".join(controllers))


def _fuse(places: Places) -> Finding:
    path = f"{places.root}/dev/fuse"
    if not os.path.exists(path):
        return Finding("fuse", "note", "/dev/fuse is missing, which fuse-overlayfs of engines needs: `modprobe fuse`")
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        owner = group_name(os.stat(path).st_gid)
        return Finding(
            "fuse", "note", f"/dev/fuse can be opened only by the group {owner}: `chmod 0666 /dev/fuse`, by an udev rule"
        )
    return Finding("fuse", "ok", "/dev/fuse can be opened")
