"""The command line in one table: the machine parser and the help for people are both read from it.

Rows are plain constants, which cost nothing to import: the machine parser reads them as they are, and
:mod:`gpurun.cli.rows` makes records of them for people.
Names, short names and argument counts are runc's; what other runtimes' callers add is accepted too.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


#: The options before the command: (name, short, kind, help[, visible]), as in :class:`gpurun.cli.rows.Option`.
GLOBALS: tuple[tuple[Any, ...], ...] = (
    ("root", "", "dir", "keep the state of containers in DIR (default: /run/gpurun, or under $XDG_RUNTIME_DIR)"),
    ("log", "", "file", "append what goes wrong to FILE (or journald:NAME, syslog:NAME); without it, it goes to stderr"),
    ("log-format", "", "text", "format of the log: text or json"),
    ("debug", "", "switch", "log each step"),
    ("systemd-cgroup", "", "switch", "let systemd make the cgroup; cgroupsPath is then slice:prefix:name"),
    ("cgroup-manager", "", "text", "cgroupfs, systemd or disabled (as crun has it)"),
    ("rootless", "", "text", "true, false or auto: whether to do without cgroup permissions", False),
    ("criu", "", "file", "ignored", False),
    ("log-level", "", "text", "ignored", False),
    ("help", "h", "switch", "show this help"),
    ("version", "v", "switch", "show the version"),
)

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
    ("no-subreaper", "", "switch", "ignored: gpurun never needs one", False),
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
    ("empty-ns", "", "texts", "a namespace to be left empty: network (which always is)", False),
)
_FORMAT = ("format", "f", "text", "table or json")

#: name: (arguments, least, most, stop, handler, help, options), as in :class:`gpurun.cli.rows.Command`.
COMMANDS: dict[str, tuple[Any, ...]] = {
    "create": (
        "ID", 1, 1, False, "gpurun.commands.lifecycle:create",
        "make a container from a bundle; its process waits for `start`",
        (*_CREATE, ("detach", "d", "switch", "ignored: create always detaches", False)),
    ),
    "start": ("ID", 1, 1, False, "gpurun.commands.lifecycle:start", "run the process of a created container", ()),
    "run": (
        "ID", 1, 1, False, "gpurun.commands.lifecycle:run",
        "create and start; without --detach wait and exit with the container's exit code",
        (
            *_CREATE,
            ("detach", "d", "switch", "do not wait for the container"),
            ("keep", "", "switch", "keep the state of the container after it has exited"),
        ),
    ),
    "state": ("ID", 1, 1, False, "gpurun.commands.inspect:state", "print the state of a container as JSON", ()),
    "kill": (
        "ID [SIGNAL]", 1, 2, True, "gpurun.commands.lifecycle:kill",
        "send a signal (SIGTERM) to the first process of a container",
        (
            ("all", "a", "switch", "obsolete: no error when the container has stopped", False),
            ("regex", "r", "switch", "ID is a regular expression: each container it matches"),
        ),
    ),
    "delete": (
        "ID", 1, 1, False, "gpurun.commands.lifecycle:delete", "remove a stopped container",
        (
            ("force", "f", "switch", "kill it first if it runs; no error if there is none"),
            ("regex", "r", "switch", "ID is a regular expression: each container it matches"),
        ),
    ),
    "list": (
        "", 0, 0, False, "gpurun.commands.inspect:list_containers", "list the containers under --root",
        (_FORMAT, ("quiet", "q", "switch", "only the ids")),
    ),
    "exec": (
        "ID COMMAND", 1, -1, True, "gpurun.commands.exec:execute",
        "run another process in a container; without --detach wait and exit with its exit code",
        (
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
            ("no-subreaper", "", "switch", "ignored: gpurun never needs one", False),
        ),
    ),
    "ps": (
        "ID ARGS", 1, -1, True, "gpurun.commands.control:ps", "list the processes of a container; ARGS are for ps(1)",
        (_FORMAT,),
    ),
    "pause": ("ID", 1, 1, False, "gpurun.commands.control:pause", "stop all processes of a container", ()),
    "resume": ("ID", 1, 1, False, "gpurun.commands.control:resume", "let the processes of a paused container go on", ()),
    "update": (
        "ID", 1, 1, False, "gpurun.commands.control:update", "change the limits of a container",
        (
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
            ("cpu-rt-period", "", "text", "ignored: cgroup v1 only", False),
            ("cpu-rt-runtime", "", "text", "ignored: cgroup v1 only", False),
            ("kernel-memory", "", "text", "ignored: cgroup v1 only", False),
            ("kernel-memory-tcp", "", "text", "ignored: cgroup v1 only", False),
            ("l3-cache-schema", "", "text", "Intel RDT: share of the L3 cache (L3:0=ff)"),
            ("mem-bw-schema", "", "text", "Intel RDT: share of the memory bandwidth (MB:0=50)"),
        ),
    ),
    "events": (
        "ID", 1, 1, False, "gpurun.commands.events:events", "print what a container uses, and when it runs out of memory",
        (
            ("interval", "", "text", "time between two reports, like 5s or 100ms (default: 5s)"),
            ("stats", "", "switch", "print one report and end"),
        ),
    ),
    "checkpoint": (
        "ID", 1, 1, False, "gpurun.commands.checkpoint:checkpoint", "save a running container to files, with CRIU",
        (
            *_CRIU,
            ("leave-running", "", "switch", "let it run on; else it is gone afterwards"),
            ("pre-dump", "", "switch", "save its memory only, and let it run on"),
            ("parent-path", "", "text", "images of the --pre-dump before, relative to --image-path"),
            ("tcp-skip-in-flight", "", "switch", "without TCP connections that are being made"),
            ("link-remap", "", "switch", "link deleted files back where it can be done"),
            ("page-server", "", "text", "send memory to the page server at ADDRESS:PORT"),
            ("status-fd", "", "number", "write a null byte there when the server of --lazy-pages is ready"),
        ),
    ),
    "restore": (
        "ID", 1, 1, False, "gpurun.commands.checkpoint:restore",
        "make a container from what checkpoint has saved; without --detach wait and exit with its exit code",
        (
            _BUNDLE,
            _CONFIG,
            *_CRIU,
            ("console-socket", "", "file", "send the terminal's master side to this Unix socket"),
            ("detach", "d", "switch", "do not wait for the container"),
            ("pid-file", "", "file", "write the pid of the container's first process to FILE"),
            ("tcp-close", "", "switch", "close the TCP connections it had"),
            ("lsm-profile", "", "text", "TYPE:NAME of the security profile to restore it with"),
            ("lsm-mount-context", "", "text", "SELinux context of its mounts"),
            ("no-pivot", "", "switch", "ignored: CRIU makes the root", False),
            ("no-subreaper", "", "switch", "ignored: gpurun never needs one", False),
        ),
    ),
    "spec": (
        "", 0, 0, False, "gpurun.commands.documents:spec", "write a config.json to start from",
        (
            ("bundle", "b", "dir", "write it there (default: the current directory)"),
            ("rootless", "", "switch", "for a container made without root"),
        ),
    ),
    "features": ("", 0, 0, False, "gpurun.commands.documents:features", "print what this runtime supports as JSON", ()),
    "validate": (
        "BUNDLE", 0, 1, False, "gpurun.commands.validate:validate",
        "say everything that is wrong with a config.json; change nothing",
        (_BUNDLE, _CONFIG),
    ),
    "explain": (
        "", 0, 1, False, "gpurun.commands.inspect:explain",
        "show all that create would do with a bundle, and why; change nothing",
        (
            _BUNDLE,
            _CONFIG,
            ("json", "", "switch", "as JSON"),
        ),
    ),
    "gpu": (
        "list|doctor|explain ARGS", 1, -1, False, "gpurun.commands.gpu:gpu",
        "list the GPUs of this host and who uses them, look for what keeps containers from using them, or explain what a "
        "bundle or variables such as NVIDIA_VISIBLE_DEVICES=0 would bring into a container",
        (
            _FORMAT,
            ("json", "", "switch", "the same as --format json"),
            ("processes", "", "switch", "list: also memory, load and processes (asks the driver's NVML)"),
        ),
    ),
    "install-names": (
        "DIR", 1, 1, False, "gpurun.toolkit.names:install_names",
        "let this program be called as nvidia-container-runtime, nvidia-ctk and so on, by links in DIR",
        (("force", "f", "switch", "replace what has such a name there"),),
    ),
    "cdi": (
        "generate|list|validate|transform [ARGS]", 1, -1, False, "gpurun.commands.cdi:cdi",
        "write this host's GPUs as a CDI file, list CDI devices, check CDI files, or move one to another root",
        (
            ("output", "o", "file", "generate, transform: write FILE (default: stdout); its ending says the format"),
            ("format", "f", "text", "generate: yaml or json"),
            ("mode", "", "text", "generate: auto, nvml, wsl, csv, management, gds, mofed, gdrcopy, nvswitch or imex"),
            ("device-name-strategy", "", "texts", "generate: index, uuid or type-index (default: index and uuid)"),
            ("vendor", "", "text", "generate: the vendor of the kind (nvidia.com)"),
            ("class", "", "text", "generate: the class of the kind (gpu)"),
            ("device-id", "", "texts", "generate: only this device"),
            ("no-all-device", "", "switch", "generate: no device `all`"),
            ("driver-root", "", "dir", "generate: where the driver is installed (/)"),
            ("dev-root", "", "dir", "generate: where the driver's /dev is (default: found out)"),
            ("library-search-path", "", "texts", "generate: look for libraries here first"),
            ("nvidia-cdi-hook-path", "", "file", "generate: the program of the hooks (default: this one)"),
            ("ldconfig-path", "", "file", "generate: the ldconfig for programs that run one; gpurun runs none"),
            ("disable-hook", "", "texts", "generate: leave this hook out; all: all of them"),
            ("enable-hook", "", "texts", "generate: put in a hook that is off by default (chmod)"),
            ("feature-flag", "", "texts", "generate: a feature of nvidia-ctk's generator"),
            ("spec-dir", "", "texts", "list, validate: look in this directory instead of the configured ones"),
            ("from", "", "dir", "transform: the root to replace"),
            ("to", "", "dir", "transform: the root to put in its place"),
            ("input", "", "file", "transform: read FILE (default: stdin)"),
            ("relative-to", "", "text", "transform: whether the paths on the host or in the container are meant"),
            ("config-search-path", "", "texts", "generate: look for files of configuration here first"),
            ("csv.file", "", "texts", "generate: this list of files of a Tegra (default: those of the system)"),
            ("csv.ignore-pattern", "", "texts", "generate: leave paths in these lists out that fit the pattern"),
            ("csv.compat-container-root", "", "dir", "ignored: no file of another container is mounted", False),
        ),
    ),
    "hook": (
        "prestart|NAME [ARGS]", 1, -1, True, "gpurun.hook.prestart:hook",
        "be the NVIDIA hook of another runtime, or a hook of a CDI file: the container's state is read from stdin",
        (("config", "", "file", "read FILE as the toolkit's config.toml"), ("debug", "", "switch", "ignored", False)),
    ),
}  # fmt: skip
