/** Declared task types, and calls of them. */

import type { AnyApp } from "./app.ts";
import { Handle, refuseInAttempt } from "./client.ts";
import type { Context, Joined } from "./context.ts";
import { type ApiError, DeclarationError } from "./errors.ts";
import {
  type CallOptions,
  type ErrorClass,
  type Numbers,
  type Scope,
  type SplitPolicy,
  type SubmitOptions,
  taskFields,
} from "./options.ts";
import { unsuitable } from "./json.ts";
import { jsonSchema, Mismatch, type Schema, validated } from "./schema.ts";
import { messageOf } from "./shown.ts";

/** Arguments of a call: the params may be omitted if they may be `undefined`. */
export type Arguments<P, O> = undefined extends P ? [params?: P, options?: O] : [params: P, options?: O];

/** One task to create: a type with its params and options. */
export class Call<R> {
  readonly target: Target<never, R>;
  readonly params: unknown;
  readonly options: CallOptions;

  constructor(target: Target<never, R>, params: unknown, options: CallOptions = {}) {
    this.target = target;
    this.params = params;
    this.options = options;
  }

  /** Returns the task as the API and the worker accept it. */
  document(scope: Scope): Record<string, unknown> {
    const { name, type, joined } = this.target;
    if (joined && scope !== "then") {
      throw new TypeError(`\`${name}\` is declared with \`app.joined\` and runs as a continuation only; hint: use \`cx.then\``);
    }
    const fields = this.target.labelled(taskFields(name, this.options, scope));
    if (this.options.then) {
      fields["then"] = this.options.then.map((next) => (next instanceof Call ? next.document("then") : next));
    }
    return { type, params: this.target.wrapped(this.params ?? null), ...(joined && { with_results: true }), ...fields };
  }
}

/** Task type that can be submitted and spawned. `P`: its params; `R`: its result, as a client receives it. */
export abstract class Target<P, R> {
  readonly app: AnyApp;
  readonly name: string;
  /** Name of the type: that of the bundle, if the task is in one. */
  readonly type: string;
  /** Whether the type runs as a continuation only, with the results of other tasks. */
  readonly joined: boolean = false;
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

  /** Returns a task to create, for `App.submitMany`, `Context.spawnNow` and `then`. */
  call(...[params, options]: Arguments<P, CallOptions>): Call<R> {
    return new Call<R>(this, params, options);
  }

  /** Creates a task. Rejects with an `ApiError`. */
  submit(...[params, options]: Arguments<P, SubmitOptions>): Promise<Handle<R>> {
    return this.app.client.create(new Call<R>(this, params, options));
  }

  /** Creates a task and waits for its result. Rejects with an `ApiError`, a `TaskFailed`, or `TimedOut`. */
  async run(...[params, options]: Arguments<P, SubmitOptions>): Promise<R> {
    refuseInAttempt();
    return (await this.app.client.create(new Call<R>(this, params, options))).result();
  }

  /** Returns the handle of an existing task of this type. */
  handle(id: string): Handle<R> {
    return new Handle<R>(this, id);
  }
}

/** Task type that another program runs: any params, any result. */
export class Remote extends Target<unknown, unknown> {
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
  /** Schema or type of the results of the other tasks, for a type that joins them. */
  results: Schema | Target<never, unknown> | undefined;
  joined: boolean;
  doc: string | undefined;
  numbers: Numbers;
  policy: SplitPolicy;
}

/** Declared task type. It is not callable: `fn` is the handler itself. */
export class Task<P, R, F = Handler> extends Target<P, R> {
  readonly fn: F;
  readonly definition: Definition;
  override readonly joined: boolean;

  constructor(app: AnyApp, name: string, definition: Definition, fn: F, bundle?: string) {
    super(app, name, bundle);
    checkName(name);
    this.fn = fn;
    this.definition = definition;
    this.joined = definition.joined;
  }

  override get isExact(): boolean {
    return this.definition.numbers === "exact";
  }

  override async decode(result: unknown): Promise<R> {
    return (await validated(this.definition.output, result)) as R;
  }

  /** Returns the type as the `ready` message declares it. */
  declaration(): Record<string, unknown> {
    const { output, doc, policy } = this.definition;
    return {
      name: this.name,
      params: this.schema("params"),
      output: output && this.schema("output"),
      doc,
      policy: Object.keys(policy.fields).length ? policy.fields : undefined,
    };
  }

  /** Returns the task that runs an attempt with these params. */
  select(_: unknown): this {
    return this;
  }

  /** Returns the JSON Schema of the params as Kafka has them, or of the result; nothing if its library has none. */
  schema(part: "params" | "output"): Record<string, unknown> | undefined {
    try {
      const schema = jsonSchema(this.definition[part]);
      if (!schema || part === "output" || !(this.bundled || this.joined)) return schema;
      const own = embedded(this.name, schema);
      const params = this.bundled ? { properties: { params: own } } : own;
      return this.joined ? joinedSchema(params) : params;
    } catch (error) {
      throw new DeclarationError(`the schema of the ${part} of \`${this.name}\` has no JSON Schema: ${messageOf(error)}`);
    }
  }
}

/** Throws a `DeclarationError` for an invalid name of a type, or of a task in a bundle. */
export function checkName(name: string): void {
  if (/^[a-z0-9-]{1,64}$/.test(name)) return;
  throw new DeclarationError(`\`${name}\` is not a name of a type: 1 to 64 characters of \`a-z 0-9 -\``);
}

/** Returns a schema as a part of another one. An id keeps its references valid: they are relative to it. */
function embedded(id: string, { $schema, ...schema }: Record<string, unknown>): Record<string, unknown> {
  return JSON.stringify(schema).includes('"$ref"') ? { $id: id, ...schema } : schema;
}

/** Schema of the params of a continuation with results. */
function joinedSchema(params: Record<string, unknown>): Record<string, unknown> {
  const ended = { type: "object", required: ["id", "state"] };
  const properties = { params, task: ended, results: { type: "array", items: ended } };
  return { type: "object", properties, required: Object.keys(properties) };
}

/** Handler of a type. */
export type Run<P, R, S> = (params: P, cx: Context<S>) => R;

/** Handler of a continuation with the results of other tasks. */
export type RunJoined<P, T, R, S> = (params: P, cx: Joined<T, S>) => R;

/** Outcome of one task of a batch. */
export type Submitted<R> = Handle<R> | ApiError;

export type { ErrorClass };
