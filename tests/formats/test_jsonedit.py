"""JSON texts with one member changed: the value is right, and all else is as it was, to the blank."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from gpurun.formats.jsonedit import with_member, without_member


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("{}", '{\n    "a": {\n        "b": 1\n    }\n}'),
        ('{"x": 1}\n', '{"x": 1, "a": {"b": 1}}\n'),
        ('{\n  "x": [1,2]\n}\n', '{\n  "x": [1,2],\n  "a": {\n    "b": 1\n  }\n}\n'),
        ('{\n\t"x" :1 ,\n\t"a":{}\n}', '{\n\t"x" :1 ,\n\t"a":{\n\t\t"b": 1\n\t}\n}'),
        ('{"a": {"b": "}", "c": 2}}', '{"a": {"b": 1, "c": 2}}'),
        ('{\n  "a": {\n    "c": "\\"{"\n  }\n}', '{\n  "a": {\n    "c": "\\"{",\n    "b": 1\n  }\n}'),
    ],
)
def test_a_member_put_in(text: str, made: str) -> None:
    assert with_member(text, ("a", "b"), 1) == made


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ('{"a": {"b": 1}}', "{}"),
        ('{"x": 1, "a": {"b": 1}}\n', '{"x": 1}\n'),
        ('{\n  "a": {\n    "b": 1\n  },\n  "x": 2\n}', '{\n  "x": 2\n}'),
        ('{"a": {"b": 1, "c": 2, "d": 3}}', '{"a": {"c": 2, "d": 3}}'),
        ('{"a": {"c": 2}}', '{"a": {"c": 2}}'),
    ],
)
def test_a_member_taken_out(text: str, made: str) -> None:
    assert without_member(text, ("a", "b")) == made


@pytest.mark.parametrize("text", ["[]", '{"a": 1}'])
def test_what_is_no_object(text: str) -> None:
    with pytest.raises(ValueError, match="begins no object"):
        with_member(text, ("a", "b"), 1)


def value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(6 if depth < 3 else 4)
    if kind == 4:
        return [value(rng, depth + 1) for _ in range(rng.randrange(3))]
    if kind == 5:
        return {rng.choice(('"', "a", "b", "ü", "{")): value(rng, depth + 1) for _ in range(rng.randrange(4))}
    return (rng.randrange(-5, 5), 'te"xt}', None, 1.5)[kind]


@pytest.mark.parametrize("seed", range(200))
def test_put_in_and_taken_out_again(seed: int) -> None:
    """In any layout the value is what it is to be, and taking out what was not there before gives the text back."""
    rng = random.Random(seed)
    document = {key: value(rng) for key in rng.sample(("x", "y", "z"), rng.randrange(4))}
    text = json.dumps(document, indent=rng.choice((None, 1, 4, "\t")), ensure_ascii=rng.random() < 0.5) + rng.choice(
        ("", "\n")
    )
    made = with_member(text, ("runtimes", "gpurun", "path"), "/usr/bin/gpurun")
    assert json.loads(made) == {**document, "runtimes": {"gpurun": {"path": "/usr/bin/gpurun"}}}
    assert without_member(made, ("runtimes", "gpurun")) == (text if document else text.replace("{\n}", "{}"))
