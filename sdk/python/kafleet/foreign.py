"""Names of Celery and BullMQ, with what to write instead. Every refusal of an unknown name looks here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, NoReturn

_NAME_CHARS = 64


def _table(text: str) -> dict[str, str]:
    """Reads lines of names, a colon, and what to write instead. Marks such as `<seconds>` stand for the value that was given."""
    lines = [line.partition(": ") for line in text.strip().splitlines()]
    return {name: remedy for names, _, remedy in lines for name in names.split()}


def plain(name: str) -> str:
    """Returns a name without underscores and capitals: other libraries have `jobId` and `job_id`."""
    return name[:_NAME_CHARS].replace("_", "").lower()


def _attributes(text: str) -> dict[str, str]:
    return {plain(name): remedy for name, remedy in _table(text).items()}


Place = Literal["type", "task"]
"""Where a keyword is given: to the declaration of a type, or to a single task."""


class Keyword(NamedTuple):
    """Remedy for a keyword. `place`: the only one that has it; `None`: both."""

    place: Place | None
    remedy: str


def _keywords(place: Place | None, text: str) -> dict[str, Keyword]:
    return {plain(name): Keyword(place, remedy) for name, remedy in _table(text).items()}


_SCHEDULE = '`@app.schedule("0 3 * * *")` above the task, or `app.schedules.upsert(…)`'
_AGAIN = "remove it: a task is done when it has ended, and else runs again"
_ALWAYS = "remove it: kafleet always does that"
_REMOVED = "remove it: results stay for the `retention` of the task"
_AROUND = "`@app.around` for what surrounds each attempt, `App(lifespan=…)` for what a process keeps"
_TOPIC = "each type has its own topic; give slow types their own `[apps.NAME]` with `types`"
_DECORATED = "the decorator has the policy, as `@app.task(retries=5)`"
_PARENT = 'remove it: a failed child fails its parent, unless it has `on_failure="ignore"`'

KEYWORDS: Mapping[str, Keyword] = {
    **_keywords(
        None,
        f"""
abstract lazy resultrepr_maxsize settings default_job_options: remove it: the policy is in the decorator and in kafleet.toml
acks_late acks_on_failure_or_timeout reject_on_worker_lost visibility_timeout: {_AGAIN}
add_to_parent producer publisher retry retry_policy autorun shared track_started trail typing send_events: {_ALWAYS}
args kwargs data: `submit(…)` takes the arguments
argsrepr kwargsrepr correlation_id delivery_mode group_index prev_millis task_type timestamp stamped_headers: {_ALWAYS}
attempts: `retries=<fewer>`
backend connection broker prefix: remove it: the fleet has Kafka and Redis; a client has `App(api=…)` or KAFLEET_API
backoff retry_backoff default_retry_delay: `min_backoff="<wait>"`, which doubles up to `max_backoff`
after_return base before_start on_retry on_success: {_AROUND}
bind: annotate the first parameter: `cx: Context`
chain: `chain(task.call(…), …)`
chord: `chord([…], body.call())`
children: `cx.spawn(task, …)` in the function of the parent
compression serializer: remove it: params and results are JSON
drain_delay metrics telemetry: remove it: docs/metrics.md lists what the roles measure
exchange queue queue_name route_name router routing_key: {_TOPIC}
fail_parent_on_failure: {_PARENT}
continue_parent_on_failure: `fail_fast=True` of the parent, with a continuation `using(on="failed")`
ignore_result remove_on_complete remove_on_fail store_errors_even_if_ignored: {_REMOVED}
keep_logs stack_trace_limit: remove it: the newest 1,000 lines of a task are kept, with the stack of its failure
lifo: remove it: tasks run in the order of their topic
lock_duration lock_renew_time max_stalled_count max_started_attempts: {_AGAIN}
skip_lock_renewal skip_stalled_check stalled_interval: {_AGAIN}
max_retries: `retries=<number>`
opts: options are keywords of `using(…)`
priority: there are no priorities; declare a type for urgent tasks, with its own `concurrency`
processor: put `@app.task` above the function
pydantic pydantic_context pydantic_dump_kwargs pydantic_strict: remove it: annotate a parameter with the model
repeat schedule cron pattern run_every every immediately offset nth_day_of_month repeat_job_key: {_SCHEDULE}
retry_backoff_max: `max_backoff="<seconds>"`
retry_jitter: remove it: 0 to 20 % are added to each wait
retry_kwargs: `retries=3`
size_limit: remove it: params have at most 1 MiB; pass links to larger data
start_date end_date: `start_at=…` and `end_at=…` of `@app.schedule(…)`
time_limit: `timeout="<seconds>"`
tz utc timezone zone: `zone=…` of `@app.schedule("0 3 * * *", zone="Europe/Berlin")`
use_worker_threads: remove it: attempts run in processes of their own
""",
    ),
    **_keywords(
        "type",
        """
autoretry_for: remove it: each exception is retried; these alone: `on_error="fail", retry_on=[<classes>]`
dont_autoretry_for throws: `fail_on=[<classes>]`
limiter rate_limit: `rate=<rate>`, for the whole fleet
retention group: set it in `[types.NAME]` of kafleet.toml
soft_time_limit: `soft_timeout="<seconds>"`
slots: `concurrency=<number>` per worker, or `App(slots=…)` for a process
""",
    ),
    **_keywords(
        "task",
        """
countdown: `delay="<seconds>"`
debounce deduplication once unique_for unique_key unique_on: `unique="<key>"`: at most one task of a key is open
eta: `at=datetime.now(timezone.utc) + …`
group_id: `tags=[…]`
ignore_dependency_on_failure remove_dependency_on_failure: `on_failure="ignore"`
job_id task_id: `id=…`: a second task with the same id is not created
link: `then=[other.call()]`
link_error: `then=[other.using(on="failed").call()]`
parent_id root_id: `parent=…`
shadow: `name=…`
""",
    ),
}
"""Keywords of declarations and of single tasks, without underscores and capitals."""

_SEARCH = '`app.tasks.search("state:failed type:mail")`'
_CANCEL_ALL = '`app.bulk.cancel("type:mail")`'
_PAUSE = '`app.client.request("POST", "/v1/types/mail/pause")`, and `/resume`'

TASK = _attributes(f"""
AsyncResult get_job: `handle(id)`
acks_late autoretry_for default_retry_delay max_retries rate_limit: {_DECORATED}
soft_time_limit time_limit: {_DECORATED}
add defer delay enqueue kiq send: `submit(…)`
add_bulk: `app.submit_many(task.call(x) for x in …)`
after_return before_start on_failure on_retry on_success: `@app.around` for what surrounds each attempt
apply: `kafleet.testing.trial(task, …)`, which runs one attempt here
apply_async enqueue_at enqueue_in send_with_options: `using(delay="30s").submit(…)`
apply_async_on_commit delay_on_commit: `kafleet.contrib.django.submit_on_commit(task.call(…))`
clean drain obliterate purge: {_CANCEL_ALL}
client: `app.client`
get_active get_completed get_delayed get_failed get_jobs get_waiting: {_SEARCH}
get_job_count_by_types get_job_counts is_paused: `app.types()`
get_job_schedulers get_repeatable_jobs: `app.schedules.list()`
on send_event: `app.events(type="mail")`
pause resume: {_PAUSE}
process: `@app.task` above the function
promote_jobs: `app.bulk.start_now("type:mail")`
remove_job_scheduler remove_repeatable: `app.schedules.delete(…)`
repeat upsert_job_scheduler: {_SCHEDULE}
replace: `cx.then(…)`
request: a first parameter `cx: Context`
retry: `raise Retry("…", after="30s")`
retry_jobs: `app.bulk.retry("type:mail state:failed")`
run: `fn(…)`, the function itself
s signature signature_from_request subtask: `call(…)`, as in `chain(a.call(1), b.call())`
set_global_concurrency: `max_concurrency` of the decorator
si: `call(…)`: a result goes only into a parameter of the type `Upstream`
update_state: `cx.progress(…)`
wait_until_ready: remove it: a client connects with its first request
""")
"""Attributes of a task type."""

CONTEXT = _attributes("""
add_to_chord add_job: `cx.spawn(task, …)`
apply_async delay: `cx.spawn(task, …)`, or `task.submit(…)`
attempts_made max_retries retries: `cx.number`, the number of the attempt from 1
called_directly delivery_info is_eager token: remove it: an attempt is the same everywhere
data: the params are parameters of the function
discard move_to_failed: `raise Fail("…")`
extend_lock: `cx.heartbeat()`
failed_reason is_failed: `app.handle(cx.id).status()`
get_children_values get_dependencies: `cx.then(task, …)`, whose context `cx: Joined` has the `results`
is_aborted: `cx.cancelled`, or `cx.check()`
logger: `cx.log(…)`; `print` and `logging` go to the task's log too
move_to_completed: `return` the result
move_to_delayed: `raise Wait("…", after="30s")`
move_to_waiting_children: `cx.spawn(task, …)`: a task waits for its children
opts: `cx.options`, `cx.headers` and `cx.tags`
parent_id root_id: `app.handle(cx.id).status()`
replace: `cx.then(task, …)`
request: `cx.id`, `cx.number` and others are attributes of the context itself
retry: `raise Retry("…", after="30s")`
set_progress update_progress update_state update_data: `cx.progress(…)`
""")
"""Attributes of the context."""

HANDLE = _attributes("""
abort discard move_to_failed remove revoke: `cancel()`
attempts_made: `status()["attempt"]`
build_graph graph iterdeps get_dependencies: `tree()`
change_delay: `patch(delay="30s")`
change_priority: there are no priorities; declare a type for urgent tasks, with its own `concurrency`
collect finished get returnvalue wait wait_until_finished maybe_throw: `result(timeout=30)`
data opts: `params()`
date_done finished_on: `status()["ended_at"]`
failed get_state info is_active is_completed is_delayed is_failed is_waiting is_waiting_children: `status()["state"]`
ready state successful: `status()["state"]`
failed_reason traceback: `status()["error"]`, and `log()`
forget: remove it: results stay for the `retention` of the task
get_children_values: `children()`
get_leaf: `final_result()`
logs: `log()`
on: `watch()`
processed_on: `status()["started_at"]`
progress: `status()["progress"]`
promote: `start_now()`
task_id: `id`
update_data update_progress: `cx.progress(…)` in the function
""")
"""Attributes of a handle."""

APP = _attributes(f"""
AsyncResult GroupResult get_job: `app.handle(id)`
Task: `@app.around` for what surrounds each attempt
actor process shared_task: `@app.task`
add: `task.submit(…)`
add_bulk: `app.submit_many(task.call(x) for x in …)`
add_periodic_task on_after_configure on_after_finalize upsert_job_scheduler: {_SCHEDULE}
autodiscover_tasks finalize: `App(include=["shop.mail", …])`
amqp backend conf config_from_envvar config_from_object pool set_default setup_security: settings are in kafleet.toml
control: `task.handle(id).cancel()`, or `kafleet` on the command line
get_job_counts: `app.types()`
get_queue queue: {_TOPIC}
now: `datetime.now(timezone.utc)`
obliterate: {_CANCEL_ALL}
pause resume: {_PAUSE}
send_task signature: `app.remote("name").submit(…)`
start worker_main: `kafleet worker TARGET`, or `app.main()` in a program that a worker starts
""")
"""Attributes of an app."""

SCHEDULE = _attributes("""
args data kwargs params template: `task=report.call(…)` has the params
count limit: `end_at=…`
crontab cron_expression pattern schedule: `cron="0 3 * * *"`
end_date: `end_at=…`
expires headers opts options priority queue retries tags timeout: `task=report.using(tags=[…]).call()`
immediately run_immediately: `app.schedules.trigger("…")`
interval run_every seconds: `every="10m"`
job_id job_name key name: `id="…"`
offset: `jitter="10s"` for a random delay, or a time in `cron`
start_date: `start_at=…`
time_zone tz utc: `zone="Europe/Berlin"`
""")
"""Keys of schedules."""

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
    "<key>": lambda value: str(value["id"]) if isinstance(value, Mapping) and "id" in value else "…",
    "<fewer>": lambda value: _number(value - 1 if type(value) is int else 2),
}  # fmt: skip


def remedy(name: str, place: Place, value: Any = None) -> str:
    """Returns what to write instead of a keyword of another library, and where; empty, if it is none."""
    keyword = KEYWORDS.get(plain(name))
    if keyword is None:
        return ""
    form = keyword.remedy
    for mark, text in _MARKS.items():
        form = form.replace(mark, text(value)) if mark in form else form
    return form if keyword.place in (None, place) else belongs(keyword.place, form)


def belongs(place: Place, form: str) -> str:
    """Returns a hint that a form belongs to another place."""
    return f"in the decorator of the task: {form}" if place == "type" else f"for each task, in `using(…)`: {form}"


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
            if not name.startswith("_") and (form := table.get(plain(name))):
                raise AttributeError(f"{noun} has no attribute `{name}`; hint: {form}", name=name, obj=self)
            return super().__getattribute__(name)  # Raises the usual error, or that of a property.


class Unpiped:
    """Base of classes that Celery joins by `|`."""

    __slots__ = ()

    def __or__(self, other: object) -> NoReturn:
        raise TypeError("calls are not joined by `|`; hint: `chain(a, b)`, or `chord(calls, body)` behind a group")
