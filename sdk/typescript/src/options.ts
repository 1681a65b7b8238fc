/** Options of task types and of single tasks, in the words of kafleet.toml and of the API. */

import { DeclarationError } from "./errors.ts";
import { hintFor } from "./names.ts";
import { classOf, textOf } from "./shown.ts";
import type { Call } from "./task.ts";
import type { Duration } from "./outcomes.ts";
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
}

/** Options of a continuation. */
export interface ThenOptions extends CommonOptions {
  /** Outcome that starts it. Default `succeeded`. */
  on?: "succeeded" | "failed" | "ended";
  withResults?: boolean;
}

/** Options of a call, which may become a task, a child or a continuation. */
export type CallOptions = SubmitOptions & ThenOptions;

/** Use of a call. */
export type Scope = "submit" | "spawn" | "then";

const COMMON =
  "key name tags headers retries minBackoff maxBackoff backoffReset maxWait timeout stallTimeout onFailure failFast maxFailed then " +
  "actions checks";
const CHILD = `${COMMON} id creator link totalTimeout replyTo options delay at expires`;
const ALLOWED: Record<Scope, Set<string>> = {
  submit: new Set(`${CHILD} parent`.split(" ")),
  spawn: new Set(CHILD.split(" ")),
  then: new Set(`${COMMON} on withResults`.split(" ")),
};
const PLACES: Record<Scope, string> = { submit: "a submitted task", spawn: "a child", then: "a continuation" };

/** Returns the options of a task as the API and the worker accept them. Throws a `TypeError` for an unknown one. */
export function taskFields(type: string, options: CallOptions, scope: Scope): Record<string, unknown> {
  const fields: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(options)) {
    if (!ALLOWED[scope].has(key)) {
      const hint = hintFor(key, [...ALLOWED[scope]]);
      throw new TypeError(`\`${key}\` is not an option of ${PLACES[scope]} (\`${type}\`)${hint}`);
    }
    if (value !== undefined) fields[snakeCase(key)] = value;
  }
  return fields;
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
      throw new DeclarationError(
        `\`${name}\`: \`${key}\` is not a key of a policy${hintFor(key, [...POLICY_KEYS, ...declared])}`,
      );
    }
    if (key === "failOn" || key === "retryOn") {
      const listed = errorKinds(name, key, value);
      split[key] = listed.filter((kind) => typeof kind === "function");
      const kinds = listed.filter((kind) => typeof kind === "string");
      if (kinds.length) split.fields[snakeCase(key)] = kinds;
    } else if (value !== undefined) {
      split.fields[snakeCase(key)] = value;
    }
  }
  return split;
}

/** Returns a list of classes of errors and names of kinds. Others would match no error: what an import has not defined yet. */
function errorKinds(name: string, key: string, value: unknown): (string | ErrorClass)[] {
  const kinds: unknown[] = value === undefined ? [] : Array.isArray(value) ? value : [value];
  const wrong = kinds.find((kind) => typeof kind !== "string" && !isErrorClass(kind));
  if (Array.isArray(value ?? []) && wrong === undefined && !kinds.includes(undefined)) return kinds as (string | ErrorClass)[];
  const found = Array.isArray(value)
    ? `has \`${typeof wrong === "function" ? wrong.name : textOf(wrong)}\``
    : `is of type ${classOf(value)}`;
  throw new DeclarationError(`\`${name}\`: \`${key}\` ${found}; hint: list classes of errors, and names of kinds`);
}

function isErrorClass(kind: unknown): boolean {
  return kind === Error || (typeof kind === "function" && kind.prototype instanceof Error);
}

function snakeCase(key: string): string {
  return key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
