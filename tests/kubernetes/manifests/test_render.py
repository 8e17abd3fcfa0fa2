"""The manifests that gpurun prints: those of deploy/kubernetes, and with any values those that helm renders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpurun.errors import GpurunError
from gpurun.kubernetes.manifests.render import PLAIN, manifests
from tests.cli.test_main import gpurun
from tests.kubernetes.charts import REPOSITORY, VARIANTS, check, documents, needs_helm, rendered

PATHS = ("kubeletDir", "driverRoot", "hookPath")
NOTHING = {part: {"enabled": False} for part in ("installer", "runtimeClass", "devicePlugin", "labels", "metrics")}
FILES = {
    "gpurun.yaml": {},
    "gpurun-dra.yaml": {"devicePlugin": {"enabled": False}, "dra": {"enabled": True}},
    "gpurun-uninstall.yaml": NOTHING | {"uninstall": {"now": True}},
}


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


def by_name(found: list[Any]) -> dict[tuple[str, str], Any]:
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def test_the_program_has_the_files_of_the_chart(tmp_path: Path) -> None:
    made = tmp_path / "chart.py"
    subprocess.run([sys.executable, REPOSITORY / "tools/chart-module", made], check=True, timeout=60)
    module = REPOSITORY / "src/gpurun/kubernetes/manifests/chart.py"
    assert made.read_text() == module.read_text(), "`make manifests` writes it anew"


@pytest.mark.parametrize("name", FILES)
def test_the_plain_manifests(name: str) -> None:
    ours = documents(manifests([("plain", PLAIN), ("test", FILES[name])]))
    theirs = documents((REPOSITORY / "deploy/kubernetes" / name).read_text())
    assert by_name(ours) == by_name(theirs) and len(ours) == len(theirs)
    check(ours)
    kinds = [one["kind"] for one in ours]
    assert kinds[0] == "Namespace" and kinds.index("ServiceAccount") < kinds.index("DaemonSet")


@needs_helm
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("version", ["1.29.3", "1.33.0", "1.36.0"])
def test_what_helm_renders(variant: str, version: str, tmp_path: Path) -> None:
    ours = documents(manifests([("test", VARIANTS[variant])], "gpurun", version, "Helm"))
    theirs = rendered(VARIANTS[variant], tmp_path, version)
    assert by_name(ours) == by_name(theirs) and len(ours) == len(theirs)


@pytest.mark.parametrize("variant", ["mig by a label", "mig by what the gpus can have"])
def test_the_mig_manager_has_a_file_where_there_is_one(variant: str) -> None:
    objects = by_name(documents(manifests([("test", VARIANTS[variant])])))
    pod = objects["DaemonSet", "gpurun-mig-manager"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    found = [
        "--config-file=/mig-config/config.yaml" in container["args"],
        "mig-config" in [mount["name"] for mount in container["volumeMounts"]],
        "mig-config" in [volume["name"] for volume in pod["volumes"]],
        ("ConfigMap", "gpurun-mig-manager") in objects,
    ]
    assert found == [variant == "mig by a label"] * 4
    check(list(objects.values()))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"devicePlugin": {"migstrategy": "mixed"}}, "test.devicePlugin.migstrategy: is not known"),
        ({"devicePlugin": {"migStrategy": "some"}}, "test.devicePlugin.migStrategy: 'some' is unknown"),
        ({"installer": {"directory": "opt"}}, "test.installer.directory: 'opt' does not match"),
        ({"dra": {"enabled": True}}, "devicePlugin.enabled and dra.enabled: one of them"),
        ({"image": {"tag": "\ud800"}}, r"test.image.tag: '\ud800' has a character that no manifest may have"),
        ({"podLabels": {"a\0": "b"}}, r"test.podLabels: 'a\x00' has a character that no manifest may have"),
        ({"installer": {"engine": "x" * 100000}}, "test.installer.engine: 'xxx"),
        ({"x" * 100000: 1}, "test.xxx"),
        ({"priorityClassName": "a\n---\nkind: Secret"}, "test.priorityClassName: 'a"),
        ({"priorityClassName": "a\n"}, "test.priorityClassName: 'a"),
        *[
            ({part: "/a" + end}, f"test.{part}: '/a")
            for part in PATHS
            for end in ("\n- b", ": b", " #b", "\tb", "\n", "{b}")
        ],
        ({"devicePlugin": {"defaultConfig": "a: b"}}, "test.devicePlugin.defaultConfig: 'a: b' does not match"),
        ({"migManager": {"defaultConfig": "a\nb"}}, "test.migManager.defaultConfig: "),
        ({"dra": {"extendedResource": "gpu: 1"}}, "test.dra.extendedResource: 'gpu: 1' does not match"),
        ({"affinity": {"a": nested(2000)}}, "test: is nested too deeply"),
    ],
)
def test_values_that_are_wrong(values: Any, said: str) -> None:
    with pytest.raises(GpurunError) as error:
        manifests([("test", values)])
    assert said in str(error.value) and len(str(error.value)) < 600 and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "part", ["vendors", "affinity", "tolerations", "resources", "nodeSelector", "podLabels", "privileged"]
)
def test_null_takes_a_value_away(part: str) -> None:
    """As helm has it, for any value."""
    check(documents(manifests([("test", {part: None})])))


def test_the_command(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("image: {tag: '7'}\nmetrics: {port: 9401}\n")
    two.write_text("metrics: {port: 9402}\n")
    done = gpurun("kubernetes", "manifests", "--values", str(one), "--values", str(two), "--namespace", "gpus")
    assert done.returncode == 0, done.stderr
    found = documents(done.stdout)
    (metrics,) = [o for o in found if o["metadata"]["name"] == "gpurun-metrics" and o["kind"] == "DaemonSet"]
    (container,) = metrics["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "localhost/gpurun:7" and "--listen=:9402" in container["args"]
    assert {o["metadata"].get("namespace", "gpus") for o in found} == {"gpus"}
    for words, wrong in (
        (["--values", "/nonexistent"], "--values /nonexistent: no such file or directory"),
        (["--values", str(tmp_path)], "is a directory"),
        (["--namespace", "No"], '--namespace: "No" is not the name of a namespace'),
        (["--kube-version", "new"], '--kube-version: "new" is not a version'),
    ):
        done = gpurun("kubernetes", "manifests", *words)
        assert done.returncode == 1 and wrong in done.stderr.replace('\\"', '"') and "Traceback" not in done.stderr
    deep = "[" * 20000 + "]" * 20000
    for text, wrong in (
        ("a: [", "is not valid YAML"),
        ("a: 2020-13-45", "is not valid YAML"),
        (deep, "nested too deeply"),
        ("- 1", "must be a mapping"),
        ("image: 1", "image: must be of type"),
    ):
        one.write_text(text)
        done = gpurun("kubernetes", "manifests", "--values", str(one))
        assert done.returncode == 1 and wrong in done.stderr and "Traceback" not in done.stderr and not done.stdout


def test_every_document_is_yaml_of_its_own() -> None:
    text = manifests([("plain", PLAIN)])
    assert len([one for one in yaml.safe_load_all(text) if one]) == text.count("---\n")
