"""The commands for containers and bundles: their rows of :mod:`gpurun.cli.table`, and what a row is."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NotRequired, TypedDict

    #: (name, short name, kind, help), as in :class:`gpurun.cli.rows.Option`.  One without help is accepted for callers that
    #: send it, ignored unless a comment says otherwise, and not shown.
    OptionRow = tuple[str, str, str, str]

    class CommandRow(TypedDict):
        """A command: *count* is the least and the most arguments; the rest is as in :class:`gpurun.cli.rows.Command`."""

        arguments: str
        count: tuple[int, int]
        stop: NotRequired[int]
        handler: str
        help: str
        options: NotRequired[tuple[OptionRow, ...]]


_BUNDLE = ("bundle", "b", "dir", "the bundle: the directory with config.json (default: the current one)")
_CONFIG = ("config", "f", "file", "read FILE instead of the bundle's config.json")
_CREATE = (
    _BUNDLE,
    _CONFIG,
    ("console-socket", "", "file", "send the terminal's master side to this Unix socket"),
    ("pidfd-socket", "", "file", "send a pidfd of the container's first process to this Unix socket"),
    ("pid-file", "", "file", "write the pid of the container's first process to FILE"),
    ("no-pivot", "", "switch", "use MS_MOVE and chroot instead of pivot_root (for a rootfs on the initial ramdisk)"),
    ("no-new-keyring", "", "switch", "keep the caller's session keyring"),
    ("preserve-fds", "", "number", "hand N more file descriptors to the container, from 3 on"),
    ("no-subreaper", "", "switch", ""),  # gpurun never needs one
)
_CRIU = (
    ("image-path", "", "dir", "the directory of the images (default: ./checkpoint)"),
    ("work-path", "", "dir", "where CRIU keeps its log and temporary files (default: the images' directory)"),
    ("tcp-established", "", "switch", "with open TCP connections"),
    ("ext-unix-sk", "", "switch", "with Unix sockets that lead outside"),
    ("shell-job", "", "switch", "with a terminal that is the caller's"),
    ("file-locks", "", "switch", "with file locks"),
    ("lazy-pages", "", "switch", "bring memory over when it is needed (userfaultfd)"),
    ("auto-dedup", "", "switch", "drop memory images that are not needed any more"),
    ("manage-cgroups-mode", "", "text", "how cgroups are treated: soft, full, strict or ignore"),
    ("network-lock", "", "text", "what holds TCP connections meanwhile: iptables, nftables or skip"),
    ("empty-ns", "", "texts", ""),  # a namespace to be left empty: network (which always is)
)
#: Of each command whose answer is for people and for programs; Invocation.form says which is meant.
_JSON = ("json", "", "switch", "the same as --format json")
_OUTPUT = (("format", "f", "text", "table or json"), _JSON)
_OUTPUT_BESIDE_CONFIG = (("format", "", "text", "table or json"), _JSON)  # where -f is --config

#: The commands for containers and bundles, most of them runc's.
CONTAINER_COMMANDS: dict[str, CommandRow] = {
    "create": {
        "arguments": "ID", "count": (1, 1), "handler": "gpurun.commands.lifecycle:create",
        "help": "make a container from a bundle; its process waits for `start`",
        "options": (*_CREATE, ("detach", "d", "switch", "")),  # create always detaches
    },
    "start": {
        "arguments": "ID", "count": (1, 1), "handler": "gpurun.commands.lifecycle:start",
        "help": "run the process of a created container",
    },
    "run": {
        "arguments": "ID", "count": (1, 1), "handler": "gpurun.commands.lifecycle:run",
        "help": "create and start; without --detach wait and exit with the container's exit code",
        "options": (
            *_CREATE,
            ("detach", "d", "switch", "do not wait for the container"),
            ("keep", "", "switch", "keep the state of the container after it has exited"),
            ("network", "", "text", "a network of /etc/cni/net.d by its name, made by CNI plugins"),
            ("trace", "", "file", "write the launch as a timeline: FILE.svg, FILE.html, else text (needs strace)"),
        ),
    },
    "state": {
        "arguments": "ID", "count": (1, 1), "handler": "gpurun.commands.inspect:state",
        "help": "print the state of a container, as JSON unless a table is asked for",
        "options": _OUTPUT,
    },
    "kill": {
        "arguments": "ID [SIGNAL]", "count": (1, 2), "stop": 1, "handler": "gpurun.commands.lifecycle:kill",
        "help": "send a signal (SIGTERM) to the first process of a container",
        "options": (
            ("all", "a", "switch", ""),  # obsolete: no error when the container has stopped
            ("regex", "r", "switch", "ID is a regular expression: each container it matches"),
        ),
    },
    "delete": {
        "arguments": "ID", "count": (1, 1), "handler": "gpurun.commands.lifecycle:delete",
        "help": "remove a stopped container",
        "options": (
            ("force", "f", "switch", "kill it first if it runs; no error if there is none"),
            ("regex", "r", "switch", "ID is a regular expression: each container it matches"),
        ),
    },
    "list": {
        "arguments": "", "count": (0, 0), "handler": "gpurun.commands.inspect:list_containers",
        "help": "list the containers under --root",
        "options": (
            *_OUTPUT,
            ("quiet", "q", "switch", "only the ids"),
            ("all", "a", "switch", "also those of Docker, containerd and Podman, by the engine's own names"),
        ),
    },
    "exec": {
        "arguments": "ID COMMAND", "count": (1, -1), "stop": 1, "handler": "gpurun.commands.exec:execute",
        "help": "run another process in a container; without --detach wait and exit with its exit code",
        "options": (
            ("process", "p", "file", "the process as a JSON file (the `process` object of config.json)"),
            ("detach", "d", "switch", "do not wait for the process"),
            ("pid-file", "", "file", "write the pid of the process to FILE"),
            ("tty", "t", "switch", "give the process a terminal"),
            ("console-socket", "", "file", "send the terminal's master side to this Unix socket"),
            ("pidfd-socket", "", "file", "send a pidfd of the process to this Unix socket"),
            ("cwd", "", "text", "working directory in the container"),
            ("env", "e", "texts", "set the variable NAME=VALUE"),
            ("user", "u", "text", "UID[:GID] of the process"),
            ("additional-gids", "g", "texts", "one more group of the process"),
            ("cap", "c", "texts", "one more capability of the process"),
            ("no-new-privs", "", "switch", "the process cannot gain privileges by execve"),
            ("process-label", "", "text", "SELinux label of the process"),
            ("apparmor", "", "text", "AppArmor profile of the process"),
            ("preserve-fds", "", "number", "hand N more file descriptors to the process, from 3 on"),
            ("cgroup", "", "texts", "put the process into this cgroup below the container's"),
            ("ignore-paused", "", "switch", "in a paused container, let the process wait until it goes on"),
            ("no-subreaper", "", "switch", ""),  # gpurun never needs one
        ),
    },
    "ps": {
        "arguments": "ID ARGS", "count": (1, -1), "stop": 1, "handler": "gpurun.commands.control:ps",
        "help": "list the processes of a container; ARGS are for ps(1)",
        "options": _OUTPUT,
    },
    "pause": {
        "arguments": "ID", "count": (1, 1), "handler": "gpurun.commands.control:pause",
        "help": "stop all processes of a container",
    },
    "resume": {
        "arguments": "ID", "count": (1, 1), "handler": "gpurun.commands.control:resume",
        "help": "let the processes of a paused container go on",
    },
    "update": {
        "arguments": "ID", "count": (1, 1), "handler": "gpurun.commands.control:update",
        "help": "change the limits of a container",
        "options": (
            ("resources", "r", "file", "read them from FILE (`linux.resources` of config.json), - is stdin"),
            ("memory", "", "text", "memory limit in bytes (also 512m, 1g; -1: none)"),
            ("memory-reservation", "", "text", "memory that is taken back last"),
            ("memory-swap", "", "text", "limit of memory and swap together"),
            ("cpu-share", "", "text", "share of the CPUs, 2 to 262144 (1024: the default)"),
            ("cpu-quota", "", "text", "microseconds of CPU in each period (-1: no limit)"),
            ("cpu-period", "", "text", "length of the period in microseconds"),
            ("cpu-burst", "", "text", "microseconds that may be saved up for later periods"),
            ("cpu-idle", "", "text", "1: run only when nothing else wants the CPU"),
            ("cpuset-cpus", "", "text", "CPUs to run on (0-3,7)"),
            ("cpuset-mems", "", "text", "memory nodes to use"),
            ("pids-limit", "", "text", "how many processes there may be (-1: no limit)"),
            ("blkio-weight", "", "text", "share of the block devices, 10 to 1000"),
            ("cpu-rt-period", "", "text", ""),  # cgroup v1 only
            ("cpu-rt-runtime", "", "text", ""),  # cgroup v1 only
            ("kernel-memory", "", "text", ""),  # cgroup v1 only
            ("kernel-memory-tcp", "", "text", ""),  # cgroup v1 only
            ("gpus", "", "text", "the GPUs that it is to have from now on, with commas, or none: see `gpu attach`"),
            ("l3-cache-schema", "", "text", "Intel RDT: share of the L3 cache (L3:0=ff)"),
            ("mem-bw-schema", "", "text", "Intel RDT: share of the memory bandwidth (MB:0=50)"),
        ),
    },
    "events": {
        "arguments": "ID", "count": (1, 1), "handler": "gpurun.commands.events:events",
        "help": "print what a container uses, and when it runs out of memory",
        "options": (
            ("interval", "", "text", "time between two reports, like 5s or 100ms (default: 5s)"),
            ("stats", "", "switch", "print one report and end"),
        ),
    },
    "stats": {
        "arguments": "ID...", "count": (0, -1), "handler": "gpurun.commands.stats:stats",
        "help": "show what containers use, again and again: processor, memory, pressure, disks, processes, GPUs",
        "options": (
            *_OUTPUT,
            ("once", "", "switch", "show it once, and end"),
            ("interval", "", "text", "time between two looks, like 5s or 100ms (default: 1s)"),
        ),
    },
    "checkpoint": {
        "arguments": "ID", "count": (1, 1), "handler": "gpurun.commands.checkpoint:checkpoint",
        "help": "save a running container to files, with CRIU",
        "options": (
            *_CRIU,
            ("leave-running", "", "switch", "let it run on; else it is gone afterwards"),
            ("pre-dump", "", "switch", "save its memory only, and let it run on"),
            ("parent-path", "", "text", "images of the --pre-dump before, relative to --image-path"),
            ("tcp-skip-in-flight", "", "switch", "without TCP connections that are being made"),
            ("link-remap", "", "switch", "link deleted files back where it can be done"),
            ("page-server", "", "text", "send memory to the page server at ADDRESS:PORT"),
            ("status-fd", "", "number", "write a null byte there when the server of --lazy-pages is ready"),
        ),
    },
    "restore": {
        "arguments": "ID", "count": (1, 1), "handler": "gpurun.commands.checkpoint:restore",
        "help": "make a container from what checkpoint has saved; without --detach wait and exit with its exit code",
        "options": (
            _BUNDLE,
            _CONFIG,
            *_CRIU,
            ("console-socket", "", "file", "send the terminal's master side to this Unix socket"),
            ("detach", "d", "switch", "do not wait for the container"),
            ("pid-file", "", "file", "write the pid of the container's first process to FILE"),
            ("tcp-close", "", "switch", "close the TCP connections it had"),
            ("gpu-map", "", "texts", "OLD=NEW: give it the GPU NEW in the place of OLD, each by index or UUID"),
            ("lsm-profile", "", "text", "TYPE:NAME of the security profile to restore it with"),
            ("lsm-mount-context", "", "text", "SELinux context of its mounts"),
            ("no-pivot", "", "switch", ""),  # CRIU makes the root
            ("no-subreaper", "", "switch", ""),  # gpurun never needs one
        ),
    },
    "spec": {
        "arguments": "", "count": (0, 0), "handler": "gpurun.commands.documents:spec",
        "help": "write a config.json to start from",
        "options": (
            ("bundle", "b", "dir", "write it there (default: the current directory)"),
            ("rootless", "", "switch", "for a container made without root"),
        ),
    },
    "bundle": {
        "arguments": "SOURCE [COMMAND...]", "count": (1, -1), "stop": 2, "handler": "gpurun.commands.bundle:bundle",
        "help": "make a bundle of an image that skopeo knows (docker://..., oci:...), an archive, a tarball or a directory",
        "options": (
            ("output", "o", "dir", "the bundle, a directory that is made"),
            ("tag", "", "text", "which image of a directory or an archive, where there are several"),
            ("architecture", "", "text", "for which machines, where the image is for several (default: this one)"),
            ("max-size", "", "text", "how large the image may be, like 10g (default: 64g)"),
        ),
    },
    "features": {
        "arguments": "", "count": (0, 0), "handler": "gpurun.commands.documents:features",
        "help": "print what this runtime supports, as JSON unless a table is asked for",
        "options": _OUTPUT,
    },
    "validate": {
        "arguments": "BUNDLE", "count": (0, 1), "handler": "gpurun.commands.validate:validate",
        "help": "say everything that is wrong with a config.json; change nothing",
        "options": (_BUNDLE, _CONFIG, *_OUTPUT_BESIDE_CONFIG),
    },
    "explain": {
        "arguments": "BUNDLE", "count": (0, 2), "handler": "gpurun.commands.explain:explain",
        "help": "show all that create would do with a bundle, and why, or what keeps it from it; change nothing",
        "options": (
            _BUNDLE,
            _CONFIG,
            *_OUTPUT_BESIDE_CONFIG,
            ("diff", "", "switch", "of two bundles: only what is done for one of both (exit code 1: they differ)"),
            ("running", "", "text", "what was done for the container ID, and which limits have changed since"),
        ),
    },
}  # fmt: skip
