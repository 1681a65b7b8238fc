/** What a task takes from the tasks before it in a chain: their outcomes in its context, or their results as one of its params. */

import { type AttemptMessage, type Channel, Context } from "./context.ts";
import { DeclarationError } from "./errors.ts";
import { hintFor } from "./names.ts";
import type { Schema } from "./schema.ts";
import { textOf } from "./shown.ts";
import { Target } from "./task.ts";

/** Outcome of one task. */
export interface Ended<T = unknown> {
  id: string;
  type?: string;
  state: string;
  /** Result of a task that succeeded. */
  output?: T;
  /** Error of a task that did not. */
  error?: { kind: string; message: string; attempt?: number };
}

/** Context of a continuation with the outcomes of the task before it and of that task's children. */
export class Joined<T = unknown, S = unknown> extends Context<S> {
  /** Task that this one continues. */
  readonly task: Ended;
  /** Its other children, in the order in which they were spawned. */
  readonly results: readonly Ended<T>[];

  constructor(attempt: AttemptMessage, channel: Channel, task: Ended, results: readonly Ended<T>[]) {
    super(attempt, channel);
    this.task = task;
    this.results = results;
  }
}

/** What a type takes from the tasks before it. */
export interface Upstream {
  /** Whether it runs with the outcomes of other tasks: as continuation only, as continuation too, or never. */
  joins: "never" | "optionally" | "always";
  /** Schema or type of the results in its context. */
  results: Schema | Target<never, unknown> | undefined;
  /** Member of the params that is filled instead. */
  member: string | undefined;
}

/** Options of a declaration about the tasks before it. */
export interface UpstreamOptions {
  /** With `optional`, the context is a `Joined` in a continuation, and a plain one otherwise. */
  joined?: "optional";
  /** Type, or schema, of the results in the context. */
  results?: Schema | Target<never, unknown>;
  /** Member of the params that a chain fills with the result of the task before, or with the results of its children. */
  upstream?: string;
}

/** Params of a continuation with results. */
export interface JoinedParams {
  params: unknown;
  task: Ended;
  results: Ended[];
}

/** Returns what a declaration says about the tasks before it, and its other options. Throws a `DeclarationError`. */
export function splitUpstream<O extends UpstreamOptions>(
  name: string,
  options: O,
  isJoined: boolean,
): [Upstream, Omit<O, keyof UpstreamOptions>] {
  const { joined, results, upstream: member, ...others } = options;
  const refuse = (problem: string, hint: string) => {
    throw new DeclarationError(`\`${name}\`: ${problem}; hint: ${hint}`);
  };
  const isOptional = joined !== undefined;
  if (isOptional && (isJoined || joined !== "optional")) {
    refuse(`\`joined\` is \`${textOf(joined)}\``, 'write `app.joined(…)`, or `app.task(…, { joined: "optional" })`');
  }
  if (results !== undefined && !isJoined && !isOptional) {
    refuse("`results` is for a type that joins other tasks", 'use `app.joined`, or add `joined: "optional"`');
  }
  if (member !== undefined && (isJoined || isOptional || typeof member !== "string")) {
    refuse(`\`upstream\` is \`${textOf(member)}\``, "give the name of a member of the params, to a type that is not `joined`");
  }
  const joins = isJoined ? "always" : isOptional || member !== undefined ? "optionally" : "never";
  return [{ joins, results, member }, others];
}

/** Returns params as those of a continuation with results; nothing if they are others. */
export function joinedParams(params: unknown): JoinedParams | undefined {
  const { task, results } = (params ?? {}) as Partial<JoinedParams>;
  const isJoined = typeof task?.id === "string" && Array.isArray(results) && "params" in (params as object);
  return isJoined ? (params as JoinedParams) : undefined;
}

/** Returns what fills a member of the params: the results of the children of the task before, otherwise its own. */
export function upstreamResult({ task, results }: JoinedParams): unknown {
  if (!results.length) return task.output ?? null;
  return results.filter(({ state }) => state === "succeeded").map(({ output }) => output ?? null);
}

type JsonSchema = Record<string, unknown>;

/** JSON Schemas of the params as Kafka has them: of a task, and of a continuation with results. */
export interface Forms {
  alone?: JsonSchema | undefined;
  joined?: JsonSchema | undefined;
}

const ENDED = { type: "object", required: ["id", "state"] };
const JOINED = { task: ENDED, results: { type: "array", items: ENDED } };

/** Condition for the params of a continuation with results: its errors have the place of the wrong value, unlike those of `anyOf`. */
export const isFormOf: JsonSchema = { type: "object", properties: JOINED, required: ["params", "task", "results"] };

/** Returns the schemas that declare the params of a type, or of a task in a bundle. */
export function formsOf(name: string, schema: JsonSchema | undefined, upstream: Upstream, isBundled: boolean): Forms {
  const { joins, member } = upstream;
  if (!schema) return {};
  if (joins === "never" && !isBundled) return { alone: schema };
  const wrapped = (id: string, own: JsonSchema) => {
    const part = embedded(id, own);
    return isBundled ? { properties: { params: part } } : part;
  };
  const id = joins === "always" ? name : `${name}.results`;
  const params = wrapped(id, member === undefined ? schema : without(name, schema, member));
  const joined = { type: "object", properties: { params, ...JOINED }, required: ["params", "task", "results"] };
  return {
    alone: joins === "always" ? undefined : wrapped(name, schema),
    joined: joins === "never" ? undefined : joined,
  };
}

/** Returns a schema as a part of another one. An id keeps its references valid: they are relative to it. */
function embedded(id: string, { $schema, ...schema }: JsonSchema): JsonSchema {
  return JSON.stringify(schema).includes('"$ref"') ? { $id: id, ...schema } : schema;
}

/** Returns the schema of an object without one of its members. */
function without(name: string, schema: JsonSchema, member: string): JsonSchema {
  const { properties, required = [] } = schema as { properties?: JsonSchema; required?: string[] };
  if (properties && !(member in properties)) {
    const hint = hintFor(member, Object.keys(properties));
    throw new DeclarationError(`\`${name}\`: \`upstream\` is \`${member}\`, which is not a member of the params${hint}`);
  }
  const { [member]: _, ...others } = properties ?? {};
  return { ...schema, ...(properties && { properties: others }), required: required.filter((each) => each !== member) };
}
