"""docs/kubernetes.md: what is in its blocks is done as far as that goes without a cluster."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from gpurun.cli.parse import parse
from gpurun.kubernetes.config_file import parse as parse_config
from tests.kubernetes import models
from tests.kubernetes.charts import HELM, REPOSITORY, documents, helm, needs_helm, rendered

DOCUMENT = (REPOSITORY / "docs/kubernetes.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", DOCUMENT, re.DOTALL)
LINES = [line.partition(" #")[0].strip() for kind, text in BLOCKS if not kind for line in text.splitlines()]
YAML = [text for kind, text in BLOCKS if kind == "yaml"]
EXAMPLES = sorted((REPOSITORY / "examples/kubernetes").glob("*.yaml"))


def lines(first: str) -> list[str]:
    return [line for line in LINES if line.startswith(first)]


@pytest.mark.parametrize("text", YAML + [path.read_text() for path in EXAMPLES])
def test_yaml(text: str, tmp_path: Path) -> None:
    for document in documents(text):
        if "kind" in document:
            assert models.problems(document) == []
        elif "version" in document:
            assert parse_config(text, "document").warnings == ()
        elif HELM:
            assert rendered(document, tmp_path)


@pytest.mark.parametrize("line", [line.partition(" | ")[0] for line in (*lines("gpurun "), *lines("ExecStart="))])
def test_commands_of_gpurun(line: str) -> None:
    words = shlex.split(line.removeprefix("ExecStart=/usr/bin/"))
    assert words[0] == "gpurun" and parse(words[1:]).command in ("install", "kubernetes")


@pytest.mark.parametrize("words", re.findall(r"`(?:/opt/gpurun/bin/)?gpurun ([^`|]+)`", DOCUMENT))
def test_commands_in_the_text(words: str) -> None:
    assert parse(shlex.split(words)).command


@needs_helm
@pytest.mark.parametrize("line", lines("helm upgrade --install gpurun "))
def test_commands_of_helm(line: str, tmp_path: Path) -> None:
    (tmp_path / "shared.yaml").write_text("version: v1\n")
    words = [str(tmp_path / w) if w == "shared.yaml" else w for w in shlex.split(line)[4:]]
    words = [w.replace("=shared.yaml", f"={tmp_path}/shared.yaml") for w in words]
    chart = str(REPOSITORY / words.pop(0))
    done = helm("template", "gpurun", chart, "--kube-version", "1.36.0", *words, check=False)
    assert done.returncode == 0 and documents(done.stdout), done.stderr


def test_files_that_are_applied_are_there() -> None:
    named = [word for line in lines("kubectl apply -f ") for word in shlex.split(line) if word.endswith(".yaml")]
    assert len(named) >= 3 and all((REPOSITORY / word).is_file() for word in named)
    made = {document["metadata"]["name"] for name in named[:1] for document in documents((REPOSITORY / name).read_text())}
    asked = re.findall(r"(?:daemonset/|^\| )(gpurun-[a-z-]+)", DOCUMENT, re.MULTILINE)
    assert set(asked) - {"gpurun-dra-driver", "gpurun-uninstall"} <= made


def test_every_value_that_is_named_is_one() -> None:
    values = yaml.safe_load((REPOSITORY / "charts/gpurun/values.yaml").read_text())
    named = re.findall(r"--set(?:-file)? ([\w.]+)=", "\n".join(line for line in LINES if "charts/gpurun" in line))
    named += re.findall(r"`((?:installer|devicePlugin|metrics|dra|labels)(?:\.\w+)*)`", DOCUMENT)
    assert named
    for path in named:
        table = values
        for part in path.split("."):
            assert part in table or table == {}, path
            table = table.get(part, {}) if table else {}
