/** Settings of task types, from crates/config/src/type_settings.rs by `KAFLEET_UPDATE=1 cargo test --test standalone schemas`. */

import type { Duration } from "./outcomes.ts";

/** Class of errors. */
export type ErrorClass = abstract new (...args: never[]) => Error;

/** Keys of a policy that single tasks override. */
export interface Limits {
  /** Number of retries, up to 1,000. */
  retries?: number;
  /** Wait before the second attempt. */
  minBackoff?: Duration;
  /** Maximum wait between two attempts. */
  maxBackoff?: Duration;
  /** Time of an attempt after which its failure starts the backoff again at `min_backoff`. */
  backoffReset?: Duration;
  /** Time after the first wait of a run from which on waits count as attempts; `0`: each counts. */
  maxWait?: Duration;
  /** Time limit of one attempt. */
  timeout?: Duration;
  /** Time limit of the task with all attempts and waits, from its creation (or `ce_notbefore`). */
  totalTimeout?: Duration;
  /** Time without progress, log line or heartbeat after which an attempt fails as `stalled`. */
  stallTimeout?: Duration;
}

/** Policy of a task type: keys of `[types.NAME]`, which override it. */
export interface Policy extends Limits {
  /** Concurrent attempts per worker, 1 to 100,000. */
  concurrency?: number;
  /** Concurrent attempts in all workers together. */
  maxConcurrency?: number;
  /** Limit of concurrent attempts in the whole fleet that is learned from refusals: `{ min = 2, target = "400ms", on = ["rate_limited"] }`. */
  adaptive?: Readonly<Record<string, unknown>>;
  /** Limit of starting attempts: `{ count = 100, per = "1s", burst = 10, by = "type" }`. */
  rate?: Readonly<Record<string, unknown>>;
  /** Order in which tasks run. */
  order?: "none" | "key" | "partition";
  /** Error kinds that are retried even if the handler declares them final; `*` is any kind not named. */
  retryOn?: readonly (string | ErrorClass)[];
  /** Error kinds that are final even if the handler would retry them; `*` is any kind not named. */
  failOn?: readonly (string | ErrorClass)[];
  /** Consequence of a failed attempt: `"retry"`, `"fail"` or `"skip"`. */
  onError?: "retry" | "fail" | "skip";
  /** Number of failed attempts of any kind within `failure_period` above which the circuit opens and stays open until the type is resumed. */
  maxFailures?: number;
  /** Period of `max_failures`. */
  failurePeriod?: Duration;
  /** Error kinds that open the type's circuit: while most attempts fail with them, only single probes start. `[]`: the type has no circuit. */
  tripOn?: readonly string[];
  /** JSON pointers, such as `/card/number`, to values of params and results that only callers with the role `admin` see, at most 20. */
  mask?: readonly string[];
  /** JSON pointers, such as `/customer`, to values of params by which tasks can be found, at most 5. */
  index?: readonly string[];
  /** Isolation of attempts: in the worker (`"none"`), or in child processes (`"process"`). */
  isolation?: "none" | "process";
  /** Publish the end of each task to `<prefix>.results.<name>`. */
  publishResults?: boolean;
  /** Partitions of the task topic, 1 to 1024. */
  partitions?: number;
}

/** Names of the keys of a policy. */
export const POLICY_KEYS: ReadonlySet<string> = new Set([
  "retries",
  "minBackoff",
  "maxBackoff",
  "backoffReset",
  "maxWait",
  "timeout",
  "totalTimeout",
  "stallTimeout",
  "concurrency",
  "maxConcurrency",
  "adaptive",
  "rate",
  "order",
  "retryOn",
  "failOn",
  "onError",
  "maxFailures",
  "failurePeriod",
  "tripOn",
  "mask",
  "index",
  "isolation",
  "publishResults",
  "partitions",
]);
