/** Calls of tasks, and what is made of them: chains, groups and chords. */

import type { Verdict } from "./documents.ts";
import { Invalid } from "./errors.ts";
import { GroupHandle, Handle } from "./handle.ts";
import { identified } from "./ids.ts";
import { type CallOptions, type GroupOptions, type Scope, taskFields } from "./options.ts";
import type { Wire } from "./schema.ts";
import { Fail } from "./outcomes.ts";
import { classOf, textOf } from "./shown.ts";
import type { Target } from "./task.ts";

const TASK_HINT = 'hint: declare it: `const task = app.task("name", async (params, cx) => …)`';

/** Number of continuations that follow each other. */
const MAX_CHAIN = 16;

/** Number of tasks that are created together. */
const MAX_TOGETHER = 1000;

/** Continuation of a chain: its place among those of its task, and its type. */
export interface Step {
  readonly n: number;
  readonly target: Target<never, unknown>;
}

/**
 * One task to create: a type with its params and options. `R`: its result; `F`: that of the last step, if it is a chain; `T`: the
 * results of other tasks that it takes.
 */
export class Call<R = unknown, F = unknown, T = never> {
  declare protected readonly takes: (results: T) => void;
  declare protected readonly final: F;
  readonly target: Target<never, R>;
  readonly params: unknown;
  readonly options: CallOptions;
  /** Step that follows, if this is a chain: the last one of `options.then`. */
  readonly next: Call | undefined;

  constructor(target: Target<never, R>, params: unknown, options: CallOptions = {}, next?: Call) {
    if (!isTarget(target)) throw new TypeError(`a value of type ${classOf(target)} is no task type; ${TASK_HINT}`);
    this.target = target;
    this.params = params;
    this.options = next ? { ...options, then: [...(options.then ?? []), next] } : options;
    this.next = next;
  }

  /** Creates the task. Rejects with an `ApiError`. */
  submit(): Promise<Handle<R, F>> {
    return this.target.app.client.create(this);
  }

  /**
   * Returns the task as the API and the worker accept it. `isChecked`: its params are checked here. Those of a task that a client
   * creates are not: the API checks them, and each task of a batch for itself.
   */
  document(scope: Scope, isChecked = scope !== "submit"): Record<string, unknown> {
    const { name, type } = this.target;
    const withResults = this.target.takes(this.params, scope);
    const problem = isChecked && this.target.problemOf(this.params, withResults);
    if (problem) throw new Fail(`the params of \`${name}\` do not fit: ${problem}`, { kind: "bad_child" });
    const fields = this.target.labelled(taskFields(name, this.options, scope));
    if (this.options.then) fields["then"] = thenDocuments(this.options.then, isChecked);
    return { type, params: this.target.wrapped(this.params ?? null), ...(withResults && { with_results: true }), ...fields };
  }

  /**
   * Returns the error of a request that creates the task: for params that do not fit, it has the words of their schema. `place`:
   * pointer to the task in the request.
   */
  explained<E>(error: E, place = ""): E | Invalid {
    if (!(error instanceof Invalid && error.pointer?.startsWith(`${place}/params`))) return error;
    const problem = this.target.problemOf(this.params);
    if (!problem) return error;
    const { status, code, pointer } = error;
    return new Invalid(status, { code, pointer, detail: `the params of \`${this.target.name}\` do not fit: ${problem}` });
  }

  /** Returns the handle of the created task. */
  handle(id: string, position?: string, verdict?: Verdict): Handle<R, F> {
    return new Handle<R, F>(this.target, id, position, this.steps(), verdict);
  }

  /** Returns the steps that follow. */
  steps(): Step[] {
    const { next } = this;
    return next ? [{ n: this.options.then!.length - 1, target: next.target }, ...next.steps()] : [];
  }

  /** Returns this call with another one behind its last step. */
  followedBy(call: Call): Call<R> {
    const then = this.options.then?.slice(0, this.next ? -1 : undefined);
    return new Call(this.target, this.params, { ...this.options, then }, this.next?.followedBy(call) ?? call);
  }
}

/** Calls of tasks that run side by side. `R`: their results. */
export class Group<R = unknown> implements Iterable<Call<R>> {
  readonly calls: readonly Call<R>[];

  constructor(calls: Iterable<Call<R>>) {
    this.calls = [...calls];
    this.calls.forEach((call) => checkCall("group", call));
  }

  /**
   * Creates the tasks, all or none: at most 999, as children of a task of the type `group`, which ends with them. Its result is
   * the list of the results of those that succeed, in the order of the calls. Rejects with an `ApiError`.
   */
  submit(options: GroupOptions = {}): Promise<Handle<R[]>> {
    return submitGroup(this, options);
  }

  [Symbol.iterator](): Iterator<Call<R>> {
    return this.calls.values();
  }
}

/** A group, and calls that follow it. `R`: the results of the group; `F`: that of the last step. */
export class Chord<R = unknown, F = unknown> {
  declare protected readonly final: F;
  readonly group: Group<R>;
  readonly next: Call;

  constructor(group: Group<R>, next: Call) {
    this.group = group;
    this.next = next;
  }

  /** Creates the tasks of the group and their continuation, as `Group.submit`. */
  submit(options: GroupOptions = {}): Promise<Handle<R[], F>> {
    return submitGroup(this.group, { ...options, then: [...(options.then ?? []), this.next] }, this.next);
  }
}

type ResultOf<C> = C extends Call<infer R, infer F> ? (unknown extends F ? R : F) : never;
type Last<C> = C extends readonly [...unknown[], infer L] ? L : never;

/**
 * Returns a call whose steps follow each other, each when the one before and its children have succeeded. A step that takes the
 * results of other tasks has those of the step before. A group can be the first step. At most 17 steps.
 */
export function chain<R, T, const N extends readonly [Call, ...Call[]]>(
  first: Call<R, unknown, T>,
  ...next: N
): Call<R, ResultOf<Last<N>>, T>;
export function chain<R, const N extends readonly [Call, ...Call[]]>(
  first: Group<R> | Chord<R>,
  ...next: N
): Chord<R, ResultOf<Last<N>>>;
export function chain(first: Call | Group | Chord, ...next: Call[]): unknown {
  next.forEach((call) => checkCall("chain", call));
  if (first instanceof Group || first instanceof Chord) {
    const [body, ...others] = first instanceof Chord ? [first.next, ...next] : next;
    return new Chord(first instanceof Chord ? first.group : first, linked(body!, others));
  }
  checkCall("chain", first);
  return linked(first, next);
}

/** Returns calls that run side by side: `group(a.call(1), b.call(2))`, or of one iterable. */
export function group<R>(calls: Iterable<Call<R>>): Group<R>;
export function group<const C extends readonly Call[]>(...calls: C): Group<C[number] extends Call<infer R> ? R : never>;
export function group(...calls: unknown[]): Group {
  const [only] = calls;
  const isList = calls.length === 1 && typeof (only as Iterable<Call> | undefined)?.[Symbol.iterator] === "function";
  return new Group((isList ? only : calls) as Iterable<Call>);
}

/** Returns a group, and a call that has the results of those tasks of it that succeed. */
export function chord<R, B, F>(
  calls: Group<R> | Iterable<Call<R>>,
  body: Call<B, F, Wire<NoInfer<R>>[]>,
): Chord<R, ResultOf<Call<B, F>>> {
  checkCall("chord", body);
  const { target, params, options } = body as Call;
  if (!target.takes(params, "then") && !target.isRemote) {
    const hint = "hint: declare it with `upstream` or `app.joined`, or let it follow without results: `chain(group(…), …)`";
    throw new TypeError(`\`${target.name}\` takes no results of other tasks; ${hint}`);
  }
  const next = new Call(target, params, { withResults: true, ...options });
  return new Chord(calls instanceof Group ? calls : new Group(calls), next);
}

/** Returns the calls that `spawn` and `then` of a context are given: one call, or those of a group. */
export function callsOf(given: unknown, use: "spawn" | "then"): readonly Call[] | undefined {
  if (given instanceof Call) return [given];
  if (given instanceof Group && use === "spawn") return given.calls;
  if (!(given instanceof Group || given instanceof Chord)) return undefined;
  const way = given instanceof Chord ? "spawn its group with `cx.spawn`, and its last step with `cx.then`" : "use `cx.spawn`";
  const problem = use === "spawn" ? "a chord cannot be a child" : "a group cannot be a continuation";
  throw new TypeError(`${problem}; hint: ${way}, or \`submit()\` it as a task of its own`);
}

/** Returns continuations as the API accepts them. */
export function thenDocuments(then: NonNullable<CallOptions["then"]>, isChecked: boolean): unknown[] {
  return then.map((next) => (next instanceof Call ? next.document("then", isChecked) : next));
}

function linked(first: Call, next: readonly Call[]): Call {
  const all = next.reduce((chained, call) => chained.followedBy(call), first);
  const { length } = all.steps();
  if (length <= MAX_CHAIN) return all;
  const hint = "hint: let the handler of the last one continue, with `cx.then(chain(…))`";
  throw new TypeError(`the chain has ${length + 1} steps: at most ${MAX_CHAIN + 1} are allowed; ${hint}`);
}

function checkCall(owner: string, call: unknown): asserts call is Call {
  if (call instanceof Call) return;
  const isGroup = call instanceof Group || call instanceof Chord;
  const hint = isGroup
    ? "let a task spawn it with `cx.spawn`, and continue with `cx.then`; a chain can begin with a group"
    : "write `task.call(…)`";
  const isTask = typeof call === "object" && call !== null && "call" in call;
  const found = isGroup ? "a group" : `\`${isTask ? String(call) : textOf(call)}\``;
  throw new TypeError(`\`${owner}\` has ${found} where a call has to be; hint: ${hint}`);
}

function isTarget(value: unknown): boolean {
  return typeof (value as Partial<Target<never, unknown>> | null | undefined)?.labelled === "function";
}

async function submitGroup<R, F>(group: Group<R>, options: GroupOptions, next?: Call): Promise<GroupHandle<R, F>> {
  const { calls } = group;
  if (!calls.length) throw new TypeError("the group is empty; hint: submit it only if there are calls");
  if (calls.length >= MAX_TOGETHER) {
    const hint = "hint: let a task spawn them, with `cx.spawn(group(…))`";
    throw new TypeError(`the group has ${calls.length} calls: at most ${MAX_TOGETHER - 1} are created together; ${hint}`);
  }
  const { app } = calls[0]!.target;
  const children = calls.map((call, n) => ({ id: `${n}`, ...call.document("spawn", false) }) as Record<string, unknown>);
  const { then, ...fields } = taskFields("group", options, "group");
  const root: Record<string, unknown> = { type: "group", params: children, ...fields };
  const id = identified(root);
  const { parent } = options;
  const path = parent === undefined || id.startsWith(`${parent}:`) ? id : `${parent}:${id}`;
  for (const child of children) child["parent"] = path;
  const kept = { ...root, params: undefined, external: true, state: "waiting_for_children" };
  const documents = [{ ...kept, then: then && thenDocuments(options.then!, false) }, ...children];
  const created = await app.client.createTree(documents).catch((error: unknown) => {
    throw calls.reduce((explained, call, n) => call.explained(explained, `/${n + 1}`), error);
  });
  const steps = next ? [{ n: options.then!.length - 1, target: next.target }, ...next.steps()] : [];
  const targets = new Map(calls.map((call, n) => [`${path}:${children[n]!["id"] as string}`, call.target]));
  return new GroupHandle(app.remote("group"), path, created.position, steps, targets);
}
