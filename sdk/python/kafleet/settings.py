"""Settings of task types, from crates/config/src/type_settings.rs by `KAFLEET_UPDATE=1 cargo test --test standalone schemas`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from .outcomes import Duration


class Limits(TypedDict, total=False):
    """Keys of a policy that single tasks override."""

    retries: int
    """Number of retries, up to 1,000."""
    min_backoff: Duration
    """Wait before the second attempt."""
    max_backoff: Duration
    """Maximum wait between two attempts."""
    backoff_reset: Duration
    """Time of an attempt after which its failure starts the backoff again at `min_backoff`."""
    max_wait: Duration
    """Time after the first wait of a run from which on waits count as attempts; `0`: each counts."""
    timeout: Duration
    """Time limit of one attempt."""
    total_timeout: Duration
    """Time limit of the task with all attempts and waits, from its creation (or `ce_notbefore`)."""
    stall_timeout: Duration
    """Time without progress, log line or heartbeat after which an attempt fails as `stalled`."""


class Policy(Limits, total=False):
    """Keys of `[types.NAME]`; kafleet.toml overrides them."""

    concurrency: int
    """Concurrent attempts per worker, 1 to 100,000."""
    max_concurrency: int
    """Concurrent attempts in all workers together."""
    adaptive: Mapping[str, Any]
    """Limit of concurrent attempts in the whole fleet that is learned from refusals: `{ min = 2, target = "400ms", on =
    ["rate_limited"] }`."""
    rate: Mapping[str, Any]
    """Limit of starting attempts: `{ count = 100, per = "1s", burst = 10, by = "type" }`."""
    order: Literal["none", "key", "partition"]
    """Order in which tasks run."""
    retry_on: Sequence[str | type[BaseException]]
    """Error kinds that are retried even if the handler declares them final; `*` is any kind not named."""
    fail_on: Sequence[str | type[BaseException]]
    """Error kinds that are final even if the handler would retry them; `*` is any kind not named."""
    on_error: Literal["retry", "fail", "skip"]
    """Consequence of a failed attempt: `"retry"`, `"fail"` or `"skip"`."""
    max_failures: int
    """Number of failed attempts of any kind within `failure_period` above which the circuit opens and stays open until the type
    is resumed."""
    failure_period: Duration
    """Period of `max_failures`."""
    trip_on: Sequence[str]
    """Error kinds that open the type's circuit: while most attempts fail with them, only single probes start. `[]`: the type has
    no circuit."""
    mask: Sequence[str]
    """JSON pointers, such as `/card/number`, to values of params and results that only callers with the role `admin` see, at most
    20."""
    index: Sequence[str]
    """JSON pointers, such as `/customer`, to values of params by which tasks can be found, at most 5."""
    isolation: Literal["none", "process"]
    """Isolation of attempts: in the worker (`"none"`), or in child processes (`"process"`)."""
    publish_results: bool
    """Publish the end of each task to `<prefix>.results.<name>`."""
    partitions: int
    """Partitions of the task topic, 1 to 1024."""
