"""Declared task types, and calls of them."""

from __future__ import annotations

import copy
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Generic, ParamSpec, TypeVar, Unpack

from . import foreign
from .call import Call, _plain
from .call import Options as Options
from .checks import check_keys, problem_of_unannotated
from .codec import Field, Schemas, UnsupportedType
from .context import Context
from .joined import Joined
from .kinds import ErrorClasses, split_classes
from .limits import WHOLE, split_default
from .params import UPSTREAM, Form, split_upstream
from .scalars import Codec
from .signatures import help_of, locals_of_caller, members, place_of, shown, signature_of

if TYPE_CHECKING:
    from .app import App
    from .canvas import Group
    from .handle import Handle
    from .status import Status

P = ParamSpec("P")
R = TypeVar("R")

Params = Annotated[R, WHOLE]
"""Annotation of the only parameter of a type whose params are not an object, or are one model: `params: Params[Model]`."""


class DeclarationError(TypeError):
    """A task type is declared wrongly."""


class Submittable(foreign.Named, Generic[P, R]):
    """Task type that can be submitted and spawned, with options for the tasks that are created."""

    _foreign = ("a task type", foreign.TASK)

    def __init__(self, app: App, name: str, bundle: str | None = None) -> None:
        self.app, self.name, self.bundle = app, name, bundle
        self.type = bundle or name
        """Name of the type: that of the bundle, if the task is in one."""
        self.options: Options = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def takes_results(self, params: Any) -> bool:
        """Returns whether a continuation with these params gets the results of the tasks before it."""
        return False

    def missing(self, params: Any) -> str:
        """Returns what a task with these params lacks unless it is a continuation; nothing if it can run alone."""
        return ""

    def labelled(self, options: dict[str, Any]) -> dict[str, Any]:
        """Returns the options of a task. Those of a bundle have its name and tag, since their type does not tell them apart."""
        tags = options.get("tags", ())
        if self.bundle is None or isinstance(tags, str):
            return options
        return {"name": self.name, **options, "tags": list(dict.fromkeys((self.name, *tags)))}

    if not TYPE_CHECKING:  # Type checkers refuse the call themselves.

        def __call__(self, *args: object, **kwargs: object) -> None:
            hint = "`submit(…)` creates a task, `fn(…)` calls the function"
            raise TypeError(f"`{self.name}` is a task type, which is not called; hint: {hint}")

    @property
    def output(self) -> Codec | None:
        """Codec of the result; `None`: any JSON."""
        return None

    def output_of(self, status: Status) -> Codec | None:
        """Codec of the result of a task with this status."""
        return self.output

    def bind(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Returns the params of a call."""
        raise NotImplementedError

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Returns a task to create, for `chain`, `group`, `App.submit_many` and `Context.spawn_now`."""
        return Call(self, self.bind(args, kwargs), self.options)

    def map(self, items: Iterable[Any]) -> Group[R]:
        """Returns a group with one task for each item."""
        return self.starmap((item,) for item in items)

    def starmap(self, items: Iterable[Iterable[Any]]) -> Group[R]:
        """Returns a group with one task for each item: the tuple of its arguments."""
        from .canvas import group

        return group(Call(self, self.bind(tuple(item), {}), self.options) for item in items)

    def chunks(self, items: Iterable[Any], size: int) -> Group[R]:
        """Returns a group whose tasks take the items as lists of up to `size`."""
        if size < 1:
            raise ValueError(f"a chunk has at least 1 item: not `{size}`")
        rest = iter(items)
        return self.map(iter(lambda: list(islice(rest, size)), []))

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Creates a task and returns its handle. Raises `ApiError`."""
        return self.call(*args, **kwargs).submit()

    async def asubmit(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Creates a task and returns its handle. Raises `ApiError`."""
        return await self.call(*args, **kwargs).asubmit()

    def submit_in(self, tx: Any, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Creates a task if and when the transaction commits, and returns its handle.

        `tx`: the alias of a Django database or its connection, a session or a connection of SQLAlchemy, a connection or a
        cursor of psycopg or another driver for Postgres or MySQL. It inserts a row into the outbox, which the role `kafleet
        outbox` publishes.
        """
        return self.call(*args, **kwargs).submit_in(tx)

    async def asubmit_in(self, tx: Any, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Creates a task as `submit_in`, in a transaction of asyncpg, or asynchronous psycopg or SQLAlchemy."""
        return await self.call(*args, **kwargs).asubmit_in(tx)

    def handle(self, id: str) -> Handle[R]:
        """Returns the handle of an existing task of this type."""
        from .handle import Handle

        return Handle(self, id)

    def using(self, **options: Unpack[Options]) -> Submittable[P, R]:
        """Returns this type with options for the tasks that are created, such as `id` or `tags`."""
        check_keys(options, "task")
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
        self.soft_timeout: float | None = None
        """Seconds after which `SoftTimeout` is raised in the handler."""
        self.is_async = inspect.iscoroutinefunction(fn)
        self.place = place_of(fn)
        _refuse_generator(fn, self.place)
        check_name(self.name, self.place, '`name="{}"` in the decorator')
        self.policy, self.errors = split_policy(policy, self.place)
        self._signature = signature_of(fn)
        self._locals = locals_of_caller()
        self._compiled: list[_Signature] = []  # At most one, shared with the copies that `using` makes.
        self._context_name: str | None = None
        self.joined: bool | None = False
        """Whether the context is `Joined`; `None`: only in a continuation."""
        self._find_context()
        self.__doc__ = help_of(self)
        with suppress(NameError):  # A class that is defined further down: resolved at the start of the app.
            _ = self.compiled

    def __repr__(self) -> str:
        return f"<Task {shown(self)}>"

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
        params = self._bind(arguments, named)
        own = next(iter(params.values())) if self.compiled.whole else params
        return {"task": self.name, "params": own} if self.bundle else own

    def _bind(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the params by name; the one that a chain fills may be absent."""
        filler, upstream = (None,) * self.context, self.compiled.upstream
        try:
            bound = self._signature.bind(*filler, *arguments, **named).arguments
        except TypeError as error:
            try:
                bound = self._signature.bind(*filler, *arguments, **{upstream or "": None}, **named).arguments
            except TypeError:
                raise TypeError(f"`{self.name}`: {error}") from None
            del bound[upstream or ""]
        return {name: value for name, value in bound.items() if name != self._context_name}

    def takes_results(self, params: Any) -> bool:
        return self.joined is not False or self._lacks_upstream(params)

    def missing(self, params: Any) -> str:
        called = self.fn.__name__
        if self.joined:
            return f"has a `Joined` context and runs as a continuation only: use `cx.then({called}, …)`"
        name, absent = self.compiled.upstream, (UPSTREAM, inspect.Parameter.empty)
        if name and self._lacks_upstream(params) and self._signature.parameters[name].default in absent:
            return f"lacks `{name}`, which only a chain fills: give it, or use `chain(…, {called}.call(…))` or `cx.then`"
        return ""

    def _lacks_upstream(self, params: Any) -> bool:
        own = params["params"] if self.bundle else params
        return self.compiled.upstream is not None and self.compiled.upstream not in own

    def load_own(self, params: Any) -> Any:
        """Returns the arguments for params as their creator gives them. Raises `Mismatch`."""
        return self.compiled.own(params)

    def declaration(self) -> dict[str, Any]:
        """Returns the type as the `ready` message declares it."""
        try:
            compiled = self.compiled
        except NameError as error:
            raise self._error(f"an annotation of `{self.fn.__name__}` cannot be resolved: {error}") from None
        return declared_type(self.name, compiled.schema, self.doc, self.policy, compiled.output_schema)

    @property
    def is_sync(self) -> bool:
        """Whether attempts of the type need a thread."""
        return not self.is_async

    @property
    def is_mixed(self) -> bool:
        """Whether the type has handlers of both kinds; only a bundle can."""
        return False

    def warning(self) -> str:
        """Returns what the author of the type should know before it runs; empty, if nothing."""
        return ""

    @property
    def members(self) -> list[Task[..., Any]]:
        """Tasks of the type."""
        return [self]

    def select(self, params: Any) -> Task[..., Any]:
        """Returns the task that runs an attempt with these params."""
        return self

    def renamed(self, name: str) -> Task[P, R]:
        """Returns the same task under another name."""
        renamed = copy.copy(self)
        renamed.name, renamed.type = name, self.bundle or name
        return renamed

    @property
    def context(self) -> bool:
        """Whether the first parameter is the context."""
        return self._context_name is not None

    def _find_context(self) -> None:
        """Finds out whether the first parameter is a context, and of which class."""
        first = next(iter(self._signature.parameters.values()), None)
        if first is None:
            return
        hint = first.annotation
        if isinstance(hint, str):
            with suppress(Exception):  # A class that is defined further down is no context.
                hint = eval(hint, {**self.fn.__globals__, **self._locals})  # As `typing.get_type_hints` does.
        kinds = _kinds(hint)
        if not all(isinstance(kind, type) and issubclass(kind, Context) for kind in kinds):
            return
        is_joined = {issubclass(kind, Joined) for kind in kinds}
        self._context_name, self.joined = first.name, None if len(is_joined) > 1 else is_joined.pop()

    def _compile(self) -> _Signature:
        hints = typing.get_type_hints(self.fn, localns=self._locals, include_extras=True)
        schemas = Schemas(self.app.strict)
        form = self._form(schemas, hints)
        codec = form.codec(schemas)
        output, result = Schemas(of_results=True), None
        if "return" in hints and hints["return"] is not typing.NoReturn:
            try:
                result = output.codec(hints["return"])
            except UnsupportedType as error:
                raise self._error(
                    f"the result of `{self.fn.__name__}` has the type {error}, {error.reason}", error.hint
                ) from None
        output_schema = output.complete(result.schema) if result else None
        upstream = form.upstream.name if form.upstream else None
        own, whole = form.given(schemas).load, form.is_whole
        return _Signature(schemas.complete(codec.schema), codec.load, own, whole, upstream, result, output_schema)

    def _form(self, schemas: Schemas, hints: dict[str, Any]) -> Form:
        """Compiles the parameters."""
        split = {name: split_upstream(hint) for name, hint in hints.items()}
        plain = {name: hint for name, (hint, _) in split.items()}
        fields = [self._field(schemas, p, plain) for name, p in self._signature.parameters.items() if name != self._context_name]
        defaults = self._signature.parameters
        upstream = [field for field in fields if split[field.name][1] or defaults[field.name].default is UPSTREAM]
        whole = len(fields) == 1 and WHOLE in getattr(hints[fields[0].name], "__metadata__", ())
        if len(upstream) > 1 or (upstream and whole):
            problem = (
                "`Upstream` marks more than one parameter" if len(upstream) > 1 else "`Upstream` and `Params` mark the same one"
            )
            raise self._error(f"{problem} of `{self.fn.__name__}`", "one `Upstream` parameter, without `Params`")
        if (upstream or self.joined is None) and {"params", "task", "results"} <= {field.name for field in fields}:
            problem = f"`{self.fn.__name__}` has the parameters `params`, `task` and `results`, as what a chain passes on has"
            raise self._error(problem, "another name for one of them")
        contexts = members(hints[self._context_name]) if self._context_name else ()
        results = next((kind.__args__[0] for kind in contexts if typing.get_args(kind)), Any)
        return Form(fields, upstream[0] if upstream else None, whole, self.bundle is not None, self.joined, results)

    def _field(self, schemas: Schemas, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Field:
        name = parameter.name
        at = f"the parameter `{name}` of `{self.fn.__name__}`"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise self._error(f"{at} is `*args`, `**kwargs` or positional-only: params are named values", "a list or a dict")
        if name not in hints:
            raise self._error(*problem_of_unannotated(self.fn, name))
        kinds = [kind for kind in _kinds(hints[name]) if isinstance(kind, type) and issubclass(kind, Context)]
        if kinds:
            names = ", ".join([f"{name}: {kinds[0].__name__}", *(other for other in self._signature.parameters if other != name)])
            raise self._error(f"{at} is the context, which comes first", f"`def {self.fn.__name__}({names})`")
        given = parameter.empty if parameter.default is UPSTREAM else parameter.default
        hint, default, is_set = split_default(hints[name], given, parameter.empty)
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
    own: Callable[[Any], dict[str, Any]]
    """Loads the params of the task's creator: those of a continuation are without the results."""
    whole: bool
    upstream: str | None
    """Parameter that a chain fills."""
    output: Codec | None
    output_schema: dict[str, Any] | None


def error_at(place: str, problem: str, hint: str = "") -> DeclarationError:
    """Returns the error of a declaration."""
    return DeclarationError(f"{place}: {problem}{f'; hint: use {hint}' if hint else ''}")


def check_name(name: str, place: str, form: str = "{}") -> None:
    """Raises `DeclarationError` for an invalid name of a type, or of a task in a bundle. `form`: where the name is given."""
    if not re.fullmatch(r"[a-z0-9-]{1,64}", name):
        near = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:64] or "…"
        raise error_at(place, f"`{name}` is not a name of a type: 1 to 64 characters of `a-z 0-9 -`", form.format(near))


def split_policy(given: Mapping[str, Any], place: str) -> tuple[dict[str, Any], ErrorClasses]:
    """Separates the exception classes, which the app matches itself, from the keys for the worker."""
    try:
        check_keys(given, "type")
    except TypeError as error:
        raise error_at(place, str(error)) from None
    policy = {key: _plain(value) for key, value in given.items() if value is not None}
    return policy, split_classes(policy)


def declared_type(name: str, params: Any, doc: str | None, policy: dict[str, Any], output: Any = None) -> dict[str, Any]:
    """Returns a type as the `ready` message declares it, without parts that are empty."""
    parts = {"name": name, "params": params, "output": output, "doc": doc, "policy": policy}
    return {part: value for part, value in parts.items() if value}


def _kinds(hint: Any) -> list[Any]:
    """Returns the classes of an annotation, without their type parameters."""
    return [typing.get_origin(member) or member for member in members(hint)]


def _refuse_generator(fn: Callable[..., Any], place: str) -> None:
    """Raises `DeclarationError` for a generator function, also behind decorators: a call of it runs nothing."""
    for kind in (fn, inspect.unwrap(fn)):
        if inspect.isgeneratorfunction(kind) or inspect.isasyncgenfunction(kind):
            problem = f"`{fn.__name__}` is a generator function: its result would be a generator, and nothing would run"
            raise error_at(place, problem, "`return`, as of a list, or `cx.progress(…)` for values during the work")


def task_of(target: Submittable[Any, Any]) -> Task[..., Any]:
    """Returns a type as a declared one. Raises `TypeError` if another program runs it."""
    if not isinstance(target, Task):
        raise TypeError(f"`{target.name}` has no handler here: another program runs it")
    return target
