"""The version of the OCI runtime specification that gpurun follows."""

from __future__ import annotations

SPEC_VERSION = "1.3.0"
