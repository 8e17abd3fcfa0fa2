"""The command line in one table: the machine parser and the help for people are both read from it.

The commands for containers and bundles are in :mod:`gpurun.cli.container_commands`; those for this host, its GPUs, its
clients and its cluster are here.  Plain constants cost nothing to import; :mod:`gpurun.cli.rows` makes records of them for
people.  Names, short names and argument counts are runc's; what other runtimes' callers add is accepted too.
"""

from __future__ import annotations

from gpurun.cli.container_commands import CONTAINER_COMMANDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cli.container_commands import CommandRow, OptionRow

#: The options before the command.
GLOBALS: tuple[OptionRow, ...] = (
    ("root", "", "dir", "keep the state of containers in DIR (default: /run/gpurun, or under $XDG_RUNTIME_DIR)"),
    ("log", "", "file", "append what goes wrong to FILE (or journald:NAME, syslog:NAME); without it, it goes to stderr"),
    ("log-format", "", "text", "format of the log: text or json"),
    ("debug", "", "switch", "log each step"),
    ("systemd-cgroup", "", "switch", "let systemd make the cgroup; cgroupsPath is then slice:prefix:name"),
    ("cgroup-manager", "", "text", "cgroupfs, systemd or disabled (as crun has it)"),
    ("rootless", "", "text", ""),  # true, false or auto: whether to do without cgroup permissions
    ("criu", "", "file", ""),
    ("gpu-map", "", "texts", ""),  # as restore has it, for engines that pass options on only before the command
    ("log-level", "", "text", ""),
    ("help", "h", "switch", "show this help"),
    ("version", "v", "switch", "show the version"),
)

#: Commands whose first argument is a command again, and which there are (:mod:`gpurun.cli.topics` says what they do).  An
#: option whose help begins with some of these and a colon is only for them.
GROUPS: dict[str, tuple[str, ...]] = {
    "gpu": ("list", "leases", "lease", "attach", "detach", "doctor", "explain", "mig"),
    "cdi": ("generate", "refresh", "list", "validate", "transform"),
    "kubernetes": (
        "device-plugin",
        "dra-driver",
        "labels",
        "mig-manager",
        "install-node",
        "uninstall-node",
        "explain",
        "manifests",
    ),
}

_CLIENT = (
    ("dry-run", "", "switch", "show what would be changed, as a diff, and change nothing"),
    (
        "restart",
        "",
        "switch",
        "let systemd restart the client, or reload it; ends Docker's containers, unless live-restore is on",
    ),
    ("reload", "", "switch", "docker: have it read its runtimes again, which ends no container; `--gpus` needs a restart"),
    ("name", "", "text", "the name of the runtime (default: gpurun)"),
    ("path", "", "file", "the program that the client is to call (default: this one)"),
    ("config", "", "file", "the client's configuration (default: the usual file in /etc)"),
    ("user", "", "switch", "docker, podman: the configuration of the user who calls (rootless), in ~/.config"),
)

COMMANDS: dict[str, CommandRow] = {
    **CONTAINER_COMMANDS,
    "gpu": {
        "arguments": "list|leases|lease|attach|detach|doctor|explain|mig ARGS",
        "count": (1, -1), "handler": "gpurun.commands.gpu:gpu",
        "help":
            "list the GPUs of this host and who uses or leases them, give one to a running container or take it away, look "
            "for what keeps containers from using them, or explain what a bundle or variables would bring into a container",
        "options": (
            ("format", "f", "text", "list, leases, doctor, explain: table or json"),
            ("json", "", "switch", "list, leases, doctor, explain: the same as --format json"),
            ("rootless", "", "switch", "doctor: also what this user needs for containers without root (always for users)"),
            ("processes", "", "switch", "list: also memory, load and processes (asks the driver's NVML)"),
            ("capabilities", "", "text", "attach: what the driver is to do (default: what the container has asked for)"),
            ("force", "", "switch", "detach: end the processes that have the device open"),
            ("expire", "", "switch", "leases: warn of those whose time is over, and end the containers if the site says so"),
            ("release", "", "switch", "lease: take the lease away, whatever the container does with its GPUs"),
            ("config-file", "f", "file", "mig: apply, assert: the configurations (a file of mig-parted's), - is stdin"),
            ("selected-config", "c", "text", "mig: apply, assert: which of them, if there are several"),
            ("mode-only", "m", "switch", "mig: apply, assert: only whether MIG is on, not which devices there are"),
            ("skip-reset", "s", "switch", "mig: apply: do not reset GPUs whose mode waits for it"),
            ("valid-config", "a", "switch", "mig: assert: only that the file is right and has the configuration"),
            ("output-format", "o", "text", "mig: export: yaml or json"),
            ("config-label", "l", "text", "mig: export: what the configuration is called (current)"),
        ),
    },
    "install": {
        "arguments": "docker|containerd|podman|crio|kubernetes",
        "count": (1, 1), "handler": "gpurun.toolkit.install:install",
        "help":
            "register this runtime with a client: docker, containerd, podman, crio, or the one of this node's kubelet "
            "(kubernetes)",
        "options": (
            *_CLIENT,
            ("default", "", "switch", "make it the default runtime; else containers name it (`--runtime gpurun`)"),
            ("cdi", "", "switch", "docker, containerd: let the client itself take CDI devices, too"),
            ("drop-in", "", "file", "containerd: into FILE, which the configuration then imports"),
            ("no-names", "", "switch", "without links of makers' names in /usr/local/bin, which `--gpus` needs"),
            ("runtime-class", "", "switch", "kubernetes: only print the RuntimeClass for `kubectl apply -f -`"),
        ),
    },
    "uninstall": {
        "arguments": "docker|containerd|podman|crio|kubernetes|all",
        "count": (1, 1), "handler": "gpurun.toolkit.install:uninstall",
        "help": "undo `install`: remove this runtime from a client's configuration; all: from every one that has it",
        "options": (*_CLIENT, ("drop-in", "", "file", "containerd: the FILE of `install --drop-in`, to remove")),
    },
    "install-names": {
        "arguments": "DIR", "count": (1, 1), "handler": "gpurun.toolkit.names:install_names",
        "help": "let this program be called as nvidia-container-runtime, amd-ctk and so on, by links in DIR",
        "options": (("force", "f", "switch", "replace what is there"), ("maker", "", "text", "whose names: nvidia or amd")),
    },
    "cdi": {
        "arguments": "generate|refresh|list|validate|transform [ARGS]",
        "count": (1, -1), "handler": "gpurun.commands.cdi:cdi",
        "help": "write this host's GPUs as a CDI file, list CDI devices, check CDI files, or move one to another root",
        "options": (
            ("output", "o", "file", "generate, refresh, transform: write FILE; its ending says the format"),
            ("format", "f", "text", "generate, refresh: yaml or json"),
            ("format", "f", "text", "list, validate: table or json"),
            ("json", "", "switch", "list, validate: the same as --format json"),
            (
                "mode", "", "text",
                "generate, refresh: auto, nvml, wsl, csv, management, gds, mofed, gdrcopy, nvswitch, imex, amd or intel",
            ),
            ("device-name-strategy", "", "texts", "generate, refresh: index, uuid or type-index (default: index and uuid)"),
            ("vendor", "", "text", "generate, refresh: the vendor of the kind (nvidia.com)"),
            ("class", "", "text", "generate, refresh: the class of the kind (gpu)"),
            ("device-id", "", "texts", "generate, refresh: these devices only (with commas, or again), or none"),
            ("no-all-device", "", "switch", "generate, refresh: no device `all`"),
            ("driver-root", "", "dir", "generate, refresh: where the driver is installed (/)"),
            ("dev-root", "", "dir", "generate, refresh: where the driver's /dev is (default: found out)"),
            ("library-search-path", "", "texts", "generate, refresh: look for libraries here first"),
            ("nvidia-cdi-hook-path", "", "file", "generate, refresh: the program of the hooks (default: this one)"),
            ("ldconfig-path", "", "file", "generate, refresh: the ldconfig for programs that run one; gpurun runs none"),
            ("disable-hook", "", "texts", "generate, refresh: leave this hook out; all: all of them"),
            ("enable-hook", "", "texts", "generate, refresh: put in a hook that is off by default (chmod)"),
            ("feature-flag", "", "texts", "generate, refresh: a feature of nvidia-ctk's generator"),
            ("spec-dir", "", "texts", "list, validate: look in this directory instead of the configured ones"),
            ("from", "", "dir", "transform: the root to replace"),
            ("to", "", "dir", "transform: the root to put in its place"),
            ("input", "", "file", "transform: read FILE (default: stdin)"),
            ("relative-to", "", "text", "transform: whether the paths on the host or in the container are meant"),
            ("config-search-path", "", "texts", "generate, refresh: look for files of configuration here first"),
            ("csv.file", "", "texts", "generate, refresh: this list of files of a Tegra (default: those of the system)"),
            ("csv.ignore-pattern", "", "texts", "generate, refresh: leave links in these lists out that fit the pattern"),
            ("csv.compat-container-root", "", "dir", "generate, refresh: where images for an Orin have newer libraries"),
        ),
    },
    "kubernetes": {
        "arguments": "device-plugin|dra-driver|labels|install-node|uninstall-node|explain POD|manifests",
        "count": (1, -1), "handler": "gpurun.commands.kubernetes:kubernetes",
        "help": "give a Kubernetes cluster this node's GPUs, by device plugin or DRA driver, and labels; put gpurun there",
        "options": (
            ("node-name", "", "text", "the name of this node in the cluster (default: $NODE_NAME, or the host's name)"),
            ("kubeconfig", "", "file", "how to reach the API server (default: $KUBECONFIG, or as a pod of the cluster)"),
            ("kubelet-dir", "", "dir", "device-plugin, dra-driver, mig-manager, uninstall-node: /var/lib/kubelet"),
            ("cdi-dir", "", "dir", "device-plugin, dra-driver, uninstall-node: where CDI files are (/var/run/cdi)"),
            ("driver-root", "", "dir", "where the driver is installed (/)"),
            ("host-root", "", "dir", "where the host's root is mounted, when this runs in a pod"),
            ("hook-path", "", "file", "device-plugin, dra-driver: the host's program for CDI hooks (default: this one)"),
            ("interval", "", "text", "seconds between two looks at the GPUs"),
            ("health-listen", "", "text", "ADDRESS:PORT of /healthz and /readyz, for the kubelet's probes"),
            ("config-file", "", "file", "device-plugin, labels, mig-manager: NVIDIA's configuration file (version v1)"),
            ("config-dir", "", "dir", "device-plugin, labels: files; the label nvidia.com/device-plugin.config names one"),
            ("default-config", "", "text", "device-plugin, labels, mig-manager: the one for a node without the label"),
            ("vendors", "", "texts", "device-plugin, dra-driver, labels: whose GPUs: nvidia, amd, intel (default: all)"),
            ("mig-strategy", "", "text", "device-plugin, labels: none, single or mixed"),
            ("device-list-strategy", "", "texts", "device-plugin: cdi-cri, cdi-annotations, envvar or volume-mounts"),
            ("device-id-strategy", "", "text", "device-plugin: uuid or index"),
            ("pass-device-specs", "", "switch", "device-plugin: name device nodes too, beside envvar and volume-mounts"),
            ("fail-on-init-error", "", "switch", "device-plugin: end when there are no GPUs (=false: wait for them)"),
            ("memory-shares", "", "switch", "dra-driver: let several claims share a GPU's memory"),
            ("mps-root", "", "dir", "device-plugin, dra-driver: where MPS daemons have their directories (/run/gpurun/mps)"),
            ("output-file", "o", "file", "labels: write them there; - is stdout (default: for Node Feature Discovery)"),
            ("patch-node", "", "switch", "labels, uninstall-node: set or remove them at the node itself"),
            ("use-node-feature-api", "", "switch", "labels: write a NodeFeature object for Node Feature Discovery"),
            ("oneshot", "", "switch", "labels, install-node: once, and end"),
            ("no-timestamp", "", "switch", "labels: leave out nvidia.com/gfd.timestamp"),
            ("engine", "", "text", "install-node: containerd, crio or none (default: the one of this node)"),
            ("install-dir", "", "dir", "install-node: where on the node gpurun is put (/opt/gpurun)"),
            ("runtime-name", "", "text", "install-node: the runtime's name in the engine, a RuntimeClass's handler"),
            ("engine-config", "", "file", "install-node: the engine's configuration (/etc/containerd/config.toml)"),
            ("engine-drop-in", "", "file", "install-node: the file of our own that containerd is to import"),
            ("engine-socket", "", "file", "install-node: the engine's socket (/run/containerd/containerd.sock)"),
            ("restart-mode", "", "text", "install-node: signal, systemd or none (default: containerd signal, crio systemd)"),
            ("default-runtime", "", "switch", "install-node: make it the engine's default runtime"),
            ("no-cdi", "", "switch", "install-node: do not have containerd take CDI devices"),
            ("with-reboot", "", "switch", "mig-manager: reboot the node where a change of the mode needs it"),
            ("values", "", "texts", "manifests: a file of values for the chart, - is stdin"),
            ("namespace", "", "text", "manifests, mig-manager, explain, labels: gpurun's (gpurun), the pod's, the object's"),
            ("kube-version", "", "text", "manifests: the version of Kubernetes that they are for (1.36.0)"),
            ("program", "", "file", "install-node: the gpurun to put there (default: this one)"),
            ("on-exit", "", "text", "install-node: remove, keep or ask (whether the DaemonSet goes on)"),
            ("daemonset", "", "text", "labels, install-node, uninstall-node: NAMESPACE/NAME of the DaemonSet that it is of"),
            ("wait", "", "switch", "uninstall-node: until all is gone, then until a signal"),
            ("ready-file", "", "file", "install-node: a file that is there while gpurun is installed"),
        ),
    },
    "metrics": {
        "arguments": "", "count": (0, 0), "handler": "gpurun.commands.metrics:metrics",
        "help": "serve figures of the GPUs and of each container for Prometheus, by dcgm-exporter's and cAdvisor's names",
        "options": (
            ("listen", "", "text", "ADDRESS:PORT to listen on (127.0.0.1:9400; :9400 is every address)"),
            ("once", "", "switch", "print them once, and end"),
            ("collectors", "f", "file", "which figures of GPUs there are: a file of counters (CSV) of dcgm-exporter's"),
            ("web-config-file", "", "file", "TLS and passwords: a web configuration of Prometheus' exporter-toolkit"),
            ("web.config.file", "", "file", ""),  # as other exporters call it
            ("pod-resources", "", "file", "the kubelet's socket that says which pod has which GPU"),
            ("pod-uid", "", "switch", "ask the API server for the pods' UIDs: the label pod_uid"),
            ("pod-labels", "", "texts", "ask the API server for the pods' labels of whose keys REGEX matches a part"),
            ("node-name", "", "text", "this node's name in the cluster ($NODE_NAME, or the host's)"),
            ("kubeconfig", "", "file", "how to reach the API server ($KUBECONFIG, or the cluster of this pod)"),
            ("driver-root", "", "dir", "where the driver is installed (/)"),
            ("host-root", "", "dir", "where the host's root is mounted, when this runs in a pod"),
        ),
    },
    "hook": {
        "arguments": "prestart|NAME [ARGS]", "count": (1, -1), "stop": 1, "handler": "gpurun.hook.prestart:hook",
        "help": "be the NVIDIA hook of another runtime, or a hook of a CDI file: the container's state is read from stdin",
        "options": (("config", "", "file", "read FILE as the toolkit's config.toml"), ("debug", "", "switch", "")),
    },
}  # fmt: skip
