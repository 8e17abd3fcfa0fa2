"""What a container is to see of /proc/driver/nvidia, and the profile that shows only its GPUs to EGL and Vulkan.  Pure."""

from __future__ import annotations

from gpurun.cdi.edits import EditMount, FileEdit, ProcTree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.nvidia.host.driver import ProcFile
    from gpurun.gpu.nvidia.request.selection import Selected

#: Bits of the mask of a profile: a GPU beyond them cannot be in it.
_MASK_BITS = 64
PROC_OPTIONS = ("ro", "nosuid", "nodev", "noexec", "rbind", "rprivate")
PROC_PATH = "/proc/driver/nvidia"
PROFILE_DIR = "/etc/nvidia/nvidia-application-profiles-rc.d"


def proc_tree(proc_files: tuple[ProcFile, ...], proc_path: str, selected: tuple[Selected, ...]) -> ProcTree:
    """/proc/driver/nvidia with the GPUs of the container only, and the setting by which no program makes device nodes there.

    With ``ModifyDeviceFiles: 1`` the driver's libraries would make nodes of all GPUs in the container's /dev.
    """
    files = []
    for file in proc_files:
        content, reason = file.content, "copied from the host"
        if file.name == "params":
            content = b"\n".join([_unmodifying(line) for line in content.split(b"\n")])
            reason = "the driver's libraries must not make device nodes in the container"
        files.append(FileEdit(f"{PROC_PATH}/{file.name}", content, 0o444, reason))
    binds = []
    for s in selected:
        binds.append(_proc_bind(proc_path, f"gpus/{s.gpu.bus_id}", "dir", f"GPU {s.gpu.index}"))
        names = dict.fromkeys([name for mig in s.mig for name in mig.files])
        binds += [_proc_bind(proc_path, name, "file", f"MIG device of GPU {s.gpu.index}") for name in names]
    return ProcTree(PROC_PATH, tuple(files), tuple(binds), "only the GPUs of the container are to be seen")


def _unmodifying(line: bytes) -> bytes:
    """A *line* of params; of ``ModifyDeviceFiles`` with 0, whatever number it has, for the driver's tools read a number."""
    name, colon, value = line.partition(b":")
    if not colon or not name.strip().endswith(b"ModifyDeviceFiles"):
        return line
    return name + colon + value[: len(value) - len(value.lstrip())] + b"0"


def _proc_bind(proc_path: str, name: str, kind: str, reason: str) -> EditMount:
    return EditMount(f"{proc_path}/{name}", f"{PROC_PATH}/{name}", PROC_OPTIONS, kind, reason)


def application_profile(minors: tuple[int, ...]) -> ProcTree:
    """The profile that makes EGL and Vulkan enumerate the container's GPUs only (a bit mask of device minors)."""
    mask = sum([1 << minor for minor in dict.fromkeys(minors) if minor < _MASK_BITS])
    content = (
        f'{{"profiles": [{{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", {mask:#x}]}}],\n'
        ' "rules": [{"pattern": [], "profile": "_container_"}]}\n'
    )
    reason = "EGL and Vulkan are to enumerate the GPUs of the container only"
    file = FileEdit(f"{PROFILE_DIR}/10-container.conf", content.encode("ascii"), 0o444, reason)
    return ProcTree(PROFILE_DIR, (file,), (), reason)
