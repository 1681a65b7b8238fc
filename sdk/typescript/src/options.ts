/** Options of task types and of single tasks, in the words of kafleet.toml and of the API. */

import { checkOption } from "./checks.ts";
import { DeclarationError } from "./errors.ts";
import { formOfOption } from "./foreign.ts";
import { hintFor } from "./names.ts";
import { classOf, kindOf, textOf } from "./shown.ts";
import type { Call } from "./canvas.ts";
import { type Duration, milliseconds } from "./outcomes.ts";
import { type ErrorClass, type Limits, type Policy, POLICY_KEYS } from "./settings.ts";

/**
 * Numbers of JSON that a JavaScript number would change, such as integers beyond 2^53. `checked`: they are refused.
 * `exact`: integers are `bigint`, others the objects of `JSON.rawJSON`, with their digits in `rawJSON`.
 */
export type Numbers = "checked" | "exact";

/** Throws a `DeclarationError` for a value that `numbers` does not have. */
export function checkNumbers(owner: string, numbers: unknown): void {
  if (numbers === "checked" || numbers === "exact") return;
  throw new DeclarationError(`\`${owner}\`: \`numbers\` is \`${textOf(numbers)}\`; hint: write \`checked\` or \`exact\``);
}

export type { ErrorClass, Policy } from "./settings.ts";

interface CommonOptions extends Omit<Limits, "totalTimeout"> {
  key?: string;
  name?: string;
  tags?: readonly string[];
  /** Headers for the handlers of the task. */
  headers?: Readonly<Record<string, string>>;
  onFailure?: "fail" | "ignore";
  failFast?: boolean;
  maxFailed?: number;
  /** Continuations: calls, or documents as the API accepts them. */
  then?: readonly (Call<unknown> | Readonly<Record<string, unknown>>)[];
  actions?: readonly Readonly<Record<string, unknown>>[];
  checks?: readonly Readonly<Record<string, unknown>>[];
}

/** Options of a child. */
export interface ChildOptions extends CommonOptions {
  /** Last segment of the child's id. Default: derived from type and params. */
  id?: string;
  creator?: string;
  link?: string;
  totalTimeout?: Duration;
  /** Kafka topic that also receives the result. */
  replyTo?: string;
  options?: Readonly<Record<string, unknown>>;
  delay?: Duration;
  at?: string | Date;
  expires?: Duration;
}

/** Options of a task that is submitted. */
export interface SubmitOptions extends ChildOptions {
  parent?: string;
  /** Key of which at most one task of the type is open at a time, or an object with what differs from the type's setting. */
  unique?: string | Unique;
}

/** Uniqueness of a task. */
export interface Unique {
  key?: string;
  mode?: "skip" | "latest" | "debounce" | "throttle";
  for?: Duration;
  window?: Duration;
  max?: Duration;
}

/** Options of a task that an external system runs. */
export interface ExternalOptions
  extends
    Pick<SubmitOptions, "id" | "parent" | "name" | "tags" | "creator" | "link" | "options" | "headers" | "then">,
    Pick<SubmitOptions, "onFailure" | "failFast" | "maxFailed" | "actions" | "checks"> {
  /** Whether reports after the end are ignored. Default true. */
  blockWhenDone?: boolean;
}

/** Options of the task that stands for a group. */
export type GroupOptions = Omit<ExternalOptions, "blockWhenDone">;

/** Fields to change; null clears one. */
export type PatchOptions = {
  [K in keyof Pick<SubmitOptions, Changeable>]?: SubmitOptions[K] | null;
};

type Changeable =
  | Exclude<keyof Limits, "totalTimeout">
  | ("totalTimeout" | "name" | "tags" | "link" | "replyTo" | "options" | "headers" | "delay" | "at" | "expires");

/** Options of a continuation. */
export interface ThenOptions extends CommonOptions {
  /** Outcome that starts it. Default `succeeded`. */
  on?: "succeeded" | "failed" | "ended";
  withResults?: boolean;
}

/** Options of a call, which may become a task, a child or a continuation. */
export type CallOptions = SubmitOptions & ThenOptions;

/** Use of a call. */
export type Scope = "submit" | "spawn" | "then" | "scheduled" | "group" | "external" | "patch";

const LIMITS = "retries minBackoff maxBackoff backoffReset maxWait timeout stallTimeout";
const COMMON = `key name tags headers ${LIMITS} onFailure failFast maxFailed then actions checks`;
const GROUP = "id parent name tags creator link options headers onFailure failFast maxFailed then actions checks";
const CHILD = `${COMMON} id creator link totalTimeout replyTo options delay at expires`;
const ALLOWED: Record<Scope, Set<string>> = {
  submit: new Set(`${CHILD} parent unique`.split(" ")),
  spawn: new Set(CHILD.split(" ")),
  then: new Set(`${COMMON} on withResults`.split(" ")),
  scheduled: new Set(`${COMMON} creator link options expires`.split(" ")),
  group: new Set(GROUP.split(" ")),
  external: new Set(`${GROUP} blockWhenDone`.split(" ")),
  patch: new Set(`${LIMITS} totalTimeout name tags link replyTo options headers delay at expires`.split(" ")),
};

/** Scopes of tasks that the client creates, and of tasks that a handler runs. */
const CREATING: readonly Scope[] = ["submit", "group", "external"];
const RUNNING: readonly Scope[] = ["submit", "spawn", "then", "scheduled"];

const PLACES: Record<Scope, string> = {
  submit: "a submitted task",
  spawn: "a child",
  then: "a continuation",
  scheduled: "a scheduled task",
  group: "a group",
  external: "an external task",
  patch: "a change",
};

/** Returns the options of a task as the API and the worker accept them. Throws a `TypeError` for an unknown one. */
export function taskFields(type: string, options: object, scope: Scope): Record<string, unknown> {
  const fields: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(options) as [string, unknown][]) {
    if (!ALLOWED[scope].has(key)) {
      const hint = elsewhere(key, type, scope) ?? hintFor(key, [...ALLOWED[scope]], "call");
      throw new TypeError(`\`${key}\` is not an option of ${PLACES[scope]} (\`${type}\`)${hint}`);
    }
    // The client refuses ids with the error of the API. In a change, null clears a field.
    const isId = CREATING.includes(scope) && (key === "id" || key === "parent");
    if (!isId && (scope !== "patch" || value !== null)) checkOption(`\`${type}\``, key, value);
    if (value !== undefined) fields[snakeCase(key)] = value;
  }
  return fields;
}

/** Returns the hint for an option that belongs to another place; nothing for one that exists nowhere. */
function elsewhere(key: string, type: string, scope: Scope): string | undefined {
  if (scope === "external" && key === "state") return "; hint: report it: `handle.report(state)`";
  if (formOfOption(key) || !RUNNING.includes(scope)) return undefined;
  if (POLICY_KEYS.has(key) || TASK_OPTIONS.includes(key))
    return `; hint: it belongs to the type: \`app.task("${type}", { ${key}: … }, handler)\``;
  if (ALLOWED.then.has(key)) return "; hint: it belongs to a continuation, as in `cx.then(task, params, options)`";
  return ALLOWED.submit.has(key) ? "; hint: it belongs to a submitted task" : undefined;
}

/** Returns the hint for an option that a policy does not have. `declared`: other options in the same place, none in a bundle. */
function hintForPolicy(name: string, key: string, declared: readonly string[]): string {
  if (!declared.length && TASK_OPTIONS.includes(key)) return `; hint: it belongs to a task of the bundle, in \`${name}.task(…)\``;
  if (!ALLOWED.submit.has(key) || formOfOption(key)) return hintFor(key, [...POLICY_KEYS, ...declared], "type");
  return `; hint: it belongs to a call: \`task.submit(params, { ${key}: … })\``;
}

/** Options of a declaration besides its policy. */
export const TASK_OPTIONS = "params output doc numbers softTimeout aliases joined results upstream".split(" ");

/** Pairs of durations of which the first one is at most as long as the second one. */
const ORDERED: readonly [shorter: keyof Policy, longer: keyof Policy][] = [
  ["minBackoff", "maxBackoff"],
  ["stallTimeout", "timeout"],
  ["backoffReset", "timeout"],
  ["timeout", "totalTimeout"],
  ["maxWait", "totalTimeout"],
];

/** Throws a `DeclarationError` for durations of a policy that contradict each other. */
function checkOrder(name: string, policy: Policy): void {
  for (const [shorter, longer] of ORDERED) {
    const [one, other] = [policy[shorter], policy[longer]] as (Duration | undefined)[];
    if (one === undefined || other === undefined || milliseconds(one) <= milliseconds(other)) continue;
    const hint = `hint: shorten it, or raise \`${longer}\``;
    throw new DeclarationError(`\`${name}\`: \`${shorter}\` ${one} is longer than \`${longer}\` ${other}; ${hint}`);
  }
}

/** Policy for the worker, and the classes of errors, which the app matches itself. */
export interface SplitPolicy {
  fields: Record<string, unknown>;
  failOn: ErrorClass[];
  retryOn: ErrorClass[];
}

/**
 * Separates classes of errors from the keys for the worker. Throws a `DeclarationError` for an unknown key. `declared`:
 * other options beside those of the policy, for the hint.
 */
export function splitPolicy(name: string, policy: Policy, declared: readonly string[] = []): SplitPolicy {
  const split: SplitPolicy = { fields: {}, failOn: [], retryOn: [] };
  for (const [key, value] of Object.entries(policy)) {
    if (!POLICY_KEYS.has(key)) {
      throw new DeclarationError(`\`${name}\`: \`${key}\` is not a key of a policy${hintForPolicy(name, key, declared)}`);
    }
    checkOption(`\`${name}\``, key, value, DeclarationError);
    if (key === "failOn" || key === "retryOn") {
      const listed = errorKinds(name, key, value);
      split[key] = listed.filter((kind) => typeof kind === "function");
      const kinds = listed.filter((kind) => typeof kind === "string");
      if (kinds.length) split.fields[snakeCase(key)] = kinds;
    } else if (value !== undefined) {
      split.fields[snakeCase(key)] = value;
    }
  }
  checkOrder(name, policy);
  return split;
}

/**
 * Returns the policy for the worker, if there is one. It has classes by their names, as kinds: a class that is listed beats
 * `onError` and `*`, as its name does.
 */
export function declaredPolicy({ fields, failOn, retryOn }: SplitPolicy): Record<string, unknown> | undefined {
  const declared = { ...fields };
  for (const [key, classes] of Object.entries({ fail_on: failOn, retry_on: retryOn })) {
    const kinds = new Set([...((fields[key] ?? []) as string[]), ...classes.map(kindOfClass)]);
    if (kinds.size) declared[key] = [...kinds];
  }
  return Object.keys(declared).length ? declared : undefined;
}

/** Whether a policy decides about a kind that it does not name, so that the worker would not ask the app. */
export function decidesUnnamed({ fields }: SplitPolicy, outcome: "fail" | "retry"): boolean {
  const opposite = (fields[outcome === "retry" ? "fail_on" : "retry_on"] ?? []) as string[];
  return opposite.includes("*") || (fields["on_error"] ?? "retry") !== "retry";
}

/** Returns the kind of the errors of a class, unless they are of a subclass or change their name. */
export function kindOfClass(kind: ErrorClass): string {
  const name = (kind.prototype as Error).name;
  return kindOf(name && name !== "Error" && Object.hasOwn(kind.prototype as object, "name") ? name : kind.name);
}

/** Returns a list of classes of errors and names of kinds. Others would match no error: what an import has not defined yet. */
function errorKinds(name: string, key: string, value: unknown): (string | ErrorClass)[] {
  const kinds: unknown[] = value === undefined ? [] : Array.isArray(value) ? value : [value];
  const wrong = kinds.find((kind) => typeof kind !== "string" && !isErrorClass(kind));
  if (Array.isArray(value ?? []) && wrong === undefined && !kinds.includes(undefined)) return kinds as (string | ErrorClass)[];
  if (!Array.isArray(value) && (typeof value === "string" || isErrorClass(value))) {
    const written = typeof value === "string" ? JSON.stringify(value) : (value as ErrorClass).name;
    throw new DeclarationError(`\`${name}\`: \`${key}\` is no list; hint: write \`${key}: [${written}]\``);
  }
  const shown = typeof wrong === "function" ? wrong.name : textOf(wrong);
  const found = Array.isArray(value) ? `has \`${shown}\`` : `is of type ${classOf(value)}`;
  throw new DeclarationError(`\`${name}\`: \`${key}\` ${found}; hint: list classes of errors, and names of kinds`);
}

function isErrorClass(kind: unknown): boolean {
  return kind === Error || (typeof kind === "function" && kind.prototype instanceof Error);
}

/** Returns a name of TypeScript as kafleet.toml and the API write it. */
export function snakeCase(key: string): string {
  return key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
