"""Params of a task as its handler takes them: given by the caller, or in a continuation filled by the tasks before it."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

from .codec import Field, Schemas
from .joined import Outcomes
from .scalars import Codec, Mismatch

T = TypeVar("T")


class _Upstream:
    def __repr__(self) -> str:
        return "Upstream"


UPSTREAM: Any = _Upstream()
"""Marks the parameter that a chain fills. As its default, it tells type checkers that a call may leave it out."""

Upstream = Annotated[T, UPSTREAM]
"""Annotation of a parameter that a chain fills: with the result of the task before it or, if that has children, with the
list of their results. Given by hand, it is an ordinary parameter."""

_JOINED = {"params", "task", "results"}


class Form(NamedTuple):
    """How the params of a task arrive."""

    fields: list[Field]
    upstream: Field | None
    """Parameter that a chain fills."""
    is_whole: bool
    """Whether the params are the value of the only parameter."""
    in_bundle: bool
    """Whether they are the member `params`, beside the name of the task."""
    joined: bool | None
    """Whether the context is `Joined`; `None`: only in a continuation."""
    results: Any
    """Annotation of the results in a `Joined` context."""

    def codec(self, schemas: Schemas) -> Codec:
        """Returns the codec of all forms of the params, which loads what a chain passes on as `Outcomes`."""
        plain = self._own(schemas, self.fields)
        if self.joined is False and self.upstream is None:
            return plain
        joined = _joined_codec(self.given(schemas), self.upstream, schemas.codec(self.results).load)
        return joined if self.joined else _either(plain, joined)

    def given(self, schemas: Schemas) -> Codec:
        """Returns the codec of the params that a call gives, perhaps without the one that a chain fills."""
        fields = [field._replace(required=False) if field is self.upstream else field for field in self.fields]
        return self._own(schemas, fields)

    def _own(self, schemas: Schemas, fields: Sequence[Field]) -> Codec:
        codec = _whole_codec(fields[0]) if self.is_whole else _named_codec(schemas.object(list(fields)))
        if self.in_bundle:
            return Codec({"properties": {"params": codec.schema}}, _member_loader("params", codec.load))
        return codec


def split_upstream(hint: Any) -> tuple[Any, bool]:
    """Returns an annotation without the mark of a parameter that a chain fills, and whether it had one."""
    metadata = getattr(hint, "__metadata__", ())
    if UPSTREAM not in metadata:
        return hint, False
    kept = tuple(item for item in metadata if item is not UPSTREAM)
    base = typing.get_args(hint)[0]
    return (Annotated[(base, *kept)] if kept else base), True


def _named_codec(codec: Codec) -> Codec:
    """Codec of params with names. Tasks without params have `null`, which suffices where no parameter is required."""
    if codec.schema["required"]:
        return codec
    return Codec({**codec.schema, "type": ["object", "null"]}, lambda value: codec.load({} if value is None else value))


def _whole_codec(field: Field) -> Codec:
    """Codec of params that are the value of one parameter."""
    return Codec(field.codec.schema, lambda value: {field.name: field.codec.load(value)})


def _member_loader(name: str, load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def load_member(value: Any) -> Any:
        try:
            return load(value.get(name))
        except Mismatch as error:
            raise error.below(name) from None

    return load_member


def _joined_codec(own: Codec, upstream: Field | None, load_result: Callable[[Any], Any]) -> Codec:
    """Codec of the params of a continuation with results: `params`, `task` and `results`."""
    load_params = _member_loader("params", own.load)
    ended = {"type": "object", "required": ["id", "state"]}
    properties = {"params": own.schema, "task": ended, "results": {"type": "array", "items": ended}}
    schema = {"type": "object", "properties": properties, "required": list(properties)}

    def load(value: Any) -> Outcomes:
        if type(value) is not dict or not value.keys() >= _JOINED:
            raise Mismatch("`params`, `task` or `results` is missing: the type runs as a continuation only")
        params, task, results = load_params(value), value["task"], value["results"]
        if upstream and upstream.name not in params:
            params[upstream.name] = _filled(upstream, task, results)
        return Outcomes(params, task, results, load_result)

    return Codec(schema, load)


def _filled(field: Field, task: dict[str, Any], results: list[dict[str, Any]]) -> Any:
    """Loads the result of the task before a continuation; if that has children, the list of the results that there are."""
    outputs = [result.get("output") for result in results if result["state"] == "succeeded"]
    try:
        return field.codec.load(outputs if results else task.get("output"))
    except Mismatch as error:
        source = "the results of the children of" if results else "the result of"
        raise Mismatch(f"{error.problem}, in {source} `{task['id']}`", error.pointer).below(field.name) from None


def _either(plain: Codec, joined: Codec) -> Codec:
    """Codec of params that the caller gives, or that come from the tasks before."""

    def load(value: Any) -> Any:
        is_joined = type(value) is dict and value.keys() >= _JOINED and type(value["task"]) is dict
        return joined.load(value) if is_joined else plain.load(value)

    # Not `anyOf`, whose errors would not name the wrong value.
    is_joined = {"type": "object", "required": sorted(_JOINED), "properties": {"task": {"type": "object"}}}
    return Codec({"if": is_joined, "then": joined.schema, "else": plain.schema}, load)
