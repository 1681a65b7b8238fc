/** Decision after a failed attempt, as the worker takes it: docs/task-types.md. Times are in milliseconds. */

import { type Duration, milliseconds } from "./outcomes.ts";
import type { Failure } from "./trial.ts";

/** Fields of a type and of a task, with the names of the API. */
export type Fields = Readonly<Record<string, unknown>>;

/** What a decision needs to know of a task. */
export interface Course {
  /** Number of the attempt. */
  attempt: number;
  waits: number;
  /** Time of the first wait. */
  waitsSince: number | undefined;
  /** Time from which the total timeout counts. */
  begun: number;
}

/** What follows a failed attempt. `again`: time until the next one; `isWait`: the attempt is not counted; `isSkipped`: it succeeds. */
export interface Decision {
  again?: number;
  isWait: boolean;
  failure: Failure;
  isSkipped: boolean;
}

/** Longest wait without a given time. */
const MAX_WAIT_BACKOFF_MS = 600_000;

/** Returns a duration of a policy. */
export function timeOf(policy: Fields, name: string, otherwise: Duration): number {
  return milliseconds((policy[name] as Duration | undefined) ?? otherwise);
}

/** Decides about a task after a failed attempt. */
export function decide(policy: Fields, failure: Failure, course: Course, now: number): Decision {
  const { retries = 5, on_error: onError = "retry" } = policy as { retries?: number; on_error?: string };
  const { outcome, kind, after_ms: after } = failure;
  const backoff = timeOf(policy, "min_backoff", "1s");
  const isRetried = listed(policy, kind);
  const isLong = now - (course.waitsSince ?? now) >= timeOf(policy, "max_wait", "24h");
  const isWait = outcome === "wait" && isRetried !== false && !isLong;
  const isFinal = outcome === "dead" || outcome === "cancelled";
  const isWanted = isRetriedUnder(policy, failure);
  if (!isWait && (isFinal || !isWanted || course.attempt > retries)) {
    return { failure, isWait, isSkipped: !isFinal && onError === "skip" };
  }
  const least = course.waits ? Math.min(10 * 2 ** (course.waits - 1), 1000) : 0;
  const again =
    outcome === "wait"
      ? Math.max(after ?? doubled(backoff, course.waits, MAX_WAIT_BACKOFF_MS), least)
      : (after ?? doubled(backoff, course.attempt - 1, timeOf(policy, "max_backoff", "3s")));
  const total = policy["total_timeout"] === undefined ? Infinity : timeOf(policy, "total_timeout", 0);
  if (now + again - course.begun < total) return { again, isWait, failure, isSkipped: false };
  const message = `the task exceeded its total timeout; its last attempt: ${failure.message}`;
  return { failure: { ...failure, kind: "timeout", message }, isWait, isSkipped: false };
}

/** Returns the outcome of an attempt under the policy of its type, as long as there are retries left. */
export function outcomeUnder(policy: Fields, { outcome, kind }: Failure): Failure["outcome"] {
  if (outcome === "dead" || outcome === "cancelled") return outcome;
  if (outcome === "wait") return listed(policy, kind) === false ? "fail" : "wait";
  return isRetriedUnder(policy, { outcome, kind }) ? "retry" : "fail";
}

function isRetriedUnder(policy: Fields, { outcome, kind }: Pick<Failure, "outcome" | "kind">): boolean {
  return listed(policy, kind) ?? (outcome !== "fail" && (policy["on_error"] ?? "retry") === "retry");
}

function doubled(least: number, times: number, most: number): number {
  return Math.min(least * 2 ** times, Math.max(most, least));
}

/** Returns whether errors of a kind are retried, if the policy lists it. A name counts before `*`. */
function listed(policy: Fields, kind: string): boolean | undefined {
  const { fail_on: failOn = [], retry_on: retryOn = [] } = policy as Record<string, string[] | undefined>;
  const name = [kind, "*"].find((each) => failOn.includes(each) || retryOn.includes(each));
  return name === undefined ? undefined : !failOn.includes(name);
}
