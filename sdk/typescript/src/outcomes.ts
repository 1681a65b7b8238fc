/** Errors that decide the outcome of an attempt. */

import { refuseUnknown } from "./names.ts";
import { kindOf, textOf } from "./shown.ts";

/** Duration: text such as `30s`, or milliseconds. */
export type Duration = number | `${number}${"ms" | "s" | "m" | "h" | "d"}`;

/** Attributes of a failure. `kind`: stable name for programs; default: `error`, for subclasses their class name. */
export interface OutcomeOptions {
  kind?: string;
  cause?: unknown;
}

/** Base of the failures that a handler throws on purpose. */
export abstract class Outcome extends Error {
  abstract readonly outcome: "retry" | "wait" | "fail" | "dead";
  /** Stable name for programs. */
  readonly kind: string;

  constructor(message = "", options: OutcomeOptions = {}) {
    refuseUnknown(options, ["kind", "cause"], `\`${new.target.name}\``);
    const { kind, cause } = options;
    super(message || new.target.name, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    this.kind = kindOf(kind ?? (BASES.has(new.target.name) ? "error" : new.target.name));
  }
}

const BASES = new Set(["Fail", "Dead", "Retry", "Wait", "SpawnFailed"]);

/** Ends the task as failed, without another attempt. */
export class Fail extends Outcome {
  readonly outcome = "fail";
}

/** Ends work that completed without success, and would end the same way again. */
export class Unsuccessful extends Fail {
  constructor(message = "", options: OutcomeOptions = {}) {
    super(message, { ...options, kind: options.kind ?? "unsuccessful" });
  }
}

/** Ends the task as failed and keeps it in the dead letters, for a redrive after the cause is fixed. */
export class Dead extends Outcome {
  readonly outcome = "dead";
}

/** Requests another attempt, after the backoff of the type or after `after`. */
export class Retry extends Outcome {
  readonly outcome: "retry" | "wait" = "retry";
  /** Delay before the next attempt, in milliseconds. */
  readonly afterMs: number | undefined;

  constructor(message = "", options: OutcomeOptions & { after?: Duration } = {}) {
    const { after, ...rest } = options;
    if (after === undefined) refuseUnknown(rest, ["kind", "cause", "after"], `\`${new.target.name}\``);
    super(message, rest);
    this.afterMs = after === undefined ? undefined : Math.max(milliseconds(after), 0);
  }
}

/**
 * Lets the task wait for `after`, or for a growing time; the attempt is not counted. For reasons outside of the task, such as the rate
 * limit of a service.
 */
export class Wait extends Retry {
  override readonly outcome = "wait";
}

/** Children could not be published at once. Unhandled, it leads to another attempt. */
export class SpawnFailed extends Outcome {
  readonly outcome = "retry";
}

/** The attempt was cancelled. It is also the reason of the `signal`. */
export class Cancelled extends Error {
  override readonly name = "Cancelled";

  constructor(reason = "") {
    super(`the attempt was cancelled${reason && `: ${reason}`}`);
  }
}

/** The attempt is over its `softTimeout`. It is the reason of the `signal`, and `check()` throws it once. */
export class SoftTimeout extends Error {
  override readonly name = "SoftTimeout";

  constructor(limitMs: number) {
    super(`soft timeout of ${durationText(limitMs)}`);
  }
}

/** Returns a duration for people. */
export function durationText(ms: number): string {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${Math.round(ms / 100) / 10} s`;
}

const UNITS: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** Returns a duration in whole milliseconds. Throws a `TypeError` for what is no duration, or too long for an exact number. */
export function milliseconds(duration: Duration): number {
  const [, number, unit] = /^(\d+)(ms|s|m|h|d)$/.exec(`${duration}`) ?? [];
  const result = typeof duration === "number" ? Math.round(duration) : Number(number) * UNITS[unit!]!;
  if (Number.isSafeInteger(result)) return result;
  throw new TypeError(`\`${textOf(duration)}\` is not a duration; hint: write \`1500ms\`, \`30s\`, \`10m\`, \`2h\` or \`7d\``);
}
