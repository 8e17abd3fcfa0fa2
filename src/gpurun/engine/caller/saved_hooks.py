"""The hooks of a container that has been created, for start and delete."""

from __future__ import annotations

from gpurun.engine import state as store
from gpurun.linux.files import read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.oci.config import Hooks


def saved_hooks(root: str, container_id: str) -> tuple[Hooks, tuple[str, str]] | None:
    """(hooks, files for what they write) of the saved config; None if it names no hooks: most do not, and then no JSON is
    read.

    A letter of a name can be written as an escape, ``\\u`` and its number (RFC 8259): a text with one is read in any case.
    """
    try:
        data = read_file(f"{root}/{container_id}/config.json", store.MAX_SAVED_CONFIG)
    except FileNotFoundError:
        return None  # a create that did not get that far
    named = b'"hooks"' in data and (b'"poststart"' in data or b'"poststop"' in data)
    if not named and b"\\u" not in data and _looks_whole(data):
        return None
    from gpurun.engine.hook_output import output_files
    from gpurun.oci.config import read_config

    config = read_config(data)
    return config.hooks, output_files(config.annotations)


def _looks_whole(text: bytes) -> bool:
    """Whether all braces of a JSON document are closed, which those of one that was cut off are not."""
    return text.count(b"{") == text.count(b"}") > 0
