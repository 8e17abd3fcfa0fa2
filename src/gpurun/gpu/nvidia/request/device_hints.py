"""What the user may have meant by the name of a device that the host does not have.  Imported only for the error."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.nvidia.host.gpus import Gpu

_WORDS = ("all", "none", "void")
_MAX_RANGE = 64


def hint(device: str, gpus: tuple[Gpu, ...]) -> str:
    """A few words such as ``did you mean all?``; empty when nothing comes near *device*."""
    known = {name.lower(): name for gpu in gpus for name in (str(gpu.index), gpu.uuid, gpu.bus_id)}
    words = device.replace(";", " ").split()
    if len(words) > 1 and all(word.lower() in known or word in _WORDS for word in words):
        return f"separate devices by commas: {','.join(words)}"
    plain = device.strip("\"'").lower()
    first, dash, last = plain.partition("-")
    if dash and _is_index(first) and _is_index(last) and int(first) < int(last) < int(first) + _MAX_RANGE:
        return f"there are no ranges: write {','.join([str(n) for n in range(int(first), int(last) + 1)])}"
    if plain.startswith("gpu") and plain[3:] in known:
        return f"did you mean {known[plain[3:]]}?"
    beginning = [gpu.uuid for gpu in gpus if len(plain) > 4 and "?" not in plain and gpu.uuid.lower().startswith(plain)]
    if len(beginning) == 1:
        return f"did you mean {beginning[0]}? UUIDs are not abbreviated"
    return next((f"did you mean {word}?" for word in _WORDS if _one_letter_apart(plain, word)), "")


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 5


def _one_letter_apart(text: str, word: str) -> bool:
    """Whether *text* is *word* but for at most one letter: too many, missing or another."""
    if abs(len(text) - len(word)) > 1:
        return False
    start = 0
    while start < min(len(text), len(word)) and text[start] == word[start]:
        start += 1
    rest, wanted = text[start:], word[start:]
    return rest[1:] == wanted[1:] or rest[1:] == wanted or rest == wanted[1:]
