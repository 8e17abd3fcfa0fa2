"""Which of AMD's GPUs a container asks for: AMD_VISIBLE_DEVICES and Swarm's DOCKER_RESOURCE_*, with AMD's meaning.  Pure.

Of these variables the last one in the environment counts, as with amd-container-runtime.  A variable of Swarm's may be
about anything, so one counts only when all its words name GPUs of this host by unique id or PCI address.  AMD's runtime
takes any variable of Swarm's, and indices: where unknown devices are passed over, gpurun does so for those whose names
speak of GPUs or of AMD, so DOCKER_RESOURCE_SSD=3 is no GPU.  PCI addresses are gpurun's addition: indices and render minors
may change when the host starts again.
"""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.errors import ConfigError, GpuError, clean
from gpurun.gpu.vendors import place
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.amd.host import AmdGpu

VARIABLE, SWARM = "AMD_VISIBLE_DEVICES", "DOCKER_RESOURCE_"
#: Longer values are refused unread: the image writes them, and no host has that many GPUs.
MAX_VALUE = 64 * 1024
#: Resources of Swarm's with one of these in their names are GPUs: AMD's documents call theirs AMD_GPU.
_GPU_RESOURCES = ("GPU", "AMD")
_ALL = ("all", "All", "ALL")
_NONE = ("", "none", "void")
_INDEX_DIGITS = 8  # more hexadecimal digits are a unique id
_MOST = 1 << 16


class AmdRequest(Record):
    """The *value* that counts, and the variable that it was found in."""

    value: str
    source: str


def read_request(env: tuple[str, ...], gpus: tuple[AmdGpu, ...], ignore_unknown: bool = False) -> AmdRequest | None:
    """What ``process.env`` asks for on a host with *gpus*, None for nothing.

    With *ignore_unknown* one GPU of this host is enough for a variable of Swarm's.  Raises :class:`ConfigError`.
    """
    found: AmdRequest | None = None
    for entry in env:
        name, equals, value = entry.partition("=")
        if not equals or not (name == VARIABLE or name.startswith(SWARM)):
            continue
        if name == VARIABLE and len(value) > MAX_VALUE:
            raise ConfigError(place(name), f"is {len(value)} characters long, more than {MAX_VALUE} are not read")
        by_index = ignore_unknown and any(word in name[len(SWARM) :].upper() for word in _GPU_RESOURCES)
        if name == VARIABLE or _is_of_amd(value, gpus, ignore_unknown, by_index):
            found = AmdRequest(value, name)
    return found if found is not None and found.value.strip() not in _NONE else None


def _is_of_amd(value: str, gpus: tuple[AmdGpu, ...], ignore_unknown: bool, by_index: bool) -> bool:
    if by_index and value in _ALL:
        return bool(gpus)
    words = value.split(",") if len(value) <= MAX_VALUE else []
    devices = [word for word in words if _is_unique_id(word) or ":" in word or (by_index and _is_index(word))]
    there = [bool(_find_gpus(word, gpus)) for word in devices]
    return len(there) == len(words) and (any(there) if ignore_unknown else bool(there) and all(there))


def select(request: AmdRequest, gpus: tuple[AmdGpu, ...], ignore_unknown: bool = False) -> tuple[AmdGpu, ...]:
    """Those of *gpus* that *request* names, in their order, as often as they are named.

    Raises :class:`GpuError` for what names none; with *ignore_unknown* that is passed over, and blanks count, as with
    amd-container-runtime.
    """
    if request.value in _ALL or (not ignore_unknown and wants_all(request)):
        return gpus
    found: list[AmdGpu] = []
    for word in request.value.split(","):
        meant = _find_gpus(word if ignore_unknown else word.strip(), gpus)
        if not meant and not ignore_unknown:
            from gpurun.gpu.host.naming import short_list

            there = short_list([(gpu.index, gpu.key, gpu.model) for gpu in gpus])
            what = f"{clean(word)}: unknown device ({place(request.source)}): the AMD GPUs of this host are {there}"
            raise GpuError(what)
        found += meant
    return tuple(sorted(found, key=lambda gpu: gpu.index))


def wants_all(request: AmdRequest) -> bool:
    """Whether *request* is for all GPUs and names none."""
    return request.value.strip() in _ALL


def passed_over(request: AmdRequest, gpus: tuple[AmdGpu, ...]) -> tuple[str, ...]:
    """The words of *request* that :func:`select` passes over with *ignore_unknown*, each once."""
    words = () if request.value in _ALL else tuple(dict.fromkeys(request.value.split(",")))
    return tuple([word for word in words if not _find_gpus(word, gpus)])


def _find_gpus(word: str, gpus: tuple[AmdGpu, ...]) -> list[AmdGpu]:
    """The GPUs that one *word* names; none for a word that names none, or a part of a range that this host lacks."""
    if word.startswith("amd:"):
        word = word[4:] or "-"  # as where several makers' GPUs are named
    if ":" in word:
        return [gpu for gpu in gpus if word.lower() in (gpu.key, gpu.pci)]
    if _is_unique_id(word):
        wanted = word.lower().removeprefix("0x").lstrip("0")  # amd-ctk prints it without zeros at its head
        return [gpu for gpu in gpus if wanted in [one.lstrip("0") for one in gpu.unique_ids]]
    first, dash, last = word.partition("-")
    low = decimal(first, _MOST)
    high = decimal(last, _MOST) if dash else low
    if low is None or high is None:
        return []
    return [gpu for gpu in gpus if low <= gpu.index <= high]


def _is_index(word: str) -> bool:
    """Whether *word* is an index or a range of them."""
    first, dash, last = word.partition("-")
    return decimal(first) is not None and (not dash or decimal(last) is not None)


def _is_unique_id(word: str) -> bool:
    digits = word[2:] if word[:2] in ("0x", "0X") else word
    hexadecimal = bool(digits) and not digits.strip("0123456789abcdefABCDEF")
    return word[:2] in ("0x", "0X") or (hexadecimal and len(digits) > _INDEX_DIGITS)
