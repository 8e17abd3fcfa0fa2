"""What create would find wrong with this host for a plan; it is all looked at, and nothing is made."""

from __future__ import annotations

import posix

from gpurun.engine.caller.create import check_rootfs
from gpurun.engine.caller.mount_hint import file_systems, mount_hint
from gpurun.errors import GpurunError, strerror_lower
from gpurun.linux.files import O_CLOEXEC, Fd, read_file
from gpurun.linux.fs import O_DIRECTORY, O_PATH
from gpurun.linux.process import CAP_SYS_ADMIN, CLONE_NEWUSER, has_capabilities
from gpurun.ns.mount_plan import failed_mount, is_late
from gpurun.ns.path import open_in_root
from gpurun.ns.spawn import open_joins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpurun.engine.plan.container import Plan
    from gpurun.ns.mount_plan import MountStep
    from gpurun.oci.config import OciHook

_APPARMOR = "/sys/kernel/security/apparmor/profiles"


def host_problems(plan: Plan) -> tuple[str, ...]:
    """The reasons for which create would fail here, in the order in which it comes upon them; none: it would not.

    What only the container itself can tell (a hook that fails, a program that a mount hides) is not among them.
    """
    checks: tuple[Callable[[Plan], Iterator[str]], ...] = (
        _privileges, _rootfs, _seccomp, _namespaces, _mounts, _edits, _hooks, _network, _apparmor, _program,
    )  # fmt: skip
    return tuple([text for check in checks for text in check(plan)])


def _privileges(plan: Plan) -> Iterator[str]:
    if not plan.namespaces.has(CLONE_NEWUSER) and not has_capabilities(CAP_SYS_ADMIN):
        who = f"user {posix.geteuid()}" if posix.geteuid() else "root without CAP_SYS_ADMIN"
        yield (
            f"{who} may make no container without a user namespace: "
            'run gpurun as root, or see "Without root" in the documentation (`gpurun spec --rootless`)'
        )


def _rootfs(plan: Plan) -> Iterator[str]:
    yield from _said(lambda: check_rootfs(plan))


def _seccomp(plan: Plan) -> Iterator[str]:
    profile = plan.seccomp
    if profile is not None:
        from gpurun.linux import libseccomp
        from gpurun.security.seccomp_compile import compile_plan, load_library

        yield from _said(lambda: compile_plan(profile, load_library(profile.where, libseccomp.find()[0])))


def _namespaces(plan: Plan) -> Iterator[str]:
    def join() -> None:
        for _, fd in open_joins(plan.namespaces):
            posix.close(fd)

    yield from _said(join)


def _said(step: Callable[[], object]) -> Iterator[str]:
    try:
        step()
    except GpurunError as e:
        yield str(e)


def _mounts(plan: Plan) -> Iterator[str]:
    for step in plan.init.mounts:
        if step.options.remount:
            continue
        if step.kind == "bind":
            if not is_late(step, plan.rootfs):  # an earlier mount may make those
                yield from _source(step)
        elif step.kind not in ("cgroup", *file_systems()) and not _is_module(step.kind):
            text = str(failed_mount(step, "no such device"))
            yield text + mount_hint(text, (step,))


def _source(step: MountStep) -> Iterator[str]:
    try:
        posix.stat(step.source, follow_symlinks=not step.options.copy_symlink)
    except PermissionError:
        return  # who makes the container may see more
    except OSError as e:
        yield str(failed_mount(step, strerror_lower(e.errno)))


def _is_module(kind: str) -> bool:
    """Whether the kernel could load the file system *kind*; yes where that is not known."""
    directory = f"/lib/modules/{posix.uname().release}"
    try:
        names = read_file(f"{directory}/modules.dep", 64 << 20) + read_file(f"{directory}/modules.alias", 64 << 20)
    except OSError:
        # A container or a small system: the kernel's modules are elsewhere, or it has none.
        return not kind.isalnum()
    word = kind.encode("utf-8", "surrogateescape")
    return b"/%b.ko" % word in names or b" fs-%b " % word in names


def _edits(plan: Plan) -> Iterator[str]:
    for mount in plan.init.edits.mounts:
        if mount.host_path.startswith("/") and not _exists(mount.host_path):
            yield f"{mount.container_path}: its source {mount.host_path} is not there ({mount.reason})"


def _exists(path: str) -> bool:
    try:
        posix.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass  # there, but not ours to see
    return True


def _hooks(plan: Plan) -> Iterator[str]:
    named: tuple[tuple[str, tuple[OciHook, ...]], ...] = (
        ("prestart", plan.hooks.prestart),
        ("createRuntime", plan.hooks.create_runtime),
        ("createContainer", plan.hooks.create_container),
    )
    for name, hooks in named:
        for i, hook in enumerate(hooks):
            if not _exists(hook.path):
                yield f"hooks.{name}[{i}].path: {hook.path}: no such file or directory"
            elif not posix.geteuid() and not posix.access(hook.path, posix.X_OK):
                yield f"hooks.{name}[{i}].path: {hook.path}: permission denied (it is not executable)"


def _network(plan: Plan) -> Iterator[str]:
    for device in plan.net_devices:
        if not _exists(f"/sys/class/net/{device.name}"):
            yield f"linux.netDevices: move the network device {device.name}: no such device"


def _apparmor(plan: Plan) -> Iterator[str]:
    profile = plan.init.process.apparmor_profile
    if not profile or profile == "unconfined" or posix.geteuid():
        return
    try:
        loaded = read_file(_APPARMOR, 64 << 20).decode("utf-8", "replace").splitlines()
    except OSError:
        return  # not mounted: the kernel will tell
    if profile not in [line.rpartition(" (")[0] for line in loaded]:
        yield f"process.apparmorProfile: the profile {profile} is not loaded (apparmor_parser loads profiles)"


def _program(plan: Plan) -> Iterator[str]:
    """Where neither a mount nor a device edit can bring the program, the image must have it."""
    process = plan.init.process
    name = process.args[0] if process.args else ""
    brought = [step.destination for step in plan.init.mounts] + [m.container_path for m in plan.init.edits.mounts]
    if not name or ("/" in name and not name.startswith("/")):
        return
    directories = dict(process.env).get("PATH", "").split(":")
    candidates = [name] if "/" in name else [f"{directory}/{name}" for directory in directories if directory]
    if any(f"{path}/".startswith(f"{place}/") for path in candidates for place in brought):
        return
    try:
        root = posix.open(plan.rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC)
    except OSError:
        return  # said already, or not ours to see
    with Fd(root):
        for path in candidates:
            try:
                posix.close(open_in_root(root, path))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                pass
            return
    if "/" in name:
        yield f'exec: "{name}": stat {name}: no such file or directory'
    else:
        yield f'exec: "{name}": executable file not found in $PATH'
