"""Frozen, slotted records: the plain data of gpurun.

``dataclasses`` costs 13 ms to import (it pulls in inspect, re and enum), which is twice the start-up of the
interpreter; the machine path cannot have it.  A :class:`Record` gives what gpurun needs of it (slots, frozen, equality,
repr, keyword and positional construction, defaults), is seen by type checkers as a dataclass, and can be sent to
another process (:func:`to_wire`) or shown as JSON (:func:`to_plain`).

Field defaults must be immutable values (or be treated as such: the same object is shared by all instances).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar, dataclass_transform

    T = TypeVar("T")
else:

    def dataclass_transform(**_: object):  # noqa: D103 - typing's own costs 9 ms to import
        return lambda cls: cls


_registry: dict[str, type[Record]] = {}

#: What a record is made of in the end: sent as it is.
_LEAVES = frozenset((str, int, bool, float, bytes, type(None)))


#: What Python 3.14 leaves in place of a class' annotations, to be called later (PEP 649), where the module does not say
#: ``from __future__ import annotations``.
_LAZY_ANNOTATIONS = ("__annotate_func__", "__annotate__")


class _RecordMeta(type):
    """Turns annotations into ``__slots__`` and keeps the defaults aside."""

    _fields: tuple[str, ...]
    _defaults: dict[str, Any]

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        if any(key in namespace for key in _LAZY_ANNOTATIONS):
            module = namespace.get("__module__")
            raise TypeError(f"{module} needs `from __future__ import annotations`: without it {name} would have no fields")
        fields = tuple(namespace.get("__annotations__", ()))
        defaults = {f: namespace.pop(f) for f in fields if f in namespace}
        namespace["__slots__"] = fields
        cls = super().__new__(mcls, name, bases, namespace)
        cls._fields = fields
        cls._defaults = defaults
        if fields:
            if name in _registry and _registry[name].__module__ != cls.__module__:
                raise TypeError(f"two records are named {name}")
            _registry[name] = cls  # type: ignore[assignment]
        return cls


@dataclass_transform(frozen_default=True)
class Record(metaclass=_RecordMeta):
    """Base of all records; subclasses only declare annotated fields and, at most, pure methods."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cls = type(self)
        fields = cls._fields
        if len(args) > len(fields):
            raise TypeError(f"{cls.__name__} takes {len(fields)} fields, got {len(args)}")
        put = object.__setattr__
        for name, value in zip(fields, args):  # noqa: B905 - the lengths are checked above
            put(self, name, value)
        for name in fields[len(args) :]:
            if name in kwargs:
                put(self, name, kwargs.pop(name))
            elif name in cls._defaults:
                put(self, name, cls._defaults[name])
            else:
                raise TypeError(f"{cls.__name__} needs the field {name}")
        if kwargs:
            raise TypeError(f"{cls.__name__} has no field {', '.join(kwargs)} (or it was given twice)")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, f) == getattr(other, f) for f in type(self)._fields)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, f) for f in type(self)._fields))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{f}={getattr(self, f)!r}' for f in type(self)._fields)})"


def replace(record: T, **changes: Any) -> T:
    """A copy of *record* with some fields changed."""
    cls: Any = type(record)
    values = {f: getattr(record, f) for f in cls._fields}
    values.update(changes)
    made: T = cls(**values)
    return made


def to_plain(value: Any) -> Any:
    """*value* with every record turned into a dict of its fields: what ``explain --json`` prints."""
    if isinstance(value, Record):
        return {f: to_plain(getattr(value, f)) for f in type(value)._fields}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: to_plain(v) for k, v in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    return value


def to_wire(value: Any) -> Any:
    """*value* with every record turned into a list ``[class name, field, ...]``: what ``marshal`` can carry.

    Raises TypeError for anything that is not made of records, tuples and plain values.
    """
    kind = type(value)
    if kind in _LEAVES:
        return value
    if kind is tuple:
        return tuple([v if type(v) in _LEAVES else to_wire(v) for v in value])
    if kind is dict:
        return {k: to_wire(v) for k, v in value.items()}
    if isinstance(value, Record):
        return [kind.__name__, *[v if type(v := getattr(value, f)) in _LEAVES else to_wire(v) for f in kind._fields]]
    raise TypeError(f"a {kind.__name__} cannot be in a record that is sent" + (": use a tuple" if kind is list else ""))


def from_wire(value: Any) -> Any:
    """The inverse of :func:`to_wire`; the classes named must have been imported, and have the fields that they had.

    Raises TypeError for a record with another number of fields.
    """
    kind = type(value)
    if kind is list:
        cls = _registry[value[0]]
        if len(value) != len(cls._fields) + 1:
            raise TypeError(f"{cls.__name__} has {len(cls._fields)} fields, got {len(value) - 1}")
        made = object.__new__(cls)
        put = object.__setattr__
        for name, v in zip(cls._fields, value[1:]):  # noqa: B905 - the lengths are checked above
            put(made, name, v if type(v) in _LEAVES else from_wire(v))
        return made
    if kind is tuple:
        return tuple([v if type(v) in _LEAVES else from_wire(v) for v in value])
    if kind is dict:
        return {k: from_wire(v) for k, v in value.items()}
    return value
