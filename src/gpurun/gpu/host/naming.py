"""How refusals and the doctor list and count the GPUs of this host: in a few words, parts of one GPU together."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

#: More of them are counted: an error is one sentence.
_MOST = 16


def short_list(devices: Iterable[tuple[int, str, str]]) -> str:
    """``0 = 0000:03:00.0, 1 = 0000:26:00.0 (MODEL)`` of (index, name, model) by index.

    Parts of one GPU (names with the same address before ``/``) are one range, and a model is said once for all that follow
    one another.
    """
    texts: list[str] = []
    listed = _ranges(devices)
    for i, (first, last, model) in enumerate(listed[:_MOST]):
        text = f"{first[0]} = {first[1]}" if first == last else f"{first[0]} to {last[0]} = {_names(first[1], last[1])}"
        following = listed[i + 1][2] if i + 1 < min(len(listed), _MOST) else None
        texts.append(f"{text}, " if following == model else f"{text} ({model}); " if model else f"{text}; ")
    return _cut("".join(texts).rstrip("; "), len(listed)) or "none"


def makers_list(devices: Iterable[tuple[str, int, str]]) -> str:
    """``nvidia:0 (0000:07:00.0), amd:0 to amd:7 (0000:05:00.0/0 to /7)`` of (maker, index, name) by maker and index."""
    texts = []
    listed = _ranges([(index, name, maker) for maker, index, name in devices])
    for first, last, maker in listed[:_MOST]:
        if first == last:
            texts.append(f"{maker}:{first[0]} ({first[1]})")
        else:
            texts.append(f"{maker}:{first[0]} to {maker}:{last[0]} ({_names(first[1], last[1])})")
    return _cut(", ".join(texts), len(listed))


def number_text(count: int, what: str) -> str:
    """``1 GPU``, ``2 GPUs``."""
    return f"1 {what}" if count == 1 else f"{count} {what}s"


def parts_text(parts: int) -> str:
    """What stands behind a number of GPUs of which some are divided into *parts*; empty for none."""
    return f", divided into {number_text(parts, 'part')}" if parts else ""


def _ranges(devices: Iterable[tuple[int, str, str]]) -> list[tuple[tuple[int, str], tuple[int, str], str]]:
    """((index, name) of the first, the same of the last, what both are) of what is said together."""
    found: list[tuple[tuple[int, str], tuple[int, str], str]] = []
    for index, name, kind in devices:
        if found:
            first, last, before = found[-1]
            of_one = "/" in name and name.partition("/")[0] == last[1].partition("/")[0]
            if of_one and kind == before and index == last[0] + 1:
                found[-1] = (first, (index, name), kind)
                continue
        found.append(((index, name), (index, name), kind))
    return found


def _names(first: str, last: str) -> str:
    return f"{first} to /{last.partition('/')[2]}"


def _cut(text: str, count: int) -> str:
    return f"{text} and {count - _MOST} more (`gpurun gpu list`)" if count > _MOST else text
