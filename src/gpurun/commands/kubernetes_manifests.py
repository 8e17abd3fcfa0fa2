"""kubernetes manifests: what `kubectl apply` is given to bring gpurun onto a cluster, with values of the chart."""

from __future__ import annotations

import re

from gpurun.errors import GpurunError, UsageError, strerror_lower
from gpurun.invocation import Invocation
from gpurun.output import write_document

_LARGEST = 16 << 20
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_VERSION = re.compile(r"v?\d{1,4}\.\d{1,4}(\.\d{1,4})?([-+][\w.+-]*)?", re.ASCII)


def manifests(invocation: Invocation) -> int:
    """Print the manifests; the exit code.  Raises :class:`GpurunError` for values that are wrong."""
    from gpurun.kubernetes.manifests.render import KUBERNETES, PLAIN, manifests, read_values

    namespace = invocation.option("namespace", "gpurun")
    if not _NAME.fullmatch(namespace):
        raise UsageError(f'--namespace: "{namespace}" is not the name of a namespace: use a-z, 0-9 and -')
    version = invocation.option("kube-version", KUBERNETES)
    if not _VERSION.fullmatch(version):
        raise UsageError(f'--kube-version: "{version}" is not a version such as {KUBERNETES}')
    values = [("plain manifests", PLAIN)]
    for path in invocation.texts("values"):
        values.append((path, read_values(_text(path), path)))
    write_document(manifests(values, namespace, version))
    return 0


def _text(path: str) -> str:
    try:
        with open("/dev/stdin" if path == "-" else path, encoding="utf-8") as file:
            text = file.read(_LARGEST + 1)
    except OSError as e:
        raise GpurunError(f"--values {path}: {strerror_lower(e.errno or 0)}") from None
    except UnicodeDecodeError:
        raise GpurunError(f"--values {path}: is not UTF-8 text") from None
    if len(text) > _LARGEST:
        raise GpurunError(f"--values {path}: is larger than {_LARGEST >> 20} MiB")
    return text
