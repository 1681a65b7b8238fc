"""Remedies for types and values that have no JSON form."""

from __future__ import annotations

import enum
import typing
from typing import Any

_DEFAULT = "a dataclass, or a path or an id"
_LIST, _DICT = "`list[…]`", "`dict[str, …]`"

_TYPES = {
    **dict.fromkeys(("Iterable", "Iterator", "Generator", "Collection", "Container", "AsyncIterator", "deque"), _LIST),
    **dict.fromkeys(("OrderedDict", "defaultdict", "Counter", "ChainMap"), _DICT),
    "range": "`list[int]`",
    "complex": "`tuple[float, float]`",
    "bytearray": "`bytes`",
    "memoryview": "`bytes`",
    "Pattern": "`str`",
    "ZoneInfo": "`str`",
    "Fraction": "`str`",
    "timezone": "`str`",
}
"""Annotations to use instead of classes of Python, by the names of these."""

_STANDARD = ("builtins", "collections", "typing", "re", "zoneinfo", "fractions", "datetime")

_PACKAGES = {
    "numpy": "`int`, `float` or `bool` for a number, `list[float]` for an array, and `numpy.asarray(…)` in the function",
    "pandas": "`datetime` or `timedelta` for a time, `list[dict[str, Any]]` or the path of a file for a table",
    "ipaddress": "`str`",
}
_METHODS = {
    "tolist": "`.tolist()`",
    "to_list": "`.to_list()`",
    "to_dict": '`.to_dict("records")`',
    "item": "`.item()`",
    "__next__": "`list(…)`",
}
"""Ways to a value with a JSON form, by a method of its class."""


def of_type(annotation: Any) -> str:
    """Returns what to annotate instead of a type without JSON form."""
    kind = typing.get_origin(annotation) or annotation
    package = str(getattr(kind, "__module__", "")).partition(".")[0]
    known = _TYPES.get(getattr(kind, "__name__", "")) if package in _STANDARD else _PACKAGES.get(package)
    if known:
        return known
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return "a dataclass"
    has_parameters = kind is not annotation and hasattr(kind, "__parameters__")
    return "a class without type parameters" if has_parameters or isinstance(kind, typing.TypeVar) else _DEFAULT


def of_value(value: object) -> str:
    """Returns the end of an error about a value without JSON form."""
    kind = type(value)
    if kind.__name__ == "NAType":
        return "; hint: `None`"
    if isinstance(value, complex):
        return "; hint: `[value.real, value.imag]`"
    if isinstance(value, BaseException):
        return "; hint: `str(…)`"
    default = "; hint: a dict or a dataclass of what is needed, or `str(…)`"
    return next((f"; hint: {way}" for method, way in _METHODS.items() if hasattr(kind, method)), default)


def of_key(key: object) -> str:
    """Returns the end of an error about a key without JSON form."""
    if isinstance(key, enum.Enum):
        return "; hint: `.value`"
    return "; hint: `int(…)`" if hasattr(type(key), "__index__") else "; hint: `str(…)`"
