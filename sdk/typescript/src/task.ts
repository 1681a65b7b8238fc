/** Declared task types, and types of other programs. */

import type { AnyApp } from "./app.ts";
import { Call, Group } from "./canvas.ts";
import { type ApiError, DeclarationError } from "./errors.ts";
import { refuseMembers, TASK_METHODS, TASK_PROPERTIES } from "./foreign.ts";
import { Handle, refuseInAttempt } from "./handle.ts";
import { type CallOptions, declaredPolicy, type ErrorClass, type Numbers } from "./options.ts";
import type { Scope, SplitPolicy, SubmitOptions } from "./options.ts";
import { decode, encode, unsuitable } from "./json.ts";
import { withoutJsonSchema } from "./json_types.ts";
import { insert, type Transaction } from "./outbox.ts";
import { jsonSchema, Mismatch, mismatchOf, type Schema, signature, UNDECIDED, validated } from "./schema.ts";
import { attempted, declaredAt, messageOf, textOf } from "./shown.ts";
import { type Forms, formsOf, isFormOf, type Upstream } from "./upstream.ts";

/** Arguments of a call: the params may be omitted if they may be `undefined`. */
export type Arguments<P, O> = undefined extends P ? [params?: P, options?: O] : [params: P, options?: O];

/**
 * Task type that can be submitted and spawned. `P`: its params; `R`: its result, as a client receives it; `C`: the params of a call,
 * without those that a chain fills; `T`: the results of other tasks that it takes.
 */
export abstract class Target<P, R, C = P, T = never> {
  /** For the compiler, which would otherwise infer `C` without `undefined`. */
  declare protected readonly calling: (params: C) => void;
  readonly app: AnyApp;
  readonly name: string;
  /** Name of the type: that of the bundle, if the task is in one. */
  readonly type: string;
  /** Whether the type runs as a continuation only, with the results of other tasks. */
  readonly joined: boolean = false;
  /** Whether another program runs the type. */
  readonly isRemote: boolean = false;
  /** Whether the task is in a bundle. */
  protected readonly bundled: boolean;

  constructor(app: AnyApp, name: string, bundle?: string) {
    this.app = app;
    this.name = name;
    this.type = bundle ?? name;
    this.bundled = bundle !== undefined;
  }

  /** Returns the params as Kafka has them: those of a task in a bundle name it. */
  wrapped(params: unknown): unknown {
    return this.bundled ? { task: this.name, params } : params;
  }

  /** Returns the params of the handler. */
  unwrapped(params: unknown): unknown {
    return this.bundled ? (params as { params: unknown }).params : params;
  }

  /** Returns the fields of a task. Those of a bundle have its name and tag, since their type does not tell them apart. */
  labelled(fields: Record<string, unknown>): Record<string, unknown> {
    const tags = fields["tags"] ?? [];
    if (!this.bundled || !Array.isArray(tags)) return fields;
    return { name: this.name, ...fields, tags: [...new Set<unknown>([this.name, ...tags])] };
  }

  /** Whether numbers that a JavaScript number would change are kept; otherwise they are refused. */
  get isExact(): boolean {
    return this.app.numbers === "exact";
  }

  /** Returns a result from the JSON that is stored with a task. */
  abstract decode(result: unknown): Promise<R>;

  /** Returns a result as a client receives it. Throws `Mismatch` for numbers that are to be refused. */
  async received(result: unknown): Promise<R> {
    const problem = unsuitable(result, this.isExact);
    if (problem) throw new Mismatch(`the result of \`${this.name}\` cannot be read: ${problem}`);
    return this.decode(result);
  }

  /**
   * Returns whether a call takes the results of other tasks. Throws a `TypeError` if it needs them, and is no continuation that
   * could have them.
   */
  takes(_params: unknown, _scope: Scope): boolean {
    return false;
  }

  /**
   * Returns why params do not fit the type; nothing if they do, or if only an attempt can decide. `withResults`: a chain may fill
   * a member of them.
   */
  problemOf(_params: unknown, _withResults = false): string | undefined {
    return undefined;
  }

  /** Returns a task to create: for `submit`, chains and groups, `App.submitMany`, and `spawn` and `then` of a context. */
  call(...[params, options]: Arguments<C, CallOptions>): Call<R, unknown, T> {
    return new Call(this, params, options);
  }

  /** Returns a group with a call for each item, which is its params. */
  map(items: Iterable<P>): Group<R> {
    return new Group(Iterator.from(items).map((params) => new Call(this, params)));
  }

  /** Returns a group with a call for each item, which is a list of its params and its options. */
  starmap(items: Iterable<Arguments<P, CallOptions>>): Group<R> {
    return new Group(Iterator.from(items).map(([params, options]) => new Call(this, params, options)));
  }

  /** Returns a group of calls whose params are lists, with up to `size` of the items each. */
  chunks(items: Iterable<P extends readonly (infer I)[] ? I : never>, size: number): Group<R> {
    if (!Number.isInteger(size) || size < 1)
      throw new TypeError(`the size of a chunk is ${size}; hint: give a whole number from 1`);
    const all = [...items];
    const starts = Array.from({ length: Math.ceil(all.length / size) }, (_, n) => n * size);
    return new Group(starts.map((start) => new Call<R>(this, all.slice(start, start + size))));
  }

  /** Creates a task. Rejects with an `ApiError`. */
  submit(...[params, options]: Arguments<P, SubmitOptions>): Promise<Handle<R>> {
    return this.app.client.create(new Call(this, params, options));
  }

  /**
   * Creates a task if and when a transaction commits, and returns its handle. `tx`: a client of node-postgres in a transaction, or
   * anything with its `query`. It inserts a row into the outbox, which the role `kafleet outbox` publishes.
   */
  async submitIn(tx: Transaction, ...[params, options]: Arguments<P, SubmitOptions>): Promise<Handle<R>> {
    return this.handle(await insert(tx, new Call<R>(this, params, options), "postgres"));
  }

  /** Creates a task and waits for its result. Rejects with an `ApiError`, a `TaskFailed`, or `TimedOut`. */
  async run(...[params, options]: Arguments<P, SubmitOptions>): Promise<R> {
    refuseInAttempt();
    return (await this.app.client.create(new Call(this, params, options))).result();
  }

  /** Returns the handle of an existing task of this type. */
  handle(id: string): Handle<R> {
    return new Handle<R>(this, id);
  }

  /** Returns what `console.log` shows, such as `<Task greet({ name: string }) -> string>`. */
  toString(): string {
    return `<${this.isRemote ? "Remote" : "Task"} ${this.name}>`;
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return `${this}`;
  }
}
refuseMembers(Target.prototype, "a task type", TASK_METHODS, TASK_PROPERTIES);

/** Task type that another program runs: any params, any result. */
export class Remote extends Target<unknown, unknown, unknown, unknown> {
  override readonly isRemote = true;

  override async decode(result: unknown): Promise<unknown> {
    return result;
  }
}

/** Function that runs an attempt. */
export type Handler = (params: never, cx: never) => unknown;

/** Definition of a task type besides its handler. */
export interface Definition {
  params: Schema | undefined;
  output: Schema | undefined;
  /** What it takes from the tasks before it in a chain. */
  upstream: Upstream;
  doc: string | undefined;
  numbers: Numbers;
  /** Time after which `SoftTimeout` interrupts an attempt, in milliseconds. */
  softTimeoutMs: number | undefined;
  policy: SplitPolicy;
}

/** Declared task type. It is not callable: `fn` is the handler itself. */
export class Task<P, R, F = Handler, C = P, T = never> extends Target<P, R, C, T> {
  readonly fn: F;
  readonly definition: Definition;
  override readonly joined: boolean;
  /** File and line of the declaration, in a process that a worker has started. */
  readonly source: string | undefined;
  /** Whether the schema of the params answers with promises, so that attempts alone check them. */
  #isAsync = false;

  constructor(app: AnyApp, name: string, definition: Definition, fn: F, bundle?: string) {
    super(app, name, bundle);
    checkName(name);
    this.fn = fn;
    this.definition = definition;
    this.joined = definition.upstream.joins === "always";
    this.source = declaredAt();
  }

  override takes(params: unknown, scope: Scope): boolean {
    const { joins, member } = this.definition.upstream;
    const isContinuation = scope === "then";
    if (this.joined && !isContinuation) {
      const hint = "hint: use `cx.then`, or a chain";
      throw new TypeError(`\`${this.name}\` is declared with \`app.joined\` and runs as a continuation only; ${hint}`);
    }
    if (member === undefined) return isContinuation && joins !== "never";
    const isMissing = (params as Record<string, unknown> | undefined)?.[member] === undefined;
    if (isMissing && !isContinuation && this.#requires(member)) {
      const hint = "hint: give it, or use `chain` or `cx.then`";
      throw new TypeError(`\`${member}\` of \`${this.name}\` is missing, which only a chain fills; ${hint}`);
    }
    return isMissing && isContinuation;
  }

  override get isExact(): boolean {
    return this.definition.numbers === "exact";
  }

  override problemOf(params: unknown, withResults = false): string | undefined {
    const { params: schema, upstream } = this.definition;
    const isIncomplete = withResults && upstream.member !== undefined;
    if (!schema || this.#isAsync || isIncomplete) return undefined;
    const problem = attempted(() => mismatchOf(schema, params));
    this.#isAsync = problem === UNDECIDED;
    // Objects with `toJSON` fit in another form, in which they are sent.
    const sent = typeof problem === "string" && attempted(() => mismatchOf(schema, decode(encode(params ?? null)).value));
    return typeof sent === "string" ? sent : undefined;
  }

  override async decode(result: unknown): Promise<R> {
    return (await validated(this.definition.output, result)) as R;
  }

  /** Returns the type as the `ready` message declares it. */
  declaration(): Record<string, unknown> {
    const { output, doc } = this.definition;
    return {
      name: this.name,
      params: this.schema("params"),
      output: output && this.schema("output"),
      doc,
      policy: declaredPolicy(this.definition.policy),
      source: this.source,
    };
  }

  /** Returns the task that runs an attempt with these params. */
  select(_: unknown): this {
    return this;
  }

  /** Returns the JSON Schema of the params as Kafka has them, or of the result; nothing if its library has none. */
  schema(part: "params" | "output"): Record<string, unknown> | undefined {
    if (part === "output") return this.#jsonSchema("output");
    const { alone, joined } = this.forms();
    return alone && joined ? { if: isFormOf, then: joined, else: alone } : (alone ?? joined);
  }

  /** Returns the JSON Schemas of the params as Kafka has them: of a task, and of a continuation with results. */
  forms(): Forms {
    return formsOf(this.name, this.#jsonSchema("params"), this.definition.upstream, this.bundled);
  }

  #jsonSchema(part: "params" | "output"): Record<string, unknown> | undefined {
    try {
      return jsonSchema(this.definition[part]);
    } catch (error) {
      const problem = withoutJsonSchema(this.definition[part], messageOf(error));
      const place = this.source ? `${this.source}: ` : "";
      throw new DeclarationError(`${place}the schema of the ${part} of \`${this.name}\` has no JSON Schema: ${problem}`);
    }
  }

  /** Whether a task needs a member of its params. Without a JSON Schema only the handler knows. */
  #requires(member: string): boolean {
    if (!this.definition.params) return true;
    const required = this.#jsonSchema("params")?.["required"];
    return Array.isArray(required) && required.includes(member);
  }

  override toString(): string {
    const { params, output } = this.definition;
    const result = output && this.#jsonSchema("output");
    return `<Task ${this.name}(${params ? signature(this.#jsonSchema("params")) : ""})${result ? ` -> ${signature(result)}` : ""}>`;
  }
}

/** Throws a `DeclarationError` for an invalid name of a type, or of a task in a bundle. */
export function checkName(name: string): void {
  if (/^[a-z0-9-]{1,64}$/.test(name)) return;
  const nearest = name
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-|-$/g, "")
    .slice(0, 64);
  const hint = nearest && `; hint: write \`${nearest}\``;
  throw new DeclarationError(`\`${textOf(name)}\` is not a name of a type: 1 to 64 characters of \`a-z 0-9 -\`${hint}`);
}

/** Handler of a type. `X`: its context. */
export type Run<P, R, X> = (params: P, cx: X) => R;

/** Outcome of one task of a batch. */
export type Submitted<R> = Handle<R> | ApiError;

export type { ErrorClass };
