"""An error of create, whatever its exit code and its words: no container may be there after it."""

from __future__ import annotations

from tests.native.bundle import Bundle
from tests.native.runtime import Runtime


def refused(runtime: Runtime, bundle: Bundle) -> str:
    """What the runtime says when it refuses *bundle*."""
    container = runtime.create(bundle, check=False)
    assert container.result.rc != 0, f"it was created: {container.result}"
    assert runtime("state", container.id).rc != 0, "a new container MUST NOT be created"
    assert container.result.text, "nobody was told why"
    return container.result.text
