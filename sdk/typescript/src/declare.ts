/** Declaration of tasks: as types of an app, or in bundles, which are types of many tasks. */

import type { AnyApp } from "./app.ts";
import { types } from "node:util";

import { checkOption } from "./checks.ts";
import { DeclarationError } from "./errors.ts";
import {
  checkNumbers,
  decidesUnnamed,
  declaredPolicy,
  type ErrorClass,
  type Numbers,
  type Policy,
  splitPolicy,
  type SplitPolicy,
  TASK_OPTIONS,
} from "./options.ts";
import { Dead, type Duration, durationText, milliseconds, Wait } from "./outcomes.ts";
import type { InputOf, OutputOf, Schema, Wire } from "./schema.ts";
import { classOf, declaredAt } from "./shown.ts";
import type { Context } from "./context.ts";
import { checkName, type Definition, type Handler, type Run, Target, Task } from "./task.ts";
import { type Joined, splitUpstream, type UpstreamOptions } from "./upstream.ts";

/** Length of a description that the worker accepts. */
const MAX_DOC_CHARS = 10_000;

/** Number of known tasks that the message about an unknown one names. */
const SHOWN_NAMES = 20;

/** Declaration of a task besides its handler and its policy. */
interface SchemaOptions extends UpstreamOptions {
  /** Schema of the params. Without it, the annotation of the handler's parameter is their type, and nothing checks them. */
  params?: Schema;
  /** Schema of the result. Without it, the result is what the handler returns. */
  output?: Schema;
  /** Description for people. */
  doc?: string;
  /** Numbers of the params and of the result. Default: those of the app. */
  numbers?: Numbers;
  /**
   * Time after which `SoftTimeout` interrupts an attempt: it is the reason of `cx.signal`, and `cx.check()` throws it once.
   * Default: never.
   */
  softTimeout?: Duration;
  /** Earlier names of the task, whose tasks run as its own. Default: none. */
  aliases?: readonly string[];
}

/** Declaration of a task type besides its handler. */
export interface TaskOptions extends SchemaOptions, Policy {}

/** Declaration of a task in a bundle besides its handler. Its classes of errors count before those of the bundle. */
export interface BundledOptions extends SchemaOptions {
  retryOn?: readonly ErrorClass[];
  failOn?: readonly ErrorClass[];
}

type Params<O> = O extends { params: infer S extends Schema } ? OutputOf<S> : never;
type Input<O> = O extends { params: infer S extends Schema } ? InputOf<S> : never;
type Result<O, R> = O extends { output: infer S extends Schema } ? OutputOf<S> : Wire<Awaited<R>>;
type Returned<O> = O extends { output: infer S extends Schema } ? InputOf<S> | Promise<InputOf<S>> : unknown;

/** Context of a handler; of one that may join other tasks, `results` tells whether it does. */
type ContextOf<O, S> = O extends { joined: "optional" } ? Alone<S> | Joined<Results<O>, S> : Context<S>;
type Alone<S> = Context<S> & { readonly task?: undefined; readonly results?: undefined };

/** Params of a call: the member that a chain fills may be left out. */
type Calling<P, O> = O extends { upstream: infer U extends keyof P } ? Optional<Omit<P, U> & Partial<Pick<P, U>>> : P;
type Optional<P> = Record<never, never> extends P ? P | undefined : P;

/** Makes `upstream` the name of a member of the params. */
type Member<P, O> = O extends { upstream: string } ? { upstream: keyof P & string } : unknown;

/** Results of other tasks that a type takes, as JSON has them. */
type Taken<P, O> = O extends { upstream: infer U extends keyof P }
  ? P[U]
  : O extends { results: infer T }
    ? Joining<T>[]
    : O extends { joined: "optional" }
      ? unknown
      : never;
type Joining<T> = T extends Target<never, infer R> ? Wire<R> : T extends Schema ? InputOf<T> : unknown;

/** Type of the results that a continuation joins: that of a task, or of a schema. */
type Results<O> = O extends { results: infer T }
  ? T extends Target<never, infer R>
    ? R
    : T extends Schema
      ? OutputOf<T>
      : unknown
  : unknown;

/** Tasks by name. `S`: value of `cx.state`; `Allowed`: options of a task; `D`: what is declared. */
export abstract class Declarations<S, Allowed extends SchemaOptions, D extends { readonly name: string }> {
  /** What is declared, by name. */
  readonly declared = new Map<string, D>();

  /** Declares a task type: a name, options, and the handler. The options are the schemas and the policy of the type. */
  task<const O extends Allowed & { params: Schema }, R extends Returned<O>>(
    name: string,
    options: O & Exact<O, Allowed> & Member<Input<O>, O>,
    handler: Run<Params<O>, R, ContextOf<O, S>>,
  ): Task<Input<O>, Result<O, R>, Run<Params<O>, R, ContextOf<O, S>>, Calling<Input<O>, O>, Taken<Input<O>, O>>;
  task<P, const O extends Allowed & { params?: undefined }, R extends Returned<O>>(
    name: string,
    options: O & Exact<O, Allowed> & Member<P, O>,
    handler: Run<P, R, ContextOf<O, S>>,
  ): Task<P, Result<O, R>, Run<P, R, ContextOf<O, S>>, Calling<P, O>, Taken<P, O>>;
  task<P, R>(name: string, handler: Run<P, R, Context<S>>): Task<P, Wire<Awaited<R>>, Run<P, R, Context<S>>>;
  task(name: string, ...rest: unknown[]): unknown {
    return this.#declare(name, rest, false);
  }

  /**
   * Declares a type that runs as a continuation only, with the results of the tasks before it: `cx.task` and `cx.results`.
   * `results`: the type, or the schema, of those results; without it the annotation of `cx` is their type.
   */
  joined<const O extends Omit<Allowed, "joined" | "upstream"> & { params: Schema }, R extends Returned<O>>(
    name: string,
    options: O & Exact<O, Omit<Allowed, "joined" | "upstream">>,
    handler: Run<Params<O>, R, Joined<Results<O>, S>>,
  ): Task<
    Input<O>,
    Result<O, R>,
    Run<Params<O>, R, Joined<Results<O>, S>>,
    Input<O>,
    O extends { results: unknown } ? Taken<0, O> : unknown
  >;
  joined<P, T, R>(
    name: string,
    handler: Run<P, R, Joined<T, S>>,
  ): Task<P, Wire<Awaited<R>>, Run<P, R, Joined<T, S>>, P, Wire<T>[]>;
  joined(name: string, ...rest: unknown[]): unknown {
    return this.#declare(name, rest, true);
  }

  /** Adds a declaration. Throws a `DeclarationError` if its name is taken. */
  protected register<T extends D>(declared: T): T {
    const { name } = declared;
    if (this.declared.has(name)) throw new DeclarationError(`the type \`${name}\` is declared twice; hint: rename one`);
    this.declared.set(name, declared);
    return declared;
  }

  protected abstract create(name: string, definition: Definition, handler: Handler): D;

  /** Numbers of tasks that do not say it. */
  protected abstract get defaultNumbers(): Numbers;

  #declare(name: string, rest: unknown[], joined: boolean): unknown {
    const [options, handler] = rest.length > 1 ? rest : [{}, rest[0]];
    if (typeof handler !== "function") {
      throw new DeclarationError(
        `\`${name}\` has no handler; hint: write \`app.task("${name}", { … }, async (params, cx) => …)\``,
      );
    }
    checkFunction(name, handler);
    const [upstream, others] = splitUpstream(name, options as TaskOptions, joined);
    const { params, output, doc, numbers = this.defaultNumbers, softTimeout, aliases = [], ...keys } = others;
    checkNumbers(name, numbers);
    for (const [key, value] of Object.entries({ doc, softTimeout, aliases })) {
      checkOption(`\`${name}\``, key, value, DeclarationError);
    }
    for (const [key, schema] of Object.entries({ params, output, results: upstream.results })) checkSchema(name, key, schema);
    const softTimeoutMs = softTimeout === undefined ? undefined : milliseconds(softTimeout);
    const policy = splitPolicy(name, keys, TASK_OPTIONS);
    checkSoftTimeout(name, softTimeoutMs, policy);
    const definition = { params, output, upstream, doc, numbers, softTimeoutMs, policy };
    const [declared] = [name, ...aliases].map((each) => this.register(this.create(each, definition, handler as Handler)));
    return declared;
  }
}

/** Throws a `DeclarationError` for a function that would not run when it is called. */
export function checkFunction(name: string, run: unknown): void {
  const hint = "hint: write `async (…) => …`";
  if (typeof run !== "function")
    throw new DeclarationError(`\`${name}\` has no function, but a value of type ${classOf(run)}; ${hint}`);
  if (types.isGeneratorFunction(run)) {
    throw new DeclarationError(`\`${name}\` has a generator function, of which a call runs nothing; ${hint}, without \`*\``);
  }
  if (/^class\b/.test(Function.prototype.toString.call(run))) {
    throw new DeclarationError(`\`${name}\` has a class, which cannot be called; ${hint}`);
  }
}

/** Throws a `DeclarationError` for a soft timeout that the timeout of the type precedes. */
function checkSoftTimeout(name: string, softMs: number | undefined, { fields }: SplitPolicy): void {
  const timeout = fields["timeout"] as Duration | undefined;
  if (softMs === undefined || timeout === undefined || softMs < milliseconds(timeout)) return;
  const limit = durationText(milliseconds(timeout));
  throw new DeclarationError(`\`${name}\`: \`softTimeout\` is not shorter than \`timeout\`, ${limit}; hint: raise \`timeout\``);
}

/** Throws a `DeclarationError` for a schema that no library has made, such as a JSON Schema. */
function checkSchema(name: string, key: string, schema: unknown): void {
  if (schema === undefined || schema instanceof Target) return;
  const standard = (schema as Partial<Schema> | null)?.["~standard"];
  if (typeof standard?.validate === "function") return;
  const hint = "hint: use one of zod, arktype, valibot or another library with Standard Schema";
  throw new DeclarationError(`\`${name}\`: \`${key}\` is no schema, but a value of type ${classOf(schema)}; ${hint}`);
}

/** Task type of many tasks, which share its topic, policy and concurrency. The params name the task. */
export class Bundle<S = unknown> extends Declarations<S, BundledOptions, Task<never, unknown>> {
  readonly app: AnyApp;
  readonly name: string;
  readonly #policy: SplitPolicy;
  readonly #source = declaredAt();

  constructor(app: AnyApp, name: string, policy: Policy) {
    super();
    checkName(name);
    this.app = app;
    this.name = name;
    this.#policy = splitPolicy(name, policy);
  }

  /** Returns the task that params name. Throws the outcome of an attempt whose params name none. */
  select(params: unknown): Task<never, unknown> {
    const { task, params: inner } = (params ?? {}) as { task?: unknown; params?: { task?: unknown } | null };
    // The params of a continuation with results contain those of its task.
    const name = typeof task === "object" ? inner?.task : task;
    if (typeof name !== "string") throw new Dead("`task` is missing, or not the name of a task", { kind: "bad_params" });
    const found = this.declared.get(name);
    if (found) return found;
    const names = [...this.declared.keys()].map((known) => `\`${known}\``);
    const more = names.length > SHOWN_NAMES ? ` and ${names.length - SHOWN_NAMES} more` : "";
    throw new Wait(
      `the bundle \`${this.name}\` has no task \`${name.slice(0, 64)}\`, but ${names.slice(0, SHOWN_NAMES).join(", ")}${more}; ` +
        "hint: correct the name, or restart the worker with code that declares it",
      { kind: "unknown_task" },
    );
  }

  /** Returns the type as the `ready` message declares it. Its schema accepts any params of tasks that it does not know. */
  declaration(): Record<string, unknown> {
    const tasks = [...this.declared.values()];
    if (!tasks.length) throw new DeclarationError(`the bundle \`${this.name}\` has no tasks; hint: add one with its \`task(…)\``);
    const params = {
      type: "object",
      properties: { task: { type: ["string", "object"] } },
      required: ["task", "params"],
      dependentSchemas: { task: { allOf: tasks.flatMap((task) => conditionalSchema(task)) } },
    };
    const lines = tasks.map(({ name, definition: { doc } }) => (doc ? `${name}: ${doc.split("\n")[0]}` : name));
    const doc = lines.join("\n").slice(0, MAX_DOC_CHARS);
    const policy = declaredPolicy(this.#withoutContested(tasks));
    return { name: this.name, params, doc, policy, source: this.#source };
  }

  /** Returns the policy without the classes about which a task decides otherwise: the worker decides for the whole type. */
  #withoutContested(tasks: Task<never, unknown>[]): SplitPolicy {
    const { fields, failOn, retryOn } = this.#policy;
    const without = (kinds: ErrorClass[], opposite: "failOn" | "retryOn") =>
      kinds.filter((kind) => !tasks.some((task) => task.definition.policy[opposite].includes(kind)));
    return { fields, failOn: without(failOn, "retryOn"), retryOn: without(retryOn, "failOn") };
  }

  protected override get defaultNumbers(): Numbers {
    return this.app.numbers;
  }

  protected override create(name: string, definition: Definition, handler: Handler): Task<never, unknown> {
    const { fields, failOn, retryOn } = definition.policy;
    const key = Object.keys(fields)[0]?.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase());
    // What is left after the classes is decided by the worker, for the whole type.
    if (key) {
      const own = "a task has only its schemas, `doc`, and classes in `failOn` and `retryOn`";
      const hint = `hint: use \`app.bundle("${this.name}", { ${key}: … })\``;
      throw new DeclarationError(`\`${name}\`: \`${key}\` is for the whole bundle; ${own}; ${hint}`);
    }
    for (const [own, outcome, kinds] of [["failOn", "fail", failOn] as const, ["retryOn", "retry", retryOn] as const]) {
      if (!kinds.length || !decidesUnnamed(this.#policy, outcome)) continue;
      const hint = `hint: list the classes in \`app.bundle("${this.name}", { ${own}: … })\``;
      throw new DeclarationError(`\`${name}\`: \`${own}\` has no effect: the bundle decides about all its errors; ${hint}`);
    }
    // For one class, the task's own list counts.
    const inherited = this.#policy.failOn.filter((kind) => !retryOn.includes(kind));
    const policy = {
      fields: this.#policy.fields,
      failOn: [...failOn, ...inherited],
      retryOn: [...retryOn, ...this.#policy.retryOn],
    };
    return new Task(this.app, name, { ...definition, policy }, handler, this.name);
  }
}

/** Schemas of the params of one task, which accept those of all others; none if its library has no JSON Schema. */
function conditionalSchema(task: Task<never, unknown>): Record<string, unknown>[] {
  const { alone, joined } = task.forms();
  const named = { properties: { task: { const: task.name } } };
  const ofResults = { properties: { task: { type: "object" }, params: { ...named, required: ["task"] } } };
  return [...(alone ? [{ if: named, then: alone }] : []), ...(joined ? [{ if: ofResults, then: joined }] : [])];
}

/** Refuses keys that the options do not have, which a type parameter would permit. */
type Exact<O, Allowed> = { [K in Exclude<keyof O, keyof Allowed>]: never };
