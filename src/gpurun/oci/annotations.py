"""The annotations of a container that gpurun reads: all of them, and nothing reads one by another name than from here.

An annotation is for whoever runs a container; some of them change what the runtime does as root.  An image can bring labels
of its own, so `gpurun bundle` leaves out those that stand here, and `features` names those that are obeyed
(``potentiallyUnsafeConfigAnnotations``) for engines that let users write annotations.  Pure.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: A key that ends with a dot is the beginning of keys, here and everywhere below.
GPURUN = "dev.gpurun."  # placement policies (gpurun.cgroup.placement), and those for GPUs
GPU = "dev.gpurun.gpu."
GPU_MEMORY, GPU_THREADS = "dev.gpurun.gpu.memory", "dev.gpurun.gpu.threads"  # a share of a GPU
GPU_RESTORE = "dev.gpurun.gpu.restore"  # which GPUs a restored container gets
CDI = "cdi.k8s."  # devices, in the mode `cdi` of NVIDIA's config.toml
CDI_PREFIX = "cdi.k8s.io/"  # how their keys begin, unless that file names other prefixes
CRIU_CONFIG = "org.criu.config"  # a file of settings for CRIU, which may name programs that CRIU runs
SYSTEMD_PROPERTY = "org.systemd.property."  # any property of the container's unit
CRUN = "run.oci."  # crun's, of which these are read here too
CRUN_KEEP_GROUPS = "run.oci.keep_original_groups"
CRUN_SECCOMP_UNKNOWN = "run.oci.seccomp_fail_unknown_syscall"
CRUN_HOOK_OUTPUTS = ("run.oci.hooks.stdout", "run.oci.hooks.stderr")  # files of the host that hooks write to

#: What changes what the runtime does.
OBEYED = (CDI, GPURUN, CRIU_CONFIG, SYSTEMD_PROPERTY, CRUN)
#: What other runtimes obey that can be given the same config.json.
OBEYED_BY_OTHERS = ("bundle", "io.katacontainers.", "module.wasm.image/variant")

#: What names the container and its pod, written by engines: (namespace, pod, container, image).
CONTAINERD_NAMES = (
    "io.kubernetes.cri.sandbox-namespace",
    "io.kubernetes.cri.sandbox-name",
    "io.kubernetes.cri.container-name",
    "io.kubernetes.cri.image-name",
)
CRIO_NAMES = (
    "io.kubernetes.pod.namespace",
    "io.kubernetes.pod.name",
    "io.kubernetes.container.name",
    "io.kubernetes.cri-o.ImageName",
)
NERDCTL_NAME = "nerdctl/name"
#: What tables and refusals call a container by.
NAMES = (*CONTAINERD_NAMES, *CRIO_NAMES, NERDCTL_NAME)

#: ``potentiallyUnsafeConfigAnnotations`` of the features document (runtime-spec features.md); ``bundle`` is only runc's:
#: engines that leave out what is listed leave it out for both.
UNSAFE = tuple(sorted(("bundle", *OBEYED)))


def stands_in(key: str, table: Iterable[str]) -> bool:
    """Whether *key* is one of the keys, or begins with one of the beginnings, in *table*."""
    return any(key.startswith(one) if one.endswith(".") else key == one for one in table)


def split_labels(
    labels: Mapping[str, str], prefixes: tuple[str, ...] = (CDI_PREFIX,), names: tuple[str, ...] = ()
) -> tuple[dict[str, str], tuple[str, ...]]:
    """(the labels of an image that may become annotations, the keys of the others, sorted).

    *prefixes* are those of annotations that name CDI devices on this host; *names* are labels that the site counts by.
    Returns (labels, keys).
    """
    refused = (*OBEYED, *OBEYED_BY_OTHERS, *NAMES, *names)
    kept = {key: value for key, value in labels.items() if not (stands_in(key, refused) or key.startswith(prefixes))}
    return kept, tuple(sorted([key for key in labels if key not in kept]))
