"""`gpurun bundle`: of every kind of source, a bundle that create takes."""

from __future__ import annotations

import gzip
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpurun.__main__ import main
from tests.images.making import CONFIG, USERS, docker_save, layer, layout, put

BASE = layer(*USERS, ("bin", "dir", None), ("bin/sh", "file", "#!"), ("srv", "dir", None))


def made(output: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((output / "config.json").read_text())
    return document


def bundle(*words: str | Path, capfd: pytest.CaptureFixture[str] | None = None) -> tuple[int, str]:
    code = main(["gpurun", "bundle", *map(str, words)])
    return code, capfd.readouterr().err if capfd is not None else ""


@pytest.mark.parametrize("kind", ["layout", "archive", "compressed archive", "docker", "oci in docker"])
def test_images(tmp_path: Path, kind: str) -> None:
    above = layer(("srv/new", "file", "two"))
    if kind == "docker":
        source = docker_save(tmp_path / "image.tar", BASE, above)
    else:
        source = layout(tmp_path / "image", BASE, above)
        if kind != "layout":
            subprocess.run(["tar", "-C", source, "-cf", tmp_path / "image.tar", "."], check=True)
            source = tmp_path / "image.tar"
        if kind == "compressed archive":
            source.write_bytes(gzip.compress(source.read_bytes()))
    assert bundle(source, "-o", tmp_path / "out") == (0, "")
    document = made(tmp_path / "out")
    assert document["process"]["args"] == ["/bin/sh", "-c", "echo $GREETING"]
    assert document["process"]["env"] == [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "GREETING=hello",
    ]
    assert document["process"]["cwd"] == "/srv"
    assert document["process"]["user"] == {"uid": 1000, "gid": 100, "additionalGids": [44]}
    assert document["annotations"]["org.example"] == "yes"
    assert document["annotations"]["org.opencontainers.image.stopSignal"] == "SIGINT"
    assert document["root"] == {"path": "rootfs", "readonly": False}
    assert sorted(os.listdir(tmp_path / "out")) == ["config.json", "rootfs"]
    assert (tmp_path / "out/rootfs/srv/new").read_text() == "two"
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700
    assert main(["gpurun", "validate", str(tmp_path / "out")]) == 0


def test_a_tarball_of_a_root(tmp_path: Path) -> None:
    (tmp_path / "root.tar.gz").write_bytes(gzip.compress(BASE))
    assert bundle(tmp_path / "root.tar.gz", "-o", tmp_path / "out", "cat", "/etc/passwd")[0] == 0
    document = made(tmp_path / "out")
    assert document["process"]["args"] == ["cat", "/etc/passwd"] and document["process"]["user"] == {"uid": 0, "gid": 0}
    assert (tmp_path / "out/rootfs/etc/passwd").exists()


def test_a_directory_stays_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "root/etc").mkdir(parents=True)
    assert bundle(tmp_path / "root", "-o", tmp_path / "out")[0] == 0
    assert made(tmp_path / "out")["root"]["path"] == str(tmp_path / "root")
    assert os.listdir(tmp_path / "out") == ["config.json"]


def test_several_images(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    layout(tmp_path / "image", BASE, tag="one")
    layout(tmp_path / "image", BASE, layer(("srv/two", "file", "")), tag="two")
    code, said = bundle(tmp_path / "image", "-o", tmp_path / "out", capfd=capfd)
    assert code == 1 and "more than one image" in said and "(--tag says which)" in said
    assert not (tmp_path / "out").exists()
    assert bundle(tmp_path / "image", "-o", tmp_path / "out", "--tag", "two")[0] == 0
    assert (tmp_path / "out/rootfs/srv/two").exists()
    code, said = bundle(tmp_path / "image", "-o", tmp_path / "no", "--tag", "three", capfd=capfd)
    assert code == 1 and "skopeo: " in said and not (tmp_path / "no").exists()
    assert bundle(f"oci:{tmp_path}/image:two", "-o", tmp_path / "named")[0] == 0
    assert (tmp_path / "named/rootfs/srv/two").exists()
    code, said = bundle(f"oci:{tmp_path}/image:two", "--tag", "one", "-o", tmp_path / "no", capfd=capfd)
    assert code == 1 and "write it into oci:" in said


def test_several_architectures(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for architecture in ("amd64", "arm64"):
        config = CONFIG | {"architecture": architecture}
        layout(tmp_path / "image", BASE, layer((f"srv/{architecture}", "file", "")), config=config)
    index = json.loads((tmp_path / "image/index.json").read_text())
    inner = put(tmp_path / "image", json.dumps(index).encode(), "index.v1+json")
    (tmp_path / "image/index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [inner]}))
    for architecture in ("amd64", "arm64"):
        out = tmp_path / architecture
        assert bundle(tmp_path / "image", "-o", out, "--architecture", architecture)[0] == 0
        assert (out / f"rootfs/srv/{architecture}").exists()
    code, said = bundle(tmp_path / "image", "-o", tmp_path / "no", "--architecture", "s390x", capfd=capfd)
    assert code == 1 and "s390x" in said and not (tmp_path / "no").exists()


def test_labels_that_instruct_the_runtime(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.toml").write_text('[leases]\nper-label = ["team=4"]\n')
    monkeypatch.setenv("GPURUN_CONFIG", str(tmp_path / "site.toml"))
    unsafe = {
        "org.criu.config": "/tmp/evil.conf",
        "run.oci.hooks.stdout": "/etc/cron.d/x",
        "run.oci.keep_original_groups": "1",
        "org.systemd.property.Conflicts": "['ssh.service']",
        "dev.gpurun.gpu.memory": "8GiB",
        "cdi.k8s.io/x": "nvidia.com/gpu=all",
        "nerdctl/name": "someone-else",
        "team": "other",
    }
    config = {**CONFIG, "config": {**CONFIG["config"], "Labels": {**unsafe, "org.example": "yes"}}}
    code, said = bundle(layout(tmp_path / "image", BASE, config=config), "-o", tmp_path / "out", capfd=capfd)
    assert code == 0 and "would instruct the runtime are left out: " in said
    assert all(key in said for key in unsafe)
    annotations = made(tmp_path / "out")["annotations"]
    assert not set(annotations) & set(unsafe) and annotations["org.example"] == "yes"


@pytest.mark.parametrize(
    ("user", "said"), [("bob", 'the image has no user \\"bob\\"'), ("alice:staff", 'the image has no group \\"staff\\"')]
)
def test_users_that_there_are_not(tmp_path: Path, capfd: pytest.CaptureFixture[str], user: str, said: str) -> None:
    config = {**CONFIG, "config": {**CONFIG["config"], "User": user}}
    code, err = bundle(layout(tmp_path / "image", BASE, config=config), "-o", tmp_path / "out", capfd=capfd)
    assert code == 1 and said in err and not (tmp_path / "out").exists()


def test_a_bundle_that_is_there_stays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/precious").touch()
    code, said = bundle(layout(tmp_path / "image", BASE), "-o", tmp_path / "out", capfd=capfd)
    assert code == 1 and "is there already" in said
    assert os.listdir(tmp_path / "out") == ["precious"]
    assert "the output directory is missing" in bundle(tmp_path / "image", capfd=capfd)[1]
