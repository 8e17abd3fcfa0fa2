"""``NVIDIA_REQUIRE_*`` expressions: may this container run on this driver?  Pure.

An expression is alternatives separated by blanks (one must hold) of terms separated by commas (all must hold); a term is
``name op value`` without blanks: ``cuda>=12.4 brand=tesla,driver>=470,driver<471``.  Where the outcome depends on a property
that is not known, whoever knows more is asked; what remains unknown lets its term pass: better a container that starts
than one refused for what could not be found out.  A term of another name is as if it were not there.
"""

from __future__ import annotations

from gpurun.errors import ConfigError, clean
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Highest CUDA version of each driver branch (CUDA release notes, table "CUDA Toolkit and corresponding driver versions").
#: Asking libcuda itself would mean loading it as root; a branch not listed here is simply not known.
_CUDA_OF_BRANCH = {
    418: (10, 1), 430: (10, 1), 435: (10, 1), 440: (10, 2), 450: (11, 0), 455: (11, 1), 460: (11, 2), 465: (11, 3),
    470: (11, 4), 495: (11, 5), 510: (11, 6), 515: (11, 7), 520: (11, 8), 525: (12, 0), 530: (12, 1), 535: (12, 2),
    545: (12, 3), 550: (12, 4), 555: (12, 5), 560: (12, 6), 565: (12, 7), 570: (12, 8), 575: (12, 9), 580: (13, 0),
    590: (13, 1),
}  # fmt: skip

#: Words of a model name and the brand NVML reports for it, first match wins.  Data-centre cards have changed brand between
#: drivers, so they have none here.
_BRANDS = (
    ("GeForce RTX", "geforcertx"),
    ("GeForce", "geforce"),
    ("Quadro RTX", "quadrortx"),
    ("Quadro", "quadro"),
    ("TITAN RTX", "titanrtx"),
    ("TITAN", "titan"),
    ("NVS", "nvs"),
    ("GRID", "grid"),
)

_OPERATORS = ("=", "!=", "<", "<=", ">", ">=")


class Properties(Record):
    """What the expressions may ask for; ``None`` is not known.  *cuda_or_newer*: *cuda* is a lower bound."""

    cuda: tuple[int, ...] | None = None
    driver: tuple[int, ...] | None = None
    arch: tuple[int, ...] | None = None
    brand: str | None = None
    cuda_or_newer: bool = False


def properties(driver_version: str, model: str = "") -> Properties:
    """The properties of a GPU of that *model* under that driver."""
    numbers = _version(driver_version)
    brand = next((brand for words, brand in _BRANDS if words in model), None)
    branch = max([b for b in _CUDA_OF_BRANCH if numbers and b <= numbers[0]], default=None)
    if branch is None or not numbers:
        return Properties(None, numbers, None, brand)
    return Properties(_CUDA_OF_BRANCH[branch], numbers, None, brand, branch != numbers[0])


def with_nvml_properties(before: Properties, cuda: str, arch: str, brand: str) -> Properties:
    """*before* with what NVML says, as far as it says anything."""
    exact = _version(cuda) if cuda else None
    return Properties(
        exact or before.cuda,
        before.driver,
        (_version(arch) if arch else None) or before.arch,
        brand.lower() or before.brand,
        before.cuda_or_newer and exact is None,
    )


def check(
    expressions: tuple[str, ...],
    gpus: tuple[Properties, ...],
    learn: Callable[[], tuple[Properties, ...]] | None = None,
) -> None:
    """Raise :class:`ConfigError` for the first expression that one of *gpus* does not meet, or that is malformed.

    *learn* gives the same GPUs with more of their properties known; called at most once, when the outcome depends on it.
    """
    for expression in expressions:
        alternatives = [[parsed for term in a.split(",") if term and (parsed := _parse(term))] for a in expression.split()]
        alternatives = [a for a in alternatives if a]
        if not alternatives:
            continue
        verdicts = [_verdict(alternatives, gpu) for gpu in gpus]
        if learn is not None and None in verdicts and False not in verdicts:
            gpus, learn = learn(), None
            verdicts = [_verdict(alternatives, gpu) for gpu in gpus]
        if False in verdicts:
            raise ConfigError("", _unsatisfied_text(expression.split()[0]))


def _verdict(alternatives: list[list[tuple[str, str, str]]], gpu: Properties) -> bool | None:
    """Whether *gpu* meets one of *alternatives*; ``None`` when that depends on what is not known."""
    best: bool | None = False
    for terms in alternatives:
        found = [_holds(term, gpu) for term in terms]
        if False in found:
            continue
        if None not in found:
            return True
        best = None
    return best


def _unsatisfied_text(predicate: str) -> str:
    hint = ", please update your driver to a newer version, or use an earlier cuda container"
    text = f"requirement error: unsatisfied condition: {clean(predicate)}"
    return text + hint if predicate.lower().startswith("cuda>=") else text


def _parse(term: str) -> tuple[str, str, str] | None:
    """(name, operator, value) of *term*; ``None`` where it asks for an unknown name: it is left out."""
    start = next((i for i, c in enumerate(term) if c in "<>=!"), len(term))
    end = start
    while end < len(term) and term[end] in "<>=!":
        end += 1
    name, operator, value = term[:start].lower(), term[start:end], term[end:]
    if operator not in _OPERATORS or not value or not name:
        raise _invalid(term)
    if name in ("cuda", "driver", "arch"):
        if _version(value) is None:
            raise _invalid(term)
    elif name != "brand":
        return None
    elif operator not in ("=", "!="):
        raise _invalid(term)
    return name, operator, value


def _invalid(term: str) -> ConfigError:
    return ConfigError(
        "process.env NVIDIA_REQUIRE_*",
        f"requirement error: invalid expression '{clean(term)}': write cuda, driver or arch, one of = != < <= > >=, and "
        "a version, or brand=NAME (NVIDIA_DISABLE_REQUIRE=1 skips the check)",
    )


def _version(text: str) -> tuple[int, ...] | None:
    parts = text.removeprefix("v").split(".")
    if not all(p.isascii() and p.isdigit() and len(p) < 10 for p in parts):
        return None
    return tuple([int(p) for p in parts])


def _holds(term: tuple[str, str, str], gpu: Properties) -> bool | None:
    name, operator, value = term
    if name == "brand":
        return None if gpu.brand is None else (gpu.brand == value.lower()) == (operator == "=")
    have: tuple[int, ...] | None = getattr(gpu, name)
    want = _version(value)
    if have is None or want is None:
        return None
    length = max(len(have), len(want))  # missing components are zero
    have, want = have + (0,) * (length - len(have)), want + (0,) * (length - len(want))
    if name == "cuda" and gpu.cuda_or_newer:
        return _at_least(have, operator, want)
    if operator == "=":
        return have == want
    if operator == "!=":
        return have != want
    if operator in ("<", ">"):
        return have < want if operator == "<" else have > want
    return have <= want if operator == "<=" else have >= want


def _at_least(have: tuple[int, ...], operator: str, want: tuple[int, ...]) -> bool | None:
    """The verdict when the version is *have* or newer."""
    if operator == ">=" and have >= want:
        return True
    if operator in (">", "!=") and have > want:
        return True
    if (operator == "<" and have >= want) or (operator in ("<=", "=") and have > want):
        return False
    return None
