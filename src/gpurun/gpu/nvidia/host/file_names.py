"""Which files belong to which capability: names only.  Which of them exist depends on the driver and the distribution.

What NVIDIA's toolkit gives containers, and what it leaves out although programs ask for it: the EGL platforms, the OptiX
denoiser's weights beside the library, the Vulkan producer.  What is left out here on purpose is listed, with the reasons, in
``tests/gpu/nvidia/host/test_real_driver.py``, which holds these tables against a whole driver.
"""

from __future__ import annotations

#: Libraries named ``<name>.so.<driver version>``, by the capability that needs them; which exist depends on the driver.
VERSIONED = {
    "utility": ("libnvidia-ml", "libnvidia-cfg", "libnvidia-nscq", "libnvsdm", "libnvidia-sandboxutils"),
    "compute": (
        "libcuda", "libcudadebugger", "libnvidia-opencl", "libnvidia-gpucomp", "libnvidia-ptxjitcompiler",
        "libnvidia-fatbinaryloader", "libnvidia-allocator", "libnvidia-compiler", "libnvidia-pkcs11",
        "libnvidia-pkcs11-openssl3", "libnvidia-nvvm", "libnvidia-tileiras",
    ),
    "video": ("libvdpau_nvidia", "libnvidia-encode", "libnvidia-opticalflow", "libnvcuvid"),
    "graphics": (
        "libnvidia-eglcore", "libnvidia-glcore", "libnvidia-tls", "libnvidia-glsi", "libnvidia-fbc", "libnvidia-ifr",
        "libnvidia-rtcore", "libnvoptix", "libGLX_nvidia", "libEGL_nvidia", "libGLESv2_nvidia", "libGLESv1_CM_nvidia",
        "libnvidia-glvkspirv", "libnvidia-cbl", "libnvidia-gpucomp", "libnvidia-allocator",
        "libnvidia-vulkan-producer", "libnvidia-present", "libnvidia-vksc-core",
        "libGL", "libEGL", "libGLESv1_CM", "libGLESv2",  # of drivers from before GLVND only: else they are not NVIDIA's
    ),
    "ngx": ("libnvidia-ngx",),
}  # fmt: skip

#: Libraries with a version of their own, found by this name.
UNVERSIONED = {
    "compute": ("libnvidia-nvvm70.so.4",),
    "graphics": (
        "libnvidia-api.so.1", "libnvidia-egl-gbm.so.1", "libnvidia-egl-wayland.so.1", "libnvidia-egl-wayland2.so.1",
        "libnvidia-egl-xcb.so.1", "libnvidia-egl-xlib.so.1",
    ),
}  # fmt: skip

BINARIES = {
    "utility": (
        "nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nv-fabricmanager", "nvidia-imex", "nvidia-imex-ctl",
    ),
    "compute": ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
    "graphics": ("nvidia-xconfig",),
}  # fmt: skip
#: Why the directory of the MPS daemon is mounted: by it, the mount is known again.
MPS_REASON = "pipes of the MPS daemon, capability compute"

BINARY_DIRS = (
    "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/run/current-system/sw/bin",
)  # fmt: skip
DEBIAN_DIR = "/usr/lib/nvidia/current"  # behind update-alternatives, which a mere unpacked package lacks

#: Configuration of the loaders of GL, Vulkan and OpenCL: (capability, directory in the container, directory below one of
#: CONFIG_DIRS, file names).
CONFIGS = (
    ("graphics", "/usr/share/glvnd/egl_vendor.d", "glvnd/egl_vendor.d", ("10_nvidia.json",)),
    ("graphics", "/usr/share/egl/egl_external_platform.d", "egl/egl_external_platform.d",
     ("09_nvidia_wayland2.json", "10_nvidia_wayland.json", "15_nvidia_gbm.json", "20_nvidia_xcb.json",
      "20_nvidia_xlib.json")),
    ("graphics", "/usr/share/nvidia", "nvidia", ("nvoptix.bin", "nvidia-application-profiles-VERSION-rc")),
    ("graphics", "/etc/vulkan/icd.d", "vulkan/icd.d",
     ("nvidia_icd.json", "nvidia_icd.x86_64.json", "nvidia_icd.aarch64.json", "nvidia_layers.json")),
    ("graphics", "/etc/vulkan/implicit_layer.d", "vulkan/implicit_layer.d", ("nvidia_layers.json",)),
    ("graphics", "/usr/share/X11/xorg.conf.d", "X11/xorg.conf.d", ("10-nvidia.conf", "nvidia-drm-outputclass.conf")),
    ("compute", "/etc/OpenCL/vendors", "OpenCL/vendors", ("nvidia.icd",)),
)  # fmt: skip
#: Where those directories are, in the order in which the programs look; the root itself is GKE's COS.
CONFIG_DIRS = ("/etc", "/usr/local/share", "/usr/share", "/run/opengl-driver/share", "")
#: Files that a mere unpacked Debian package has elsewhere.
CONFIG_PLACES = {"nvidia-drm-outputclass.conf": "/etc/nvidia/current"}

#: Modules of the X server: file name (``VERSION`` stands for the driver's), its directory below Xorg's modules, link to it.
X_MODULES = (
    ("nvidia_drv.so", "drivers", ""),
    ("libglxserver_nvidia.so.VERSION", "extensions", "libglxserver_nvidia.so"),
    ("libglx.so.VERSION", "extensions", "libglx.so"),  # before GLVND
)
X_DIRS = ("/usr/lib/xorg/modules", "/usr/lib64/xorg/modules", "/usr/X11R6/lib/modules")

#: All driver capabilities there are, in the order in which messages list them.
CAPABILITIES = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")


#: Where images have newer CUDA libraries than those of a driver.
COMPAT_ROOT = "/usr/local/cuda/compat"


def library_capabilities(capabilities: tuple[str, ...]) -> tuple[str, ...]:
    """The capabilities whose libraries *capabilities* need: video needs those of compute, display those of graphics."""
    needed = [c for c in ("utility", "compute", "video", "graphics", "ngx") if c in capabilities]
    if "video" in needed and "compute" not in needed:
        needed.insert(needed.index("video"), "compute")
    if "display" in capabilities and "graphics" not in needed:
        needed.append("graphics")
    return tuple(needed)
