"""CDI documents: names, versions, strict decoding with the path of every mistake."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
import yaml

from gpurun.cdi.document import VERSIONS, minimum_version, read_document
from gpurun.cdi.files import parse_spec
from gpurun.cdi.names import class_problem, device_problem, parse_qualified, vendor_problem
from gpurun.cdi.write import to_value
from gpurun.errors import ConfigError
from tests.cdi.documents import FULL
from tests.formats.test_yaml import WORDS


#: Every key there is, with a good value.
def paths(value: Any, where: str = "", keys: tuple[str | int, ...] = ()) -> list[tuple[str, tuple[str | int, ...]]]:
    """(path as messages name it, keys to get there) of everything in *value*."""
    found = [(where, keys)] if keys else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += paths(item, f"{where}.{key}" if where else key, (*keys, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            found += paths(item, f"{where}[{i}]", (*keys, i))
    return found


def at(document: Any, keys: tuple[str | int, ...]) -> Any:
    for key in keys:
        document = document[key]
    return document


def test_a_document_with_everything() -> None:
    spec = read_document(FULL, "f.json")
    assert to_value(spec) == FULL
    assert parse_spec(json.dumps(FULL).encode(), "f.json") == spec
    assert parse_spec(yaml.safe_dump(FULL).encode(), "f.yaml") == spec


@pytest.mark.parametrize(("where", "keys"), paths(FULL), ids=[where for where, _ in paths(FULL)])
def test_a_wrong_type_is_told_with_its_path(where: str, keys: tuple[str | int, ...]) -> None:
    document = copy.deepcopy(FULL)
    old = at(document, keys)
    at(document, keys[:-1])[keys[-1]] = 3.5 if not isinstance(old, (dict, list)) else "text"
    with pytest.raises(ConfigError) as caught:
        read_document(document, "f.json")
    assert caught.value.where == f"f.json: {where}"


@pytest.mark.parametrize(
    ("where", "keys"),
    [("", ()), *[(w, k) for w, k in paths(FULL) if isinstance(at(FULL, k), dict) and not w.endswith("annotations")]],
)
def test_an_unknown_key_rejects_the_file(where: str, keys: tuple[str | int, ...]) -> None:
    document = copy.deepcopy(FULL)
    at(document, keys)["surprise"] = 1
    with pytest.raises(ConfigError, match="is unknown here") as caught:
        read_document(document, "f.json")
    assert caught.value.where == f"f.json: {where}.surprise".replace(": .", ": ")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("cdiVersion", "1.2.0", "invalid version"),
        ("cdiVersion", "0.2.0", "too low"),
        ("cdiVersion", "1.0.0", "at least 1.1.0"),
        ("cdiVersion", None, "is missing"),
        ("kind", "vendor", "is not of the form vendor/class"),
        ("kind", "1vendor/class", "must begin with a letter"),
        ("kind", None, "is missing"),
        ("devices", [], "at least one device"),
        ("devices", None, "at least one device"),
        ("devices.0.name", "a/b", "contains '/'"),
        ("devices.0.name", ".a", "must begin"),
        ("devices.0.name", None, "is missing"),
        ("devices.0.containerEdits", {}, "must edit something"),
        ("devices.0.containerEdits.env.0", "NAME", "not of the form NAME=VALUE"),
        ("devices.0.containerEdits.env.0", "=x", "not of the form NAME=VALUE"),
        ("devices.0.containerEdits.deviceNodes.0.type", "x", "is not b, c, u or p"),
        ("devices.0.containerEdits.deviceNodes.0.permissions", "rx", "is not none or"),
        ("devices.0.containerEdits.deviceNodes.0.path", "", "is missing"),
        ("devices.0.containerEdits.deviceNodes.0.path", "dev/x", "absolute"),
        ("devices.0.containerEdits.deviceNodes.0.uid", -1, "out of range"),
        ("devices.0.containerEdits.hooks.0.hookName", "preStart", "is not one of"),
        ("devices.0.containerEdits.hooks.0.path", "", "is missing"),
        ("devices.0.containerEdits.mounts.0.hostPath", "", "is missing"),
        ("devices.0.containerEdits.mounts.0.containerPath", None, "is missing"),
        ("devices.0.containerEdits.intelRdt.closID", "..", "cannot name"),
        ("devices.0.containerEdits.intelRdt.closID", "a/b", "cannot name"),
        ("devices.0.containerEdits.netDevices.0.name", "", "is missing"),
        ("annotations", {"bad key": "x"}, "must be 1 to 63"),
        ("annotations", {"UPPER.com/x": "x"}, "is not a DNS name"),
        ("annotations", {"a": "x" * 300_000}, "256 KiB"),
    ],
)
def test_what_a_document_may_not_say(path: str, value: Any, words: str) -> None:
    document = copy.deepcopy(FULL)
    keys = tuple([int(k) if k.isdigit() else k for k in path.split(".")])
    at(document, keys[:-1])[keys[-1]] = value
    with pytest.raises(ConfigError, match=words):
        read_document(document, "f.json")


def test_duplicates() -> None:
    document = copy.deepcopy(FULL)
    document["devices"] *= 2
    with pytest.raises(ConfigError, match=r"devices\[1\].name: \"dev:0\" is the name of devices\[0\] already"):
        read_document(document, "f.json")
    document = copy.deepcopy(FULL)
    document["devices"][0]["containerEdits"]["netDevices"] *= 2
    with pytest.raises(ConfigError, match=r"netDevices\[1\].hostInterfaceName: .* given twice"):
        read_document(document, "f.json")


@pytest.mark.parametrize(
    ("edits", "other", "version"),
    [
        ({"env": ["A=b"]}, {}, "0.3.0"),
        ({"mounts": [{"hostPath": "/a", "containerPath": "/b", "type": "tmpfs"}]}, {}, "0.4.0"),
        ({"deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/b"}]}, {}, "0.5.0"),
        ({"env": ["A=b"]}, {"name": "0"}, "0.5.0"),
        ({"env": ["A=b"]}, {"annotations": {"a": "b"}}, "0.6.0"),
        ({"env": ["A=b"]}, {"kind": "v.com/a.b"}, "0.6.0"),
        ({"additionalGids": [1]}, {}, "0.7.0"),
        ({"intelRdt": {"closID": "x"}}, {}, "0.7.0"),
        ({"intelRdt": {"enableMonitoring": True}}, {}, "1.1.0"),
        ({"intelRdt": {"schemata": []}}, {}, "1.1.0"),
        ({"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}, {}, "1.1.0"),
        # What is there and empty needs no version of its own, but for intelRdt, which counts when it is there.
        ({"env": ["A=b"], "netDevices": [], "additionalGids": []}, {"annotations": {}}, "0.3.0"),
        ({"mounts": [{"hostPath": "/a", "containerPath": "/b", "type": ""}]}, {}, "0.3.0"),
        ({"intelRdt": {}}, {}, "0.7.0"),
        ({"intelRdt": {"l3CacheSchema": "L3:0=f", "memBwSchema": "MB:0=50", "enableMonitoring": False}}, {}, "0.7.0"),
    ],
)
@pytest.mark.parametrize("level", ["device", "file"])
def test_the_minimum_version(edits: dict[str, Any], other: dict[str, Any], version: str, level: str) -> None:
    """As the reference library has it: it does not matter whether a device or the file says it."""
    other = dict(other)
    kind = other.pop("kind", "v.com/a")
    document: dict[str, Any] = {"kind": kind, "devices": [{"name": "a", "containerEdits": edits, **other}]}
    if level == "file":
        document |= {"containerEdits": edits, "annotations": other.pop("annotations", {})}
        document["devices"] = [{"name": "a", "containerEdits": {"env": ["A=b"]}, **other}]
    for declared in VERSIONS:
        good = VERSIONS.index(declared) >= VERSIONS.index(version)
        if good:
            spec = read_document(document | {"cdiVersion": f"v{declared}"}, "f")
            assert minimum_version(spec) == version and to_value(spec)["cdiVersion"] == version
        else:
            with pytest.raises(ConfigError, match="too low"):
                read_document(document | {"cdiVersion": declared}, "f")


#: Every field of the specification 1.1.0, object by object, as its Go types name them.
FIELDS = {
    "": "cdiVersion kind annotations devices containerEdits",
    "devices[0]": "name annotations containerEdits",
    "containerEdits": "env deviceNodes netDevices hooks mounts intelRdt additionalGids",
    "containerEdits.deviceNodes[0]": "path hostPath type major minor fileMode permissions uid gid",
    "containerEdits.netDevices[0]": "hostInterfaceName name",
    "containerEdits.hooks[0]": "hookName path args env timeout",
    "containerEdits.mounts[0]": "hostPath containerPath options type",
    "containerEdits.intelRdt": "closID l3CacheSchema memBwSchema schemata enableMonitoring",
}


@pytest.mark.parametrize(("where", "names"), FIELDS.items())
def test_the_fields_are_those_of_the_specification(where: str, names: str) -> None:
    """An unknown one is told with all that are known: no more, no less."""
    empty: dict[str, Any] = {"x": 1}
    nested: Any = empty
    for part in reversed(where.split(".")) if where else ():
        name, bracket, _ = part.partition("[")
        nested = {name: [nested] if bracket else nested}
    document = {"cdiVersion": "1.1.0", "kind": "v.com/a", "devices": [{"name": "a", "containerEdits": {"env": ["A=b"]}}]}
    with pytest.raises(
        ConfigError, match=f"^f: {re.escape(where)}.?x: is unknown here, known are {', '.join(names.split())}$"
    ):
        read_document(document | nested, "f")
    assert "enableCMT" not in names  # of 0.7 to 1.0, and gone since: as unknown as any other


@pytest.mark.parametrize("name", ["a.com/b=c", "a/b=0", "nvidia.com/gpu=GPU-1:2_3.x", "A-b_c.d/e=f"])
def test_qualified_names(name: str) -> None:
    parsed = parse_qualified(name)
    assert parsed is not None and str(parsed) == name


@pytest.mark.parametrize(
    "name", ["", "a", "a/b", "a=b", "/b=c", "a/=c", "a/b=", "a/b=-", "a/b=x y", "1/b=c", "a/b/c=d", "ä/b=c"]
)
def test_what_is_no_qualified_name(name: str) -> None:
    assert parse_qualified(name) is None


def test_names_are_explained() -> None:
    assert "must end" in vendor_problem("a.") and "must end" in class_problem("a-") and "empty" in device_problem("")


NVIDIA_STYLE = """---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
    - name: "0"
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
              fileMode: 0666   # octal in YAML 1.1
    - name: all
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
containerEdits:
    env:
        - NVIDIA_VISIBLE_DEVICES=void
    hooks:
        - hookName: createContainer
          path: /usr/bin/nvidia-cdi-hook
          args:
            - nvidia-cdi-hook
            - create-symlinks
            - --link
            - libcuda.so.1::/lib/x86_64-linux-gnu/libcuda.so
          env:
            - NVIDIA_CTK_DEBUG=false
    mounts:
        - hostPath: /lib/x86_64-linux-gnu/libcuda.so.999.88.77
          containerPath: /lib/x86_64-linux-gnu/libcuda.so.999.88.77
          options: [ro, nosuid, 'nodev', "rbind", rprivate]
"""


def test_a_file_as_nvidias_generator_writes_it() -> None:
    spec = parse_spec(NVIDIA_STYLE.encode(), "nvidia.yaml")
    assert [device.name for device in spec.devices] == ["0", "all"]
    assert spec.devices[0].edits.device_nodes[0].file_mode == 0o666
    assert spec.edits.hooks[0].args[3] == "libcuda.so.1::/lib/x86_64-linux-gnu/libcuda.so"
    assert spec.edits.mounts[0].options == ("ro", "nosuid", "nodev", "rbind", "rprivate")


def test_unquoted_numbers_are_text_where_text_is_wanted() -> None:
    spec = parse_spec(NVIDIA_STYLE.replace('"0"', "0").encode(), "nvidia.yaml")
    assert spec.devices[0].name == "0"
    with pytest.raises(ConfigError, match=r"devices\[0\].name: must be a string, not a number \(quote it\)"):
        parse_spec(NVIDIA_STYLE.replace('"0"', "0.5").encode(), "nvidia.yaml")


WORDS += ["", "a: b", "x #y", "- a", "\n", "\t", " x", "x "]
