/** Apps: programs that declare task types and run their attempts. */

import { Client, DEFAULT_URL } from "./client.ts";
import type { Context } from "./context.ts";
import { Bundle, checkFunction, Declarations, type TaskOptions } from "./declare.ts";
import { DeclarationError } from "./errors.ts";
import { refuseUnknown } from "./names.ts";
import { checkNumbers, type Numbers, type Policy } from "./options.ts";
import { type Call, type Definition, type Handler, Remote, type Submitted, Task } from "./task.ts";

/**
 * Function around each attempt: it calls `next` once, which runs the attempt, and returns its result, or another one. If it
 * returns nothing, the result of `next` counts; null if it has caught its error.
 */
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
  /** Numbers of the app's tasks, unless they have an option of their own. Default `checked`. */
  numbers?: Numbers;
}

const OPTIONS = ["slots", "lifespan", "api", "token", "numbers"];

/** Collection of task types. `S`: value of `cx.state`. */
export class App<S = undefined> extends Declarations<S, TaskOptions, Task<never, unknown> | Bundle<S>> {
  readonly arounds: Around<S>[] = [];
  readonly slots: number;
  readonly lifespan: AppOptions<S>["lifespan"];
  readonly numbers: Numbers;
  readonly #options: AppOptions<S>;
  #client: Client | undefined;

  constructor(options: AppOptions<S> = {}) {
    super();
    refuseUnknown(options, OPTIONS, "`App`", DeclarationError);
    const { slots = 10, lifespan, numbers = "checked" } = options;
    if (!Number.isInteger(slots) || slots < 1 || slots > 1000) {
      throw new DeclarationError(`\`slots\` is ${slots}: a whole number from 1 to 1,000 is allowed`);
    }
    checkNumbers("App", numbers);
    this.slots = slots;
    this.lifespan = lifespan;
    this.numbers = numbers;
    this.#options = options;
  }

  /** Declares one type for many small tasks, which share its topic and its policy: `small.task(…)` adds one. */
  bundle(name: string, policy: Policy = {}): Bundle<S> {
    return this.add(new Bundle(this, name, policy));
  }

  /** Wraps each attempt in a function; the first one is the outermost. */
  around(wrap: Around<S>): void {
    checkFunction("app.around", wrap);
    this.arounds.push(wrap);
  }

  /** Returns a task type that another program runs. */
  remote(name: string): Remote {
    return new Remote(this, name);
  }

  protected override create(name: string, definition: Definition, handler: Handler): Task<never, unknown> {
    return new Task(this, name, definition, handler);
  }

  protected override get defaultNumbers(): Numbers {
    return this.numbers;
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
}

/** App with any state. */
export type AnyApp = App<any>;
