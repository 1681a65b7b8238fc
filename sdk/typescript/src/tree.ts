/**
 * Whole trees of tasks in the process of a test: attempts run one after the other, with their retries, children and continuations
 * as docs/trees.md has them. Delays and backoffs pass in virtual time.
 */

import { setTimeout as sleep } from "node:timers/promises";

import type { AnyApp } from "./app.ts";
import { Call, Chord, Group, type Step } from "./canvas.ts";
import { type Recorded, recorder } from "./client.ts";
import type { AttemptMessage } from "./context.ts";
import type { ErrorInfo, State } from "./documents.ts";
import { TimedOut } from "./errors.ts";
import { continuationId } from "./ids.ts";
import { decode, encode } from "./json.ts";
import { refuseUnknown } from "./names.ts";
import { type Duration, milliseconds } from "./outcomes.ts";
import { decide, type Fields, timeOf } from "./retry_policy.ts";
import { spawnHash } from "./spawn_hash.ts";
import { type Arguments, type Definition, type Handler, Target, Task } from "./task.ts";
import { continuations, isFinal, isLost, outcomeOf, settledState, TreeTask, wholeState } from "./tree_task.ts";
import { type AnyTask, begun, ended, type Failure, type TaskDocument, Trial } from "./trial.ts";

/** Real time for an attempt to end after its timeout. */
const GRACE_MS = 1000;

/** Number of continuations of one task. */
const MAX_CONTINUATIONS = 8;

/** Options of a whole tree. */
export interface TreeOptions {
  /** Id of the root. Default `trial`. */
  id?: string;
  /** Value of `cx.state`: the lifespan is not entered. */
  state?: unknown;
  /** Functions of the params that run types, by name: those of other programs, or instead of declared ones. */
  stubs?: Readonly<Record<string, (params: any) => unknown>>;
  /** Number of attempts after which the tree is given up. Default 10,000. */
  maxAttempts?: number;
  /** Real time after which the tree is given up. Default 60 s. */
  timeout?: Duration;
}

/** A whole tree that has run in a test. `R`: result of its root; `F`: that of its last continuation, as far as it is known. */
export class TreeTrial<R = unknown, F = unknown> {
  readonly root: TreeTask<R>;
  /** All tasks, in the order in which they were created. */
  readonly tasks: readonly TreeTask[];
  /** Virtual time from the creation to the end: of delays, backoffs and waits, in milliseconds. */
  readonly elapsedMs: number;
  /** Tasks that handlers have submitted beside the tree: they did not run. */
  readonly submitted: readonly Recorded[];
  readonly #steps: readonly Step[];

  constructor(tasks: readonly TreeTask[], elapsedMs: number, submitted: readonly Recorded[], steps: readonly Step[]) {
    this.root = tasks[0] as TreeTask<R>;
    this.tasks = tasks;
    this.elapsedMs = elapsedMs;
    this.submitted = submitted;
    this.#steps = steps;
  }

  get state(): State {
    return this.root.state;
  }

  /** Result of the root. Throws `TaskFailed` unless the whole tree has succeeded; the message has the log of the failed task. */
  get output(): R {
    return this.root.output;
  }

  /** Result of the last continuation, as `finalResult` of a handle. Throws `TaskFailed`. */
  get finalOutput(): F {
    let last: TreeTask = this.root;
    const next = (n: number) => last.continuations[this.#steps[n]?.n ?? -1] ?? last.continuations.at(-1)!;
    for (let n = 0; this.state === "succeeded" && last.continuations.length; n++) last = next(n);
    return last.output as F;
  }

  /** Returns a task by its id, or by its place below the root, such as `then`. Throws an error with the tasks that exist. */
  task<T = unknown>(id: string): TreeTask<T> {
    const found = this.tasks.find((task) => task.id === id || task.id === `${this.root.id}:${id}`);
    if (found) return found as TreeTask<T>;
    throw new Error(`the tree has no task \`${id}\`:\n${this}`);
  }

  toString(): string {
    return `${this.root}`;
  }
}

/** Runs a task, or a call such as a chain, a group or a chord, with all that follows. */
export function tree<C, R>(
  task: Task<never, R, Handler, C>,
  ...[params, options]: Arguments<NoInfer<C>, TreeOptions>
): Promise<TreeTrial<R>>;
export function tree<R, F>(call: Call<R, F>, options?: TreeOptions): Promise<TreeTrial<R, F>>;
export function tree<R, F = unknown>(calls: Group<R> | Chord<R, F>, options?: TreeOptions): Promise<TreeTrial<R[], F>>;
export async function tree(given: Target<never, unknown> | Call | Group | Chord, ...rest: unknown[]): Promise<unknown> {
  const [params, options = {}] = given instanceof Target ? rest : [undefined, ...rest];
  refuseUnknown(options as object, ["id", "state", "stubs", "maxAttempts", "timeout"], "`trial.tree`");
  return new TreeRun(options as TreeOptions).run(given instanceof Target ? new Call(given, params) : given);
}

/** Run of a tree. Nothing happens at the same time, so that every run is the same. */
class TreeRun {
  readonly #options: TreeOptions;
  readonly #tasks = new Map<string, TreeTask>();
  /** Tasks that wait for their next attempt, in order. */
  readonly #due: TreeTask[] = [];
  readonly #policies = new Map<string, Fields>();
  readonly #begin = Date.now();
  readonly #deadline: number;
  #app!: AnyApp;
  #now = 0;
  #attempts = 0;

  constructor(options: TreeOptions) {
    this.#options = options;
    this.#deadline = performance.now() + milliseconds(options.timeout ?? "60s");
  }

  async run(given: Call | Group | Chord): Promise<TreeTrial> {
    const submitted: Recorded[] = [];
    const steps = given instanceof Call ? this.#startCall(given) : this.#startGroup(given);
    await recorder.run(submitted, async () => {
      for (let task = this.#due.shift(); task; task = this.#due.shift()) {
        this.#now = Math.max(this.#now, task.running.at);
        await this.#attempt(task);
      }
    });
    return new TreeTrial([...this.#tasks.values()], this.#now, submitted, steps);
  }

  #startCall(call: Call): Step[] {
    this.#app = call.target.app;
    this.#create(undefined, this.#rootId, copied(call.document("submit")));
    return call.steps();
  }

  #startGroup(given: Group | Chord): Step[] {
    const { calls, next } = given instanceof Chord ? { calls: given.group.calls, next: [given.next] } : { ...given, next: [] };
    if (!calls[0]) throw new TypeError("the group is empty; hint: give it calls");
    this.#app = calls[0].target.app;
    const then = next.map((call) => call.document("then"));
    const root = this.#create(undefined, this.#rootId, copied({ type: "group", params: null, external: true, then }));
    const children = calls.map((call, n) => copied({ id: `${n}`, ...call.document("spawn") }));
    this.#spawn(root, children, new Map());
    this.#end(root, "succeeded");
    return next.flatMap((call) => [{ n: 0, target: call.target }, ...call.steps()]);
  }

  get #rootId(): string {
    return this.#options.id ?? "trial";
  }

  /** Creates a task; one with this id stays as it is. `n`: number of a continuation. */
  #create(parent: TreeTask | undefined, id: string, document: TaskDocument, n?: number): TreeTask {
    const existing = this.#tasks.get(id);
    if (existing) return existing;
    const { at } = document as { at?: string };
    const start = at === undefined ? this.#now + timeOf(document, "delay", 0) : Date.parse(at) - this.#begin;
    const task = new TreeTask(parent, id, document, Math.max(start, this.#now));
    this.#tasks.set(id, task);
    if (n !== undefined) parent!.continuations[n] = task;
    else parent?.children.push(task);
    if (!document["external"]) this.#queue(task);
    return task;
  }

  #queue(task: TreeTask): void {
    this.#due.splice(this.#due.findLastIndex(({ running }) => running.at <= task.running.at) + 1, 0, task);
  }

  async #attempt(task: TreeTask): Promise<void> {
    const { running, document } = task;
    this.#checkAttempts();
    running.attempt += 1;
    task.ownState = task.state = "running";
    const target = this.#target(task);
    const policy: Fields = { ...this.#policies.get(task.type), ...document };
    const names = new Map<string, number>();
    const channel = new Trial<unknown>(task.id, this.#options.state, (children) => this.#spawn(task, children, names));
    task.attempts.push(channel);
    const result = await this.#bounded(task, target, channel, timeOf(policy, "timeout", "120s"));
    if (channel.result && running.then.length + channel.then.length > MAX_CONTINUATIONS) {
      channel.failure = { outcome: "fail", kind: "bad_then", message: `more than ${MAX_CONTINUATIONS} continuations` };
    }
    if (channel.failure) return this.#fail(task, channel.failure, policy);
    this.#spawn(task, channel.unpublished, names);
    running.then.push(...continuations(channel.then));
    running.result = result;
    this.#end(task, "succeeded");
  }

  /** Runs an attempt for at most its timeout, and returns its result. One that does not stop is left alone. */
  async #bounded(task: TreeTask, target: AnyTask, channel: Trial<unknown>, timeout: number): Promise<unknown> {
    const { id, type, params, running } = task;
    const { name, tags, creator, options, headers } = task.document as Partial<AttemptMessage>;
    const labels = { name, tags, creator, options, headers } as Partial<AttemptMessage>;
    const identity = { n: 1, type, id, run: 1, number: running.attempt, left_ms: timeout, params };
    const attempt = begun(target, { ...identity, ...labels }, channel);
    const limit = Math.max(Math.min(timeout, this.#deadline - performance.now()), 0);
    const stop = new AbortController();
    const timer = setTimeout(() => attempt.cx.cancel("timeout"), limit);
    const late = sleep(limit + GRACE_MS, undefined, { signal: stop.signal }).catch(() => undefined);
    const result = await Promise.race([ended(attempt, target, channel), late]);
    clearTimeout(timer);
    stop.abort();
    attempt.cx.ended = true;
    if (performance.now() > this.#deadline) {
      throw new TimedOut(`the tree has not ended in time: \`${id}\` was running; hint: raise \`timeout\`\n${this.#drawn}`);
    }
    if (!channel.result && attempt.cx.reason === "timeout") {
      channel.failure = { outcome: "retry", kind: "timeout", message: `timeout of ${timeout / 1000} s` };
    }
    return result;
  }

  #checkAttempts(): void {
    const { maxAttempts = 10_000 } = this.#options;
    this.#attempts += 1;
    if (this.#attempts <= maxAttempts) return;
    throw new Error(`the tree has not ended after ${maxAttempts} attempts; hint: raise \`maxAttempts\`\n${this.#drawn}`);
  }

  get #drawn(): string {
    return `${this.#tasks.get(this.#rootId)}`;
  }

  #fail(task: TreeTask, failure: Failure, policy: Fields): void {
    const { running } = task;
    const { again, isWait, isSkipped, failure: last } = decide(policy, failure, running, this.#now);
    if (again === undefined) {
      if (isSkipped) {
        running.result = null;
        return this.#end(task, "succeeded");
      }
      return this.#end(task, last.outcome === "cancelled" ? "cancelled" : "failed", {
        kind: last.kind,
        message: last.message,
        attempt: running.attempt,
      });
    }
    if (isWait) {
      running.attempt -= 1;
      running.waits += 1;
      running.waitsSince ??= this.#now;
    }
    running.at = this.#now + again;
    task.ownState = task.state = "retrying";
    this.#queue(task);
  }

  /** Creates children, and returns their ids. `names`: numbers of equal children of the attempt. */
  #spawn(task: TreeTask, children: readonly TaskDocument[], names: Map<string, number>): string[] {
    return children.map((child) => {
      const hashed = `${child.type}-${spawnHash(child.type, child.params)}`;
      const count = (names.get(hashed) ?? 0) + 1;
      const segment = child["id"] as string | undefined;
      if (segment === undefined) names.set(hashed, count);
      return this.#create(task, `${task.id}:${segment ?? (count > 1 ? `${hashed}-${count}` : hashed)}`, child).id;
    });
  }

  /** Ends a task itself, and all above that end with it. */
  #end(task: TreeTask, state: State, error?: ErrorInfo): void {
    task.ownState = state;
    task.error = error;
    for (let at: TreeTask | undefined = task; at; at = at.parent) {
      if (at.document["fail_fast"] && !at.running.hasFailedFast && isLost(at)) this.#failFast(at);
      const settled = settledState(at);
      if (isFinal(settled)) this.#follow(at, settled);
      at.state = wholeState(at);
      if (!isFinal(at.state)) return;
    }
  }

  /** Cancels what is open below a task, which fails. */
  #failFast(task: TreeTask): void {
    task.running.hasFailedFast = true;
    const child = task.children.find(({ state }) => state === "failed" || state === "expired")!;
    const message = `child \`${child.id}\` is ${child.state}: ${child.error?.message ?? ""}`;
    task.error = { kind: "child_failed", message, attempt: 0 };
    for (const open of this.#due.filter(({ id }) => id.startsWith(`${task.id}:`))) {
      this.#due.splice(this.#due.indexOf(open), 1);
      this.#end(open, "cancelled", { kind: "cancelled", message: `cancelled with \`${task.id}\``, attempt: 0 });
    }
    if (isFinal(task.ownState)) return;
    this.#due.splice(this.#due.indexOf(task), 1);
    task.ownState = "failed";
  }

  /** Creates the continuations of a task that has ended with its children. */
  #follow(task: TreeTask, settled: State): void {
    for (const [n, next] of task.running.then.entries()) {
      const { on = "succeeded", with_results: withResults, ...document } = next.document;
      if (next.isCreated || !isDue(on, settled)) continue;
      next.isCreated = true;
      const results = () => task.children.map((child) => outcomeOf(child, child.state));
      const joined = () => ({ params: document.params, task: outcomeOf(task, settled), results: results() });
      this.#create(task, continuationId(task.id, n), { ...document, params: withResults ? joined() : document.params }, n);
    }
  }

  /** Returns the type that runs a task, and keeps its policy. */
  #target({ type, params }: TreeTask): AnyTask {
    const stub = this.#options.stubs?.[type];
    if (stub) return new Task(this.#app, type, STUB, stub);
    const declared = this.#app.declared.get(type);
    if (!declared) {
      const hint = `hint: give \`stubs: { "${type}": (params) => … }\` to \`trial.tree\``;
      throw new Error(`\`${type}\` is not declared by the app; ${hint}`);
    }
    if (!this.#policies.has(type)) this.#policies.set(type, (declared.declaration()["policy"] ?? {}) as Fields);
    return declared.select(params);
  }
}

/** Definition of a type that a function of the test runs. */
const STUB: Definition = {
  params: undefined,
  output: undefined,
  upstream: { joins: "never", results: undefined, member: undefined },
  doc: undefined,
  numbers: "exact",
  softTimeoutMs: undefined,
  policy: { fields: {}, failOn: [], retryOn: [] },
};

/** Returns a document as JSON carries it. */
function copied(document: object): TaskDocument {
  return decode(encode(document)).value as TaskDocument;
}

function isDue(on: unknown, settled: State): boolean {
  if (on === "failed") return settled === "failed" || settled === "expired";
  return on === "ended" || settled === on;
}
