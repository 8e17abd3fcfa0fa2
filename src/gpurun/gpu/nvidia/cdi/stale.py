"""CDI files written for another driver than the one that is loaded.

A file of ``nvidia-ctk`` or ``gpurun cdi generate`` names the driver's version in its hooks and in the names of libraries.
After a driver update it mounts files that are gone, or a userspace that does not fit the kernel module.
"""

from __future__ import annotations

from gpurun.gpu.nvidia.host.driver import module_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.document import CdiSpec
    from gpurun.cdi.files import Registry
    from gpurun.gpu.nvidia.host.roots import Roots

_LIBRARIES = ("libcuda.so.", "libnvidia-ml.so.")
_OPTION = "--host-driver-version"


def library_version(path: str) -> str:
    """The driver's version in the name of one of its own libraries, empty for any other file."""
    name = path.rpartition("/")[2]
    for stem in _LIBRARIES:
        version = name.removeprefix(stem)
        if name.startswith(stem) and "." in version and version.replace(".", "").isdigit():
            return version
    return ""


def driver_versions(spec: CdiSpec) -> tuple[str, ...]:
    """The driver versions for which *spec* was written, as far as it shows; usually one or none."""
    found: dict[str, None] = {}
    for edits in (spec.edits, *[device.edits for device in spec.devices]):
        for hook in edits.hooks:
            for i, word in enumerate(hook.args):
                name, equals, value = word.partition("=")
                if name == _OPTION:
                    found[value if equals else "".join(hook.args[i + 1 : i + 2])] = None
        for mount in edits.mounts:
            found[library_version(mount.container_path)] = None
    found.pop("", None)
    return tuple(found)


def stale_files(registry: Registry, roots: Roots) -> tuple[str, ...]:
    """A sentence for each file of *registry* that was written for another driver version than the loaded one."""
    evidence = [(file.path, versions) for file in registry.files if (versions := driver_versions(file.spec))]
    loaded = module_version(roots) if evidence else ""
    if not loaded:
        return ()
    return tuple(
        [
            f"{path} was written for the NVIDIA driver {', '.join(versions)}, this host runs {loaded}: write it anew with "
            f'`gpurun cdi generate --output {path}`, or set mode = "jit-cdi" in config.toml to do without files'
            for path, versions in evidence
            if loaded not in versions
        ]
    )
