/** Tasks of a tree that runs in a test, and their states as docs/trees.md combines them. */

import type { ErrorInfo, State } from "./documents.ts";
import { TaskFailed } from "./errors.ts";
import type { Course } from "./retry_policy.ts";
import type { TaskDocument, Trial } from "./trial.ts";
import type { Ended } from "./upstream.ts";

/** Final states, the worst last. */
const FINAL: readonly State[] = ["succeeded", "cancelled", "expired", "failed"];

/** What the run of a tree knows of a task. Times are virtual, in milliseconds. */
interface Running extends Course {
  /** Time of the next attempt. */
  at: number;
  /** Result as JSON has it. */
  result: unknown;
  then: { document: TaskDocument; isCreated: boolean }[];
  hasFailedFast: boolean;
}

/** A task of a tree. */
export class TreeTask<R = unknown> {
  readonly id: string;
  readonly parent: TreeTask | undefined;
  readonly type: string;
  /** Params, as JSON has them. */
  readonly params: unknown;
  /** Its document: type, params and options, with the names of the API. */
  readonly document: TaskDocument;
  /** Children, without continuations, in the order in which they were spawned. */
  readonly children: TreeTask[] = [];
  /** Continuations by their numbers; those that were not due are missing. */
  readonly continuations: TreeTask[] = [];
  readonly attempts: Trial<R>[] = [];
  /** State of the task itself. */
  ownState: State = "queued";
  /** State of the task and all its descendants. */
  state: State = "queued";
  /** Error that has ended it. */
  error: ErrorInfo | undefined;
  /** For the run of the tree. */
  readonly running: Running;

  constructor(parent: TreeTask | undefined, id: string, document: TaskDocument, at: number) {
    this.parent = parent;
    this.id = id;
    this.type = document.type;
    this.params = document.params;
    this.document = document;
    const then = continuations((document["then"] ?? []) as TaskDocument[]);
    const result = undefined;
    this.running = { begun: at, at, attempt: 0, waits: 0, waitsSince: undefined, result, then, hasFailedFast: false };
  }

  /** Lines of all attempts. */
  get log(): string[] {
    return this.attempts.flatMap(({ log }) => log);
  }

  /** Result; of a group, the results of its tasks that succeeded. Throws `TaskFailed` with the log of the task that failed. */
  get output(): R {
    if (this.state !== "succeeded") throw this.#failure();
    const results = () => this.children.filter(({ state }) => state === "succeeded").map(({ output }) => output);
    return (this.document["external"] ? results() : (this.attempts.at(-1)?.result?.value ?? null)) as R;
  }

  /** Tasks directly below, the continuations last. */
  get below(): TreeTask[] {
    return [...this.children, ...Object.values(this.continuations)];
  }

  #failure(): TaskFailed {
    let decisive: TreeTask = this;
    for (let next: TreeTask | undefined = this; next; next = decisive.below.find(({ state }) => state === this.state)) {
      decisive = next;
      if (decisive.ownState === this.state) break;
    }
    return new TaskFailed(endOf(this), endOf(decisive), decisive.log);
  }

  /** Returns the task with all that is below it, a line for each. */
  toString(): string {
    const { length } = this.attempts;
    const error = this.error && this.state !== "succeeded" ? `: ${this.error.kind}: ${this.error.message}` : "";
    const line = `${this.id} (${this.type}) ${this.state}${length > 1 ? ` after ${length} attempts` : ""}${error}`;
    return [line, ...this.below.map((task) => `${task}`.replaceAll(/^/gm, "  "))].join("\n");
  }
}

/** Returns continuations that have not been created. */
export function continuations(documents: readonly TaskDocument[]): Running["then"] {
  return documents.map((document) => ({ document, isCreated: false }));
}

/** Returns the outcome of a task in a given state, as its continuations have it. */
export function outcomeOf({ id, type, running: { result }, error }: TreeTask, state: State): Ended {
  return { id, type, state, ...(result !== undefined && { output: result }), ...(error && { error }) };
}

function endOf({ id, state, ownState, error }: TreeTask): ConstructorParameters<typeof TaskFailed>[0] {
  return { id, state, own_state: ownState, error: error ?? null };
}

export function isFinal(state: State): boolean {
  return FINAL.includes(state);
}

/** Whether so many children of a task have failed that it cannot succeed. Cancelled ones alone do not suffice. */
export function isLost({ children, document }: TreeTask): boolean {
  const lost = lostOf(children);
  return lost.length > tolerated(document) && lost.some(({ state }) => state !== "cancelled");
}

/** State of a task and its children, without the continuations, which depend on it. */
export function settledState({ ownState, children, document }: TreeTask): State {
  return isFinal(ownState) ? combined(ownState, children, tolerated(document)) : ownState;
}

/** State of a task with its continuations. */
export function wholeState(task: TreeTask): State {
  const settled = settledState(task);
  return isFinal(settled) ? combined(settled, Object.values(task.continuations), 0) : settled;
}

function combined(own: State, below: readonly TreeTask[], maxFailed: number): State {
  // Open ones are among the last.
  if (below.findLast(({ state }) => !isFinal(state))) return "waiting_for_children";
  const lost = lostOf(below);
  if (lost.length <= maxFailed) return own;
  return FINAL.findLast((state) => state === own || lost.some((task) => task.state === state))!;
}

/** Tasks whose failure affects the task above. */
function lostOf(tasks: readonly TreeTask[]): TreeTask[] {
  return tasks.filter(({ state, document }) => isFinal(state) && state !== "succeeded" && document["on_failure"] !== "ignore");
}

function tolerated(document: TaskDocument): number {
  return (document["max_failed"] as number | undefined) ?? 0;
}
