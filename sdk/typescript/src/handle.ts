/** Handles of created tasks: their state, their result, and everything else that the API does with a task. */

import type { Step } from "./canvas.ts";
import { type Client, isWithoutEffect, type Query, withQuery } from "./client.ts";
import { running } from "./context.ts";
import type { History, LogDocument, Status, TreeNode, Verdict, Why } from "./documents.ts";
import { ApiError, TaskFailed, TimedOut } from "./errors.ts";
import { HANDLE_METHODS, HANDLE_PROPERTIES, refuseMembers } from "./foreign.ts";
import { continuationId, pathOf } from "./ids.ts";
import { encode } from "./json.ts";
import { refuseUnknown } from "./names.ts";
import { type PatchOptions, taskFields } from "./options.ts";
import { type Duration, milliseconds } from "./outcomes.ts";
import type { Target } from "./task.ts";

/** Longest time of a timer. */
const MAX_TIMER_MS = 2 ** 31 - 1;

/** Number of continuations of one task. */
const MAX_CONTINUATIONS = 8;

/** Number of the newest lines of a failed task's log that the message of a `TaskFailed` has in tests. */
const SHOWN_LINES = 50;

/** Running fleets of `kafleet/testing`: meanwhile a `TaskFailed` shows the log of the task that failed. */
export const testFleets = new Set<object>();

/** Options of the wait for a task. */
export interface WaitOptions {
  timeout?: Duration;
  signal?: AbortSignal;
}

/** Report of an external system on its task. */
export interface Report {
  message?: string;
  /** Any JSON. */
  result?: unknown;
}

/** State that an external system reports. */
export type ReportedState = "queued" | "running" | "warning" | "waiting_for_children" | "succeeded" | "failed";

/** A created task. `R`: its result; `F`: that of the last continuation, as far as it is known. */
export class Handle<R = unknown, F = unknown> {
  declare protected readonly final?: F;
  /** Task id. */
  readonly id: string;
  /** Position of its newest known event; reads through this handle include that event. */
  position: string | undefined;
  /** Verdict about the submission of a unique task; undefined for any other. `id` is that of the task that stands for it. */
  readonly verdict: Verdict | undefined;
  readonly #task: Target<never, R>;
  readonly #steps: readonly Step[];

  /** `steps`: the continuations that lead to the final result. */
  constructor(task: Target<never, R>, id: string, position?: string, steps: readonly Step[] = [], verdict?: Verdict) {
    this.id = id;
    this.verdict = verdict;
    this.position = position;
    this.#task = task;
    this.#steps = steps;
  }

  /** Returns the status document. */
  async status(): Promise<Status> {
    return this.#seen(await this.#read<Status>(""));
  }

  /** Returns the task with `depth` levels of tasks below it (default 3), at most `limit` tasks (default 1,000). */
  async tree(options: { depth?: number; limit?: number } = {}): Promise<TreeNode> {
    refuseUnknown(options, ["depth", "limit"], "`tree`");
    return this.#read("/tree", { ...options });
  }

  /** Reads the status documents of the direct children, the oldest first. */
  async *children(): AsyncGenerator<Status, void> {
    yield* this.#client.list<Status>(`${pathOf(this.id)}/children`, "tasks", { after: this.position });
  }

  /** Returns lines of the log, from line `from`; by default all, of which a log keeps the newest 1,000. */
  async log(options: { from?: number; limit?: number } = {}): Promise<LogDocument> {
    refuseUnknown(options, ["from", "limit"], "`log`");
    return this.#read("/log", { ...options });
  }

  /** Explains the state of the task. */
  async why(): Promise<Why> {
    return this.#read("/why");
  }

  /** Returns the events of the task. */
  async history(): Promise<History> {
    return this.#read("/history");
  }

  /** Returns the params as Kafka has them. Rejects with `NotFound` for external tasks, and after their retention. */
  async params(): Promise<unknown> {
    return (await this.#read<{ params: unknown }>("/params")).params;
  }

  /** Changes fields of the task; null clears one. docs/task-fields.md says which can be changed when. */
  async patch(fields: PatchOptions): Promise<Status> {
    return this.#seen(await this.#client.request<Status>("PATCH", pathOf(this.id), taskFields(this.id, fields, "patch")));
  }

  /** Reports the state of an external task. Returns whether the task had ended before, so that nothing has changed. */
  async report(state: ReportedState, report: Report = {}): Promise<{ status: Status; ignored: boolean }> {
    refuseUnknown(report, ["message", "result"], "`report`");
    const body = { state, ...report };
    type Outcome = { status: Status; ignored: boolean };
    const outcome = await this.#client.request<Outcome>("PUT", `${pathOf(this.id)}/state`, body, isWithoutEffect);
    this.#seen(outcome.status);
    return outcome;
  }

  /** Cancels the task and its descendants. A task that has ended stays as it is. */
  async cancel(reason?: string): Promise<void> {
    const path = `${pathOf(this.id)}/cancel`;
    try {
      this.#seen(await this.#client.send<{ position: string }>("POST", path, encode({ reason })));
    } catch (error) {
      if ((error as ApiError).code !== "already_finished") throw error;
    }
  }

  /** Runs an ended task again, or with `onlyFailed` the failed tasks of its tree, and returns the number of the run. */
  async retry(options: { onlyFailed?: boolean; reason?: string } = {}): Promise<number> {
    refuseUnknown(options, ["onlyFailed", "reason"], "`retry`");
    const { onlyFailed = false, reason } = options;
    const body = { only_failed: onlyFailed, reason };
    const answer = await this.#client.request<{ run: number; status: Status }>("POST", `${pathOf(this.id)}/retry`, body);
    this.#seen(answer.status);
    return answer.run;
  }

  /**
   * Starts the task now that waits for its start or its next attempt, and returns what still holds it, such as a pause or an
   * open circuit.
   */
  async startNow(options: { reason?: string } = {}): Promise<string[]> {
    refuseUnknown(options, ["reason"], "`startNow`");
    type Outcome = { status: Status; held_by: { message: string }[] };
    const outcome = await this.#client.request<Outcome>("POST", `${pathOf(this.id)}/start`, options);
    this.#seen(outcome.status);
    return outcome.held_by.map(({ message }) => message);
  }

  /** Returns the status document now and at every change, until the task has ended. Throws `TimedOut`. */
  async *watch(options: WaitOptions = {}): AsyncGenerator<Status, Status> {
    refuseInAttempt();
    refuseUnknown(options, ["timeout", "signal"], "a wait");
    const { timeout, signal } = options;
    const deadline = timeout === undefined ? undefined : AbortSignal.timeout(Math.min(milliseconds(timeout), MAX_TIMER_MS));
    const stop = AbortSignal.any([deadline, signal].filter((each) => each !== undefined));
    const path = () => withQuery(`${pathOf(this.id)}/watch`, { after: this.position });
    let last: Status | undefined;
    try {
      for await (const { kind, data } of this.#client.events(path, stop)) {
        if (kind === "end" && last && (data as { reason: string }).reason === "finished") break;
        if (kind === "status") yield (last = this.#seen(data as Status));
      }
      return last!;
    } catch (error) {
      if (!deadline?.aborted || signal?.aborted) throw signal?.aborted ? signal.reason : error;
      const state = last ? `: it is ${last.state}` : "";
      throw new TimedOut(`the task \`${this.id}\` has not ended in time${state}; hint: \`kafleet why ${this.id}\``);
    }
  }

  /** Waits until the task and all its descendants have ended, and returns its result. Throws `TaskFailed` or `TimedOut`. */
  async result(options: WaitOptions = {}): Promise<R> {
    return this.received(await this.#succeeded(options));
  }

  /**
   * Waits until the task and all its descendants have ended, and returns the result of its last continuation: of a chain that
   * of its last step, without continuations its own. Of several continuations of one task, the last one that has run is
   * followed. Throws `TaskFailed` or `TimedOut`.
   */
  async finalResult(options: WaitOptions = {}): Promise<F> {
    let status = await this.#succeeded(options);
    let last: Handle = this;
    for (;;) {
      const found = await last.#continuations(status);
      const [step, ...steps] = last.#steps;
      const known = step && found[step.n];
      const next = known ?? found.at(-1);
      if (!next) break;
      status = next;
      last = known ? new Handle(step!.target, next.id, next.position, steps) : last.#other(next.id);
    }
    if (status.state !== "succeeded") throw await last.#failure(status);
    return (await last.received(status)) as F;
  }

  /** Returns the handle of the n-th continuation, from 0: it exists once it has become due. */
  continuation(n = 0): Handle {
    return this.#other(continuationId(this.id, n));
  }

  /** Returns the result that a status document has. */
  protected async received(status: Status): Promise<R> {
    return this.#task.received(status.result);
  }

  async #succeeded(options: WaitOptions): Promise<Status> {
    const statuses = this.watch(options);
    for (;;) {
      const { done, value } = await statuses.next();
      if (!done) continue;
      if (value.state !== "succeeded") throw await this.#failure(value);
      return value;
    }
  }

  /** Returns the continuations of a task that exist, by their numbers. */
  async #continuations({ id, run, position }: Status): Promise<Status[]> {
    const ids = Array.from({ length: MAX_CONTINUATIONS }, (_, n) => continuationId(id, n));
    const query = { q: `id:${ids.map((each) => `"${each}"`).join()}`, after: position };
    const found: Status[] = [];
    for await (const status of this.#client.list<Status>("/v1/tasks", "tasks", query)) {
      if (status.run >= run) found[ids.indexOf(status.id)] = status;
    }
    return found;
  }

  async #failure(status: Status): Promise<TaskFailed> {
    const isOwn = status.own_state === status.state;
    const decisive = isOwn ? status : await unlessRefused(() => this.#decisive());
    const handle = decisive && this.#other(decisive.id);
    const log = testFleets.size ? await unlessRefused(async () => handle?.log()) : undefined;
    return new TaskFailed(status, decisive, log?.lines.slice(-SHOWN_LINES).map(({ text }) => text) ?? []);
  }

  /** Returns the descendant that has decided the state of the task. */
  async #decisive(): Promise<Status | undefined> {
    const id = (await this.why()).findings.find(({ task }) => task)?.task;
    return id ? this.#other(id).status() : undefined;
  }

  #other(id: string): Handle {
    return new Handle(this.#task.app.remote(""), id, this.position);
  }

  get #client(): Client {
    return this.#task.app.client;
  }

  #read<T>(rest: string, query: Query = {}): Promise<T> {
    return this.#client.request("GET", withQuery(pathOf(this.id) + rest, { ...query, after: this.position }));
  }

  #seen<T extends { position: string }>(document: T): T {
    this.position = document.position ?? this.position;
    return document;
  }

  /** Returns what `console.log` shows, such as `<Handle hello of greet>`. */
  toString(): string {
    return `<Handle ${this.id}${this.#task.name && ` of ${this.#task.name}`}>`;
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return `${this}`;
  }
}
refuseMembers(Handle.prototype, "a handle", HANDLE_METHODS, HANDLE_PROPERTIES);

/** Handle of the task that stands for a group. Its result is the list of the results of the group. */
export class GroupHandle<R, F = unknown> extends Handle<R[], F> {
  readonly #targets: ReadonlyMap<string, Target<never, R>>;

  /** `targets`: the types of the group's tasks, by their ids, in order. */
  constructor(
    task: Target<never, unknown>,
    id: string,
    position: string | undefined,
    steps: readonly Step[],
    targets: ReadonlyMap<string, Target<never, R>>,
  ) {
    super(task as Target<never, R[]>, id, position, steps);
    this.#targets = targets;
  }

  protected override async received(): Promise<R[]> {
    const results = new Map<string, R>();
    for await (const { id, state, result } of this.children()) {
      const target = this.#targets.get(id);
      if (target && state === "succeeded") results.set(id, await target.received(result));
    }
    return [...this.#targets.keys()].filter((id) => results.has(id)).map((id) => results.get(id)!);
  }
}

/** Throws in an attempt, before it waits for a task. */
export function refuseInAttempt(): void {
  if (!running.getStore()) return;
  throw new Error("an attempt must not wait for another task, which may need its slot; hint: use `cx.then(…)`");
}

/** Returns what the API answers; nothing if it refuses. */
async function unlessRefused<T>(read: () => Promise<T>): Promise<T | undefined> {
  try {
    return await read();
  } catch (error) {
    if (error instanceof ApiError) return undefined;
    throw error;
  }
}
