/** Apps: programs that declare task types and run their attempts. */

import { Client, DEFAULT_URL } from "./client.ts";
import type { Context } from "./context.ts";
import { type Policy, splitPolicy } from "./options.ts";
import type { InputOf, OutputOf, Schema, Wire } from "./schema.ts";
import {
  type Call,
  DeclarationError,
  type Handler,
  Remote,
  type Run,
  type RunJoined,
  type Submitted,
  type Target,
  Task,
} from "./task.ts";

/** Function around each attempt: it calls `next`, which runs the attempt, and returns its result. */
export type Around<S> = (cx: Context<S>, next: () => Promise<unknown>) => unknown;

/** Options of an app. */
export interface AppOptions<S> {
  /** Attempts at once in one process. Default 10; for computation 1, with more processes. */
  slots?: number;
  /** Generator that yields the value of `cx.state` once, before the first attempt, and continues after the last one. */
  lifespan?: () => AsyncGenerator<S, void> | Generator<S, void>;
  /** URL of the API. Default: KAFLEET_API. */
  api?: string;
  /** Bearer token. Default: KAFLEET_TOKEN. */
  token?: string;
}

/** Declaration of a task type besides its handler. */
export interface TaskOptions extends Policy {
  /** Schema of the params. Without it, the annotation of the handler's parameter is their type, and nothing checks them. */
  params?: Schema;
  /** Schema of the result. Without it, the result is what the handler returns. */
  output?: Schema;
  /** Description for people. */
  doc?: string;
}

type Params<O> = O extends { params: infer S extends Schema } ? OutputOf<S> : never;
type Input<O> = O extends { params: infer S extends Schema } ? InputOf<S> : never;
type Result<O, R> = O extends { output: infer S extends Schema } ? OutputOf<S> : Wire<Awaited<R>>;
type Returned<O> = O extends { output: infer S extends Schema } ? InputOf<S> | Promise<InputOf<S>> : unknown;

/** Type of the results that a continuation joins: that of a task, or of a schema. */
type Results<O> = O extends { results: infer T }
  ? T extends Target<never, infer R>
    ? R
    : T extends Schema
      ? OutputOf<T>
      : unknown
  : unknown;

/** Collection of task types. `S`: value of `cx.state`. */
export class App<S = undefined> {
  /** Declared types by name. */
  readonly tasks = new Map<string, Task<never, unknown>>();
  readonly arounds: Around<S>[] = [];
  readonly slots: number;
  readonly lifespan: AppOptions<S>["lifespan"];
  readonly #options: AppOptions<S>;
  #client: Client | undefined;

  constructor(options: AppOptions<S> = {}) {
    const { slots = 10, lifespan } = options;
    if (!(slots >= 1 && slots <= 1000)) throw new DeclarationError(`\`slots\` is ${slots}: 1 to 1,000 are allowed`);
    this.slots = slots;
    this.lifespan = lifespan;
    this.#options = options;
  }

  /** Declares a task type: a name, options, and the handler. The options are the schemas and the policy of the type. */
  task<const O extends TaskOptions & { params: Schema }, R extends Returned<O>>(
    name: string,
    options: O & Exact<O, TaskOptions>,
    handler: Run<Params<O>, R, S>,
  ): Task<Input<O>, Result<O, R>, Run<Params<O>, R, S>>;
  task<P, const O extends TaskOptions & { params?: undefined }, R extends Returned<O>>(
    name: string,
    options: O & Exact<O, TaskOptions>,
    handler: Run<P, R, S>,
  ): Task<P, Result<O, R>, Run<P, R, S>>;
  task<P, R>(name: string, handler: Run<P, R, S>): Task<P, Wire<Awaited<R>>, Run<P, R, S>>;
  task(name: string, ...rest: unknown[]): unknown {
    return this.#declare(name, rest, false);
  }

  /**
   * Declares a type that runs as a continuation only, with the results of the tasks before it: `cx.task` and `cx.results`.
   * `results`: the type, or the schema, of those results; without it the annotation of `cx` is their type.
   */
  joined<const O extends TaskOptions & { params: Schema; results?: Schema | Target<never, unknown> }, R extends Returned<O>>(
    name: string,
    options: O & Exact<O, TaskOptions & { results?: unknown }>,
    handler: RunJoined<Params<O>, Results<O>, R, S>,
  ): Task<Input<O>, Result<O, R>, RunJoined<Params<O>, Results<O>, R, S>>;
  joined<P, T, R>(name: string, handler: RunJoined<P, T, R, S>): Task<P, Wire<Awaited<R>>, RunJoined<P, T, R, S>>;
  joined(name: string, ...rest: unknown[]): unknown {
    return this.#declare(name, rest, true);
  }

  /** Wraps each attempt in a function; the first one is the outermost. */
  around(wrap: Around<S>): void {
    this.arounds.push(wrap);
  }

  /** Returns a task type that another program runs. */
  remote(name: string): Remote {
    return new Remote(this, name);
  }

  /** Client of the API. */
  get client(): Client {
    const url = this.#options.api ?? process.env["KAFLEET_API"] ?? DEFAULT_URL;
    if (this.#client?.url !== url.replace(/\/+$/, "")) this.#client = new Client({ url, token: this.#options.token });
    return this.#client!;
  }

  /** Creates tasks in batches of up to 1,000; each has its own outcome, in order. */
  submitMany<R>(calls: Iterable<Call<R>>): Promise<Submitted<R>[]> {
    return this.client.createMany(calls);
  }

  #declare(name: string, rest: unknown[], joined: boolean): unknown {
    const [options, handler] = rest.length > 1 ? rest : [{}, rest[0]];
    if (typeof handler !== "function") {
      throw new DeclarationError(
        `\`${name}\` has no handler; hint: write \`app.task("${name}", { … }, async (params, cx) => …)\``,
      );
    }
    if (this.tasks.has(name)) throw new DeclarationError(`the type \`${name}\` is declared twice; hint: rename one`);
    const { params, output, doc, results, ...policy } = options as TaskOptions & { results?: Schema };
    try {
      const definition = { params, output, results: joined ? results : undefined, doc, joined, policy: splitPolicy(policy) };
      const task = new Task<never, unknown>(this, name, definition, handler as Handler);
      this.tasks.set(name, task);
      return task;
    } catch (error) {
      throw error instanceof DeclarationError ? error : new DeclarationError(`\`${name}\`: ${(error as Error).message}`);
    }
  }
}

/** App with any state. */
export type AnyApp = App<any>;

/** Refuses keys that the options do not have, which a type parameter would permit. */
type Exact<O, Allowed> = { [K in Exclude<keyof O, keyof Allowed>]: never };
