"""What the help for people says beside the table: sections of commands, commands below a command, an example of each.

A test holds that every command is in one section and has an example, and that every example is a good command line.
"""

from __future__ import annotations

#: Title → its commands, in the order in which the help lists them.
SECTIONS: dict[str, tuple[str, ...]] = {
    "The life of a container": ("create", "start", "run", "state", "kill", "delete", "list"),
    "Running containers": ("exec", "ps", "pause", "resume", "update", "events", "stats", "checkpoint", "restore"),
    "Before it runs": ("bundle", "spec", "validate", "explain", "features"),
    "GPUs": ("gpu", "cdi", "hook"),
    "Clients": ("install", "uninstall", "install-names"),
    "Clusters": ("kubernetes", "metrics"),
}

#: Group → command below it → (its arguments, what it does).
BELOW: dict[str, dict[str, tuple[str, str]]] = {
    "gpu": {
        "list": ("", "list the GPUs of this host, their MIG devices, and the containers that have them"),
        "leases": ("", "list the containers that have leased GPUs, since when, and who waits for some"),
        "lease": ("CONTAINER", "take the lease of a container away, by its id or its engine's name"),
        "attach": ("CONTAINER DEVICE...", "give GPUs to a container that runs: by index, UUID, CDI name or free:N"),
        "detach": ("CONTAINER DEVICE...", "take GPUs from a container that runs"),
        "doctor": ("", "look for what keeps containers from using the GPUs of this host, and say what to do"),
        "explain": (
            "BUNDLE|NAME=VALUE...",
            "show what a bundle, or variables such as NVIDIA_VISIBLE_DEVICES=0, would bring into a container, and why",
        ),
        "mig": (
            "apply|assert|export|generate-config",
            "divide GPUs by MIG as a file of mig-parted's says, or write such a file",
        ),
    },
    "cdi": {
        "generate": ("", "write this host's GPUs as a CDI file, for every runtime that knows CDI"),
        "refresh": ("", "write the CDI file of this host's GPUs anew if the driver, a GPU or a MIG device has changed"),
        "list": ("", "list the names of the CDI devices that there are"),
        "validate": ("[FILE...]", "say everything that is wrong with CDI files, and which are older than the driver"),
        "transform": ("root", "move the paths of a CDI file to another root"),
    },
    "kubernetes": {
        "device-plugin": ("", "offer this node's GPUs to the kubelet, as nvidia.com/gpu and MIG devices, shared if wanted"),
        "dra-driver": ("", "offer this node's GPUs by dynamic resource allocation (ResourceSlices and claims)"),
        "labels": ("", "say in labels of the node which GPUs it has"),
        "mig-manager": ("", "divide this node's GPUs by MIG as its label nvidia.com/mig.config says"),
        "install-node": ("", "put gpurun on the node whose root --host-root is, and take it away again at the end"),
        "uninstall-node": ("", "take away from the node everything that gpurun has put there"),
        "explain": ("POD", "say why a pod is Pending: who has the GPUs, and what excludes which"),
        "manifests": ("", "print what brings gpurun onto a cluster, for `kubectl apply -f -`"),
    },
}

#: Command, with what comes after it → examples; a line that begins with # says what the next one is for.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "create": ("gpurun create --bundle /srv/bundle web", "gpurun start web"),
    "start": ("gpurun start web",),
    "run": (
        "gpurun run --bundle /srv/bundle web",
        "# how a container comes to be, step by step, as a picture",
        "gpurun run --trace launch.svg --bundle /srv/bundle web",
    ),
    "state": ("gpurun state web",),
    "kill": ("gpurun kill web SIGTERM", "gpurun kill --regex 'job-[0-9]+' KILL"),
    "delete": ("gpurun delete web", "gpurun delete --force web"),
    "list": ("gpurun list", "gpurun list --format json", "# whatever engine and whatever runtime", "gpurun list --all"),
    "exec": ("gpurun exec --tty web sh", "gpurun exec --env LANG=C --user 1000:1000 web id"),
    "ps": ("gpurun ps web", "gpurun ps web -o pid,rss,args"),
    "pause": ("gpurun pause web",),
    "resume": ("gpurun resume web",),
    "update": ("gpurun update --memory 2g --pids-limit 500 web",),
    "events": ("gpurun events --stats web", "gpurun events --interval 1s web"),
    "stats": ("gpurun stats", "gpurun stats --once web", "gpurun stats --json --interval 10s"),
    "checkpoint": ("gpurun checkpoint --image-path /srv/images/web web",),
    "restore": ("gpurun restore --bundle /srv/bundle --image-path /srv/images/web web",),
    "bundle": (
        "gpurun bundle --output /srv/bundle docker://debian:stable-slim",
        "# what `docker save` or `skopeo copy docker://... oci:image` has written",
        "gpurun bundle --output /srv/bundle image.tar",
        "gpurun bundle --output /srv/bundle oci:image:latest",
        "# another program than the image's own",
        "gpurun bundle --output /srv/bundle image.tar sh -c 'nvidia-smi; sleep 60'",
    ),
    "spec": ("gpurun spec --bundle /srv/bundle",),
    "validate": ("gpurun validate /srv/bundle",),
    "explain": (
        "# all that create would do with this bundle; exit code 1 when it would fail",
        "gpurun explain /srv/bundle",
        "# what is done for one of them alone",
        "gpurun explain --diff /srv/bundle /srv/other",
        "gpurun explain --running web",
        "# with systemd as the maker of the cgroup, for a program",
        "gpurun --systemd-cgroup explain --json /srv/bundle",
    ),
    "features": ("gpurun features",),
    "gpu": ("gpurun gpu list", "gpurun gpu doctor"),
    "gpu list": ("gpurun gpu list --processes", "gpurun gpu list --json"),
    "gpu leases": ("gpurun gpu leases", "gpurun gpu leases --json", "gpurun gpu leases --expire"),
    "gpu lease": ("gpurun gpu lease --release web-1",),
    "gpu attach": ("gpurun gpu attach web-1 0", "gpurun gpu attach --capabilities compute,utility,video web-1 free:2"),
    "gpu detach": ("gpurun gpu detach web-1 0", "gpurun gpu detach --force web-1 0 1"),
    "gpu doctor": (
        "# exit code 1 when something does not work",
        "gpurun gpu doctor",
        "# for a program",
        "gpurun gpu doctor --json",
    ),
    "gpu explain": (
        "gpurun gpu explain NVIDIA_VISIBLE_DEVICES=0 NVIDIA_DRIVER_CAPABILITIES=all",
        "gpurun gpu explain /srv/bundle",
    ),
    "gpu mig": (
        "gpurun gpu mig apply -f /etc/gpurun/mig.yaml -c all-balanced",
        "# exit code 1 unless the GPUs are divided so; nothing is changed",
        "gpurun gpu mig assert -f /etc/gpurun/mig.yaml -c all-balanced",
        "gpurun gpu mig export",
        "gpurun gpu mig generate-config >/etc/gpurun/mig.yaml",
    ),
    "cdi": ("gpurun cdi generate --output /etc/cdi/nvidia.yaml", "gpurun cdi list"),
    "cdi generate": (
        "# this host's GPUs, for Docker, Podman, containerd and CRI-O",
        "gpurun cdi generate --output /etc/cdi/nvidia.yaml",
        "# two of them, by index alone, on stdout",
        "gpurun cdi generate --device-id 0,1 --device-name-strategy index",
        "# NVSwitches, under a kind of their own",
        "gpurun cdi generate --mode nvswitch --class nvswitch -o /etc/cdi/nvswitch.yaml",
    ),
    "cdi refresh": (
        "# as the package's service does when a driver, a GPU or a MIG device changes",
        "gpurun cdi refresh",
        "# AMD's GPUs alone, /run/cdi/amd.yaml",
        "gpurun cdi refresh --mode amd",
    ),
    "cdi list": ("gpurun cdi list", "gpurun cdi list --spec-dir /run/cdi"),
    "cdi validate": ("gpurun cdi validate", "gpurun cdi validate /etc/cdi/nvidia.yaml"),
    "cdi transform": (
        "# what was written for a driver below that root, for another root",
        "gpurun cdi transform root --from /run/nvidia/driver --to / --input nvidia.yaml",
    ),
    "kubernetes": ("gpurun kubernetes device-plugin", "gpurun kubernetes labels --patch-node --oneshot"),
    "kubernetes device-plugin": (
        "gpurun kubernetes device-plugin --config-file /etc/gpurun/device-plugin.yaml",
        "# MIG devices under names of their own",
        "gpurun kubernetes device-plugin --mig-strategy mixed",
        "# for a runtime without CDI",
        "gpurun kubernetes device-plugin --device-list-strategy envvar",
    ),
    "kubernetes dra-driver": ("gpurun kubernetes dra-driver --node-name node-1",),
    "kubernetes mig-manager": ("gpurun kubernetes mig-manager --config-file /etc/gpurun/mig.yaml",),
    "metrics": ("gpurun metrics --once", "gpurun metrics --listen :9400"),
    "kubernetes explain": ("gpurun kubernetes explain train-0", "gpurun kubernetes explain team-a/train-0"),
    "kubernetes manifests": (
        "gpurun kubernetes manifests",
        "# with values of the chart, without helm",
        "gpurun kubernetes manifests --values values.yaml --namespace gpus",
    ),
    "kubernetes labels": (
        "# without Node Feature Discovery",
        "gpurun kubernetes labels --patch-node",
        "# what it would write",
        "gpurun kubernetes labels --oneshot --output-file -",
    ),
    "kubernetes install-node": (
        "# in a pod, which has the root of the node at /host",
        "gpurun kubernetes install-node --host-root /host --oneshot",
    ),
    "kubernetes uninstall-node": ("gpurun kubernetes uninstall-node --host-root /host",),
    "install": (
        "# what would be written to /etc/docker/daemon.json",
        "gpurun install docker --dry-run",
        "gpurun install docker --restart",
        "# for all containers that name no other runtime",
        "gpurun install podman --default",
        "# on each node, then once for the cluster",
        "gpurun install kubernetes --restart",
        "gpurun install kubernetes --runtime-class",
    ),
    "uninstall": ("gpurun uninstall docker --dry-run", "gpurun uninstall docker --restart"),
    "install-names": ("gpurun install-names /usr/local/bin",),
    "hook": (
        "# what runc calls, with the container's state on stdin",
        "gpurun hook prestart",
    ),
}

#: For the manual: what gpurun is, then (name, what it is) of the files, variables and exit codes.
DESCRIPTION = """\
gpurun makes and runs containers from bundles, as the OCI runtime specification has them: a directory with a
config.json and a root file system. containerd, Docker, Podman and CRI-O call it as they call runc(8), with the same
commands, options, texts and exit codes.

A container that asks for GPUs (NVIDIA_VISIBLE_DEVICES, CDI names) gets them when it is created: no hook, no wrapper and
no other program is needed. Called as one of NVIDIA's or AMD's programs (nvidia-container-runtime, nvidia-ctk, amd-ctk
and so on), gpurun is that program.
"""
FILES = (
    ("/run/gpurun", "the state of root's containers; $XDG_RUNTIME_DIR/gpurun for others"),
    ("/etc/gpurun/config.toml", "what the site asks for all of its containers"),
    ("/etc/nvidia-container-runtime/config.toml", "the configuration of NVIDIA's toolkit, which is followed"),
    ("/etc/cdi, /var/run/cdi", "files of the Container Device Interface"),
    ("/var/cache/gpurun", "gpurun, compiled for a Python that it was not built for"),
)
ENVIRONMENT = (
    ("GPURUN_CONFIG", "another file than /etc/gpurun/config.toml"),
    ("GPURUN_GPU_CACHE", "off: look for the driver at each create"),
    ("NO_COLOR", "no colours"),
    ("COLUMNS", "the width of what people read"),
)
EXIT = (
    ("0", "the command did what it is for; run and exec: the exit code of the program"),
    ("1", "it did not, and says why on stderr and in the log"),
    ("3", "there is no such command"),
)
