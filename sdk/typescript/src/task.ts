/** Declared task types, and calls of them. */

import type { AnyApp } from "./app.ts";
import { Handle, refuseInAttempt } from "./client.ts";
import type { Context, Joined } from "./context.ts";
import type { ApiError } from "./errors.ts";
import { type CallOptions, type ErrorClass, type Scope, type SplitPolicy, type SubmitOptions, taskFields } from "./options.ts";
import { jsonSchema, type Schema, validated } from "./schema.ts";

/** Arguments of a call: the params may be omitted if they may be `undefined`. */
export type Arguments<P, O> = undefined extends P ? [params?: P, options?: O] : [params: P, options?: O];

/** A task type is declared wrongly. */
export class DeclarationError extends TypeError {
  override readonly name = "DeclarationError";
}

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
    const { name, joined } = this.target;
    if (joined && scope !== "then") {
      throw new TypeError(`\`${name}\` is declared with \`app.joined\` and runs as a continuation only; hint: use \`cx.then\``);
    }
    const fields = taskFields(name, this.options, scope);
    if (this.options.then) {
      fields["then"] = this.options.then.map((next) => (next instanceof Call ? next.document("then") : next));
    }
    return { type: name, params: this.params ?? null, ...(joined && { with_results: true }), ...fields };
  }
}

/** Task type that can be submitted and spawned. `P`: its params; `R`: its result, as a client receives it. */
export abstract class Target<P, R> {
  readonly app: AnyApp;
  readonly name: string;
  /** Whether the type runs as a continuation only, with the results of other tasks. */
  readonly joined: boolean = false;

  constructor(app: AnyApp, name: string) {
    this.app = app;
    this.name = name;
  }

  /** Returns a result from the JSON that is stored with a task. */
  abstract decode(result: unknown): Promise<R>;

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
  policy: SplitPolicy;
}

/** Declared task type. It is not callable: `fn` is the handler itself. */
export class Task<P, R, F = Handler> extends Target<P, R> {
  readonly fn: F;
  readonly definition: Definition;
  override readonly joined: boolean;

  constructor(app: AnyApp, name: string, definition: Definition, fn: F) {
    super(app, name);
    if (!/^[a-z0-9-]{1,64}$/.test(name)) {
      throw new DeclarationError(`\`${name}\` is not a name of a type: 1 to 64 characters of \`a-z 0-9 -\``);
    }
    this.fn = fn;
    this.definition = definition;
    this.joined = definition.joined;
  }

  override async decode(result: unknown): Promise<R> {
    return (await validated(this.definition.output, result)) as R;
  }

  /** Returns the type as the `ready` message declares it. */
  declaration(): Record<string, unknown> {
    const { output, doc, policy } = this.definition;
    return {
      name: this.name,
      params: this.#schemaOf("params"),
      output: output && this.#schemaOf("output"),
      doc,
      policy: Object.keys(policy.fields).length ? policy.fields : undefined,
    };
  }

  #schemaOf(part: "params" | "output"): Record<string, unknown> | undefined {
    try {
      const schema = jsonSchema(this.definition[part]);
      return schema && part === "params" && this.joined ? joinedSchema(schema) : schema;
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      throw new DeclarationError(`the schema of the ${part} of \`${this.name}\` has no JSON Schema: ${reason}`);
    }
  }
}

/** Schema of the params of a continuation with results. */
function joinedSchema(params: Record<string, unknown>): Record<string, unknown> {
  const { $schema, $defs, ...own } = params;
  const ended = { type: "object", required: ["id", "state"] };
  const properties = { params: own, task: ended, results: { type: "array", items: ended } };
  return { $schema, $defs, type: "object", properties, required: Object.keys(properties) };
}

/** Handler of a type. */
export type Run<P, R, S> = (params: P, cx: Context<S>) => R;

/** Handler of a continuation with the results of other tasks. */
export type RunJoined<P, T, R, S> = (params: P, cx: Joined<T, S>) => R;

/** Outcome of one task of a batch. */
export type Submitted<R> = Handle<R> | ApiError;

export type { ErrorClass };
