"""Where distributions put the driver, as data, and the two platforms whose driver is no package: WSL and Tegra."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Directories below the root; ``MA`` stands for the multiarch name, ``V`` for the driver's version.

    *plain* has the libraries that Debian leaves in the public directory, *libs* all others; *alternatives*: programs and
    libcuda are behind update-alternatives; *links* are directories that are links.
    """

    libs: str
    plain: str
    libs32: str = ""
    bins: str = "usr/bin"
    vdpau: str = ""  # subdirectory of libs
    vulkan: str = "usr/share/vulkan/icd.d/nvidia_icd.json"
    share: str = "usr/share"
    etc: str = "etc"
    modules: tuple[str, str] = ("usr/lib/xorg/modules/drivers", "usr/lib/xorg/modules/extensions")
    optix: str = "usr/share/nvidia"
    alternatives: bool = False
    ldcache: bool = True
    links: tuple[tuple[str, str], ...] = (("bin", "usr/bin"), ("lib", "usr/lib"))


LAYOUTS = {
    "debian": Layout(
        libs="usr/lib/MA/nvidia/current", plain="usr/lib/MA", libs32="usr/lib/i386-linux-gnu", alternatives=True,
        modules=("usr/lib/nvidia/current", "usr/lib/nvidia/current"), optix="usr/lib/MA/nvidia/current",
    ),
    "ubuntu": Layout(
        libs="usr/lib/MA", plain="usr/lib/MA", libs32="usr/lib/i386-linux-gnu", vdpau="vdpau",
        modules=("usr/lib/xorg/modules/drivers", "usr/lib/MA/nvidia/xorg"),
    ),
    "rhel": Layout(
        libs="usr/lib64", plain="usr/lib64", libs32="usr/lib", vdpau="vdpau",
        vulkan="usr/share/vulkan/icd.d/nvidia_icd.x86_64.json",
        modules=("usr/lib64/xorg/modules/drivers", "usr/lib64/xorg/modules/extensions"),
        links=(("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")),
    ),
    "arch": Layout(
        libs="usr/lib", plain="usr/lib", libs32="usr/lib32", vdpau="vdpau",
        links=(("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib"), ("usr/lib64", "lib"), ("usr/sbin", "bin")),
    ),
    # A driver root of its own: /home/kubernetes/bin/nvidia on GKE's COS.
    "cos": Layout(
        libs="lib64", plain="lib64", bins="bin", vulkan="vulkan/icd.d/nvidia_icd.json", ldcache=False, links=(),
    ),
    "nixos": Layout(
        libs="nix/store/0abc-nvidia-x11-V/lib", plain="nix/store/0abc-nvidia-x11-V/lib", vdpau="vdpau",
        bins="nix/store/0abc-nvidia-x11-V/bin", share="nix/store/0abc-nvidia-x11-V/share",
        vulkan="nix/store/0abc-nvidia-x11-V/share/vulkan/icd.d/nvidia_icd.x86_64.json",
        etc="nix/store/0abc-nvidia-x11-V/etc", optix="nix/store/0abc-nvidia-x11-V/share/nvidia",
        modules=("nix/store/0abc-nvidia-x11-V/lib/xorg/modules/drivers",) * 2, ldcache=False,
        links=(
            ("run/opengl-driver", "/nix/store/0abc-nvidia-x11-V"), ("run/current-system/sw", "/nix/store/0abc-nvidia-x11-V"),
        ),
    ),
}  # fmt: skip

WSL_STORE = "usr/lib/wsl/drivers/nv_dispi.inf_amd64_0123456789abcdef"
#: File in the driver store → SONAME, "" for what is no library.
WSL_FILES = {
    "libcuda.so.1.1": "libcuda.so.1",
    "libcuda_loader.so": "libcuda_loader.so",
    "libnvidia-ptxjitcompiler.so.1": "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-ml.so.1": "libnvidia-ml.so.1",
    "libnvidia-ml_loader.so": "libnvidia-ml_loader.so",
    "libnvidia-encode.so.1": "libnvidia-encode.so.1",
    "libnvdxgdmal.so.1": "libnvdxgdmal.so.1",
    "nvcubins.bin": "",
    "nvcuda.dll": "",
    "nvidia-smi": "",
    "nvidia-readme.txt": "",
}

TEGRA_LISTS = {
    "devices.csv": """# comments and blank lines are left out

dev, /dev/nvhost-ctrl
dev,/dev/nvmap
dev, /dev/of-another-board
""",
    "drivers.csv": """lib, /usr/lib/MA/tegra/libcuda.so.1.1
lib, /usr/lib/MA/tegra/libnvrm_gpu.so
sym, /usr/lib/MA/tegra/libcuda.so.1
sym, /usr/lib/MA/libcuda.so
lib, /usr/lib/MA/tegra/of-another-board.so
lib, /etc/nv_tegra_release
""",
    "l4t.csv": """dir, /usr/lib/MA/tegra-egl
lib, /usr/lib/MA/tegra-egl/ld.so.conf
sym, /usr/lib/MA/tegra-egl/link
dir, /etc/nv_tegra_release
""",
    "vulkan.csv": "lib, /etc/vulkan/icd.d/nvidia_icd.json\n",
}
