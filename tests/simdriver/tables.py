"""What a driver installs, by layout: names, SONAMEs and the functions that tests call."""

from __future__ import annotations

from .elf import Function

#: cuInit's CUDA_ERROR_NO_DEVICE and nvmlInit's NVML_ERROR_DRIVER_NOT_LOADED: what the real libraries say without hardware.
NO_DEVICE, DRIVER_NOT_LOADED = 100, 9

#: Library → SONAME; ``V`` stands for the driver version.
SONAMES = {
    "libcuda": "libcuda.so.1",
    "libcudadebugger": "libcudadebugger.so.1",
    "libnvidia-ml": "libnvidia-ml.so.1",
    "libnvidia-cfg": "libnvidia-cfg.so.1",
    "libnvidia-ptxjitcompiler": "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm": "libnvidia-nvvm.so.4",
    "libnvidia-opencl": "libnvidia-opencl.so.1",
    "libnvidia-gpucomp": "libnvidia-gpucomp.so.V",
    "libnvidia-allocator": "libnvidia-allocator.so.1",
    "libnvidia-encode": "libnvidia-encode.so.1",
    "libnvcuvid": "libnvcuvid.so.1",
    "libnvidia-opticalflow": "libnvidia-opticalflow.so.1",
    "libvdpau_nvidia": "libvdpau_nvidia.so.1",
    "libnvidia-eglcore": "libnvidia-eglcore.so.V",
    "libnvidia-glcore": "libnvidia-glcore.so.V",
    "libnvidia-tls": "libnvidia-tls.so.V",
    "libnvidia-glsi": "libnvidia-glsi.so.V",
    "libGLX_nvidia": "libGLX_nvidia.so.0",
    "libEGL_nvidia": "libEGL_nvidia.so.0",
    "libnvidia-ngx": "libnvidia-ngx.so.1",
}

#: Libraries with their own version: file name → SONAME.
UNVERSIONED = {"libnvidia-egl-gbm.so.1.1.2": "libnvidia-egl-gbm.so.1", "libnvidia-api.so.1": "libnvidia-api.so.1"}

#: Libraries that have a link for linking beside them.
DEV_LINKS = ("libcuda", "libnvidia-ml", "libnvidia-encode", "libnvcuvid", "libnvidia-opticalflow")

NEEDED = {"libnvidia-encode": ("libnvcuvid.so.1",)}

#: On Debian these lie in the plain directory, all others in nvidia/current.
DEBIAN_PLAIN = ("eglcore", "glcore", "glsi", "tls", "gpucomp")

BIN = ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")

MODELS = ("NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090", "Tesla T4")

#: Shows what the container was given, with a shell and nothing else.
NVIDIA_SMI = r"""#!/bin/sh
# A simulated nvidia-smi: lists the GPUs that /proc/driver/nvidia shows.
n=0
for f in /proc/driver/nvidia/gpus/*/information; do
  [ -f "$f" ] || continue
  model= uuid=
  while IFS=: read -r key value; do
    value=$(echo $value)
    case "$key" in Model) model=$value;; "GPU UUID") uuid=$value;; esac
  done <"$f"
  echo "GPU $n: $model (UUID: $uuid)"
  n=$((n + 1))
done
[ $n -gt 0 ] || echo "No devices found."
"""

PARAMS = """ResmanDebugLevel: 4294967295
RmLogonRC: 1
ModifyDeviceFiles: 1
DeviceFileUID: 0
DeviceFileGID: 0
DeviceFileMode: 438
EnableMSI: 1
RegistryDwords: ""
"""


def functions(library: str, version: str) -> tuple[Function, ...]:
    """What *library* exports; the CUDA version is derived from the driver's."""
    major, _, minor = version.partition(".")
    cuda = int(major) * 1000 + int(minor.partition(".")[0] or 0) * 10
    if library == "libcuda":
        return (
            Function("cuInit", NO_DEVICE),
            Function("cuDriverGetVersion", 0, cuda),
            Function("cuDeviceGetCount", NO_DEVICE, 0),
        )
    if library == "libnvidia-ml":
        names = ("nvmlInit_v2", "nvmlInit", "nvmlInitWithFlags", "nvmlShutdown")
        return tuple([Function(name, DRIVER_NOT_LOADED) for name in names])
    return (Function("sim_" + library.replace("-", "_"), 0),)
