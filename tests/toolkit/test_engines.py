"""``nvidia-ctk runtime configure``: what it makes of the engines' configurations; containerd itself reads the result."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gpurun.clients.toml_files import RuntimeEntry, containerd, crio
from gpurun.errors import ConfigError
from gpurun.toolkit import engines
from tests.clients.containerd_config import V2, V3

from .conftest import Call

RUNTIME = RuntimeEntry("nvidia", "/opt/bin/nvidia-container-runtime", unlike="nvidia")
MINE = """\
# mine
version = 2
root = "/var/lib/containerd"

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "registry/pause:3.9" # keep
    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "runc"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
          SystemdCgroup = true
"""


def docker(text: str | None, **how: Any) -> Any:
    chosen: dict[str, Any] = {"name": "nvidia", "binary": "nvidia-container-runtime", "default": False, "cdi": False} | how
    return json.loads(engines.docker(text, "daemon.json", **chosen))


def test_docker() -> None:
    entry = {"path": "nvidia-container-runtime", "args": []}
    assert docker(None) == docker("") == docker("{}") == {"runtimes": {"nvidia": entry}}
    kept = {"log-driver": "local", "runtimes": {"kata": {"path": "/kata"}}, "features": {"buildkit": True}}
    assert docker(json.dumps(kept), default=True, cdi=True) == {
        "log-driver": "local",
        "default-runtime": "nvidia",
        "runtimes": {"kata": {"path": "/kata"}, "nvidia": entry},
        "features": {"buildkit": True, "cdi": True},
    }
    assert "\n    " in engines.docker(None, "daemon.json", "nvidia", "x", False, False)


@pytest.mark.parametrize("text", ["{", "[]", '{"runtimes": []}', '{"features": 1}'])
def test_a_broken_daemon_json_is_not_touched(call: Call, tmp_path: Path, text: str) -> None:
    file = tmp_path / "daemon.json"
    file.write_text(text)
    done = call("nvidia-ctk", "runtime", "configure", f"--config={file}")
    assert done.returncode == 1 and str(file) in done.stderr and file.read_text() == text


def test_docker_file(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "etc/docker/daemon.json"
    done = call(
        "nvidia-ctk", "runtime", "configure", "--runtime=docker", "--dry-run", f"--config={file}", "--set-as-default=true"
    )
    assert done.returncode == 0 and json.loads(done.stdout)["default-runtime"] == "nvidia" and not file.exists()
    args = ["--config", str(file), "-nvidia-set-as-default", "--cdi.enabled=false", "--nvidia-runtime-name=gpu"]
    done = call("nvidia-ctk", "runtime", "configure", *args)
    assert done.returncode == 0 and done.stdout == "" and str(file) in done.stderr and "restarted" in done.stderr
    assert set(json.loads(file.read_text())) == {"runtimes", "default-runtime"} and oct(file.stat().st_mode)[-3:] == "644"
    file.chmod(0o600)
    link = tmp_path / "daemon.json"
    link.symlink_to(file)
    assert call("nvidia-ctk", "--quiet", "runtime", "configure", f"--config={link}").stderr == ""
    assert (
        link.is_symlink() and oct(file.stat().st_mode)[-3:] == "600" and "nvidia" in json.loads(file.read_text())["runtimes"]
    )
    assert list(file.parent.iterdir()) == [file], "nothing is left beside it"


def test_containerd_drop_in() -> None:
    written = containerd("/etc/containerd/config.toml", MINE, "/etc/containerd/conf.d/99-nvidia.toml", RUNTIME)
    (main_path, main), (extra_path, extra) = written
    assert (main_path, extra_path) == ("/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml")
    assert main == MINE.replace('containerd"\n', 'containerd"\nimports = ["/etc/containerd/conf.d/*.toml"]\n', 1)
    document = tomllib.loads(extra)
    cri = document["plugins"][V2]
    assert document["version"] == 2 and cri["sandbox_image"] == "registry/pause:3.9", "the whole table is repeated"
    runtimes = cri["containerd"]["runtimes"]
    assert set(runtimes) == {"runc", "nvidia"} and cri["containerd"]["default_runtime_name"] == "runc"
    assert runtimes["nvidia"] == {
        "runtime_type": "io.containerd.runc.v2",
        "options": {"SystemdCgroup": True, "BinaryName": "/opt/bin/nvidia-container-runtime"},
    }
    assert "BinaryName" not in runtimes["runc"]["options"]
    assert "enable_cdi" not in cri


@pytest.mark.parametrize(
    "imports", ['["/etc/containerd/conf.d/*.toml"]', '["conf.d/*.toml"]', '["/etc/containerd/*/99-nvidia.toml"]']
)
def test_what_is_imported_already_is_not_imported_again(imports: str) -> None:
    text = f"version = 2\nimports = {imports}\n"
    written = containerd("/etc/containerd/config.toml", text, "/etc/containerd/conf.d/99-nvidia.toml", RUNTIME)
    assert [path for path, _ in written] == ["/etc/containerd/conf.d/99-nvidia.toml"]


def test_containerd_in_place_keeps_comments_and_is_done_once() -> None:
    options = RuntimeEntry("nvidia", "/opt/bin/nvidia-container-runtime", default=True, cdi=True, unlike="nvidia")
    [(_, once)] = containerd("config.toml", MINE, "", options)
    assert once.startswith("# mine\n") and "# keep" in once
    cri = tomllib.loads(once)["plugins"][V2]
    assert cri["enable_cdi"] is True and cri["containerd"]["default_runtime_name"] == "nvidia"
    assert cri["containerd"]["runtimes"]["nvidia"]["options"]["SystemdCgroup"] is True
    [(_, twice)] = containerd("config.toml", once, "", options)
    assert tomllib.loads(twice) == tomllib.loads(once)


def test_containerd_versions() -> None:
    [(_, three)] = containerd("c.toml", "version = 3\n", "", RUNTIME)
    assert tomllib.loads(three)["plugins"][V3]["containerd"]["runtimes"]["nvidia"]["runtime_type"] == "io.containerd.runc.v2"
    [(_, four)] = containerd("c.toml", "version = 4\n", "", RUNTIME)  # containerd 2.3: the CRI plugin's table is that of 3
    assert tomllib.loads(four) == tomllib.loads(three) | {"version": 4}
    [(_, main), (_, none)] = containerd("/etc/c.toml", None, "/etc/d/99-nvidia.toml", RUNTIME)
    assert tomllib.loads(main) == {"version": 2, "imports": ["/etc/d/*.toml"]} and tomllib.loads(none)["version"] == 2
    dump = f'version = 3\n[plugins."{V3}".containerd]\ndefault_runtime_name = "kata"\n'
    dump += f'[plugins."{V3}".containerd.runtimes.kata]\nruntime_type = "io.kata.v2"\n'
    [_, (_, asked)] = containerd("/etc/c.toml", None, "/etc/d/99-nvidia.toml", RUNTIME, dump)
    assert tomllib.loads(asked)["plugins"][V3]["containerd"]["runtimes"]["nvidia"]["runtime_type"] == "io.kata.v2"


def test_containerd_version_1_is_changed_in_place() -> None:
    """containerd reads no other file then, whatever --drop-in-config says.  The table default_runtime counts before
    default_runtime_name (containerd 1.3 to 1.7), so who has it gets it changed; nobody else gets it."""
    default = RuntimeEntry("nvidia", "/r", default=True, unlike="nvidia")
    [(path, one)] = containerd("c.toml", "[plugins.cri.containerd]\n", "/etc/d/99-nvidia.toml", default)
    made = tomllib.loads(one)
    section = made["plugins"]["cri"]["containerd"]
    assert path == "c.toml" and made["version"] == 1 and section["default_runtime_name"] == "nvidia"
    assert section["runtimes"]["nvidia"]["options"] == {"BinaryName": "/r", "Runtime": "/r"}
    assert section["runtimes"]["nvidia"]["runtime_type"] == "io.containerd.runc.v2" and "default_runtime" not in section
    table = '[plugins.cri.containerd.default_runtime]\nruntime_type = "t"\n'
    table += "[plugins.cri.containerd.default_runtime.options]\nNoPivotRoot = true\n"
    for wanted, options in (
        (default, {"NoPivotRoot": True, "BinaryName": "/r", "Runtime": "/r"}),
        (RUNTIME, {"NoPivotRoot": True}),
    ):
        [(_, one)] = containerd("c.toml", table, "/etc/d/99-nvidia.toml", wanted)
        assert tomllib.loads(one)["plugins"]["cri"]["containerd"]["default_runtime"]["options"] == options
        assert tomllib.loads(one)["plugins"]["cri"]["containerd"]["default_runtime"]["runtime_type"] == "t"


def cri(default: str, **runtimes: str) -> str:
    """A configuration with a default runtime and the runtime_type of each runtime."""
    text = f'version = 2\n[plugins."{V2}".containerd]\n' + (f'default_runtime_name = "{default}"\n' if default else "")
    for name, kind in runtimes.items():
        text += f'[plugins."{V2}".containerd.runtimes.{name}]\nruntime_type = "{kind}"\nmark = "{name}"\n'
    return text


@pytest.mark.parametrize(
    ("source", "default", "like", "kind", "left"),
    [
        (cri("", runc=""), False, "runc", "io.containerd.runc.v2", None),  # an empty type is nothing to copy
        (cri("kata", kata="io.kata.v2", runc="r"), False, "kata", "io.kata.v2", "kata"),
        (cri("nvidia-cdi", **{"nvidia-cdi": "n", "crun": "c"}), False, "crun", "c", "nvidia-cdi"),  # one of the toolkit's
        (cri("nvidia", nvidia="n", runc="r"), False, "runc", "r", None),  # it was the default, and is to be none now
        (cri("nvidia", nvidia="n", runc="r"), True, "runc", "r", "nvidia"),
        (cri("runc", runc="r"), True, "runc", "r", "nvidia"),
    ],
)
def test_which_runtime_it_is_like_and_which_is_the_default(
    source: str, default: bool, like: str, kind: str, left: str | None
) -> None:
    """NVIDIA's tables for containerd: the default runtime unless it is the toolkit's own, runc, crun."""
    wanted = RuntimeEntry("nvidia", "/r", default=default, unlike="nvidia")
    for drop_in in ("/etc/d/99-nvidia.toml", ""):
        text = containerd("/etc/c.toml", source, drop_in, wanted)[-1][1]
        section = tomllib.loads(text)["plugins"][V2]["containerd"]
        entry = section["runtimes"]["nvidia"]
        assert (entry["mark"], entry["runtime_type"]) == (like, kind) and section.get("default_runtime_name") == left


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version = 0", "version: 0 is not a version"),
        ('version = "2"', "version: 2 is not a version"),
        ("version = ", "is not TOML"),
        ("version = 2\nplugins = 3", "plugins: is not a table"),
        ("version = 2\nimports = 3", "imports: is not an array"),
    ],
)
def test_a_configuration_that_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        containerd("config.toml", text, "/etc/conf.d/99-nvidia.toml", RUNTIME)


def test_crio() -> None:
    text = '[crio.runtime.runtimes.runc]\nruntime_path = "/runc"\nruntime_root = "/run/runc"\nmonitor_path = "/conmon"\n'
    [(path, made)] = crio(
        "crio.conf",
        text,
        "/etc/crio/crio.conf.d/99-nvidia.toml",
        RuntimeEntry("nvidia", "/r", default=True, unlike="nvidia"),
    )
    entry = {"runtime_path": "/r", "runtime_type": "oci", "monitor_path": "/conmon"}
    assert path.endswith("99-nvidia.toml")
    assert tomllib.loads(made) == {"crio": {"runtime": {"default_runtime": "nvidia", "runtimes": {"nvidia": entry}}}}
    [(path, made)] = crio("crio.conf", text, "", RUNTIME)
    assert path == "crio.conf" and set(tomllib.loads(made)["crio"]["runtime"]["runtimes"]) == {"runc", "nvidia"}


@pytest.mark.parametrize(
    ("default", "runtimes", "like"),
    [
        ("", "runc", "runc"),
        ("kata", "kata", "kata"),
        ("kata", "runc kata", "kata"),
        ("gone", "crun runc", "runc"),
        ("nvidia-cdi", "nvidia-cdi crun", "crun"),
        ("nvidia", "nvidia", None),
        ("", "", None),
    ],
)
def test_crio_is_like_the_default_runtime(default: str, runtimes: str, like: str | None) -> None:
    text = "[crio.runtime]\n" + (f'default_runtime = "{default}"\n' if default else "")
    text += "".join(
        [f'[crio.runtime.runtimes.{n}]\nruntime_path = "/{n}"\nruntime_type = "x"\nmark = "{n}"\n' for n in runtimes.split()]
    )
    [(_, made)] = crio(
        "crio.conf", text, "/etc/crio/crio.conf.d/99-nvidia.toml", RuntimeEntry("nvidia", "/r", unlike="nvidia")
    )
    found = tomllib.loads(made)["crio"]["runtime"]
    assert found == {
        "runtimes": {"nvidia": {"runtime_path": "/r", "runtime_type": "oci"} | ({"mark": like} if like else {})}
    }
    [(_, made)] = crio("crio.conf", text, "", RuntimeEntry("nvidia", "/r", unlike="nvidia"))  # the file itself
    left = tomllib.loads(made)["crio"]["runtime"].get("default_runtime", "")
    assert left == ("" if default == "nvidia" else default), "what was the default by our name is so no longer"


@pytest.mark.clients
@pytest.mark.parametrize("in_place", [False, True])
def test_containerd_reads_it(call: Call, names: Path, tmp_path: Path, in_place: bool) -> None:
    program = shutil.which("containerd")
    if program is None:
        pytest.skip("containerd is not installed")
    file = tmp_path / "config.toml"
    file.write_text(MINE)
    more = ["--drop-in-config="] if in_place else []
    args = ["--runtime=containerd", f"--config={file}", "--nvidia-set-as-default", "--cdi.enabled", *more]
    assert call("nvidia-ctk", "runtime", "configure", *args).returncode == 0
    command = [program, "--config", str(file), "config", "dump"]
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    plugins = tomllib.loads(dumped)["plugins"]
    cri = plugins.get(V3) or plugins[V2]
    section = cri["containerd"]
    assert section["default_runtime_name"] == "nvidia"
    assert section["runtimes"]["nvidia"]["options"]["BinaryName"] == str(names / "nvidia-container-runtime")
    assert section["runtimes"]["nvidia"]["options"]["SystemdCgroup"] is True
    assert section["runtimes"]["runc"]["options"]["SystemdCgroup"] is True
    pinned = plugins["io.containerd.cri.v1.images"]["pinned_images"]["sandbox"] if V3 in plugins else cri["sandbox_image"]
    assert pinned == "registry/pause:3.9"


def test_the_engine_itself_is_asked(call: Call, tmp_path: Path) -> None:
    asked = tmp_path / "engine"
    asked.write_text("#!/bin/sh\necho 'version = 2'\n")
    asked.chmod(0o755)
    common = [
        "runtime",
        "configure",
        "--runtime=containerd",
        f"--config={tmp_path}/c.toml",
        "--dry-run",
        "--config-source=command",
    ]
    done = call("nvidia-ctk", *common, f"--executable-path={asked}")
    assert done.returncode == 0 and "runtimes.nvidia" in done.stdout
    asked.write_text("#!/bin/sh\nexit 3\n")
    done = call("nvidia-ctk", *common, f"--executable-path={asked}")
    assert done.returncode == 1 and "--config-source=file" in done.stderr
    crio_status = tmp_path / "crio-status"  # before CRI-O 1.30 it was a program of its own
    crio_status.write_text("#!/bin/sh\n[ \"$1\" = config ] && echo '[crio.runtime.runtimes.runc]\nmark = 1'\n")
    crio_status.chmod(0o755)
    words = [w.replace("containerd", "crio") for w in common]
    for extra in ([], [f"--executable-path={asked}"]):
        done = call("nvidia-ctk", *words, *extra, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
        assert done.returncode == 0 and "mark = 1" in done.stdout, done.stderr
    assert "not found" in call("nvidia-ctk", *common, f"--executable-path={tmp_path}/none").stderr


def test_oci_hook(call: Call, names: Path, tmp_path: Path) -> None:
    file = tmp_path / "hooks.d/oci-nvidia-hook.json"
    done = call("nvidia-ctk", "runtime", "configure", "--config-mode=oci-hook", f"--oci-hook-path={file}")
    document = json.loads(file.read_text())
    assert done.returncode == 0 and document["stages"] == ["prestart"] and document["version"] == "1.0.0"
    assert document["hook"]["path"] == str(names / "nvidia-container-runtime-hook") and document["hook"]["args"][1:] == [
        "prestart"
    ]
    done = call("nvidia-ctk", "runtime", "configure", "--config-mode=oci-hook")
    assert json.loads(done.stdout) == document


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--runtime=podman",), "docker, containerd or crio"),
        (("--drop-in-config=/etc/docker/x.toml",), "docker reads no other file"),
        (("--runtime=crio", "--drop-in-config=x.toml"), 'x.toml\\" is not an absolute path'),
        (("--config-source=net",), "file or command"),
        (("--frobnicate",), "No such option"),
        (("--set-as-default=perhaps",), "true or false"),
    ],
)
def test_wrong_usage(call: Call, args: tuple[str, ...], words: str) -> None:
    done = call("nvidia-ctk", "runtime", "configure", *args)
    assert done.returncode == 1 and words in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--config-mode=invalid",), "--config-mode=invalid is not known and left out"),
        (("--executable-path=/x", "--runtime=docker"), "--executable-path is not for docker and left out"),
        (("--config-source=command",), "--config-source=command is not for docker"),
        (("--runtime=crio", "--enable-cdi"), "CRI-O always has it"),
        (("--config-mode=hook",), "deprecated"),
    ],
)
def test_what_is_left_out_is_said(call: Call, args: tuple[str, ...], words: str, tmp_path: Path) -> None:
    """As NVIDIA's: a warning, and the rest is done."""
    done = call("nvidia-ctk", "runtime", "configure", "--dry-run", f"--config={tmp_path}/none", *args)
    assert done.returncode == 0 and words in done.stderr and "nvidia" in done.stdout
