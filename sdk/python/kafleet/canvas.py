"""Chains, groups and chords of calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, Unpack, overload

from .call import Call, Options, Scope
from .foreign import Unpiped
from .steps import Steps, awaited, blocking
from .task import Submittable

if TYPE_CHECKING:
    from .app import App
    from .client import Client
    from .handle import GroupHandle

R = TypeVar("R")

_MAX_FOLLOWING = 16
_MAX_MEMBERS = 999


@dataclass(frozen=True, repr=False)
class Chain(Call[R]):
    """Call of the first of several tasks, each of which runs when the one before it has succeeded."""

    parts: tuple[Call[Any], ...] = ()
    """The calls in their order."""

    def __repr__(self) -> str:
        return f"<Chain {' -> '.join(part.target.name for part in self.parts)}>"


class Group(Unpiped, Generic[R]):
    """Calls whose tasks run side by side; with tasks that follow them, a chord. Iterates over the calls."""

    def __init__(self, calls: Sequence[Call[R]], options: Options | None = None, following: Sequence[Call[Any]] = ()) -> None:
        self.calls, self.options, self.following = tuple(calls), options or {}, tuple(following)

    def __repr__(self) -> str:
        return f"<Group of {' -> '.join([f'{len(self)} calls', *(call.target.name for call in self.following)])}>"

    def __iter__(self) -> Iterator[Call[R]]:
        return iter(self._calls())

    def __len__(self) -> int:
        return len(self.calls)

    @property
    def client(self) -> Client:
        """Client of the API."""
        if not self.calls:
            raise ValueError("the group is empty, and nothing would follow it; hint: skip it, or submit what follows alone")
        return self.calls[0].target.app.client

    def using(self, **options: Unpack[Options]) -> Group[R]:
        """Returns this group with options for the task that `submit` creates above its tasks, such as `id` or `max_failed`."""
        return Group(self.calls, {**self.options, **options}, self.following)

    @blocking
    def submit(self) -> Steps[GroupHandle[R]]:
        """Creates a task with the tasks of the group as its children, and what follows it: all, or none.

        Raises `ApiError`, and `ValueError` for more than 999 calls.
        """
        return _create(self)

    asubmit = awaited(submit)

    def _calls(self) -> Sequence[Call[R]]:
        if self.following:
            hint = "`cx.spawn` the group and `cx.then` the body, or `submit()` it as a task of its own"
            raise TypeError(f"a chord cannot be a child of another task, or in a group; hint: {hint}")
        return self.calls

    def document(self, scope: Scope) -> NoReturn:
        """Raises `TypeError`: a group is no single task."""
        hint = "`submit()` it, or let a task spawn it, `cx.spawn(group)`, and put that task into the chain"
        raise TypeError(f"a group is no single task, and only the first of a chain; hint: {hint}")

    encoded = document

    def _as_call(self) -> NoReturn:
        self.document("then")


Step = Call[Any] | Submittable[Any, Any]


@overload
def chain(first: Group[R], /, *following: Step) -> Group[R]: ...
@overload
def chain(first: Call[R] | Submittable[Any, R], /, *following: Step) -> Chain[R]: ...
def chain(*steps: Any) -> Any:
    """Returns a call of the first task, which the others follow from left to right, each if the one before has succeeded.

    A task whose parameters need nothing but what comes before may be given itself. A group can only be the first.
    """
    if not steps:
        raise TypeError("a chain has at least one call")
    first, *following = (part for step in steps for part in _parts(step))
    if isinstance(first, Group):
        following = [*first.following, *following]
    for part in following:
        part.document("then")  # Refuses what cannot follow.
    if len(following) > _MAX_FOLLOWING:
        problem = f"the chain has {len(following) + 1} tasks: at most {_MAX_FOLLOWING} can follow the first"
        raise ValueError(f"{problem}; hint: let the last one of a shorter chain add the rest with `cx.then(chain(…))`")
    if isinstance(first, Group):
        return Group(first.calls, first.options, following)
    call = _followed(first, following)
    return Chain(call.target, call.params, call.options, (first, *following))


@overload
def group(calls: Iterable[Call[R]], /) -> Group[R]: ...
@overload
def group(*calls: Call[R] | Group[R]) -> Group[R]: ...
def group(*calls: Any) -> Any:
    """Returns calls whose tasks run side by side; the calls are given one by one, or as one iterable.

    `submit` creates them as children of one task; in an attempt, `cx.spawn` creates them as its children.
    """
    given = calls if len(calls) != 1 or isinstance(calls[0], Call | Submittable) else calls[0]
    return Group([part for call in given for part in _checked(call, "group")._calls()])


def chord(header: Group[R] | Iterable[Call[R]], body: Step) -> Group[R]:
    """Returns a group with a task that follows when all tasks of the group have succeeded, and can take their results."""
    return chain(header if isinstance(header, Group) else group(header), body)


def _parts(step: Any) -> Sequence[Any]:
    if isinstance(step, Chain):
        return step.parts
    return (step.call() if isinstance(step, Submittable) else _checked(step, "chain"),)


def _checked(call: Any, name: str) -> Any:
    if not isinstance(call, Call | Group):
        raise TypeError(f"`{call!r}` is no call; hint: write `{name}(greet.call(…), …)`")
    return call


def _followed(call: Call[R], following: Sequence[Call[Any]]) -> Call[R]:
    """Returns a call with a chain of calls as its first continuation."""
    if not following:
        return call
    then = (_followed(following[0], following[1:]), *call.options.get("then", ()))
    return replace(call, options={**call.options, "then": then})


class External(Submittable[[], Any]):
    """Task type that an external system runs, which reports the states of its tasks: `handle.report`."""

    def __init__(self, app: App, name: str, state: str | None = None) -> None:
        super().__init__(app, name)
        self._state = {"state": state} if state else {}

    def bind(self, arguments: tuple[Any, ...], named: Any) -> None:
        if arguments or named:
            raise TypeError(f"`{self.name}` is external and has no params; hint: `using(options={{…}})`")

    def labelled(self, options: dict[str, Any]) -> dict[str, Any]:
        return {**options, "external": True, **self._state}


def _create(group: Group[Any]) -> Steps[GroupHandle[Any]]:
    """Creates an external task with the calls of a group as its children, and what follows it."""
    from .client import new_id
    from .handle import GroupHandle, Handle

    if len(group) > _MAX_MEMBERS:
        hint = "spawn them in a task: `cx.spawn(group)`, or `app.submit_many(group)` creates them without a common parent"
        raise ValueError(f"the group has {len(group)} calls: at most {_MAX_MEMBERS} can be submitted at once; hint: {hint}")
    target = External(group.calls[0].target.app, "group", "waiting_for_children")
    root = _followed(target.using(**group.options).call(), group.following).document("submit")
    members = [{"id": str(n), **call.document("submit")} for n, call in enumerate(group.calls)]
    root.setdefault("id", new_id({"type": "group", "params": members, "parent": root.get("parent")}))
    parent = root.get("parent")
    top = f"{parent}:{root['id']}" if parent and not root["id"].startswith(f"{parent}:") else root["id"]
    for member in members:
        if member.setdefault("parent", top) != top:
            raise ValueError(f"`parent={member['parent']!r}` of a task in a group, whose parent is the group; hint: leave it out")
    if len({member["id"] for member in members}) < len(members):
        raise ValueError("two tasks of the group have the same id; hint: give all of them ids, or none")
    created = yield from target.app.client.create_tree([root, *members])
    position = created[-1]["position"]
    handles = [Handle(call.target, f"{top}:{member['id']}", position) for call, member in zip(group.calls, members, strict=True)]
    return GroupHandle(target, top, position, handles)
