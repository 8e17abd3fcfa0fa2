"""`gpurun bundle --overlay`: containers on such a bundle, and where there can be no overlay."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.images.making import layer, layout
from tests.images.test_overlay import layers_kept, nothing_left
from tests.native.leaks import Leaks
from tests.native.runtime import ENVIRONMENT, TIMEOUT, Runtime

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

SAID = "new\nof the second layer\n"


@pytest.fixture
def image(runtime: Runtime, leaks: Leaks, busybox: Path) -> Path:
    """A layout: busybox, and a layer above it."""
    layers = [
        layer(
            *[(name, "dir", None) for name in ("bin", "dev", "etc", "proc", "sys")],
            *[(f"bin/{name}", "link", "busybox") for name in ("sh", "ls", "cat", "sleep")],
            ("bin/busybox", "file", busybox.read_bytes()),
            ("etc/old", "file", ""),
            bin_busybox={"mode": 0o755},
        ),
        layer(("etc/.wh.old", "file", ""), ("etc/new", "file", "of the second layer\n")),
    ]
    config = {
        "config": {"Cmd": ["sh", "-c", "ls /etc; cat /etc/new; echo mine >/etc/own"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in layers]},
    }
    return layout(runtime.directory / "image", *layers, config=config)


def command(runtime: Runtime, *words: str | Path) -> str:
    """What is said by a `bundle` that must succeed."""
    done = runtime("bundle", *map(str, words))
    assert done.rc == 0, done.text
    return done.text


def without_cgroup(bundle: Path) -> None:
    """The machine of a test need not have the controllers of cgroups."""
    path = bundle / "config.json"
    document = json.loads(path.read_text())
    document["linux"].pop("resources", None)
    path.write_text(json.dumps(document))


def run(runtime: Runtime, bundle: Path) -> str:
    done = runtime("run", "--bundle", str(bundle), runtime.new_id())
    return done.out if done.rc == 0 else done.text


def test_containers_of_two_bundles(runtime: Runtime, image: Path) -> None:
    store, bundles = runtime.directory / "store", [runtime.directory / name for name in ("one", "two")]
    for bundle in bundles:
        said = command(runtime, "--overlay", "--layers", store, "-o", bundle, image)
        if "there can be no overlay" in said:
            pytest.skip(said)
        without_cgroup(bundle)
        assert run(runtime, bundle) == SAID and len(layers_kept(store)) == 2
        assert (bundle / "overlay/upper/etc/own").read_text() == "mine\n"
    document = json.loads((bundles[0] / "config.json").read_text())
    assert document["root"]["path"] == "rootfs"
    document["process"]["args"] = ["sleep", "100"]
    (bundles[0] / "config.json").write_text(json.dumps(document))
    container = runtime.new_id()
    assert runtime("run", "--detach", "--bundle", str(bundles[0]), container).rc == 0
    refused = runtime("bundle", "--remove", str(bundles[0]))
    assert refused.rc == 1 and "rootfs is in use: process " in refused.text, refused.text
    assert runtime("delete", "--force", container).rc == 0
    for bundle in bundles:
        command(runtime, "--remove", bundle)
        assert not bundle.exists()
    assert nothing_left(store)


def test_a_root_that_is_not_mounted_is_told(runtime: Runtime, image: Path) -> None:
    store, bundle = runtime.directory / "store", runtime.directory / "one"
    said = command(runtime, "--overlay", "--layers", store, "-o", bundle, image)
    if "there can be no overlay" in said:
        pytest.skip(said)
    without_cgroup(bundle)
    done = subprocess.run(["umount", bundle / "rootfs"], preexec_fn=runtime.bed.enter(None), timeout=TIMEOUT)
    assert done.returncode == 0
    assert f"{bundle}/rootfs is not mounted: `gpurun bundle --mount {bundle}` does it" in run(runtime, bundle)
    command(runtime, "--mount", bundle)
    assert run(runtime, bundle) == SAID
    command(runtime, "--remove", bundle)
    assert nothing_left(store)


def test_two_at_once(runtime: Runtime, image: Path) -> None:
    """Both unpack the same layers; one waits for the other."""
    store, bundles = runtime.directory / "store", [runtime.directory / f"b{number}" for number in range(4)]
    files = [runtime.new_files() for _ in bundles]
    words = ("bundle", "--overlay", "--layers", str(store), str(image), "-o")
    started = [runtime.popen(*words, str(b), files=f) for b, f in zip(bundles, files, strict=True)]
    ended = [process.wait(TIMEOUT * 4) for process in started]
    assert ended == [0] * 4, [(f / "err").read_text() for f in files]
    if "there can be no overlay" in (files[0] / "err").read_text():
        pytest.skip("there can be no overlay")
    assert len(layers_kept(store)) == 2 and not os.listdir(store / "unfinished")
    for bundle in bundles:
        without_cgroup(bundle)
        assert run(runtime, bundle) == SAID
        command(runtime, "--remove", bundle)
    assert nothing_left(store)


def test_where_there_can_be_none_the_layers_are_unpacked(runtime: Runtime, image: Path) -> None:
    """Without root; and in a directory that is itself on an overlay, which overlayfs takes no changes in."""
    store, bundle = runtime.directory / "store", runtime.directory / "outer"
    said = command(runtime, "--overlay", "--layers", store, "-o", bundle, image)
    within = bundle / "rootfs/inner"
    if "there can be no overlay" not in said:
        said = command(runtime, "--overlay", "--layers", store, "-o", within, image)
        assert "the layers are unpacked into the bundle, for there can be no overlay: overlayfs" in said
        # What lies within the overlay is in the upper directory of the bundle.
        assert sorted(os.listdir(bundle / "overlay/upper/inner")) == ["config.json", "rootfs"]
        command(runtime, "--remove", bundle)
        assert nothing_left(store)
    place = runtime.directory / "plain"
    place.mkdir()
    os.chown(place, 1000, 1000)
    program = shutil.which("setpriv")
    assert program
    shutil.copy(runtime.path, place / "gpurun")  # the repository may be where only root gets to
    words = [program, "--reuid", "1000", "--regid", "1000", "--clear-groups", str(place / "gpurun")]
    words += ["bundle", "--overlay", "-o", str(place / "bundle"), str(image)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=place, timeout=TIMEOUT, env=ENVIRONMENT)
    assert done.returncode == 0 and done.stderr.count("for there can be no overlay: it takes root") == 1, done.stderr
    assert (place / "bundle/rootfs/etc/new").read_text() == "of the second layer\n"
    assert sorted(os.listdir(place / "bundle")) == ["config.json", "rootfs"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--mount", "{d}"), "{d} is no bundle that was made with --overlay"),
        (("--remove", "{d}"), "{d} is no bundle that was made with --overlay"),
        (("--mount", "--remove", "{d}"), "--mount and --remove at once"),
        (("--remove", "-o", "{d}/x", "{d}"), "--mount and --remove take the directory of a bundle, and nothing else"),
        (("--remove", "{d}", "{d}"), "--mount and --remove take the directory of a bundle, and nothing else"),
    ],
)
def test_words_that_do_not_go_together(runtime: Runtime, words: tuple[str, ...], said: str) -> None:
    directory = runtime.directory / "some"
    directory.mkdir()
    done = runtime("bundle", "--layers", str(directory / "none"), *[word.format(d=directory) for word in words])
    assert done.rc != 0 and said.format(d=directory) in done.text
    assert os.listdir(directory) == []
