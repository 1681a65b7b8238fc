"""A whole tree in the process of a test: its retries, children and continuations, one attempt after the other, in virtual time.

The rules are those of docs/trees.md. Time limits, concurrency and the circuit have no effect.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import itertools
import json
from collections import Counter
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from .app import App
from .call import Call
from .outcomes import whole_milliseconds
from .retry_rules import listed, outcome_of
from .task import Params
from .testing import Failure, Trial, TrialAttempt, Trials
from .values import decode, encode, settled

if TYPE_CHECKING:
    from .context import Context
    from .declare import Bundle
    from .task import Task

R = TypeVar("R")

_DEFAULTS = {"retries": 5, "min_backoff": "1s", "max_backoff": "3s", "max_wait": "24h", "on_error": "retry", "timeout": "60s"}
_LABELS = ("name", "tags", "creator", "options", "headers")
_ORDER = ["succeeded", "cancelled", "failed"]
"""Ended states from the best to the worst."""
_STARTED_BY = {"succeeded": ["succeeded"], "failed": ["failed"], "ended": _ORDER}
_MAX_WAIT_SECONDS, _MAX_CONTINUATIONS = 600.0, 8
_SHOWN_TASKS, _SHOWN_LINES = 50, 20


@dataclass(eq=False)
class TrialTask:
    """One task of a tree. Times are virtual, in seconds from the start of the tree."""

    id: str
    document: dict[str, Any] = field(repr=False)
    """Type, params and options, as the task was submitted, spawned or added."""
    parent: TrialTask | None = field(repr=False)
    created: float
    is_then: bool = False
    """Whether it is a continuation of its parent."""
    state: str = "queued"
    """At its end `succeeded`, `cancelled` or `failed`, by itself and all below it."""
    output: Any = None
    """Result, with its annotated type."""
    error: Failure | None = None
    """Last error of the task itself."""
    ended: float | None = None
    attempts: list[Trial[Any]] = field(default_factory=list, repr=False)
    children: list[TrialTask] = field(default_factory=list, repr=False)
    """Children and continuations, in the order of their creation."""

    def __post_init__(self) -> None:
        self._own, self._settled = "queued", ""  # State without what is below, and without the continuations.
        self._json: Any = None
        self._number, self._waits = 0, list[float]()
        self._open, self._lost, self._has_failed_fast = 0, list[str](), False
        self._then: list[dict[str, Any]] = self.document.get("then", [])

    @property
    def log(self) -> list[str]:
        """Lines of all attempts."""
        return [line for attempt in self.attempts for line in attempt.log]


class _TreeAttempt(Trial[Any]):
    """An attempt whose children become tasks of the tree."""

    def __init__(self, tree: TreeTrial[Any], task: TrialTask) -> None:
        super().__init__(state=tree._trials.state)
        self._tree, self._task, self._names = tree, task, Counter[str]()
        self.spawned: list[dict[str, Any]] = []

    def publish(self, documents: list[dict[str, Any]]) -> list[str]:
        """Creates children, and returns their ids."""
        return [self._tree._spawn(self._task, document, self._names) for document in documents]

    def call(self, cx: Context, tasks: list[bytes]) -> Future[list[str]]:
        documents, done = [decode(task) for task in tasks], Future[list[str]]()
        self.children += documents
        done.set_result(self.publish(documents))
        return done

    def _on_spawn(self, fields: dict[str, Any]) -> None:
        super()._on_spawn(fields)
        self.spawned += fields["tasks"]


class TreeTrial(Generic[R]):
    """A tree that has ended. `tree["trial:then"]` is the task of an id."""

    def __init__(self, trials: Trials, call: Call[R]) -> None:
        self.tasks: dict[str, TrialTask] = {}
        """Tasks by id, in the order of their creation."""
        self.seconds = 0.0
        """Virtual time that has passed."""
        self._trials, self._app = trials, call.target.app
        self._start, self._numbers = datetime.now(UTC), itertools.count()
        self._due: list[tuple[float, int, TrialTask]] = []
        document = call.document("submit")
        self.root = self._create(None, document.get("id", trials.id), document)
        """Task that was submitted."""

    def __getitem__(self, id: str) -> TrialTask:
        if id not in self.tasks:
            known = ", ".join(f"`{known}`" for known in list(self.tasks)[:_SHOWN_TASKS])
            raise KeyError(f"the tree has no task `{id}`, but {known}")
        return self.tasks[id]

    @property
    def state(self) -> str:
        """State of the tree: `succeeded`, `cancelled` or `failed`."""
        return self.root.state

    @property
    def log(self) -> list[str]:
        """Log lines of all tasks."""
        return [line for task in self.tasks.values() for line in task.log]

    @property
    def output(self) -> R:
        """Result of the submitted task. Raises `AssertionError` with all failures if the tree has not succeeded."""
        if self.state != "succeeded":
            raise AssertionError(str(self))
        return cast(R, self.root.output)

    @property
    def final_output(self) -> Any:
        """Result of the last continuation, of which each follows the one before. Raises `AssertionError` as `output`."""
        task, _ = self.root, self.output
        while thens := [child for child in task.children if child.is_then]:
            task = thens[-1]
        return task.output

    def __str__(self) -> str:
        lines, pending = [f"the tree ended as {self.state}, after {self.seconds:g} s of virtual time:"], [(self.root, "  ")]
        while pending and len(lines) < _SHOWN_TASKS * _SHOWN_LINES:
            task, indent = pending.pop()
            error = f", {task.error.kind}: {task.error.message}" if task.error else ""
            lines.append(f"{indent}{task.id} ({task.document['type']}): {task.state}{error}")
            if task.error:
                shown = [*task.log[-_SHOWN_LINES:], *(task.error.stack or "").splitlines()[-_SHOWN_LINES:]]
                lines += [f"{indent}  │ {line}" for line in shown]
            pending += [(child, f"{indent}  ") for child in reversed(task.children)]
        return "\n".join([*lines, *(["  …"] if pending else [])])

    def steps(self) -> Generator[TrialAttempt, bytes, None]:
        """Returns the attempts, and expects the last messages of each. Raises `RuntimeError` beyond `max_attempts`."""
        for count in itertools.count():
            if not self._due:
                return
            due, _, task = heapq.heappop(self._due)
            if count == self._trials.max_attempts:
                hint = "hint: if it ends at all, `trial.using(max_attempts=…)`"
                raise RuntimeError(f"the tree has not ended after {count} attempts; the next is one of `{task.id}`; {hint}")
            if task._own == "queued":
                self.seconds = due
                yield from self._attempt(task)

    def _attempt(self, task: TrialTask) -> Generator[TrialAttempt, bytes, None]:
        declared, params = self._declared(task.document["type"]), task.document.get("params")
        policy = {**_DEFAULTS, **declared.policy, **task.document}
        task.attempts.append(trial := _TreeAttempt(self, task))
        message = {name: task.document[name] for name in _LABELS if name in task.document}
        message |= {"id": task.id, "number": task._number + 1, "left_ms": whole_milliseconds(policy["timeout"], "timeout")}
        if attempt := self._trials.begin(declared.select(params), params, trial, message):
            trial.send((yield attempt))
            attempt.raise_exit(KeyboardInterrupt)
        then = [*task._then, *trial.then]
        if len(then) > _MAX_CONTINUATIONS:
            trial.failure = Failure("fail", "bad_then", f"a task has at most {_MAX_CONTINUATIONS} continuations, not {len(then)}")
        task.error = trial.failure
        if trial.failure:
            self._failed(task, policy, trial.failure)
        elif attempt:
            task._json, task._then = trial._output, then
            task.output = trial._output = attempt.converted(trial._output)
            trial.publish(trial.spawned)
            self._end(task, "succeeded")

    def _failed(self, task: TrialTask, policy: dict[str, Any], failure: Failure) -> None:
        """Decides about a failed attempt as a worker does, without the random part of a backoff."""
        is_listed = listed(policy, failure.kind)
        outcome, after = failure.outcome, None if failure.after_ms is None else failure.after_ms / 1000
        least = _seconds(policy["min_backoff"])
        if outcome == "wait":
            task._waits.append(self.seconds)
            after = _doubled(least, len(task._waits), _MAX_WAIT_SECONDS) if after is None else after
            if is_listed is not False and self.seconds - task._waits[0] < _seconds(policy["max_wait"]):
                self._queue(task, self.seconds + after)
                return
            outcome = "retry"
        task._number += 1
        is_final = outcome in ("cancelled", "dead")
        is_retried = outcome_of(policy, outcome, failure.kind) == "retry"
        if is_retried and not is_final and task._number <= policy["retries"]:
            after = _doubled(least, task._number, _seconds(policy["max_backoff"])) if after is None else after
            self._queue(task, self.seconds + after)
        elif policy["on_error"] == "skip" and not is_final:
            self._end(task, "succeeded")
        else:
            self._end(task, "cancelled" if outcome == "cancelled" else "failed")

    def _queue(self, task: TrialTask, due: float) -> None:
        heapq.heappush(self._due, (due, next(self._numbers), task))

    def _create(self, parent: TrialTask | None, id: str, document: dict[str, Any], *, is_then: bool = False) -> TrialTask:
        task = self.tasks[id] = TrialTask(id, document, parent, self.seconds, is_then)
        if parent:
            parent._open += 1
            parent.children.append(task)
        at, delay = document.get("at"), _seconds(document.get("delay", "0s"))
        at = datetime.fromisoformat(at) if isinstance(at, str) else at
        self._queue(task, (at - self._start).total_seconds() if at else self.seconds + delay)
        return task

    def _spawn(self, parent: TrialTask, document: dict[str, Any], names: Counter[str]) -> str:
        """Creates a child that does not exist, and returns its id. Equal ones of an attempt are numbered."""
        segment = document.get("id")
        if segment is None:
            segment = _spawn_name(document["type"], document.get("params"))
            names[segment] += 1
            segment += f"-{names[segment]}" if names[segment] > 1 else ""
        id = f"{parent.id}:{segment}"
        if id not in self.tasks:
            self._create(parent, id, document)
        return id

    def _end(self, task: TrialTask, state: str) -> None:
        task._own = state
        self._settle(task)

    def _settle(self, task: TrialTask | None) -> None:
        """Ends a task, and those above it, once nothing below is open; before that its continuations are created."""
        while task and task._own != "queued" and task.ended is None and not task._open:
            if not task._settled:
                task._settled = _worst(task._own, task._lost, task.document.get("max_failed", 0))
                task._lost = []
                self._continue(task)
                continue
            task.state, task.ended = _worst(task._settled, task._lost, 0), self.seconds
            if task.parent:
                self._leave(task, task.parent)
            task = task.parent

    def _leave(self, task: TrialTask, parent: TrialTask) -> None:
        parent._open -= 1
        if task.state == "succeeded" or task.document.get("on_failure") == "ignore":
            return
        parent._lost.append(task.state)
        is_lost = len(parent._lost) > parent.document.get("max_failed", 0) and "failed" in parent._lost
        if is_lost and not task.is_then and parent.document.get("fail_fast") and not parent._has_failed_fast:
            self._fail_fast(parent, task)

    def _fail_fast(self, task: TrialTask, child: TrialTask) -> None:
        """Cancels what is pending below a task, also the task itself, which ends as failed."""
        task._has_failed_fast = True
        if task._own in ("queued", "succeeded"):
            reason = f": {child.error.message}" if child.error else ""
            task.error = Failure("fail", "child_failed", f"child `{child.id}` is {child.state}{reason}")
        below = [found for found in self.tasks.values() if found._own == "queued" and found.id.startswith(f"{task.id}:")]
        for cancelled in below:
            cancelled._own = "cancelled"
        if task._own == "queued":
            task._own = "failed"
        for cancelled in below:
            self._settle(cancelled)

    def _continue(self, task: TrialTask) -> None:
        for number, then in enumerate(task._then, 1):
            if task._settled in _STARTED_BY[then.get("on", "succeeded")]:
                params = then.get("params")
                if then.get("with_results"):
                    results = [_ended(child, child.state) for child in task.children if not child.is_then]
                    params = {"params": params, "task": _ended(task, task._settled), "results": results}
                id = f"{task.id}:then" + (f"-{number}" if number > 1 else "")
                self._create(task, id, {**then, "params": params}, is_then=True)

    def _declared(self, type: str) -> Task[..., Any] | Bundle:
        for name in self._app.include:
            import_module(name)
        for app in (self._app, *self._app.others()):
            if type in app.tasks:
                return app.tasks[type]
        run = self._trials.remotes.get(type)
        if run is None:
            hint = f'hint: `trial.using(remotes={{"{type}": lambda params: …}})`'
            raise LookupError(f"`{type}` has no handler here: another program runs it; {hint}")

        def remote(params: Params[Any]) -> Any:
            return run(params)

        return App().task(name=type)(remote)


def _seconds(duration: str) -> float:
    return whole_milliseconds(duration, "duration") / 1000


def _doubled(least: float, times: int, most: float) -> float:
    return min(least * 2.0 ** min(times - 1, 60), max(most, least))


def _worst(own: str, lost: list[str], tolerated: int) -> str:
    return max([own, *lost], key=_ORDER.index) if len(lost) > tolerated else own


def _ended(task: TrialTask, state: str) -> dict[str, Any]:
    """Returns a task as a continuation gets it."""
    outcome: dict[str, Any] = {"output": task._json} if task._own == "succeeded" else {}
    if task.error:
        outcome["error"] = {"kind": task.error.kind, "message": task.error.message, "attempt": task._number}
    return {"id": task.id, "type": task.document["type"], "state": state, **outcome}


def _spawn_name(type: str, params: Any) -> str:
    """Returns the name of a child as docs/wire.md defines it, except for the notation of unusual numbers."""
    plain = json.loads(encode(settled(params)))
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = base64.b32encode(hashlib.sha256(f"{type}\0{text}".encode()).digest())
    return f"{type}-{digest.decode().lower()[:12]}"
