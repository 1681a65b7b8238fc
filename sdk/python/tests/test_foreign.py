"""Names of Celery and BullMQ, and paths of the REST API: each leads to the form that works."""

import copy
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from driver import ROOT

from kafleet import App, Context, DeclarationError, Invalid, call, foreign
from kafleet.errors import in_python
from kafleet.testing import Trial

app = App()


@app.task
def other() -> None: ...


# Keywords of Celery and BullMQ with a value as users write it, and the remedy.
POLICY: list[tuple[str, Any, str]] = [
    ("retry_backoff", True, '`min_backoff="1s"`, which doubles'),
    ("retry_backoff", 5, '`min_backoff="5s"`'),
    ("retry_backoff_max", 600, '`max_backoff="600s"`'),
    ("default_retry_delay", 30, '`min_backoff="30s"`'),
    ("autoretry_for", (ConnectionError, OSError), '`on_error="fail", retry_on=[ConnectionError, OSError]`'),
    ("dont_autoretry_for", [KeyError], "`fail_on=[KeyError]`"),
    ("max_retries", 7, "`retries=7`"),
    ("attempts", 3, "`retries=2`"),
    ("backoff", {"type": "exponential", "delay": 1000}, '`min_backoff="1000ms"`'),
    ("rate_limit", "10/m", '`rate={"count": 10, "per": "1m"}`'),
    ("rate_limit", 5, '`rate={"count": 5, "per": "1s"}`'),
    ("limiter", {"max": 5, "duration": 1000}, '`rate={"count": 5, "per": "1000ms"}`'),
    ("time_limit", 60, '`timeout="60s"`'),
    ("soft_time_limit", 0.5, '`soft_timeout="0.5s"`'),
    ("bind", True, "annotate the first parameter: `cx: Context`"),
    ("acks_late", True, "remove it: a task is done when it has ended"),
    ("ignore_result", True, "remove it: results stay"),
    ("queue", "slow", "each type has its own topic"),
    ("priority", 5, "there are no priorities"),
    ("group", "shared", "set it in `[types.NAME]` of kafleet.toml"),
    ("eta", None, "for each task, in `using(…)`: `at=datetime.now(timezone.utc) + …`"),
    ("jobId", "a", "for each task, in `using(…)`: `id=…`: a second task"),
    ("countdown", 60, 'for each task, in `using(…)`: `delay="60s"`'),
    ("delay", "5s", "for each task, in `using(…)`: `using(delay=…)`"),
    ("link", None, "for each task, in `using(…)`: `then=[other.call()]`"),
    ("link_error", None, 'for each task, in `using(…)`: `then=[other.using(on="failed").call()]`'),
    ("deduplication", {"id": "a"}, 'for each task, in `using(…)`: `unique="a"`'),
    ("connection", {}, "remove it: the fleet has Kafka and Redis"),
]
OPTIONS: list[tuple[str, Any, str]] = [
    ("countdown", 60, '`delay="60s"`'),
    ("eta", None, "`at=datetime.now(timezone.utc) + …`"),
    ("task_id", "a", "`id=…`: a second task"),
    ("jobId", "a", "`id=…`: a second task"),
    ("priority", 5, "there are no priorities"),
    ("queue", "slow", "each type has its own topic"),
    ("link_error", None, '`then=[other.using(on="failed").call()]`'),
    ("time_limit", 60, '`timeout="60s"`'),
    ("soft_time_limit", 5, 'in the decorator of the task: `soft_timeout="5s"`'),
    ("soft_timeout", "5s", "in the decorator of the task: `@….task(soft_timeout=…)`"),
    ("concurrency", 5, "in the decorator of the task: `@app.task(concurrency=…)`"),
    ("rate_limit", "10/m", 'in the decorator of the task: `rate={"count": 10, "per": "1m"}`'),
    (
        "autoretry_for",
        (OSError,),
        'in the decorator of the task: remove it: each exception is retried; these alone: `on_error="fail"',
    ),
    ("throws", (KeyError,), "in the decorator of the task: `fail_on=[KeyError]`"),
    ("retry_backoff", True, '`min_backoff="1s"`, which doubles'),
    ("bind", True, "annotate the first parameter: `cx: Context`"),
    ("acks_late", True, "remove it: a task is done when it has ended"),
    ("max_retries", 3, "`retries=3`"),
    ("attempts", 1, "`retries=0`"),
    ("shadow", "a", "`name=…`"),
    ("repeat", {"every": 1000}, "`@app.schedule("),
]

NAMES: dict[str, list[str]] = json.loads((ROOT / "sdk/foreign_names.json").read_text())
"""Names of Celery and BullMQ."""
POLICY_KEYS, OPTION_KEYS = set(call.POLICY), set(call.OPTIONS)
MESSAGE: dict[str, Any] = {"n": 1, "type": "a", "id": "a", "run": 1, "number": 1, "left_ms": 1000}
LATER = [
    "soft_timeout",
    "schedule",
    "chain",
    "chord",
    "app.handle",
    "types()",
    "schedules",
    "tasks.search",
    "client.request",
    "include",
]
"""Parts of remedies that this version of the SDK does not have yet."""

OWNERS: dict[str, tuple[Mapping[str, str], Any]] = {
    "task": (foreign.TASK, other),
    "context": (foreign.CONTEXT, Context(MESSAGE, Trial())),
    "handle": (foreign.HANDLE, other.handle("a")),
    "app": (foreign.APP, app),
}


def handler() -> None: ...


@pytest.mark.parametrize(("name", "value", "remedy"), POLICY)
def test_keyword_of_a_declaration_names_the_form_that_works(name: str, value: Any, remedy: str) -> None:
    small, text = App().bundle("small"), rf"test_foreign.py:\d+: `{name}` is not a key of a policy; hint: .*{re.escape(remedy)}"
    with pytest.raises(DeclarationError, match=text):
        App().task(**{name: value})(handler)
    with pytest.raises(DeclarationError, match=text):
        small.task(**{name: value})(handler)
    with pytest.raises(DeclarationError, match=text):
        App().bundle("other", **{name: value})


@pytest.mark.parametrize(("name", "value", "remedy"), OPTIONS)
def test_option_of_a_call_names_the_form_that_works(name: str, value: Any, remedy: str) -> None:
    for task in (other, app.remote("elsewhere")):
        with pytest.raises(TypeError, match=rf"`{name}` is not an option of a task; hint: .*{re.escape(remedy)}"):
            task.using(**{name: value})


def places_of_keywords() -> dict[str, tuple[Any, foreign.Place]]:
    """Places that take keywords, by name: functions of the keywords."""
    app = App()
    small = app.bundle("small")
    return {
        "task": (lambda **given: app.task(**given)(handler), "type"),
        "task of a bundle": (lambda **given: small.task(**given)(handler), "type"),
        "bundle": (lambda **given: App().bundle("other", **given), "type"),
        "using": (other.using, "task"),
        "using of a remote": (app.remote("elsewhere").using, "task"),
        "patch": (other.handle("a").patch, "task"),
    }


@pytest.mark.parametrize("place", places_of_keywords())
def test_each_keyword_of_celery_and_bullmq_has_a_remedy_in_each_place(place: str) -> None:
    give, kind = places_of_keywords()[place]
    own = POLICY_KEYS if kind == "type" else OPTION_KEYS
    names = [name for name in NAMES["keywords"] if name not in own]
    assert len(names) > 80
    lacking = {}
    for name in names:
        with pytest.raises(TypeError, match=f"`{name}` is not ") as raised:
            give(**{name: object()})
        hint = str(raised.value).partition("; hint: ")[2]
        if not hint or "did you mean" in hint:
            lacking[name] = hint
    assert not lacking


@pytest.mark.parametrize("kind", ["task", "context", "handle", "app"])
def test_each_attribute_of_celery_and_bullmq_has_a_remedy(kind: str) -> None:
    owner = OWNERS[kind][1]
    lacking = []
    for name in NAMES[kind]:
        try:
            getattr(owner, name)  # Some are names of kafleet too.
        except AttributeError as error:
            if "; hint: " not in str(error):
                lacking.append(name)
    assert not lacking


def test_our_own_keywords_name_the_place_where_they_belong() -> None:
    using: Any = other.using
    declare: Any = App().task
    for key in POLICY_KEYS - OPTION_KEYS:
        with pytest.raises(TypeError, match=rf"hint: in the decorator of the task: `@app.task\({key}=…\)`"):
            using(**{key: 1})
    for key in OPTION_KEYS - POLICY_KEYS - {"link", "name"}:
        with pytest.raises(TypeError, match=rf"hint: for each task, in `using\(…\)`: `using\({key}=…\)`"):
            declare(**{key: 1})(handler)


def forms(table: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, form) for name, remedy in table.items() for form in re.findall("`([^`]+)`", remedy)]


def is_later(form: str) -> bool:
    return any(part in form for part in LATER)


@pytest.mark.parametrize("place", ["type", "task"])
def test_form_of_a_keyword_works(place: foreign.Place) -> None:
    """Each form such as `retries=3` is accepted where it stands."""
    calls: dict[str, Any] = {"type": lambda **policy: App().task(**policy)(handler), "task": other.using}
    count = 0
    for name, keyword in foreign.KEYWORDS.items():
        stands = keyword.place or place
        for form in re.findall("`([^`]+)`", foreign.remedy(name, stands)):
            if (
                re.match(r"\w+=", form)
                and not is_later(form)
                and not form.startswith(("zone", "start_at", "end_at", "fail_fast", "on_failure"))
            ):
                call = re.sub("datetime.* …|…", "None", f"{stands}({form})").replace("[None]", "[]")
                eval(call, {stands: calls[stands], "other": other})
                count += 1
    assert count > 12


@pytest.mark.parametrize("kind", ["task", "context", "handle", "app"])
def test_attribute_names_a_form_that_exists(kind: str) -> None:
    table, owner = OWNERS[kind]
    roots = {"cx": OWNERS["context"][1], "app": app, "task": other}
    for name in table.keys() - set(dir(owner)):  # `app.Task` is foreign, `app.task` is not.
        with pytest.raises(AttributeError, match=rf"has no attribute `{name}`; hint: {re.escape(table[name])}"):
            getattr(owner, name)
    for name, form in forms(table):
        path = re.match(r"@?([\w.]+)\(|(\w+\.\w+)$|(id)$", form)
        if path and not is_later(form):
            root, *rest = next(filter(None, path.groups())).split(".")
            if root not in BEYOND:
                assert reaches(roots[root], rest) if root in roots else hasattr(owner, root), (name, form)


def reaches(owner: Any, path: list[str]) -> bool:
    """Returns whether an object has an attribute, or an attribute of one."""
    return not path or (hasattr(owner, path[0]) and reaches(getattr(owner, path[0]), path[1:]))


BEYOND = {"App", "datetime", "kafleet", "getattr"}


def test_attributes_that_nobody_knows_raise_the_usual_error() -> None:
    for _, owner in OWNERS.values():
        with pytest.raises(AttributeError, match=r"object has no attribute 'misspelt'"):
            _ = owner.misspelt
        assert not hasattr(owner, "misspelt")
    assert copy.copy(other).name == "other"


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        (("shop",), {}, "an app has no name in the code: `App('shop')`; hint: `App()`; `[apps.NAME]` in kafleet.toml names it"),
        ((), {"broker": "redis://"}, "`broker` is not an argument of `App`; hint: `[kafka]` and `[redis]` in kafleet.toml"),
        ((), {"backend": "redis://"}, "`backend` is not an argument of `App`; hint: "),
        ((), {"main": "shop"}, "`main` is not an argument of `App`; hint: `App()`"),
        ((), {"misspelt": 1}, "unexpected keyword argument 'misspelt'"),
    ],
)
def test_arguments_of_an_app_of_celery_name_the_remedy(arguments: tuple[Any, ...], named: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        App(*arguments, **named)


def hints_of_the_api() -> list[str]:
    """Texts with a request in the source of the API, with a value in place of each `{…}`."""
    sources = [path for path in (ROOT / "crates").glob("*/src/**/*.rs") if "tests" not in path.parts and path.stem != "tests"]
    lines = [line for path in sources for line in path.read_text().splitlines() if "hint" in line and "//" not in line]
    texts = [text for line in lines for text in re.findall(r'"((?:[^"\\]|\\.)*)"', line)]
    return [re.sub(r"\{[\w.]*\}", "a:1", text) for text in texts if re.search(r"\b(GET|POST|PUT|PATCH|DELETE) /", text)]


def test_hints_of_the_api_name_calls_of_the_sdk() -> None:
    hints = hints_of_the_api()
    assert len(hints) >= 8
    for hint in hints:
        shown = str(Invalid(400, {"code": "bad", "detail": "no", "hint": hint}))
        calls = re.findall(r"`(app\.[\w.]+\([^`]*\))`", shown)
        assert calls, shown
        assert not re.search("[A-Z]{3,} /|/v1/", re.sub(r"`app\.client\.request\(.*?\)`", "", shown)), shown
        for text in calls:
            assert is_later(text) or hasattr(app, text[4:].partition("(")[0].partition(".")[0]), text
    assert in_python("GET /v1/types shows the schema of `a`") == "`app.types()` shows the schema of `a`"
    assert in_python("see GET /v1/tasks?q=a") == "see `app.tasks.search(…)`"
    assert in_python("a text of a user: GET /orders failed") == "a text of a user: GET /orders failed"
