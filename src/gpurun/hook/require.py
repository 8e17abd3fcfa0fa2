"""``NVIDIA_REQUIRE_*`` expressions: may this container run on this driver?  Pure.

An expression is alternatives separated by blanks (one must hold) of terms separated by commas (all must hold); a term is
``name op value`` without blanks: ``cuda>=12.4 brand=tesla,driver>=470,driver<471``.  A property that is not known lets its
term pass: better a container that starts than one refused for what nobody asked the driver.
"""

from __future__ import annotations

from gpurun.errors import ConfigError
from gpurun.hook.request import shown
from gpurun.record import Record

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
    """What the expressions may ask for; ``None`` is not known."""

    cuda: tuple[int, ...] | None = None
    driver: tuple[int, ...] | None = None
    arch: tuple[int, ...] | None = None
    brand: str | None = None


def properties(driver_version: str, model: str = "") -> Properties:
    """The properties of a GPU of that *model* under that driver."""
    numbers = _version(driver_version)
    cuda = _CUDA_OF_BRANCH.get(numbers[0]) if numbers else None
    brand = next((brand for words, brand in _BRANDS if words in model), None)
    return Properties(cuda, numbers, None, brand)


def check(expressions: tuple[str, ...], gpus: tuple[Properties, ...]) -> None:
    """Raise :class:`ConfigError` for the first expression that one of *gpus* does not meet, or that is malformed."""
    for expression in expressions:
        alternatives = [[_parse(term) for term in a.split(",") if term] for a in expression.split()]
        alternatives = [a for a in alternatives if a]
        if not alternatives:
            continue
        for gpu in gpus:
            if not any(all(_holds(term, gpu) for term in terms) for terms in alternatives):
                raise ConfigError("", _unsatisfied(expression.split()[0]))


def _unsatisfied(predicate: str) -> str:
    hint = ", please update your driver to a newer version, or use an earlier cuda container"
    text = f"requirement error: unsatisfied condition: {shown(predicate)}"
    return text + hint if predicate.lower().startswith("cuda>=") else text


def _parse(term: str) -> tuple[str, str, str]:
    start = next((i for i, c in enumerate(term) if c in "<>=!"), len(term))
    end = start
    while end < len(term) and term[end] in "<>=!":
        end += 1
    name, operator, value = term[:start].lower(), term[start:end], term[end:]
    if operator not in _OPERATORS or not value:
        raise _invalid(term)
    if name in ("cuda", "driver", "arch"):
        if _version(value) is None:
            raise _invalid(term)
    elif name != "brand" or operator not in ("=", "!="):
        raise _invalid(term)
    return name, operator, value


def _invalid(term: str) -> ConfigError:
    return ConfigError(
        "process.env NVIDIA_REQUIRE_*",
        f"requirement error: invalid expression '{shown(term)}': write cuda, driver or arch, one of = != < <= > >=, and "
        "a version, or brand=NAME (NVIDIA_DISABLE_REQUIRE=1 skips the check)",
    )


def _version(text: str) -> tuple[int, ...] | None:
    parts = text.split(".")
    if not all(p.isascii() and p.isdigit() and len(p) < 10 for p in parts):
        return None
    return tuple([int(p) for p in parts])


def _holds(term: tuple[str, str, str], gpu: Properties) -> bool:
    name, operator, value = term
    if name == "brand":
        return gpu.brand is None or (gpu.brand == value.lower()) == (operator == "=")
    have: tuple[int, ...] | None = getattr(gpu, name)
    want = _version(value)
    if have is None or want is None:
        return True
    length = max(len(have), len(want))  # missing components are zero
    have, want = have + (0,) * (length - len(have)), want + (0,) * (length - len(want))
    if operator == "=":
        return have == want
    if operator == "!=":
        return have != want
    if operator in ("<", ">"):
        return have < want if operator == "<" else have > want
    return have <= want if operator == "<=" else have >= want
