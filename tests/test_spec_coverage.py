"""docs/spec-coverage.md has a row for each field of config.json, and each row names code and tests that are there."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpurun.oci.models import Config
from gpurun.oci.schema import Model

ROOT = Path(__file__).resolve().parents[1]

#: The fields of the JSON schema of runtime-spec 1.3 (config-schema.json, config-linux.json, defs.json, defs-linux.json), and
#: enableCMT and enableMBM of 1.2: an object is its members in braces, an array ends in [], a map with free keys in *.
SCHEMA = """
ociVersion hostname domainname annotations solaris windows vm zos freebsd
root { path readonly }
process { args commandLine cwd env terminal noNewPrivileges apparmorProfile selinuxLabel oomScoreAdj
  consoleSize { height width }
  user { uid gid umask additionalGids username }
  capabilities { bounding permitted effective inheritable ambient }
  rlimits[] { type soft hard }
  ioPriority { class priority }
  scheduler { policy nice priority flags runtime deadline period }
  execCPUAffinity { initial final }
}
mounts[] { destination type source options
  uidMappings[] { containerID hostID size }
  gidMappings[] { containerID hostID size }
}
hooks {
  prestart[] { path args env timeout }
  createRuntime[] { path args env timeout }
  createContainer[] { path args env timeout }
  startContainer[] { path args env timeout }
  poststart[] { path args env timeout }
  poststop[] { path args env timeout }
}
linux { cgroupsPath rootfsPropagation maskedPaths readonlyPaths mountLabel sysctl*
  namespaces[] { type path }
  uidMappings[] { containerID hostID size }
  gidMappings[] { containerID hostID size }
  timeOffsets { monotonic { secs nanosecs } boottime { secs nanosecs } }
  devices[] { type path major minor fileMode uid gid }
  netDevices* { name }
  resources { unified*
    devices[] { allow type major minor access }
    pids { limit }
    memory { limit reservation swap kernel kernelTCP swappiness disableOOMKiller useHierarchy checkBeforeUpdate }
    cpu { shares quota period burst idle cpus mems realtimePeriod realtimeRuntime }
    hugepageLimits[] { pageSize limit }
    rdma* { hcaHandles hcaObjects }
    network { classID priorities[] { name priority } }
    blockIO { weight leafWeight
      weightDevice[] { major minor weight leafWeight }
      throttleReadBpsDevice[] { major minor rate }
      throttleWriteBpsDevice[] { major minor rate }
      throttleReadIOPSDevice[] { major minor rate }
      throttleWriteIOPSDevice[] { major minor rate }
    }
  }
  seccomp { defaultAction defaultErrnoRet flags listenerPath listenerMetadata architectures
    syscalls[] { names action errnoRet args[] { index value valueTwo op } }
  }
  intelRdt { closID l3CacheSchema memBwSchema schemata enableCMT enableMBM enableMonitoring }
  personality { domain flags }
  memoryPolicy { mode nodes flags }
}
"""


def schema_fields() -> list[str]:
    fields: list[str] = []
    where: list[str] = []
    words = SCHEMA.split()
    for word, after in zip(words, [*words[1:], ""], strict=True):
        name = word.replace("*", ".*")
        if word == "}":
            where.pop()
        elif after == "{":
            where.append(name)
        elif word != "{":
            fields.append(".".join([*where, name]))
    assert not where
    return fields


def model_fields(model: type[Model], where: str = "") -> Iterator[str]:
    for name, field in model.members().items():
        path = f"{where}{name}"
        kind, suffix = unwrapped(field.annotation)
        if isinstance(kind, type) and issubclass(kind, Model):
            yield from model_fields(kind, f"{path}{suffix}.")
        else:
            free = suffix == ".*" and path.startswith("linux.")  # annotations and other platforms are one field each
            yield f"{path}.*" if free else path


def unwrapped(kind: Any) -> tuple[Any, str]:
    """What an annotation holds in the end, and whether in an array or a map."""
    suffix = ""
    while True:
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in (types.UnionType, typing.Union):
            kind = next(a for a in arguments if a is not types.NoneType)
        elif origin is typing.Annotated:
            kind = arguments[0]
        elif origin is list:
            kind, suffix = arguments[0], f"{suffix}[]"
        elif origin is dict:
            kind, suffix = arguments[1], f"{suffix}.*"
        else:
            return kind, suffix


def rows() -> list[tuple[str, str, str]]:
    found = []
    for line in (ROOT / "docs/spec-coverage.md").read_text().splitlines():
        if line.startswith("| `"):
            field, done, tested = [cell.strip() for cell in line.strip("|").split(" | ")]
            found.append((field.strip("`"), done, tested.strip("`")))
    return found


ROWS = rows()


def test_every_field_has_one_row() -> None:
    fields = [field for field, _, _ in ROWS]
    assert len(fields) == len(set(fields))
    assert sorted(fields) == sorted(schema_fields())


def test_the_models_have_every_field() -> None:
    assert sorted(model_fields(Config)) == sorted(schema_fields())


@pytest.mark.parametrize(("field", "done", "tested"), ROWS, ids=[field for field, _, _ in ROWS])
def test_rows_name_what_is_there(field: str, done: str, tested: str) -> None:
    if not done.startswith("ignored: "):
        for name in done.partition(":")[0].partition(";")[0].split(", "):
            assert (ROOT / "src/gpurun" / name).is_file(), name
    file, _, test = tested.partition("::")
    text = (ROOT / "tests" / file).read_text()
    if test == "*":
        assert field.split(".")[-1].rstrip("[]") in text
    else:
        assert f"def {test}(" in text, test
