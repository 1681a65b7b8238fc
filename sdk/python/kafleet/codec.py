"""JSON Schemas of annotations, and the conversion of JSON values to them."""

from __future__ import annotations

import copy
import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence, Sequence, Set
from decimal import Decimal
from typing import Any, NamedTuple

from .hints import of_type
from .limits import Limit, UnknownLimit, has_limits, kept, limits_of, split_default
from .models import Model, is_model
from .scalars import SCALARS, Codec, Load, Mismatch, from_text, shown, whole
from .values import Number, decode, encode, settled, text_of


class UnsupportedType(TypeError):
    """An annotation has no JSON form, or a limit that cannot be checked."""

    reason = "which has no JSON form"

    def __init__(self, text: str, hint: str = "a dataclass, or a path or an id") -> None:
        super().__init__(text)
        self.hint = hint


class UnsupportedLimit(UnsupportedType):
    """An annotation has a limit that cannot be checked."""

    reason = "which kafleet cannot check"

    def __init__(self, text: str, hint: str = "a limit of `annotated_types` for such values, or a model of pydantic") -> None:
        super().__init__(text, hint)


class Field(NamedTuple):
    """Member of an object."""

    name: str
    codec: Codec
    required: bool
    default: Any = dataclasses.MISSING
    is_set: bool = False
    """Whether the loader sets the default, because Python does not know it."""


_LISTS: dict[Any, Callable[[Iterable[Any]], Any]] = {
    list: list, Sequence: list, MutableSequence: list, set: set, frozenset: frozenset, Set: frozenset,
}  # fmt: skip

_MARKERS = {typing.Required, typing.NotRequired, getattr(typing, "ReadOnly", typing.Required)}


class Schemas:
    """Compiles annotations; classes become definitions, so that they can contain themselves."""

    def __init__(self, strict: bool = False, *, of_results: bool = False) -> None:
        self.strict = strict
        self.mode: Any = "serialization" if of_results else "validation"
        """Side of pydantic models that the schemas describe."""
        self.defs: dict[str, Any] = {}
        self._classes: dict[Any, Codec] = {}

    def complete(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Returns a schema with the definitions that it refers to."""
        return {**schema, "$defs": self.defs} if self.defs else schema

    def codec(self, annotation: Any) -> Codec:
        """Compiles an annotation. Raises `UnsupportedType` if it has no JSON form."""
        try:
            if annotation in SCALARS:
                return SCALARS[annotation]
        except TypeError:  # Unhashable, such as `Annotated[int, {}]`.
            pass
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is typing.Annotated:
            return self._annotated(arguments[0], annotation.__metadata__)
        if origin in _MARKERS:
            return self.codec(arguments[0])
        if origin is typing.Literal:
            return _choice({value: value for value in arguments})
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments)
        if hasattr(annotation, "__supertype__"):  # NewType
            return self.codec(annotation.__supertype__)
        if hasattr(annotation, "__value__"):  # type X = …
            try:
                return self.codec(annotation.__value__)
            except RecursionError:
                raise UnsupportedType(f"{_name(annotation)}, which contains itself: only classes can") from None
        found = self._container(origin or annotation, arguments)
        if found is not None:
            return found
        if isinstance(annotation, type):
            return self._class(annotation)
        raise UnsupportedType(_name(annotation), of_type(annotation))

    def object(self, fields: list[Field]) -> Codec:
        """Codec of an object with these members, as a dict."""
        schema: dict[str, Any] = {"type": "object", "properties": {f.name: _with_default(f) for f in fields}}
        schema["required"] = [f.name for f in fields if f.required]
        if self.strict:
            schema["additionalProperties"] = False
        return Codec(schema, _object_loader(fields, self.strict))

    def _annotated(self, annotation: Any, metadata: tuple[Any, ...]) -> Codec:
        """Codec of an annotation with metadata; the limits of a union are those of each member but `None`."""
        try:
            if not has_limits(metadata):
                return self.codec(annotation)
            base = _base(annotation)
            if typing.get_origin(base) in (typing.Union, types.UnionType):
                members = typing.get_args(base)
                return self._union(tuple(m if m is types.NoneType else typing.Annotated[(m, *metadata)] for m in members))
            limits = limits_of(base, metadata)
        except UnknownLimit as error:
            raise UnsupportedLimit(f"{_name(annotation)} with the limit {error}") from None
        codec = self.codec(annotation)
        return Codec(kept(codec.schema, limits), _limited_loader(codec.load, limits))

    def _container(self, kind: Any, arguments: tuple[Any, ...]) -> Codec | None:
        if kind in _LISTS:
            item, unique = self.codec(arguments[0] if arguments else Any), not issubclass(kind, Sequence)
            schema = {"type": "array", "items": item.schema, **({"uniqueItems": True} if unique else {})}
            return Codec(schema, _list_loader(_LISTS[kind], item.load))
        if kind is tuple:
            return self._tuple(arguments)
        if kind in (dict, Mapping, MutableMapping):
            return self._dict(*(arguments or (str, Any)))
        return None

    def _tuple(self, arguments: tuple[Any, ...]) -> Codec:
        if not arguments or arguments[1:] == (Ellipsis,):
            item = self.codec(arguments[0] if arguments else Any)
            return Codec({"type": "array", "items": item.schema}, _list_loader(tuple, item.load))
        items = [self.codec(argument) for argument in arguments if argument != ()]
        size = {"minItems": len(items), "maxItems": len(items)}
        schema = {"type": "array", "prefixItems": [item.schema for item in items], **size}
        return Codec(schema, _tuple_loader([item.load for item in items]))

    def _dict(self, key: Any, value: Any) -> Codec:
        item = self.codec(value)
        if key is str:
            return Codec({"type": "object", "additionalProperties": item.schema}, _dict_loader(str, item.load))
        if key is int:
            schema = {"type": "object", "patternProperties": {"^-?[0-9]+$": item.schema}, "additionalProperties": False}
            return Codec(schema, _dict_loader(from_text(whole, "an integer"), item.load))
        raise UnsupportedType(f"dict[{_name(key)}, …]: keys are `str` or `int`", f"`dict[str, {_name(value)}]`")

    def _union(self, arguments: tuple[Any, ...]) -> Codec:
        options = [(argument, self.codec(argument)) for argument in arguments]
        exact = {argument for argument, _ in options if argument in (str, bool, int, float, types.NoneType)}
        names, members = ", ".join(_name(a) for a, _ in options), [_member_names(_base(argument)) for argument, _ in options]
        loads = [codec.load for _, codec in options]
        keeps_digits = [_base(argument) in (Decimal, Any, object) for argument in arguments]

        def load(value: Any) -> Any:
            if type(value) is Number and float in exact:
                value = value.settled()
            if type(value) in exact:
                return value
            tried: Iterable[int] = range(len(loads))
            if type(value) is dict:
                # The class that knows the most of the members, since unknown ones are ignored.
                tried = sorted(tried, key=lambda n: len(value.keys() - (members[n] or value.keys())))
            elif type(value) in (int, Number):
                tried = sorted(tried, key=lambda n: not keeps_digits[n]) if _changes_as_float(value) else tried
            for option in tried:
                try:
                    return loads[option](value)
                except Mismatch:
                    pass
            raise Mismatch(f"{shown(value)} is none of {names}")

        return Codec({"anyOf": [codec.schema for _, codec in options]}, load)

    def _class(self, kind: type) -> Codec:
        if kind in self._classes:
            return self._classes[kind]
        if issubclass(kind, enum.Enum):
            return _choice({member.value: member for member in kind})
        if is_model(kind):
            return self._model(kind)
        if not dataclasses.is_dataclass(kind) and not typing.is_typeddict(kind):
            raise UnsupportedType(_name(kind), of_type(kind))
        name = _definition(kind.__name__, self.defs)
        self.defs[name] = {}
        loader: list[Load] = []
        self._classes[kind] = Codec({"$ref": f"#/$defs/{name}"}, lambda value: loader[0](value))
        codec = self.object(self._members(kind))
        self.defs[name] = codec.schema
        build = dict if typing.is_typeddict(kind) else kind
        loader.append(lambda value: build(**codec.load(value)))
        return self._classes[kind]

    def _members(self, kind: Any) -> list[Field]:
        hints = typing.get_type_hints(kind, include_extras=True)
        if typing.is_typeddict(kind):
            return [Field(name, self._member(kind, name, hint), _is_required(kind, name, hint)) for name, hint in hints.items()]
        members = []
        for name, pseudo in kind.__dataclass_fields__.items():
            if isinstance(pseudo.type, dataclasses.InitVar) or str(pseudo.type).startswith(("InitVar[", "dataclasses.InitVar[")):
                raise UnsupportedType(f"the `InitVar` field `{name}` of `{kind.__name__}`", "an ordinary field")
        for field in dataclasses.fields(kind):
            if field.init:
                optional = field.default_factory is not dataclasses.MISSING
                hint, default, is_set = split_default(hints[field.name], field.default, dataclasses.MISSING)
                required = default is dataclasses.MISSING and not optional
                members.append(Field(field.name, self._member(kind, field.name, hint), required, default, is_set))
        return members

    def _member(self, kind: type, name: str, hint: Any) -> Codec:
        try:
            return self.codec(hint)
        except UnsupportedType as error:
            raise type(error)(f"{error}, in the field `{name}` of `{kind.__name__}`", error.hint) from None

    def _model(self, kind: type) -> Codec:
        model = Model(kind)
        self._classes[kind] = Codec(model.schema(self.mode, self.defs), lambda value: model.load(value, Mismatch))
        return self._classes[kind]


def _is_required(kind: Any, name: str, hint: Any) -> bool:
    # In modules with postponed annotations `__required_keys__` does not know the markers.
    marker = typing.get_origin(hint)
    return marker is typing.Required or (marker is not typing.NotRequired and name in kind.__required_keys__)


def _member_names(annotation: Any) -> set[str] | None:
    """Returns the members of a class in JSON; nothing if they are not known."""
    if hasattr(annotation, "model_fields"):
        fields = annotation.model_fields
        return {name for field in fields for name in (field, fields[field].alias) if name}
    if dataclasses.is_dataclass(annotation):
        return {field.name for field in dataclasses.fields(annotation)}
    return set(annotation.__annotations__) if typing.is_typeddict(annotation) else None


def _choice(choices: dict[Any, Any]) -> Codec:
    for value in choices:
        if not isinstance(value, str | int | float | types.NoneType):
            problem = f"an enum with the value `{value!r}`, which is not a string, number, boolean or null"
            raise UnsupportedType(problem, "values of these types")
    by_json = {(type(_plain(value)), _plain(value)): choice for value, choice in choices.items()}

    def load(value: Any) -> Any:
        value = settled(value)
        try:
            return by_json[type(value), value]
        except (KeyError, TypeError):
            raise Mismatch(f"{shown(value)} is none of {', '.join(shown(_plain(v)) for v in choices)}") from None

    return Codec({"enum": [_plain(value) for value in choices]}, load)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def _with_default(field: Field) -> dict[str, Any]:
    if field.default is dataclasses.MISSING:
        return field.codec.schema
    try:
        return {**field.codec.schema, "default": decode(encode(field.default))}
    except ValueError:
        return field.codec.schema


def _object_loader(fields: list[Field], strict: bool) -> Load:
    members = [(f.name, f.codec.load, f.required) for f in fields]
    names, defaults = {f.name for f in fields}, {f.name: f.default for f in fields if f.is_set}

    def load(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Mismatch(f"{shown(value)} is not an object")
        loaded = copy.deepcopy(defaults) if defaults else {}
        for name, convert, required in members:
            if name in value:
                try:
                    loaded[name] = convert(value[name])
                except Mismatch as error:
                    raise error.below(name) from None
            elif required:
                raise Mismatch(f"`{name}` is missing")
        if strict and not names.issuperset(value):
            raise Mismatch(f"`{min(set(value) - names)}` is not a field; allowed: {', '.join(sorted(names))}")
        return loaded

    return load


def _limited_loader(load: Load, limits: list[Limit]) -> Load:
    def load_limited(value: Any) -> Any:
        loaded = load(value)
        for limit in limits:
            try:
                holds = limit.holds(loaded)
            except Exception as error:
                raise Mismatch(f"{shown(value)} {limit.problem}: {text_of(error)}") from None
            if not holds:
                raise Mismatch(f"{shown(value)} {limit.problem}")
        return loaded

    return load_limited


def _list_loader(build: Callable[[Iterable[Any]], Any], convert: Load) -> Load:
    def load(value: Any) -> Any:
        if type(value) is not list:
            raise Mismatch(f"{shown(value)} is not an array")
        return build(_items(value, [convert] * len(value)))

    return load


def _tuple_loader(converts: list[Load]) -> Load:
    def load(value: Any) -> Any:
        if type(value) is not list or len(value) != len(converts):
            raise Mismatch(f"{shown(value)} is not an array of {len(converts)} items")
        return tuple(_items(value, converts))

    return load


def _items(values: list[Any], converts: list[Load]) -> list[Any]:
    loaded: list[Any] = []
    try:
        for value, convert in zip(values, converts, strict=True):
            loaded.append(convert(value))
    except Mismatch as error:
        raise error.below(len(loaded)) from None
    return loaded


def _dict_loader(convert_key: Load, convert: Load) -> Load:
    def load(value: Any) -> Any:
        if type(value) is not dict:
            raise Mismatch(f"{shown(value)} is not an object")
        loaded = {}
        for key, item in value.items():
            try:
                kept_key, kept_item = convert_key(key), convert(item)
                if kept_key in loaded:
                    raise Mismatch(f"`{kept_key}` is there twice, in different forms")
            except Mismatch as error:
                raise error.below(key) from None
            loaded[kept_key] = kept_item
        return loaded

    return load


def _changes_as_float(value: int | Number) -> bool:
    return abs(value) > 1 << 53 if isinstance(value, int) else isinstance(value.settled(), Number)


def _base(annotation: Any) -> Any:
    """Returns what an annotation with metadata, or a name of another one, stands for."""
    for _ in range(100):  # An alias may contain itself.
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__") or hasattr(annotation, "__value__"):
            annotation = getattr(annotation, "__supertype__", None) or annotation.__value__
        else:
            break
    return annotation


def _definition(name: str, taken: Mapping[str, Any]) -> str:
    names = [name, *(f"{name}{n}" for n in range(2, len(taken) + 3))]
    return next(candidate for candidate in names if candidate not in taken)


def _name(annotation: Any) -> str:
    if isinstance(annotation, type):
        module = annotation.__module__
        return annotation.__qualname__ if module in ("builtins", "__main__") else f"{module}.{annotation.__qualname__}"
    return str(annotation)
