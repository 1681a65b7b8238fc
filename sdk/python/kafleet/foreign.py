"""Names of Celery and BullMQ, with what to write instead. Every refusal of an unknown name looks here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn


def _table(text: str) -> dict[str, str]:
    """Reads lines of names, a colon, and what to write instead. Marks such as `<seconds>` stand for the value that was given."""
    lines = [line.partition(": ") for line in text.strip().splitlines()]
    return {name: remedy for names, _, remedy in lines for name in names.split()}


_BOTH = """
attempts: `retries=<fewer>`
backoff: `min_backoff="<wait>"`, which doubles up to `max_backoff`
compression serializer: remove it: params and results are JSON
exchange queue routing_key: each type has its own topic; give slow types their own `[apps.NAME]` with `types`
ignore_result removeOnComplete removeOnFail store_errors_even_if_ignored: remove it: results stay for the `retention` of the task
lifo: remove it: tasks run in the order of their topic
max_retries: `retries=<number>`
priority: there are no priorities; declare a type for urgent tasks, with its own `concurrency`
repeat: `@app.schedule("0 3 * * *")` above the task
time_limit: `timeout="<seconds>"`
"""

POLICY = _table(f"""{_BOTH.strip()}
acks_late acks_on_failure_or_timeout reject_on_worker_lost: remove it: a task is done when it has ended, and else runs again
autoretry_for: remove it: each exception is retried; these alone: `on_error="fail", retry_on=[<classes>]`
backend: remove it: results stay for the `retention` of the task
base: `@app.around` for what surrounds each attempt, `App(lifespan=…)` for what a process keeps
bind: annotate the first parameter: `cx: Context`
countdown: `using(delay="<seconds>")` for each task
default_retry_delay: `min_backoff="<seconds>"`
dont_autoretry_for throws: `fail_on=[<classes>]`
expires: `using(expires="<seconds>")` for each task
limiter rate_limit: `rate=<rate>`, for the whole fleet
pydantic send_events shared track_started trail typing: remove it: kafleet always does that
retention group: set it in `[types.NAME]` of kafleet.toml
retry_backoff: `min_backoff="<wait>"`, which doubles up to `max_backoff`
retry_backoff_max: `max_backoff="<seconds>"`
retry_jitter: remove it: 0 to 20 % are added to each wait
retry_kwargs: `retries=3`
schedule: `@app.schedule("0 3 * * *")` above the task
soft_time_limit: `soft_timeout="<seconds>"`
task_id: `using(id=…)` for each task
""")
"""Keywords of `@app.task` and `app.bundle`."""

OPTIONS = _table(f"""{_BOTH.strip()}
add_to_parent connection producer publisher retry retry_policy: remove it: kafleet always does that
args kwargs: `submit(…)` takes the arguments
chord: `chord([…], body.call())`
countdown: `delay="<seconds>"`
eta: `at=datetime.now(timezone.utc) + …`
group_id: `tags=[…]`
jobId job_id task_id: `id=…`: a second task with the same id is not created
link_error: `then=[other.using(on="failed").call()]`
parent_id root_id: `parent=…`
shadow: `name=…`
soft_time_limit: `soft_timeout="<seconds>"` in the decorator of the task
""")
"""Options of a single task, in `using`."""

TASK = _table("""
AsyncResult: `handle(id)`
add defer delay enqueue kiq send: `submit(…)`
add_bulk: `app.submit_many(task.call(x) for x in …)`
apply: `kafleet.testing.trial(task, …)`, which runs one attempt here
apply_async enqueue_at enqueue_in send_with_options: `using(delay="30s").submit(…)`
apply_async_on_commit delay_on_commit: `kafleet.contrib.django.submit_on_commit(task.call(…))`
replace: `cx.then(…)`
request: a first parameter `cx: Context`
retry: `raise Retry("…", after="30s")`
run: `fn(…)`, the function itself
s signature subtask: `call(…)`, as in `chain(a.call(1), b.call())`
si: `call(…)`: a result goes only into a parameter of the type `Upstream`
update_state: `cx.progress(…)`
""")
"""Attributes of a task type."""

CONTEXT = _table("""
apply_async delay: `cx.spawn(task, …)`, or `task.submit(…)`
attemptsMade attempts_made max_retries retries: `cx.number`, the number of the attempt from 1
data: the params are parameters of the function
is_aborted: `cx.cancelled`, or `cx.check()`
logger: `cx.log(…)`; `print` and `logging` go to the task's log too
replace: `cx.then(task, …)`
request: `cx.id`, `cx.number` and others are attributes of the context itself
retry: `raise Retry("…", after="30s")`
set_progress updateProgress update_progress update_state: `cx.progress(…)`
""")
"""Attributes of the context."""

HANDLE = _table("""
abort revoke: `cancel()`
collect get wait: `result(timeout=30)`
failed info ready state successful traceback: `status()["state"]`
forget: remove it: results stay for the `retention` of the task
task_id: `id`
""")
"""Attributes of a handle."""

APP = _table("""
AsyncResult: `app.handle(id)`
Task: `@app.around` for what surrounds each attempt
actor shared_task: `@app.task`
add_periodic_task on_after_configure on_after_finalize: `@app.schedule("0 3 * * *")` above a task
autodiscover_tasks: `App(include=["shop.mail", …])`
backend conf config_from_object: settings are in kafleet.toml
control: `task.handle(id).cancel()`, or `kafleet` on the command line
send_task signature: `app.remote("name").submit(…)`
start worker_main: `kafleet worker TARGET`, or `app.main()` in a program that a worker starts
""")
"""Attributes of an app."""

ARGUMENTS = _table("""
backend broker: `[kafka]` and `[redis]` in kafleet.toml, or `kafleet dev`, which needs neither
concurrency: `slots=…`, the attempts at once in one process
config_source: settings are in kafleet.toml
main name: `App()`; `[apps.NAME]` in kafleet.toml names it
""")
"""Arguments of `App`."""


def _seconds(value: Any) -> str:
    return f"{value:g}s" if type(value) in (int, float) else "30s"


def _wait(value: Any) -> str:
    delay = value.get("delay") if isinstance(value, Mapping) else None  # Of BullMQ, in milliseconds.
    return f"{delay}ms" if delay else _seconds(1 if value is True else value)


def _number(value: Any) -> str:
    return str(value) if type(value) is int else "3"


def _classes(value: Any) -> str:
    listed = value if isinstance(value, list | tuple) else [value]
    return ", ".join(kind.__name__ for kind in listed if isinstance(kind, type)) or "ValueError"


def _rate(value: Any) -> str:
    found = re.fullmatch(r"(\d+)(?:/([smh]))?", str(value))
    count, per = (found[1], f"1{found[2] or 's'}") if found else ("10", "1m")
    if isinstance(value, Mapping):
        count, per = value.get("max", 10), f"{value.get('duration', 1000)}ms"
    return f'{{"count": {count}, "per": "{per}"}}'


_MARKS: dict[str, Callable[[Any], str]] = {
    "<seconds>": _seconds, "<wait>": _wait, "<number>": _number, "<classes>": _classes, "<rate>": _rate,
    "<fewer>": lambda value: _number(value - 1 if type(value) is int else 2),
}  # fmt: skip


def remedy(table: Mapping[str, str], name: str, value: Any = None) -> str:
    """Returns what to write instead of a name of another library; empty, if it is none."""
    form = table.get(name, "")
    for mark, text in _MARKS.items():
        form = form.replace(mark, text(value)) if mark in form else form
    return form


def check_app(args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Raises `TypeError` for arguments of `App` that it has in Celery."""
    if args:
        raise TypeError(f"an app has no name in the code: `App({args[0]!r})`; hint: {ARGUMENTS['main']}")
    for key in ARGUMENTS.keys() & named.keys():
        raise TypeError(f"`{key}` is not an argument of `App`; hint: {ARGUMENTS[key]}")


class Named:
    """Base of classes whose unknown attributes may be names of other libraries."""

    __slots__ = ()
    _foreign: ClassVar[tuple[str, Mapping[str, str]]] = ("", {})
    """Noun for the class, and the remedies for its attributes."""

    if not TYPE_CHECKING:  # With it, type checkers would accept any attribute.

        def __getattr__(self, name: str) -> Any:
            noun, table = self._foreign
            if name in table:
                raise AttributeError(f"{noun} has no attribute `{name}`; hint: {table[name]}", name=name, obj=self)
            return super().__getattribute__(name)  # Raises the usual error, or that of a property.


class Unpiped:
    """Base of classes that Celery joins by `|`."""

    __slots__ = ()

    def __or__(self, other: object) -> NoReturn:
        raise TypeError("calls are not joined by `|`; hint: `chain(a, b)`, or `chord(calls, body)` behind a group")
