"""Declared task types, and calls of them."""

from __future__ import annotations

import copy
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, ParamSpec, TypeVar, Unpack

from .codec import Field, Schemas, UnsupportedType
from .context import Context, Joined
from .limits import WHOLE, split_default
from .outcomes import Duration, milliseconds, refuse_number
from .scalars import Codec, Mismatch
from .settings import Limits, Policy
from .values import encode

if sys.version_info >= (3, 14):
    import annotationlib

if TYPE_CHECKING:
    from .app import App
    from .client import Handle

P = ParamSpec("P")
R = TypeVar("R")

Params = Annotated[R, WHOLE]
"""Annotation of the only parameter of a type whose params are not an object, or are one model: `params: Params[Model]`."""


class DeclarationError(TypeError):
    """A task type is declared wrongly."""


class Options(Limits, total=False):
    """Attributes of a single task besides its type and params."""

    id: str
    key: str
    parent: str
    name: str
    creator: str
    tags: Sequence[str]
    link: str
    reply_to: str
    on_failure: Literal["fail", "ignore"]
    options: Mapping[str, Any]
    headers: Mapping[str, str]
    fail_fast: bool
    max_failed: int
    then: Sequence[Call[Any] | Mapping[str, Any]]
    actions: Sequence[Mapping[str, Any]]
    checks: Sequence[Mapping[str, Any]]
    delay: Duration
    at: str | datetime
    expires: Duration
    on: Literal["succeeded", "failed", "ended"]
    with_results: bool


Scope = Literal["submit", "spawn", "then"]
_NOT_IN: dict[Scope, set[str]] = {
    "submit": {"on", "with_results"},
    "spawn": {"on", "with_results", "parent"},
    "then": {"id", "parent", "delay", "at", "expires", "creator", "link", "total_timeout", "reply_to", "options"},
}


@dataclass(frozen=True)
class Call(Generic[R]):
    """One task to create: a type with its params and options."""

    target: Submittable[Any, R]
    params: Any
    options: Options = field(default_factory=Options)

    def document(self, scope: Scope) -> dict[str, Any]:
        """Returns the task as the API and the worker accept it."""
        wrong = sorted(_NOT_IN[scope].intersection(self.options))
        if wrong:
            place = {"submit": "a submitted task", "spawn": "a child", "then": "a continuation"}[scope]
            raise TypeError(f"`{wrong[0]}` is not an option of {place} (`{self.target.name}`)")
        if self.target.joined and scope != "then":
            hint = f"cx.then({self.target.name.replace('-', '_')}, …)"
            raise TypeError(f"`{self.target.name}` has a `Joined` context and runs as a continuation only: use `{hint}`")
        options = {key: _plain(value) for key, value in self.options.items()}
        joined = {"with_results": True} if self.target.joined else {}
        return {"type": self.target.type, "params": self.params, **joined, **self.target.labelled(options)}

    def encoded(self, scope: Scope) -> bytes:
        """Returns the document as JSON."""
        try:
            return encode(self.document(scope))
        except ValueError as error:
            raise ValueError(f"the task of type `{self.target.name}` is {error}") from None

    def unwritable_labels(self) -> list[str]:
        """Returns those options for people that have no JSON form, such as a name with half of an emoji."""
        return [key for key in _LABELS if not _is_json(self.options.get(key))]

    def without(self, labels: Iterable[str]) -> Call[R]:
        """Returns the same task without these options."""
        options: Any = {key: value for key, value in self.options.items() if key not in labels}
        return replace(self, options=options)


_LABELS = ("name", "tags", "creator", "link")


def _is_json(value: object) -> bool:
    try:
        encode(value)
    except ValueError:
        return False
    return True


_DURATIONS = {key for kind in (Policy, Options) for key, hint in typing.get_type_hints(kind).items() if hint == Duration}


def _plain(value: Any) -> Any:
    if isinstance(value, Call):
        return value.document("then")
    if isinstance(value, timedelta):
        # A bare number of more than 18 days may be epoch seconds, and is refused.
        return f"{milliseconds(value)}ms"
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


class Submittable(Generic[P, R]):
    """Task type that can be submitted and spawned, with options for the tasks that are created."""

    def __init__(self, app: App, name: str, bundle: str | None = None) -> None:
        self.app, self.name, self.bundle = app, name, bundle
        self.type = bundle or name
        """Name of the type: that of the bundle, if the task is in one."""
        self.options: Options = {}

    joined = False

    def labelled(self, options: dict[str, Any]) -> dict[str, Any]:
        """Returns the options of a task. Those of a bundle have its name and tag, since their type does not tell them apart."""
        tags = options.get("tags", ())
        if self.bundle is None or isinstance(tags, str):
            return options
        return {"name": self.name, **options, "tags": list(dict.fromkeys((self.name, *tags)))}

    if not TYPE_CHECKING:  # With it, type checkers would accept any attribute.

        def __getattr__(self, name: str) -> Any:
            hint = {"delay": "submit(…)", "apply_async": "using(…).submit(…)"}.get(name)
            if hint:
                raise AttributeError(f"a task type has no method `{name}`; hint: use `{hint}`")
            return super().__getattribute__(name)  # Raises the usual error, or that of a property.

    @property
    def output(self) -> Codec | None:
        """Codec of the result; `None`: any JSON."""
        return None

    def bind(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Returns the params of a call."""
        raise NotImplementedError

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Returns a task to create, for `App.submit_many` and `Context.spawn_now`."""
        return Call(self, self.bind(args, kwargs), self.options)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Creates a task and returns its handle. Raises `ApiError`."""
        client = self.app.client
        return client.run(client.create(self.call(*args, **kwargs)))

    async def asubmit(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Creates a task and returns its handle. Raises `ApiError`."""
        client = self.app.client
        return await client.arun(client.create(self.call(*args, **kwargs)))

    def handle(self, id: str) -> Handle[R]:
        """Returns the handle of an existing task of this type."""
        from .client import Handle

        return Handle(self, id)

    def using(self, **options: Unpack[Options]) -> Submittable[P, R]:
        """Returns this type with options for the tasks that are created, such as `id` or `tags`."""
        _check(options, Options.__annotations__, "an option of a task")
        changed = copy.copy(self)
        changed.options = {**self.options, **options}
        return changed


class Remote(Submittable[..., Any]):
    """Task type that another program runs: params are keywords, or one positional value of any JSON."""

    def bind(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        if len(arguments) > 1 or (arguments and named):
            raise TypeError(f"`{self.name}` takes keywords, or one positional value")
        return arguments[0] if arguments else dict(named)


class Task(Submittable[P, R]):
    """Declared task type. It is not callable: `fn` is the function itself."""

    def __init__(self, app: App, fn: Callable[..., Any], name: str | None, policy: Any, bundle: str | None = None) -> None:
        super().__init__(app, name or fn.__name__.replace("_", "-"), bundle)
        self.fn, self.doc = fn, inspect.getdoc(fn)
        self.is_async = inspect.iscoroutinefunction(fn)
        self.place = _place_of(fn)
        _refuse_generator(fn, self.place)
        check_name(self.name, self.place, '`name="…"` in the decorator')
        self.policy, self.fail_on, self.retry_on = split_policy(policy, self.place)
        self._signature = _signature_of(fn)
        self._locals = _locals_of_caller()
        self._compiled: list[_Signature] = []  # At most one, shared with the copies that `using` makes.
        self.context: type[Context] | None = self._find_context()
        self.joined = self.context is Joined
        with suppress(NameError):  # A class that is defined further down: resolved at the start of the app.
            _ = self.compiled

    @property
    def compiled(self) -> _Signature:
        """Codecs of params and result."""
        if not self._compiled:
            self._compiled.append(self._compile())
        return self._compiled[0]

    @property
    def output(self) -> Codec | None:
        return self.compiled.output

    def bind(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        filler = (None,) if self.context else ()
        try:
            bound = self._signature.bind(*filler, *arguments, **named).arguments
        except TypeError as error:
            raise TypeError(f"`{self.name}`: {error}") from None
        params = {name: value for name, value in bound.items() if name != self._context_name}
        own = next(iter(params.values())) if self.compiled.whole else params
        return {"task": self.name, "params": own} if self.bundle else own

    def declaration(self) -> dict[str, Any]:
        """Returns the type as the `ready` message declares it."""
        try:
            compiled = self.compiled
        except NameError as error:
            raise self._error(f"an annotation of `{self.fn.__name__}` cannot be resolved: {error}") from None
        return declared_type(self.name, compiled.schema, self.doc, self.policy, compiled.output_schema)

    def select(self, params: Any) -> Task[..., Any]:
        """Returns the task that runs an attempt with these params."""
        return self

    def _find_context(self) -> type[Context] | None:
        """Returns the class of the first parameter, if it is a context."""
        self._context_name: str | None = None
        first = next(iter(self._signature.parameters.values()), None)
        if first is None:
            return None
        hint = first.annotation
        if isinstance(hint, str):
            with suppress(Exception):  # A class that is defined further down is no context.
                hint = eval(hint, {**self.fn.__globals__, **self._locals})  # As `typing.get_type_hints` does.
        kind = typing.get_origin(hint) or hint
        if not (isinstance(kind, type) and issubclass(kind, Context)):
            return None
        self._context_name = first.name
        return Joined if issubclass(kind, Joined) else Context

    def _compile(self) -> _Signature:
        hints = typing.get_type_hints(self.fn, localns=self._locals, include_extras=True)
        schemas, names = Schemas(self.app.strict), self._signature.parameters.keys() - {self._context_name}
        fields = [self._field(schemas, p, hints) for name, p in self._signature.parameters.items() if name in names]
        whole = len(fields) == 1 and WHOLE in getattr(hints[fields[0].name], "__metadata__", ())
        codec = _whole_codec(fields[0]) if whole else _named_codec(schemas.object(fields))
        if self.bundle:  # The params of the handler are the member `params`.
            codec = Codec({"properties": {"params": codec.schema}}, _member_loader("params", codec.load))
        if self.joined:
            codec = _joined_codec(schemas, codec, hints[self._context_name or ""])
        output, result = Schemas(of_results=True), None
        if "return" in hints and hints["return"] is not typing.NoReturn:
            try:
                result = output.codec(hints["return"])
            except UnsupportedType as error:
                raise self._error(
                    f"the result of `{self.fn.__name__}` has the type {error}, {error.reason}", error.hint
                ) from None
        output_schema = output.complete(result.schema) if result else None
        return _Signature(schemas.complete(codec.schema), codec.load, whole, result, output_schema, output.has_limits)

    def _field(self, schemas: Schemas, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Field:
        name = parameter.name
        at = f"the parameter `{name}` of `{self.fn.__name__}`"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise self._error(f"{at} is `*args`, `**kwargs` or positional-only: params are named values", "a list or a dict")
        if name not in hints:
            raise self._error(f"{at} has no annotation", f"`{name}: str`, or `cx: Context` for the context of the attempt")
        hint, default, is_set = split_default(hints[name], parameter.default, parameter.empty)
        try:
            codec = schemas.codec(hint)
        except UnsupportedType as error:
            raise self._error(f"{at} has the type {error}, {error.reason}", error.hint) from None
        if default is parameter.empty:
            return Field(name, codec, True)
        return Field(name, codec, False, default, is_set)

    def _error(self, problem: str, hint: str = "") -> DeclarationError:
        return error_at(self.place, problem, hint)


class _Signature(typing.NamedTuple):
    """Compiled annotations of a function."""

    schema: dict[str, Any]
    load: Callable[[Any], dict[str, Any]]
    whole: bool
    output: Codec | None
    output_schema: dict[str, Any] | None
    checks_output: bool
    """Whether the annotation of the result has limits."""


def error_at(place: str, problem: str, hint: str = "") -> DeclarationError:
    """Returns the error of a declaration."""
    return DeclarationError(f"{place}: {problem}{f'; hint: use {hint}' if hint else ''}")


def check_name(name: str, place: str, hint: str = "") -> None:
    """Raises `DeclarationError` for an invalid name of a type, or of a task in a bundle."""
    if not re.fullmatch(r"[a-z0-9-]{1,64}", name):
        raise error_at(place, f"`{name}` is not a name of a type: 1 to 64 characters of `a-z 0-9 -`", hint)


def split_policy(given: Mapping[str, Any], place: str) -> tuple[dict[str, Any], tuple[Any, ...], tuple[Any, ...]]:
    """Separates the exception classes, which the app matches itself, from the keys for the worker."""
    try:
        _check(given, Policy.__annotations__, "a key of a policy")
    except TypeError as error:
        raise error_at(place, str(error)) from None
    policy = {key: _plain(value) for key, value in given.items()}
    classes: dict[str, tuple[Any, ...]] = {}
    for key in ("fail_on", "retry_on"):
        kinds = policy.pop(key, ())
        classes[key] = tuple(kind for kind in kinds if isinstance(kind, type))
        names = [kind for kind in kinds if not isinstance(kind, type)]
        policy |= {key: names} if names else {}
    return policy, classes["fail_on"], classes["retry_on"]


def declared_type(name: str, params: Any, doc: str | None, policy: dict[str, Any], output: Any = None) -> dict[str, Any]:
    """Returns a type as the `ready` message declares it, without parts that are empty."""
    parts = {"name": name, "params": params, "output": output, "doc": doc, "policy": policy}
    return {part: value for part, value in parts.items() if value}


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


def _joined_codec(schemas: Schemas, own: Codec, hint: Any) -> Codec:
    """Codec of the params of a continuation with results: `params`, `task` and `results`."""
    (kind,) = typing.get_args(hint) or (Any,)
    result, params = schemas.codec(kind).load, _member_loader("params", own.load)
    ended = {"type": "object", "required": ["id", "state"]}
    properties = {"params": own.schema, "task": ended, "results": {"type": "array", "items": ended}}
    schema = {"type": "object", "properties": properties, "required": list(properties)}

    def load(value: Any) -> dict[str, Any]:
        if type(value) is not dict or not {"params", "task", "results"} <= value.keys():
            raise Mismatch("`params`, `task` or `results` is missing: the type runs as a continuation only")
        return {"params": params(value), "task": value["task"], "results": value["results"], "load": result}

    return Codec(schema, load)


_HINTS = {
    **dict.fromkeys(("retention", "group"), "set it in `[types.NAME]` of kafleet.toml"),
    "bind": "annotate the first parameter: `cx: Context`",
    "countdown": 'write `delay="30s"`',
    "queue": "each type has its own topic; give slow types their own `[apps.NAME]` with `types`",
    "task_id": "write `id`",
}
"""Remedies for keys that are set elsewhere, and for those of Celery."""


def _check(given: Mapping[str, Any], allowed: Iterable[str], place: str) -> None:
    """Raises `TypeError` for an unknown key, and for a number as a duration."""
    for key, value in given.items():
        if key not in allowed:
            close = [f"did you mean `{name}`?" for name in get_close_matches(key, allowed, 1)]
            hint = _HINTS.get(key) or "".join(close)
            raise TypeError(f"`{key}` is not {place}" + (f"; hint: {hint}" if hint else ""))
        if key in _DURATIONS:
            refuse_number(key, value)
        elif key == "rate" and isinstance(value, Mapping):
            refuse_number("per", value.get("per"))


def _signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):  # Annotations are evaluated when read: they may name classes that are defined further down.
        return inspect.signature(fn, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(fn)


def _place_of(fn: Callable[..., Any]) -> str:
    """Returns file and line of a function, not those of its decorators."""
    code = getattr(inspect.unwrap(fn), "__code__", None) or fn.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def _refuse_generator(fn: Callable[..., Any], place: str) -> None:
    """Raises `DeclarationError` for a generator function, also behind decorators: a call of it runs nothing."""
    for kind in (fn, inspect.unwrap(fn)):
        if inspect.isgeneratorfunction(kind) or inspect.isasyncgenfunction(kind):
            problem = f"`{fn.__name__}` is a generator function: its result would be a generator, and nothing would run"
            raise error_at(place, problem, "`return`, as of a list, or `cx.progress(…)` for values during the work")


def _locals_of_caller() -> dict[str, Any]:
    """Local variables of the function that declares a task: annotations may name classes defined there."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame and frame.f_globals.get("__name__", "").split(".")[0] == __name__.split(".")[0]:
        frame = frame.f_back
    return dict(frame.f_locals) if frame and frame.f_locals is not frame.f_globals else {}


def task_of(target: Submittable[Any, Any]) -> Task[..., Any]:
    """Returns a type as a declared one. Raises `TypeError` if another program runs it."""
    if not isinstance(target, Task):
        raise TypeError(f"`{target.name}` has no handler here: another program runs it")
    return target
