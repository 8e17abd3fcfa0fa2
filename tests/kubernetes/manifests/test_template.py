"""Go's templates: what a chart uses of them, and that the rest is refused."""

from __future__ import annotations

from typing import Any

import pytest

from gpurun.errors import ConfigError
from gpurun.kubernetes.manifests.functions import FUNCTIONS, semver_compare
from gpurun.kubernetes.manifests.template import Blocks, Renderer, TemplateError, parse
from gpurun.kubernetes.manifests.values import check, merged

DATA: dict[str, Any] = {
    "a": {"b": "text", "n": 60, "half": 0.5, "yes": True, "no": False, "nothing": None, "empty": {}, "many": ["x", "y"]},
    "table": {"two": 2, "one": 1},
}


def rendered(text: str, data: object = DATA) -> str:
    blocks: Blocks = {}
    nodes = parse(text, "t", blocks)
    return Renderer(blocks, FUNCTIONS).render(nodes, data)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("{{ .a.b }}|{{ .a.n }}|{{ .a.half }}|{{ .a.yes }}|{{ .a.nothing }}|{{ .a.none.deeper }}", "text|60|0.5|true||"),
        ("x {{- .a.b -}} y", "xtexty"),
        ("x\n{{- /* a comment */ -}}\ny", "xy"),
        ("{{ if .a.yes }}1{{ else }}2{{ end }}{{ if .a.empty }}1{{ else if .a.no }}2{{ else }}3{{ end }}", "13"),
        ("{{ with .a }}{{ .b }}{{ $.a.n }}{{ end }}{{ with .a.empty }}x{{ else }}{{ .a.b }}{{ end }}", "text60text"),
        ("{{ range .a.many }}<{{ . }}>{{ end }}{{ range .a.empty }}x{{ else }}none{{ end }}", "<x><y>none"),
        ('{{ range $k, $v := dict "b" 1 "a" 2 }}{{ $k }}{{ $v }}{{ end }}', "a2b1"),
        ("{{ range $v := .a.many }}{{ $v }}{{ end }}", "xy"),
        ('{{ define "f" }}({{ (index . 0).a.b }}{{ index . 1 }}){{ end }}{{ include "f" (list . "z") }}', "(textz)"),
        ('{{ $x := .a.b }}{{ $y := printf "%s-%q-%d%%" $x "q" 7 }}{{ $y }}', 'text-"q"-7%'),
        ('{{ $x := 1 }}{{ if .a.yes }}{{ $x }}{{ end }}', "1"),
        ('{{ "a\\"b" | quote }}{{ `raw` }}{{ .a.b | default "d" | quote }}', '"a\\"b"raw"text"'),
        ('{{ .a.nothing | default "d" }}{{ .a.b | default "d" }}', "dtext"),
        ('{{ and .a.yes .a.b }}{{ or .a.no .a.b }}{{ not .a.no }}', "texttexttrue"),
        ('{{ eq .a.b "x" "text" }}{{ ne 1 1 }}', "truefalse"),
        ('{{ join "," .a.many }}{{ toYaml .table | nindent 2 }}', "x,y\n  one: 1\n  two: 2"),
        ('{{ regexReplaceAll "(?m)^k(.)" "k1\\n k2\\nk3" "<${1}>" }}', "<1>\n k2\n<3>"),
        ('{{ if and .a.yes (not (empty .a.many)) }}both{{ end }}', "both"),
    ],
)  # fmt: skip
def test_rendering(text: str, wanted: str) -> None:
    assert rendered(text) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ if .a }}", "t: {{ if }} has no end"),
        ("{{ end }}", "t: {{ end }} without a block"),
        ("{{ unheard . }}", "the function unheard is not known here"),
        ('{{ include "missing" . }}', "there is no template 'missing'"),
        ("{{ (.a }}", "a parenthesis has no end"),
        ("{{ .a ~ }}", "cannot read"),
        ("{{ .a .b }}", "cannot read"),
        ("{{ $missing }}", "there is no variable $missing"),
        ('{{ fail "not so" }}', "not so"),
        ('{{ required "name it" .a.nothing }}', "name it"),
        ("{{ .a | .b }}", "which is not a function"),
        ("{{ index .a.many 7 }}", "index: there is no 7"),
        ('{{ semverCompare "~1.2" "1.2.3" }}', "cannot compare"),
    ],
)
def test_what_is_wrong_or_unknown_is_refused(text: str, said: str) -> None:
    with pytest.raises(TemplateError) as error:
        rendered(text)
    assert said in str(error.value)


def test_versions() -> None:
    assert semver_compare(">=1.34.0-0", "v1.34.0-rc.1") and semver_compare(">=1.34.0-0", "1.36")
    assert not semver_compare(">=1.34.0-0", "v1.33.9")


def test_values() -> None:
    assert merged({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": 3, "c": None}, "d": [2]}) == {"a": {"b": 3}, "d": [2]}
    schema = {"type": "object", "additionalProperties": False, "definitions": {"p": {"pattern": "^/"}}, "properties": {
        "n": {"type": ["integer", "null"], "minimum": 1, "maximum": 9},
        "s": {"type": "string", "minLength": 1, "maxLength": 2},
        "l": {"type": "array", "minItems": 1, "uniqueItems": True, "items": {"enum": ["x", "y"]}},
        "p": {"$ref": "#/definitions/p"},
        "t": {"type": "object", "additionalProperties": {"type": "boolean"}, "required": ["r"]}}}  # fmt: skip
    check({"n": 1, "s": "ab", "l": ["x", "y"], "p": "/", "t": {"r": True, "q": False}}, schema, "v")
    check({"n": None}, schema, "v")
    for wrong, said in (
        ({"m": 1}, "v.m: is not known"), ({"n": True}, "v.n: must be of type"), ({"n": 0}, "v.n: must be at least 1"),
        ({"n": 10}, "v.n: must be at most 9"), ({"s": ""}, "v.s: must be at least 1"), ({"s": "abc"}, "must be at most 2"),
        ({"l": []}, "v.l: must be at least 1"), ({"l": ["x", "x"]}, "twice"), ({"l": ["z"]}, "v.l[0]: 'z' is unknown"),
        ({"p": "x"}, "does not match"), ({"t": {}}, "the key r is missing"), ({"t": {"r": 1}}, "v.t.r: must be of type"),
        ([], "v: must be of type object"),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as error:
            check(wrong, schema, "v")
        assert said in str(error.value)
