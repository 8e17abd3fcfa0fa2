"""A containerd of its own for the Container Runtime Interface, in a bed: the configuration, its start and its end."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from tests.clients.bed import IMAGE, ROOT, ClientBed, ClientBedUnavailable, GuestBed
from tests.native.runtime import Result

REPOSITORY = Path(__file__).resolve().parents[3]
PAUSE = "docker.io/test/pause:1"
PLUGINS = Path("/usr/lib/cni")  # Debian's containernetworking-plugins

_CONFIG = """\
version = 2
root = "{directory}/root"
state = "/run/gpurun-cri"
[grpc]
address = "{address}"
[plugins."io.containerd.internal.v1.opt"]
path = "{directory}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
stream_server_address = "127.0.0.1"
stream_server_port = "0"
restrict_oom_score_adj = {restrict}
enable_cdi = true
cdi_spec_dirs = ["{directory}/cdi"]
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{directory}/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "{default}"
"""
_RUNTIME = """\
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
runtime_type = "io.containerd.runc.v2"
container_annotations = ["cdi.k8s.io/*"]
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}.options]
BinaryName = "{binary}"
SystemdCgroup = {systemd}
"""
_NETWORK = {
    "cniVersion": "0.4.0",
    "name": "cri",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cri0",
            "isGateway": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.88.77.0/24"}]],
                "dataDir": "/run/gpurun-cri-addresses",
            },
        }
    ],
}


class CriDaemon:
    """containerd with its CRI plugin, and the bed's runtimes as handlers of the names that Docker knows them by.

    In the guest they put containers into systemd's scopes.
    """

    def __init__(self, bed: ClientBed) -> None:
        self.bed, self.address, self.directory = bed, "/run/gpurun-cri/containerd.sock", bed.directory / "cri"
        self.directory.mkdir()
        (self.directory / "net.d").mkdir()
        (self.directory / "cdi").mkdir()
        self._config_file, self._pause_archive = self.directory / "config.toml", self.directory / "pause.tar"
        if Path(f"{ROOT}{PLUGINS}").is_dir():
            (self.directory / "net.d/10-cri.conflist").write_text(json.dumps(_NETWORK))
        self._config_file.write_text(self._config())
        daemon = f"setsid containerd --config {self._config_file} --log-level warn"
        start = f"{daemon} </dev/null >{bed.directory}/cri.log 2>&1 & echo $!"
        self.pid = bed.run("sh", "-c", start).out.strip()
        self._load_images()

    def _config(self) -> str:
        restrict = "false" if isinstance(self.bed, GuestBed) else "true"
        default = next(iter(self.bed.runtimes.values())).docker
        text = _CONFIG.format(
            directory=self.directory, address=self.address, pause=PAUSE, restrict=restrict, plugins=PLUGINS, default=default
        )
        systemd = "true" if isinstance(self.bed, GuestBed) else "false"
        for runtime in self.bed.runtimes.values():
            text += _RUNTIME.format(name=runtime.docker, binary=runtime.binary, systemd=systemd)
        return text

    def _load_images(self) -> None:
        """A pod's own container is the tests' image with another command: Docker makes that image."""
        archive = self._pause_archive
        make = f"""set -e
            docker image inspect {IMAGE} >/dev/null 2>&1 || docker load -qi {self.bed.archive()}
            made=$(docker create {IMAGE})
            docker commit -c 'CMD ["sleep", "2147483647"]' $made test/pause:1
            docker rm $made
            docker save -o {archive} test/pause:1"""
        made = self.bed.run("bash", "-c", make)
        deadline = time.monotonic() + self.bed.patience
        while made.rc == 0 and self._method("Status").rc:
            if time.monotonic() > deadline:
                raise ClientBedUnavailable(f"containerd's CRI plugin does not answer: {self.bed.daemon_logs()}")
            time.sleep(0.1)
        for path in (archive, self.bed.archive()):
            if made.rc == 0:
                made = self.bed.run("ctr", "-a", self.address, "-n", "k8s.io", "images", "import", str(path))
        if made.rc:
            raise ClientBedUnavailable(f"no image for pods: {made.text}")

    def _method(self, *arguments: str) -> Result:
        return self.bed.run(sys.executable, "-m", "tests.clients.cri", *arguments, **self.environment())

    def environment(self) -> dict[str, str]:
        """What ``operations/cri.bash`` and the client need."""
        path = [str(REPOSITORY / part) for part in ("", "src", "vendor")]
        return {
            "CRI_ADDRESS": self.address,
            "CONTAINERD_ADDRESS": self.address,
            "CONTAINERD_NAMESPACE": "k8s.io",
            "PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(path),
            "CDI": str(self.directory / "cdi"),
            "CRI_CONFIG": str(self._config_file),
            "PAUSE_ARCHIVE": str(self._pause_archive),
        }

    def close(self) -> None:
        self.bed.run("kill", self.pid)
