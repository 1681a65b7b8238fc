/** Apps: programs that declare task types and run their attempts. */

import { apiUrl } from "./address.ts";
import type { Call } from "./canvas.ts";
import { Client, withQuery } from "./client.ts";
import type { Context } from "./context.ts";
import { Bundle, checkFunction, Declarations, type TaskOptions } from "./declare.ts";
import type { FleetChange, Part } from "./documents.ts";
import { DeclarationError } from "./errors.ts";
import { APP_METHODS, APP_PROPERTIES, refuseMembers } from "./foreign.ts";
import { type Handle, refuseInAttempt } from "./handle.ts";
import { refuseUnknown } from "./names.ts";
import { Bulk, DeadLetters, External, Schedules, Tasks } from "./operations.ts";
import { checkNumbers, type Numbers, type Policy } from "./options.ts";
import { type Schedule, type ScheduleArguments, scheduleOf, type ScheduleOptions, type ScheduleSpec } from "./schedules.ts";
import { callerOf, textOf } from "./shown.ts";
import { checkName, type Definition, type Handler, Remote, type Submitted, type Target, Task } from "./task.ts";

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
  /** URL of the API. Default: KAFLEET_API, the `kafleet dev` of the working directory, http://127.0.0.1:8080. */
  api?: string;
  /** Bearer token. Default: KAFLEET_TOKEN. */
  token?: string;
  /** Numbers of the app's tasks, unless they have an option of their own. Default `checked`. */
  numbers?: Numbers;
  /**
   * Modules that declare types of the app, and import it: paths and patterns from the folder of the program, such as
   * `./tasks/*.ts`, and functions such as `() => import("./mail.ts")`. Imported when a worker serves or checks the app, after
   * the program itself. Default: none.
   */
  include?: readonly (string | (() => Promise<unknown>))[];
  /**
   * Whether a thread takes the stack of an attempt that blocks the event loop beyond its timeout. It needs about 15 MiB in each
   * process. Default: under `kafleet dev` only.
   */
  stacks?: boolean;
}

const OPTIONS = ["slots", "lifespan", "api", "token", "numbers", "include", "stacks"];

/** Number of apps of a program of which a warning may speak. */
const MAX_CREATED = 10;

/** Apps of this process, each with the place where it was made; only in one that a worker has started. */
export const createdApps: { app: AnyApp; place: string }[] = [];

/** Collection of task types. `S`: value of `cx.state`. */
export class App<S = undefined> extends Declarations<S, TaskOptions, Task<never, unknown> | Bundle<S>> {
  readonly arounds: Around<S>[] = [];
  readonly slots: number;
  readonly lifespan: AppOptions<S>["lifespan"];
  readonly numbers: Numbers;
  /** Searches in the tasks of the fleet. */
  readonly tasks = new Tasks(this);
  /** Actions on many tasks. */
  readonly bulk = new Bulk(this);
  readonly deadLetters = new DeadLetters(this);
  readonly schedules = new Schedules(this);
  readonly include: readonly (string | (() => Promise<unknown>))[];
  readonly stacks: boolean | undefined;
  /** Schedules that the program declares, by their ids. */
  readonly declaredSchedules = new Map<string, Schedule>();
  readonly #options: AppOptions<S>;
  #client: Client | undefined;

  constructor(options: AppOptions<S> = {}) {
    super();
    if (typeof options !== "object" || options === null) {
      throw new DeclarationError(
        `\`App\` takes an object with options, not \`${textOf(options)}\`; hint: write \`new App()\`: it has no name`,
      );
    }
    refuseUnknown(options, OPTIONS, "`App`", DeclarationError);
    const { slots = 10, lifespan, numbers = "checked", include = [] } = options;
    if (!Array.isArray(include)) throw new DeclarationError(`\`include\` is no list; hint: write \`include: ["./tasks/*.ts"]\``);
    if (!Number.isInteger(slots) || slots < 1 || slots > 1000) {
      throw new DeclarationError(`\`slots\` is ${slots}: a whole number from 1 to 1,000 is allowed`);
    }
    checkNumbers("App", numbers);
    this.slots = slots;
    this.lifespan = lifespan;
    this.numbers = numbers;
    this.include = include;
    this.stacks = options.stacks;
    this.#options = options;
    if (process.env["KAFLEET_APP"] !== undefined && createdApps.length < MAX_CREATED) {
      createdApps.push({ app: this as AnyApp, place: callerOf(new Error()) });
    }
  }

  /** Declares one type for many small tasks, which share its topic and its policy: `small.task(…)` adds one. */
  bundle(name: string, policy: Policy = {}): Bundle<S> {
    return this.register(new Bundle(this, name, policy));
  }

  /**
   * Declares a schedule: a cron expression, or an interval such as `1h`, with the task, or a call of it with options. Otherwise
   * its keys are those of `[schedules.NAME]` in camel case, with an id before them, or the name of the type as id.
   * `kafleet schedules apply` and `kafleet dev` apply it.
   */
  schedule<P>(when: string, task: Target<P, unknown>, ...options: ScheduleArguments<P>): void;
  schedule(when: string, call: Call<unknown>, options?: ScheduleOptions): void;
  schedule(id: string, spec: ScheduleSpec): void;
  schedule(spec: ScheduleSpec): void;
  schedule(...given: unknown[]): void {
    const { id, spec, type } = scheduleOf(given);
    if (this.declaredSchedules.has(id)) {
      throw new DeclarationError(`the schedule \`${id}\` is declared twice; hint: give one of them another \`id\``);
    }
    this.declaredSchedules.set(id, { type, spec });
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

  /** Returns a type of tasks that an external system runs. */
  external(name: string): External {
    checkName(name);
    return new External(this, name);
  }

  /** Returns the handle of a task of any type. */
  handle(id: string): Handle {
    return this.remote("").handle(id);
  }

  protected override create(name: string, definition: Definition, handler: Handler): Task<never, unknown> {
    return new Task(this, name, definition, handler);
  }

  protected override get defaultNumbers(): Numbers {
    return this.numbers;
  }

  /** Client of the API. */
  get client(): Client {
    const url = apiUrl(this.#options.api);
    if (this.#client?.url !== url) this.#client = new Client({ url, token: this.#options.token });
    return this.#client!;
  }

  /** Creates tasks in batches of up to 1,000; each has its own outcome, in order. */
  submitMany<R>(calls: Iterable<Call<R>>): Promise<Submitted<R>[]> {
    return this.client.createMany(calls);
  }

  /** Returns the documents of all types: their numbers of tasks by state, schemas and limits. */
  async types(): Promise<Part[]> {
    return (await this.client.request<{ types: Part[] }>("GET", "/v1/types")).types;
  }

  /** Returns the documents of the workers, according to their heartbeats. */
  async workers(): Promise<Part[]> {
    return (await this.client.request<{ workers: Part[] }>("GET", "/v1/workers")).workers;
  }

  /**
   * Follows the changes of all tasks, of those of a type, or of a task and its descendants (`root`), until the loop ends or
   * `signal` is aborted. After a lost connection it resumes; where changes may be missing, it yields one without `ids`.
   */
  async *events(options: { type?: string; root?: string; signal?: AbortSignal } = {}): AsyncGenerator<FleetChange, never> {
    refuseInAttempt();
    refuseUnknown(options, ["type", "root", "signal"], "`events`");
    const { signal = new AbortController().signal, ...query } = options;
    for await (const { kind, data } of this.client.events(() => withQuery("/v1/watch", query), signal)) {
      if (kind === "changed") yield data as FleetChange;
    }
    throw new Error("unreachable");
  }
}
refuseMembers(App.prototype, "an app", APP_METHODS, APP_PROPERTIES);

/** App with any state. */
export type AnyApp = App<any>;
