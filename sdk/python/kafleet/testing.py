"""Tests of apps: `trial` runs one attempt, `recorded` collects submitted tasks, `fleet` runs a real fleet in memory."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

from .attempt import Attempt
from .call import Call
from .captured import captured
from .checks import call_of
from .client import record_into
from .context import LIMITS, Context
from .fleet import SHOWN_LINES, Fleet, fleet
from .joined import Ended
from .retry_rules import outcome_of
from .scalars import Mismatch
from .task import Submittable, Task, task_of
from .values import decode, encode, parse, settled

if TYPE_CHECKING:
    from .tree_trial import TreeTrial

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["Failure", "Fleet", "Trial", "fleet", "recorded", "trial"]


@dataclass(frozen=True)
class Failure:
    """Failure of an attempt. `outcome`: `retry`, `wait`, `fail`, `dead` or `cancelled`; of a trial, what the policy of the type
    makes of it while there are retries left."""

    outcome: str
    kind: str
    message: str
    after_ms: int | None = None
    stack: str | None = None


@dataclass
class Trial(Generic[R]):
    """One attempt, as the worker would see it. Children and continuations are the documents of tasks."""

    failure: Failure | None = None
    log: list[str] = field(default_factory=list)
    children: list[dict[str, Any]] = field(default_factory=list)
    then: list[dict[str, Any]] = field(default_factory=list)
    progress: list[Any] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    attachments: dict[str, bytes] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=lambda: dict(LIMITS))
    state: Any = None
    _output: Any = None

    @property
    def output(self) -> R:
        """Result, converted to JSON and back. Raises `AssertionError` if the attempt has failed."""
        if self.failure:
            log = "".join(f"\n│ {line}" for line in self.log[-SHOWN_LINES:])
            raise AssertionError(f"the attempt failed: {self.failure.kind}: {self.failure.stack or self.failure.message}{log}")
        return cast(R, self._output)

    def send(self, lines: bytes, /) -> None:
        """Takes messages of the attempt."""
        for line in lines.split(b"\n")[:-1]:
            ((kind, fields),) = parse(line).items()
            getattr(self, f"_on_{kind}", lambda fields: None)(fields if kind == "ok" else settled(fields))

    def call(self, cx: Context, tasks: list[bytes]) -> Future[list[str]]:
        """Takes children that are published at once."""
        first, done = len(self.children), Future[list[str]]()
        self.children += [decode(task) for task in tasks]
        done.set_result([f"{cx.id}:{child.get('id', first + n)}" for n, child in enumerate(self.children[first:])])
        return done

    def buffered(self, cx: Context) -> None:
        """Leaves log lines in their buffer: the attempt sends them at its end."""

    def flushed(self, cx: Context) -> None:
        """Takes the log lines of an attempt."""
        self.send(cx.flush())

    def _on_ok(self, fields: dict[str, Any]) -> None:
        self._output = fields["output"]

    def _on_error(self, fields: dict[str, Any]) -> None:
        self.failure = Failure(**{key: value for key, value in fields.items() if key != "n"})

    def _on_log(self, fields: dict[str, Any]) -> None:
        self.log += fields["lines"]

    def _on_progress(self, fields: dict[str, Any]) -> None:
        self.progress.append(fields["value"])

    def _on_warn(self, fields: dict[str, Any]) -> None:
        self.warnings.append(fields["message"])

    def _on_attach(self, fields: dict[str, Any]) -> None:
        self.attachments[fields["name"]] = base64.b64decode(fields["data"])

    def _on_spawn(self, fields: dict[str, Any]) -> None:
        self.children += fields["tasks"]

    def _on_then(self, fields: dict[str, Any]) -> None:
        self.then.append(fields["task"])


class TrialAttempt(Attempt):
    """An attempt that tells the end of the test from a failure of the handler."""

    exit: BaseException | None = None

    def raise_exit(self, *kinds: type[BaseException]) -> None:
        """Raises what ends the test: that of these kinds, `pytest.fail` and the like, and the end of a debugger."""
        modules = {kind.__module__ for kind in type(self.exit).__mro__}
        if self.exit and (isinstance(self.exit, kinds) or modules & {"bdb", "_pytest.outcomes"}):
            raise self.exit

    def converted(self, output: Any) -> Any:
        """Returns a result with its annotated type."""
        return self.task.output.load(output) if self.task.output else settled(output)

    def _failed(self, raised: BaseException) -> bytes:
        self.exit = raised
        return super()._failed(raised)


@dataclass(frozen=True)
class Trials:
    """Runs attempts in this process, through JSON and the schema of the type.

    `state`: value of `cx.state`, since the lifespan is not entered. `task` and `results`: outcomes for a `Joined` context or
    an `Upstream` parameter; a value that is not an `Ended` is the result of a task that succeeded. `cancelled`: reason of a
    cancel before the attempt starts. Of a tree: `remotes`, functions from params to result by type, for types of other
    programs, and `max_attempts` in all.
    """

    id: str = "trial"
    run: int = 1
    number: int = 1
    state: Any = None
    task: Ended[Any] | None = None
    results: Sequence[Any] = ()
    cancelled: str | None = None
    remotes: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    max_attempts: int = 10_000

    def using(self, **attempt: Any) -> Trials:
        """Returns trials with other attributes of the attempt."""
        return replace(self, **attempt)

    def __call__(self, task: Submittable[P, R], *args: P.args, **kwargs: P.kwargs) -> Trial[R]:
        """Runs one attempt. In an event loop, await `atrial` instead."""
        trial, attempt = self._prepare(task_of(task), task.bind(args, kwargs))
        if attempt is None:
            return trial
        with captured():
            lines = asyncio.run(attempt.arun()) if attempt.task.is_async else attempt.run()
        return self._finish(trial, attempt, lines)

    async def atrial(self, task: Submittable[P, R], *args: P.args, **kwargs: P.kwargs) -> Trial[R]:
        """Runs one attempt of an asynchronous handler on the running event loop."""
        trial, attempt = self._prepare(task_of(task), task.bind(args, kwargs))
        if attempt is None:
            return trial
        with captured():
            # A task of its own: it has its own context variables.
            lines = await asyncio.create_task(attempt.arun())
        return self._finish(trial, attempt, lines)

    @overload
    def tree(self, task: Call[R], /) -> TreeTrial[R]: ...
    @overload
    def tree(self, task: Submittable[P, R], *args: P.args, **kwargs: P.kwargs) -> TreeTrial[R]: ...
    def tree(self, task: Any, *args: Any, **kwargs: Any) -> TreeTrial[Any]:
        """Runs a task, or a chain, with its retries, children and continuations, in virtual time. In an event loop, await
        `atree` instead."""
        tree, steps = self._tree(call_of(task, args, kwargs)._as_call())
        with captured(), asyncio.Runner() as runner, contextlib.suppress(StopIteration):
            attempt = next(steps)
            while True:
                attempt = steps.send(runner.run(attempt.arun()) if attempt.task.is_async else attempt.run())
        return tree

    @overload
    async def atree(self, task: Call[R], /) -> TreeTrial[R]: ...
    @overload
    async def atree(self, task: Submittable[P, R], *args: P.args, **kwargs: P.kwargs) -> TreeTrial[R]: ...
    async def atree(self, task: Any, *args: Any, **kwargs: Any) -> TreeTrial[Any]:
        """Runs a task, or a chain, with its retries, children and continuations, in virtual time, on the running event loop."""
        tree, steps = self._tree(call_of(task, args, kwargs)._as_call())
        with captured(), contextlib.suppress(StopIteration):
            attempt = next(steps)
            while True:
                lines = await asyncio.create_task(attempt.arun()) if attempt.task.is_async else attempt.run()
                attempt = steps.send(lines)
        return tree

    def _tree(self, call: Call[R]) -> tuple[TreeTrial[R], Generator[TrialAttempt, bytes, None]]:
        from .tree_trial import TreeTrial

        tree = TreeTrial(self, call)
        return tree, tree.steps()

    def begin(self, task: Task[..., Any], params: Any, trial: Trial[Any], message: dict[str, Any]) -> TrialAttempt | None:
        """Returns an attempt; nothing if the params do not fit, which is the failure of the trial."""
        fields = {"n": 1, "type": task.type, "run": self.run, **message, "params": parse(encode(params))}
        try:
            return TrialAttempt(task, fields, trial)
        except Mismatch as error:
            trial.failure = Failure("dead", "bad_params", f"the params do not fit the type: {error}")
            return None

    def _prepare(self, task: Task[..., Any], params: Any) -> tuple[Trial[Any], TrialAttempt | None]:
        trial: Trial[Any] = Trial(state=self.state)
        given = self.task is not None or bool(self.results)
        if task.takes_results(params) and (given or task.missing(params)):
            results = [self._ended(result, n) for n, result in enumerate(self.results)]
            params = {"params": params, "task": self._ended(self.task, -1), "results": results}
        attempt = self.begin(task, params, trial, {"id": self.id, "number": self.number, "left_ms": 60_000})
        if attempt and self.cancelled:
            attempt.cx.cancel(self.cancelled)
        return trial, attempt

    def _ended(self, outcome: Any, index: int) -> dict[str, Any]:
        if not isinstance(outcome, Ended):
            outcome = Ended(self.id if index < 0 else f"{self.id}:{index}", None, "succeeded", outcome)
        return {key: value for key, value in asdict(outcome).items() if value is not None}

    def _finish(self, trial: Trial[Any], attempt: TrialAttempt, lines: bytes) -> Trial[Any]:
        trial.send(lines)
        attempt.raise_exit()
        if failure := trial.failure:
            declared = attempt.task.app.tasks.get(attempt.task.type)
            policy = declared.policy if declared else {}
            trial.failure = replace(failure, outcome=outcome_of(policy, failure.outcome, failure.kind))
        else:
            trial._output = attempt.converted(trial._output)
        return trial


trial = Trials()
"""Runs one attempt at a task: `trial(thumbnail, path="a.jpg")`."""


@contextlib.contextmanager
def recorded() -> Iterator[list[dict[str, Any]]]:
    """Collects the documents of submitted tasks; nothing is created. The list holds them in order."""
    submitted: list[dict[str, Any]] = []
    earlier = record_into(submitted)
    try:
        yield submitted
    finally:
        record_into(earlier)
