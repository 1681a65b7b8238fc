/** Checks of the values of options, which the types of a program may not have checked: each is refused where it is written. */

import { milliseconds } from "./outcomes.ts";
import { classOf, textOf } from "./shown.ts";

/** Returns what an option allows, for people, if a value is not allowed. */
type Check = (value: unknown) => string | undefined;

const isText = (value: unknown) => typeof value === "string";
const isObject = (value: unknown) => typeof value === "object" && value !== null && !Array.isArray(value);

function whole(min: number, max = Number.MAX_SAFE_INTEGER): Check {
  // The formats of `Intl` would take 6 MiB.
  const until = max === Number.MAX_SAFE_INTEGER ? "on" : `to ${max}`.replace(/(\d)(\d{3})$/, "$1,$2");
  const allowed = `a whole number from ${min} ${until} is allowed`;
  return (value) => (Number.isInteger(value) && (value as number) >= min && (value as number) <= max ? undefined : allowed);
}

function oneOf(...names: string[]): Check {
  const allowed = `${names.map((name) => `\`${name}\``).join(", ")} are allowed`;
  return (value) => (names.includes(value as string) ? undefined : allowed);
}

const FORMS = "write `1500ms`, `30s`, `10m`, `2h` or `7d`, or a number of milliseconds";

function duration(value: unknown): string | undefined {
  try {
    if (milliseconds(value as number) >= 0) return undefined;
  } catch {
    // Not even the form of a duration.
  }
  return `hint: ${FORMS}`;
}

function texts(value: unknown): string | undefined {
  if (Array.isArray(value) && value.every(isText)) return undefined;
  return isText(value) ? `hint: write a list: \`[${JSON.stringify(value)}]\`` : "a list of texts is allowed";
}

/** A time without a zone means another one on each machine. */
function time(value: unknown): string | undefined {
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? "it is an invalid `Date`" : undefined;
  if (!isText(value)) return "a `Date`, or a text such as `2026-12-24T18:00:00Z`, is allowed";
  if (/^\d{4}-\d\d-\d\dT.*(Z|[+-]\d\d:?\d\d)$/i.test(value as string)) return undefined;
  return "hint: write the time with its zone, as in `2026-12-24T18:00:00+01:00`, or a `Date`";
}

const text: Check = (value) => (isText(value) ? undefined : "a text is allowed");
const flag: Check = (value) => (typeof value === "boolean" ? undefined : "`true` and `false` are allowed");
const list: Check = (value) => (Array.isArray(value) ? undefined : "hint: write a list: `[…]`");
const object: Check = (value) => (isObject(value) ? undefined : "an object is allowed");

/** Returns the check of an object with durations, or of a text if that is allowed too. */
function withDurations(names: string[], isTextAllowed = false): Check {
  return (value) => {
    if (isTextAllowed && isText(value)) return undefined;
    if (!isObject(value)) return isTextAllowed ? "a text or an object is allowed" : "an object is allowed";
    const given = value as Record<string, unknown>;
    const wrong = names.find((name) => given[name] !== undefined && duration(given[name]) !== undefined);
    return wrong === undefined ? undefined : `hint: its \`${wrong}\`, \`${textOf(given[wrong])}\`, is no duration: ${FORMS}`;
  };
}

/** An interval counts whole seconds. */
function interval(value: unknown): string | undefined {
  const problem = duration(value);
  if (problem) return problem;
  const ms = milliseconds(value as number);
  return ms > 0 && ms % 1000 === 0 ? undefined : "whole seconds from 1 are allowed";
}

const headers: Check = (value) =>
  isObject(value) && Object.values(value as object).every(isText) ? undefined : "an object with texts is allowed";

const groups: [Check, string][] = [
  [whole(0, 1000), "retries"],
  [whole(1, 100_000), "concurrency"],
  [whole(1), "maxConcurrency maxFailures"],
  [whole(0), "maxFailed"],
  [whole(1, 1024), "partitions"],
  [duration, "minBackoff maxBackoff backoffReset maxWait timeout totalTimeout stallTimeout softTimeout failurePeriod"],
  [duration, "delay expires jitter catchUp"],
  [interval, "every"],
  [time, "at startAt endAt"],
  [texts, "tags tripOn mask index aliases"],
  [text, "key name id creator link replyTo parent doc zone timezone cron"],
  [flag, "failFast withResults publishResults"],
  [list, "then actions checks"],
  [object, "options"],
  [withDurations(["per"]), "rate"],
  [withDurations(["for", "window", "max"], true), "unique"],
  [headers, "headers"],
  [oneOf("none", "key", "partition"), "order"],
  [oneOf("retry", "fail", "skip"), "onError"],
  [oneOf("none", "process"), "isolation"],
  [oneOf("fail", "ignore"), "onFailure"],
  [oneOf("succeeded", "failed", "ended"), "on"],
  [oneOf("skip", "allow", "buffer_one", "replace"), "overlap"],
];
const CHECKS = new Map(groups.flatMap(([check, names]) => names.split(" ").map((name): [string, Check] => [name, check])));

/** Throws an error for a value that an option does not allow. `owner`: what has the option, in backticks. */
export function checkOption(
  owner: string,
  key: string,
  value: unknown,
  Problem: new (message: string) => Error = TypeError,
): void {
  const allowed = value === undefined ? undefined : CHECKS.get(key)?.(value);
  if (allowed === undefined) return;
  const shown = typeof value === "object" && value !== null ? `of type ${classOf(value)}` : `\`${textOf(value)}\``;
  const separator = allowed.startsWith("hint") ? ";" : ":";
  throw new Problem(`${owner}: \`${key}\` is ${shown}${separator} ${allowed}`);
}
