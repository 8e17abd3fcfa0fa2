"""The table of the annotations that gpurun reads, and a look through the source for one that is read past it."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

import gpurun
from gpurun.oci import annotations as table
from gpurun.oci.annotations import NAMES, OBEYED, UNSAFE, split_labels, stands_in
from gpurun.oci.features import Built, features_document

SOURCE = Path(gpurun.__file__).parent
_TABLE = "gpurun.oci.annotations"
#: Parts of keys by which a text in the source is known for an annotation.
_KEYS = ("dev.gpurun.", "run.oci.", "org.criu.", "org.systemd.property", "cdi.k8s.", "io.kubernetes.", "nerdctl/")
#: What has "annotations" that are not a container's: those of CDI files, of Python, and of answers to the kubelet.
_OTHER_ANNOTATIONS = ("cdi/", "builder/", "record.py", "oci/schema.py", "kubernetes/", "gpu/nvidia/cdi/coherent.py")
#: Functions that are given beginnings of keys, which are the site's own, by NVIDIA's config.toml.
_GIVEN = {("gpu/nvidia/cdi/named_devices.py", "prefixes")}


@functools.cache
def modules() -> tuple[tuple[str, ast.Module], ...]:
    """(path below the package, syntax) of what says anything of annotations, or has a text like the key of one."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name, text = str(path.relative_to(SOURCE)), path.read_text().replace("from __future__ import annotations", "")
        if name != "oci/annotations.py" and ("annotations" in text or any(key in text for key in _KEYS)):
            found.append((name, ast.parse(text)))
    return tuple(found)


def is_annotations(node: ast.AST) -> bool:
    return (isinstance(node, ast.Name) and node.id == "annotations") or (
        isinstance(node, ast.Attribute) and node.attr == "annotations"
    )


def reads(name: str, tree: ast.Module) -> list[str]:
    """Each place of *tree* that reads an annotation by what does not come from the table, as ``file:line: expression``."""
    allowed = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == _TABLE
        for alias in node.names
    } | {given for file, given in _GIVEN if file == name}
    grown = -1
    while grown != len(allowed):  # what is made of names of the table alone, and of such
        grown = len(allowed)
        for node in ast.walk(tree):
            for target, value in assigned(node):
                if names_in(value) & allowed and not any(is_annotations(part) for part in ast.walk(value)):
                    allowed |= names_in(target)
    found = []
    for part in tree.body:
        functions: list[ast.AST] = [one for one in ast.walk(part) if isinstance(one, ast.FunctionDef)]
        for function in functions or [part]:
            found += [f"{name}:{place}" for place in reads_in(function, allowed)]
    return found


def assigned(node: ast.AST) -> list[tuple[ast.AST, ast.AST]]:
    """(target, value) of an assignment or a loop."""
    if isinstance(node, ast.Assign):
        return [(target, node.value) for target in node.targets]
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return [(node.target, node.value)]
    return [(node.target, node.iter)] if isinstance(node, (ast.For, ast.comprehension)) else []


def reads_in(function: ast.AST, allowed: set[str]) -> list[str]:
    own: set[str] = set()  # keys that are there: of loops over the annotations themselves
    for node in ast.walk(function):
        if isinstance(node, (ast.For, ast.comprehension)) and any(is_annotations(part) for part in ast.walk(node.iter)):
            items = ast.unparse(node.iter).endswith(".items()") and isinstance(node.target, ast.Tuple)
            own |= names_in(node.target.elts[0] if items and isinstance(node.target, ast.Tuple) else node.target)
    found = []
    for node in ast.walk(function):
        keys: list[ast.expr] = []
        if isinstance(node, ast.Subscript) and is_annotations(node.value) and isinstance(node.ctx, ast.Load):
            keys = [node.slice]
        elif isinstance(node, ast.Compare) and any(is_annotations(one) for one in node.comparators):
            keys = [node.left]
        elif isinstance(node, ast.Compare) and names_in(node.left) & own:
            keys = node.comparators
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value
            read = node.func.attr in ("get", "pop") and is_annotations(of)
            if read or (node.func.attr == "startswith" and names_in(of) & own):
                keys = node.args[:1]
        found += [f"{key.lineno}: {ast.unparse(key)}" for key in keys if not names_in(key) & (allowed | own)]
    return found


def names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def texts_of_keys(node: ast.AST) -> list[str]:
    return [
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.startswith(_KEYS)
    ]


def test_every_annotation_that_is_read_stands_in_the_table() -> None:
    looked = [(name, tree) for name, tree in modules() if not name.startswith(_OTHER_ANNOTATIONS)]
    assert sum(any(is_annotations(n) for n in ast.walk(t)) for _, t in looked) > 10
    assert [place for name, tree in looked for place in reads(name, tree)] == []


def test_no_annotation_is_written_out_beside_the_table() -> None:
    # The whole text of a module counts as one constant where it is a docstring; none begins with a key.
    assert [(name, text) for name, tree in modules() for text in texts_of_keys(tree)] == []
    for path in (SOURCE / "launcher").glob("*.[ch]"):
        assert not any(key in path.read_text() for key in _KEYS), path


@pytest.mark.parametrize(
    "source",
    [
        'def f(annotations): return annotations.get("com.example")',
        'def f(config): return config.annotations["com.example"]',
        'def f(config): return "com.example" in config.annotations',
        'def f(annotations): return [k for k in annotations if k.startswith("com.example")]',
        'KEY = "com.example"\ndef f(annotations): return annotations.get(KEY)',
        'def f(annotations):\n for k, v in annotations.items():\n  if k == "com.example": return v',
    ],
)
def test_the_look_finds_what_is_read_past_the_table(source: str) -> None:
    assert len(reads("x.py", ast.parse(source))) == 1


def test_the_look_lets_the_table_pass() -> None:
    source = f"""
from {_TABLE} import CRIU_CONFIG, GPURUN
KEYS = (CRIU_CONFIG,)
def f(annotations):
    for key in KEYS:
        annotations.get(key), annotations[CRIU_CONFIG], GPURUN + "x" in annotations
    return [annotations[key] for key in annotations if key.startswith(GPURUN)]
"""
    assert reads("x.py", ast.parse(source)) == []


def test_features_name_what_is_obeyed() -> None:
    document = features_document(Built((), (), (), ()))
    assert document["potentiallyUnsafeConfigAnnotations"] == list(UNSAFE)
    assert set(OBEYED) < set(UNSAFE)


def texts(value: object) -> list[str]:
    return [value] if isinstance(value, str) else [text for one in value for text in texts(one)]  # type: ignore[attr-defined]


def test_every_key_of_the_module_is_left_out_of_labels() -> None:
    keys = [
        text for name, value in vars(table).items() if name.isupper() and name != "TYPE_CHECKING" for text in texts(value)
    ]
    assert len(keys) > 20
    labels = {key + ("x" if key.endswith((".", "/")) else ""): "1" for key in keys}
    assert split_labels(labels) == ({}, tuple(sorted(labels)))
    assert all(stands_in(key, (*UNSAFE, *NAMES, *table.OBEYED_BY_OTHERS)) for key in labels)


def test_labels_that_stay() -> None:
    kept = {"org.example": "yes", "org.opencontainers.image.title": "a", "run.ocix": "1", "org.criu.configs": "b"}
    assert split_labels(kept) == (kept, ())
    assert split_labels({"cdi.example/x": "1", "team": "a", "b": "2"}, ("cdi.example/",), ("team",)) == (
        {"b": "2"},
        ("cdi.example/x", "team"),
    )
