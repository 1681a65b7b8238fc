/** Schedules that a program declares: `app.schedule`. */

import { Call } from "./canvas.ts";
import { checkOption } from "./checks.ts";
import { DeclarationError } from "./errors.ts";
import { refuseUnknown } from "./names.ts";
import type { Duration } from "./outcomes.ts";
import { classOf, textOf } from "./shown.ts";
import { Target } from "./task.ts";

/** Settings of a schedule besides its times and its task. */
interface ScheduleSettings {
  /** IANA name of the time zone of the cron expression. Default `UTC`. */
  zone?: string;
  /** What follows while the previous task runs. Default `skip`. */
  overlap?: "skip" | "allow" | "buffer_one" | "replace";
  /** Maximum age of times that are caught up after an outage. Default `1d`. */
  catchUp?: Duration;
  /** Maximum delay of each task, at most `1d`. Default: none. */
  jitter?: Duration;
  /** Time before which nothing starts. Default: none. */
  startAt?: string | Date;
  /** Time from which on nothing starts. Default: none. */
  endAt?: string | Date;
}

/** Options of a schedule of a task. */
export interface ScheduleOptions extends ScheduleSettings {
  /** Id of the schedule. Default: the name of the task. */
  id?: string;
}

/** Schedule with the keys of `[schedules.NAME]`, in camel case; `cron` or `every`, and the task. */
export interface ScheduleSpec extends ScheduleSettings {
  cron?: string;
  every?: Duration;
  timezone?: string;
  task: Target<never, unknown> | Call<unknown> | ({ readonly type: string } & Readonly<Record<string, unknown>>);
}

/** Options of a schedule: with the params, if the task needs some. */
export type ScheduleArguments<P> = undefined extends P
  ? [options?: ScheduleOptions & { params?: P }]
  : [options: ScheduleOptions & { params: P }];

/** A declared schedule: the type of its task, and its spec as in `[schedules.NAME]`. */
export interface Schedule {
  readonly type: string;
  readonly spec: Readonly<Record<string, unknown>>;
}

const SETTINGS = ["zone", "overlap", "catchUp", "jitter", "startAt", "endAt"];
const OPTIONS = [...SETTINGS, "id", "params"];
const SPEC = [...SETTINGS, "cron", "every", "timezone", "task"];

const CRON = /^(@(annually|daily|hourly|midnight|monthly|weekly|yearly)|\S+(\s+\S+){4,5})$/;

const USE = 'hint: write `app.schedule("0 3 * * *", task, { zone: "Europe/Berlin" })`';

/** Returns the schedule that the arguments of `app.schedule` describe. Throws a `DeclarationError`. */
export function scheduleOf(given: unknown[]): Schedule & { id: string } {
  const [first, second, options = {}] = given;
  if (second instanceof Target || second instanceof Call) {
    if (typeof first !== "string")
      throw new DeclarationError(`a schedule has no time, but a value of type ${classOf(first)}; ${USE}`);
    refuseUnknown(options as object, OPTIONS, "`app.schedule`", DeclarationError);
    const { id, params, ...settings } = options as ScheduleOptions & { params?: unknown };
    const time = /^\d+(ms|s|m|h|d)$/.test(first) ? { every: first } : { cron: first };
    const call = second instanceof Call ? second : new Call(second as Target<never, unknown>, params);
    return checked(id ?? call.target.name, { ...time, ...settings, task: call });
  }
  const [id, spec] = typeof first === "string" ? [first, second] : [undefined, first];
  if (typeof spec !== "object" || spec === null) throw new DeclarationError(`a schedule has no task; ${USE}`);
  refuseUnknown(spec, SPEC, "a schedule", DeclarationError);
  return checked(id, spec as Record<string, unknown>);
}

function checked(id: string | undefined, given: Record<string, unknown>): Schedule & { id: string } {
  if (given["zone"] !== undefined && given["timezone"] !== undefined) {
    throw new DeclarationError("a schedule has `zone` and `timezone`, which are the same; hint: remove one");
  }
  const { zone, timezone = zone, cron, every, task, startAt, endAt, overlap, jitter, catchUp } = given;
  const document = documentOf(task);
  const type = String(document["type"]);
  const name = id ?? type;
  const owner = `the schedule \`${textOf(name)}\``;
  if (!/^[\w.~@-]{1,96}$/.test(name) || /^\.\.?$/.test(name)) {
    throw new DeclarationError(`${owner}: its id is 1 to 96 characters of \`A-Z a-z 0-9 . _ ~ @ -\``);
  }
  for (const [key, value] of Object.entries({ ...given, zone: timezone })) checkOption(owner, key, value, DeclarationError);
  if ((cron === undefined) === (every === undefined)) throw new DeclarationError(`${owner} needs \`cron\` or \`every\`; ${USE}`);
  if (every !== undefined && timezone !== undefined) {
    const hint = "hint: remove it";
    throw new DeclarationError(`${owner}: \`zone\` is for a cron expression, an interval is the same everywhere; ${hint}`);
  }
  if (cron !== undefined && !CRON.test(`${cron}`.trim())) {
    const fields = "five fields, or six with seconds in front, or `@daily`";
    throw new DeclarationError(
      `${owner}: \`${textOf(cron)}\` is no cron expression: ${fields}; hint: \`0 3 * * *\` is 3:00 each day`,
    );
  }
  const times = { start_at: startAt, end_at: endAt };
  return { id: name, type, spec: { cron, every, timezone, overlap, catch_up: catchUp, jitter, ...times, task: document } };
}

/** Returns the document of a scheduled task, whose params fit its type. */
function documentOf(task: unknown): Record<string, unknown> {
  const call = task instanceof Target ? new Call(task as Target<never, unknown>, undefined) : task;
  if (call instanceof Call) {
    const problem = call.target.problemOf(call.params);
    if (problem) throw new DeclarationError(`the params of a schedule of \`${call.target.name}\` do not fit: ${problem}`);
    return call.document("scheduled", false);
  }
  const document = task as Record<string, unknown> | undefined;
  if (typeof document?.["type"] === "string") return document;
  throw new DeclarationError(`a schedule has no task; ${USE}`);
}
