"""The site's policy, from the file that the NVIDIA container toolkit reads: ``nvidia-container-runtime/config.toml``.

The same file and the same words, so that moving to gpurun keeps what the administrator decided.  Keys that gpurun has no
use for are in :data:`UNUSED`, each with the reason.  Unknown keys have no effect, as in the toolkit, and give a warning,
because most of them are misspelt.
"""

from __future__ import annotations

from gpurun.errors import ConfigError, clean
from gpurun.gpu.host.reads import read_bytes
from gpurun.gpu.nvidia.host.file_names import CAPABILITIES
from gpurun.gpu.nvidia.request.records import Policy
from gpurun.oci.annotations import CDI_PREFIX
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeVar

    from gpurun.gpu.nvidia.host.roots import Roots

    T = TypeVar("T")

DEFAULT_PATH = "/etc/nvidia-container-runtime/config.toml"

_CLI, _RUNTIME, _HOOK = "nvidia-container-cli", "nvidia-container-runtime", "nvidia-container-runtime-hook"
_NO_COMPAT = "disable-cuda-compat-lib-hook"
_IGNORE_IMEX, _NO_GIDS, NO_IMEX_NODES = (
    "ignore-imex-channel-requests",
    "no-additional-gids-for-device-nodes",
    "disable-imex-channel-creation",
)
_FEATURES = tuple(sorted([_NO_COMPAT, _IGNORE_IMEX, _NO_GIDS, NO_IMEX_NODES]))
MODES = ("auto", "cdi", "csv", "jit-cdi", "legacy")
COMPAT_MODES = ("ldconfig", "mount", "disabled", "hook")
_LOG_LEVELS = ("panic", "fatal", "error", "warn", "warning", "info", "debug", "trace")

#: Keys of the toolkit that change nothing here, and why.
UNUSED = {
    f"{_CLI}.path": "no other program is run",
    f"{_CLI}.debug": "there is no such program to write it; gpurun has --log and --debug",
    f"{_CLI}.user": "NVML runs in a process of its own, as the caller",
    f"{_CLI}.no-pivot": "no ldconfig is run, so nothing pivots for it",
    f"{_CLI}.ldconfig": "no ldconfig is run: the loader's cache is composed",
    f"{_RUNTIME}.runtimes": "gpurun is the runtime",
    f"{_HOOK}.path": "the hook is built in",
    "nvidia-ctk.path": "hooks of specifications that gpurun writes name gpurun",
    "features.allow-cuda-compat-libs-from-container": "files of an image are never mount sources",
    "features.allow-ldconfig-from-container": "no program of an image is run",
    "features.allow-unknown-oci-spec-fields": "unknown fields are always allowed",
}
_HINT = "`nvidia-ctk config default` and docs/nvidia.md list the keys"
_MAX_TOLD = 5


class Settings(Record):
    """What the file says: *policy* for requests; the rest for the discovery, the injection and the stand-alone hook.

    *features* are the names below ``[features]`` that are true.  ``[gpurun]`` is a table of our own (the toolkit ignores
    it): *dev_root* and *library_dirs* as in :class:`gpurun.gpu.nvidia.host.roots.Roots`; *filter_engine_devices* is for
    GPUs that an engine itself has given (:mod:`gpurun.gpu.nvidia.edits.injected`); *gpu_cache* whether answers are
    remembered; *excluded_devices* are not among ``all``; with *cuda_visible_devices* a privileged container gets a variable
    with the GPUs that are its own.  *warnings* tell of keys and values that mean nothing.
    """

    policy: Policy = Policy()
    driver_root: str = "/"
    no_cgroups: bool = False
    mode: str = "auto"
    skip_mode_detection: bool = False
    load_kmods: bool = True
    ldcache: str = ""
    cli_environment: tuple[str, ...] = ()  # K=V, as if they stood in gpurun's own environment
    cuda_compat_mode: str = "ldconfig"
    log_file: str = ""  # of the runtime; empty for none
    log_level: str = "info"
    annotation_prefixes: tuple[str, ...] = (CDI_PREFIX,)
    default_kind: str = "nvidia.com/gpu"
    spec_dirs: tuple[str, ...] = ("/etc/cdi", "/var/run/cdi")
    csv_dir: str = "/etc/nvidia-container-runtime/host-files-for-container.d"
    csv_compat_root: str = ""
    jit_feature_flags: tuple[str, ...] = ()
    jit_disabled_hooks: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    dev_root: str = ""
    library_dirs: tuple[str, ...] = ()
    filter_engine_devices: bool = True
    gpu_cache: bool = True
    excluded_devices: tuple[str, ...] = ()
    cuda_visible_devices: bool = False
    warnings: tuple[str, ...] = ()

    def environment(self, own_env: Mapping[str, str]) -> dict[str, str]:
        """*own_env* with what the file adds to it."""
        return {**own_env, **dict([e.split("=", 1) for e in self.cli_environment])}

    @property
    def forward_compat(self) -> bool:
        """Whether newer CUDA libraries of an image may be used.  The modes of the toolkit but ``disabled`` are one here."""
        return self.cuda_compat_mode != "disabled" and _NO_COMPAT not in self.features

    @property
    def additional_gids(self) -> bool:
        """Whether a container's process gets the groups of device nodes that are not for everybody."""
        flags = self.jit_feature_flags if self.mode in ("auto", "jit-cdi") else ()
        return _NO_GIDS not in (*self.features, *flags)

    @property
    def creates_imex_channels(self) -> bool:
        """Whether an IMEX channel that has no node on the host is made."""
        return NO_IMEX_NODES not in self.features


def settings_path(env: Mapping[str, str]) -> str:
    """The file that the environment *env* of gpurun itself points at, below GPURUN_SYSROOT if that is set."""
    if env.get("NVIDIA_CTK_CONFIG_FILE_PATH"):
        return env["NVIDIA_CTK_CONFIG_FILE_PATH"]
    if env.get("XDG_CONFIG_HOME"):
        return env["XDG_CONFIG_HOME"] + "/nvidia-container-runtime/config.toml"
    return env.get("GPURUN_SYSROOT", "").rstrip("/") + DEFAULT_PATH


def site_settings(env: Mapping[str, str]) -> Settings:
    """The settings that hold in the environment *env* of gpurun itself: its file's, but with the mode of GPURUN_MODE.

    Raises :class:`ConfigError`.
    """
    settings = read_settings(settings_path(env))
    mode = env.get("GPURUN_MODE", "")
    if mode not in ("", *MODES):
        raise ConfigError("GPURUN_MODE", f'"{mode}" is not a mode, known are {", ".join(MODES)}')
    return replace(settings, mode=mode) if mode else settings


def read_settings(path: str, mistakes: list[str] | None = None) -> Settings:
    """The settings in the file *path*; the defaults when there is none.

    Raises :class:`ConfigError` for the first mistake.  Where *mistakes* is a list, each key that is wrong is added to it
    instead, and has its default: for `gpu doctor`, which lists all of them.
    """
    try:
        data = read_bytes(path, 1 << 20)
    except OSError as e:
        raise ConfigError(path, f"cannot be read: {e.strerror}") from None
    if data is None:
        return Settings()
    from gpurun.document_cache import read_toml  # most hosts have no such file

    read = _Reader(read_toml(data, path), path, mistakes)
    features = tuple([name for name in _FEATURES if read.flag(f"features.{name}", False)])
    debug = read.text(f"{_RUNTIME}.debug", "")
    modes = f"{_RUNTIME}.modes"
    made = Settings(
        policy=_policy(read, features),
        driver_root=read.path(f"{_CLI}.root") or "/",
        no_cgroups=read.flag(f"{_CLI}.no-cgroups", False),
        mode=read.one_of(f"{_RUNTIME}.mode", "auto", MODES),
        skip_mode_detection=read.flag(f"{_HOOK}.skip-mode-detection", False),
        load_kmods=read.flag(f"{_CLI}.load-kmods", True),
        ldcache=read.path(f"{_CLI}.ldcache"),
        cli_environment=read.environment(f"{_CLI}.environment"),
        cuda_compat_mode=read.choice(f"{modes}.legacy.cuda-compat-mode", COMPAT_MODES),
        log_file="" if debug == "/dev/null" else debug,
        log_level=read.one_of(f"{_RUNTIME}.log-level", "info", _LOG_LEVELS),
        annotation_prefixes=read.texts(f"{modes}.cdi.annotation-prefixes", (CDI_PREFIX,)),
        default_kind=read.text(f"{modes}.cdi.default-kind", "nvidia.com/gpu"),
        spec_dirs=read.texts(f"{modes}.cdi.spec-dirs", ("/etc/cdi", "/var/run/cdi")),
        csv_dir=read.path(f"{modes}.csv.mount-spec-path") or "/etc/nvidia-container-runtime/host-files-for-container.d",
        csv_compat_root=read.path(f"{modes}.csv.compat-container-root"),
        jit_feature_flags=read.texts(f"{modes}.jit-cdi.nvcdi-feature-flags", ()),
        jit_disabled_hooks=read.texts(f"{modes}.jit-cdi.nvcdi-disable-hooks", ()),
        features=features,
        dev_root=read.path("gpurun.dev-root"),
        library_dirs=read.texts("gpurun.library-dirs", ()),
        filter_engine_devices=read.flag("gpurun.filter-engine-devices", True),
        gpu_cache=read.flag("gpurun.gpu-cache", True),
        excluded_devices=read.texts("gpurun.excluded-devices", ()),
        cuda_visible_devices=read.flag("gpurun.cuda-visible-devices", False),
    )
    return replace(made, warnings=read.complaints())


def _policy(read: _Reader, features: tuple[str, ...]) -> Policy:
    return Policy(
        accept_envvar_when_unprivileged=read.flag("accept-nvidia-visible-devices-envvar-when-unprivileged", True),
        disable_require=read.flag("disable-require", False),
        supported_capabilities=_read_supported(read),
        swarm_resource=tuple([n for part in read.text("swarm-resource", "").split(",") if (n := part.strip())]),
        accept_volume_mounts=read.flag("accept-nvidia-visible-devices-as-volume-mounts", False),
        ignore_imex_channels=_IGNORE_IMEX in features,
    )


def _read_supported(read: _Reader) -> tuple[str, ...]:
    key = "supported-driver-capabilities"
    names = [name for part in read.text(key, "all").split(",") if (name := part.strip())]
    if "all" in names:
        return CAPABILITIES
    for name in names:
        if name not in CAPABILITIES:
            return read.refuse(key, f"'{name}' is unknown, known are {','.join(CAPABILITIES)}", CAPABILITIES)
    return tuple(sorted(names))


class _Reader:
    """Typed access to the values of one file; every error says the file and the key.  *mistakes*: :func:`read_settings`."""

    def __init__(self, values: dict[str, Any], source: str, mistakes: list[str] | None) -> None:
        self.values, self.source, self.mistakes = values, source, mistakes
        self._asked = set(UNUSED)
        self._warnings: list[str] = []

    def refuse(self, key: str, text: str, default: T) -> T:
        """Raise :class:`ConfigError`, or note the mistake and go on with *default*."""
        error = ConfigError(f"{self.source}: {key}", text)
        if self.mistakes is None:
            raise error
        self.mistakes.append(str(error))
        return default

    def complaints(self) -> tuple[str, ...]:
        """A warning for each value that is not known, and one for the unknown keys."""
        unknown = [clean(key) for key in self.values if key not in self._asked]
        if not unknown:
            return tuple(self._warnings)
        more = f" and {len(unknown) - _MAX_TOLD} more" if len(unknown) > _MAX_TOLD else ""
        names = f"{', '.join(unknown[:_MAX_TOLD])}{more}"
        what = f"the key {names} is not known and changes"
        if len(unknown) > 1:
            what = f"the keys {names} are not known and change"
        return (*self._warnings, f"{self.source}: {what} nothing ({_HINT})")

    def _get(self, key: str, default: Any) -> Any:
        self._asked.add(key)
        return self.values.get(key, default)

    def one_of(self, key: str, default: str, values: tuple[str, ...]) -> str:
        """One of *values*; *default*, and a warning, where the file has another one."""
        value = self.text(key, default) or default
        if value in values:
            return value
        known = ", ".join(values)
        self._warnings.append(
            f'{self.source}: {key}: "{clean(value)}" is not known, so "{default}" holds (known are {known})'
        )
        return default

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        return value if type(value) is bool else self.refuse(key, "must be true or false", default)

    def text(self, key: str, default: str) -> str:
        value = self._get(key, default)
        return value if type(value) is str else self.refuse(key, "must be a string", default)

    def path(self, key: str) -> str:
        value = self.text(key, "")
        if value and not value.startswith("/"):
            return self.refuse(key, f"'{value}' is not an absolute path", "")
        return value

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        value = self.text(key, "") or choices[0]
        if value not in choices:
            return self.refuse(key, f"'{value}' is unknown, known are {', '.join(choices)}", choices[0])
        return value

    def texts(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        value = self._get(key, list(default))
        if type(value) is not list or any(type(v) is not str for v in value):
            return self.refuse(key, "must be an array of strings", default)
        return tuple(value)

    def environment(self, key: str) -> tuple[str, ...]:
        values = self.texts(key, ())
        for value in values:
            if "=" not in value:
                return self.refuse(key, f"'{value}' is not of the form NAME=VALUE", ())
        return values


def roots_of(own_env: Mapping[str, str], settings: Settings) -> Roots:
    """Where to look for the driver, as the environment of gpurun itself and the site's settings say."""
    from gpurun.gpu.nvidia.host.roots import Roots

    sysroot = own_env.get("GPURUN_SYSROOT", "").rstrip("/")
    return Roots(
        settings.driver_root,
        sysroot,
        settings.dev_root,
        settings.ldcache or Roots().ldcache,
        settings.library_dirs,
        excluded=settings.excluded_devices,
    )
