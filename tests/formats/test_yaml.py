"""The YAML reader: scalars as CDI files mean them, and every bound."""

from __future__ import annotations

import random

import pytest
import yaml

from gpurun.cdi.document import read_document
from gpurun.cdi.write import to_text
from gpurun.errors import ConfigError
from gpurun.formats.yaml import read_yaml
from tests.cdi.documents import FULL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpurun.cdi.document import CdiSpec

#: A list of ten, and lists of ten of the list before.
BILLIONS = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    [f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(6)]
)
WORDS = "x 0 yes 0666 1.5 --x é ~ *a a=b /a/b [a] { a: 0:1 2001-01-01 null .5 - 0x1 a\\b %x @ ` !t | > y 'q' \" #x".split()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: &x 1\nb: *x\n", {"a": 1, "b": 1}),
        ("{a: {b: [1, 2]}}", {"a": {"b": [1, 2]}}),
        ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
        ("a: x\n  y\n", {"a": "x y"}),
        ("a:\n  - - 1\n    - 2\n  -\n    - 3\n", {"a": [[1, 2], [3]]}),
        ("a:\n- b: 1\n  c: 2\n-\n  d: 3\n", {"a": [{"b": 1, "c": 2}, {"d": 3}]}),
        ('"a b": "x\\u00e9\\ty"\n', {"a b": "xé\ty"}),
        ("a: 'it''s'  # c\nb: # c\nc: {}\nd: []\n", {"a": "it's", "b": None, "c": {}, "d": []}),
        ("a: http://x/y#z\nb: x #c\n", {"a": "http://x/y#z", "b": "x"}),
        ("a: 010\nb: 0x1F\nc: -1\nd: 1.5\ne: yes\nf: ~\ng: '1'\nh: 0.5.0\ni: 0o17\nj: 08\n",
         {"a": 8, "b": 31, "c": -1, "d": 1.5, "e": True, "f": None, "g": "1", "h": "0.5.0", "i": 15, "j": "08"}),
        ("\ufeffa: 1\r\nb: 2\r\n", {"a": 1, "b": 2}),
        ("", None),
    ],
)  # fmt: skip
def test_yaml(text: str, value: Any) -> None:
    assert read_yaml(text.encode(), "f.yaml") == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2\n", "line 2: has the key \"a\" twice"),
        ("a: [1\n", "line 2"),
        ("a: b: c\n", "line 1"),
        ("a:\n\t- x\n", "line 2"),
        ("a: 1\n---\nb: 2\n", "line 2"),
        ("? [a]\n: b\n", "line 1: has a key that is not a word"),
        ("a: !custom x\n", "tag !custom"),
        ('a: "\\ud800"\n', "line 1: has an escape that is no character"),
        ('a: 1\n"\\udfff": 1\n', "has an escape that is no character"),
        ("a: &a [*a]\n", "nested too deeply"),
        (BILLIONS, "more than 100000"),
        ("[" * 200_000, "nested too deeply"),
        ("- " * 200_000, "nested too deeply"),
        ("[" + "," .join(["x"] * 100_001) + "]", "line 1: has more than 100000 values"),
        ("a: " + "x" * (1 << 20), "is larger than 1 MiB"),
        ('a: "\\UFFFFFFFF"', "is not valid YAML"),
        ("%YAML " + "9" * 5000 + ".1\n--- a", "is not valid YAML"),
    ],
)  # fmt: skip
def test_what_is_not_yaml_is_told_with_its_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_yaml(text.encode(), "f.yaml")
    assert words in str(caught.value) and str(caught.value).startswith("f.yaml")


def test_not_utf8() -> None:
    with pytest.raises(ConfigError, match=r"is not UTF-8 text \(byte 3\)"):
        read_yaml(b"a: \xff", "f.yaml")


def arbitrary(rng: random.Random, depth: int = 0, in_list: bool = False) -> Any:
    """Mappings, lists (none in a list: no CDI document has one) and scalars."""
    kind = rng.randrange(6 if depth < 4 else 3)
    if kind == 3:
        return {rng.choice(WORDS): arbitrary(rng, depth + 1) for _ in range(rng.randrange(1, 4))}
    if kind == 4 and not in_list:
        return [arbitrary(rng, depth + 1, True) for _ in range(rng.randrange(4))]
    return rng.choice([*WORDS, rng.randrange(-5, 5), True, False])


@pytest.mark.parametrize("seed", range(6))
def test_what_three_writers_write_is_read_as_it_was(seed: int) -> None:
    from gpurun.cdi.write import to_yaml

    rng = random.Random(seed)
    for _ in range(20):
        value = {rng.choice(WORDS): arbitrary(rng) for _ in range(3)}
        for text in (to_yaml(value), yaml.safe_dump(value), yaml.safe_dump(value, default_flow_style=True, indent=4)):
            assert read_yaml(text.encode(), "f") == value, text


def test_a_document_of_cdi() -> None:
    spec: CdiSpec = read_document(FULL, "f")
    for text in (to_text(spec, "yaml"), yaml.safe_dump(FULL, sort_keys=False)):
        assert read_document(read_yaml(text.encode(), "f"), "f") == spec
