/** One attempt in the process of a test. */

import { Attempt } from "./attempt.ts";
import { type AttemptMessage, type Channel, LIMITS, type Limits } from "./context.ts";
import { logText } from "./errors.ts";
import { decode, encode } from "./json.ts";
import { refuseUnknown } from "./names.ts";
import { captureOutput } from "./output.ts";
import { type Fields, outcomeUnder } from "./retry_policy.ts";
import { attempted } from "./shown.ts";
import type { Arguments, Handler, Task } from "./task.ts";
import type { Ended } from "./upstream.ts";

/** Task type with any params and result. */
export type AnyTask = Task<never, unknown, Handler, never, never>;

/** Failure of an attempt; of a `trial`, with the outcome that the policy of the type makes of it while there are retries left. */
export interface Failure {
  outcome: "retry" | "wait" | "fail" | "dead" | "cancelled";
  kind: string;
  message: string;
  after_ms?: number;
  stack?: string;
}

/** Document of a child or of a continuation. */
export type TaskDocument = { type: string; params: unknown } & Record<string, unknown>;

/** One attempt, as the worker would see it. */
export class Trial<R> implements Channel {
  readonly limits: Limits = { ...LIMITS };
  readonly isCrowded = false;
  readonly state: unknown;
  failure: Failure | undefined;
  readonly log: string[] = [];
  readonly children: TaskDocument[] = [];
  readonly then: TaskDocument[] = [];
  readonly progress: unknown[] = [];
  readonly warnings: string[] = [];
  readonly attachments: Record<string, Buffer> = {};
  result: { value: R } | undefined;

  readonly #id: string;
  readonly #publish: (children: TaskDocument[]) => string[];
  readonly #published = new Set<TaskDocument>();

  /** `publish`: creates children at once, and returns their ids. */
  constructor(id: string, state: unknown, publish?: (children: TaskDocument[]) => string[]) {
    this.#id = id;
    this.state = state;
    this.#publish =
      publish ?? ((children) => children.map((child, n) => `${id}:${child["id"] ?? this.#published.size - children.length + n}`));
  }

  /** Result, converted to JSON and back. Throws if the attempt has failed. */
  get output(): R {
    if (this.result) return this.result.value;
    const { kind, stack, message } = this.failure ?? {};
    throw new Error(`the attempt failed: ${kind}: ${stack ?? message}${logText(this.#id, this.log)}`);
  }

  send(lines: string): void {
    for (const line of lines.split("\n")) if (line) this.#receive(line);
  }

  async room(): Promise<void> {}

  async call(_: unknown, tasks: string[]): Promise<string[]> {
    const children = tasks.map((task) => decode(task).value as TaskDocument);
    for (const child of children) this.#published.add(child);
    this.children.push(...children);
    return this.#publish(children);
  }

  /** Children that are published when the attempt succeeds. */
  get unpublished(): TaskDocument[] {
    return this.children.filter((child) => !this.#published.has(child));
  }

  buffered(): void {}

  #receive(line: string): void {
    const message = decode(line).value as Record<string, Record<string, unknown>>;
    const [kind, fields] = Object.entries(message)[0]!;
    if (kind === "ok") this.result = { value: fields["output"] as R };
    else if (kind === "error") this.failure = failureOf(fields);
    else if (kind === "log") this.log.push(...(fields["lines"] as string[]));
    else if (kind === "progress") this.progress.push(fields["value"]);
    else if (kind === "warn") this.warnings.push(fields["message"] as string);
    else if (kind === "attach") this.attachments[fields["name"] as string] = Buffer.from(fields["data"] as string, "base64");
    else if (kind === "spawn") this.children.push(...(fields["tasks"] as TaskDocument[]));
    else if (kind === "then") this.then.push(fields["task"] as TaskDocument);
  }
}

function failureOf({ n: _, ...failure }: Record<string, unknown>): Failure {
  return failure as unknown as Failure;
}

/** Attributes of the attempt of a trial. */
export interface TrialOptions {
  id?: string;
  run?: number;
  number?: number;
  /** Value of `cx.state`: the lifespan is not entered. */
  state?: unknown;
  /** Outcome of the task before a continuation. */
  task?: Ended;
  /** Outcomes of the other tasks before a continuation. */
  results?: readonly Ended[];
  /** Reason of a cancel before the attempt starts. */
  cancelled?: "cancelled" | "timeout" | "stalled" | "shutdown";
}

const TRIAL_OPTIONS = ["id", "run", "number", "state", "task", "results", "cancelled"];

/** Runs one attempt in this process, through JSON and the schemas of the type. */
export async function trial<C, R>(
  task: Task<never, R, Handler, C>,
  ...[params, options = {}]: Arguments<NoInfer<C>, TrialOptions>
): Promise<Trial<R>> {
  refuseUnknown(options, TRIAL_OPTIONS, "`trial`");
  const { id = "trial", run = 1, number = 1, state, cancelled } = options;
  const channel = new Trial<R>(id, state);
  const { task: before = { id, state: "succeeded" }, results = [] } = options;
  const own = task.wrapped(params ?? null);
  const isJoined = task.joined || ((options.task ?? options.results) && task.definition.upstream.joins !== "never");
  const given = isJoined ? { params: own, task: before, results } : own;
  const message = { n: 1, type: task.type, id, run, number, left_ms: 60_000, params: decode(encode(given)).value };
  const attempt = begun(task, message, channel);
  if (cancelled) attempt.cx.cancel(cancelled);
  await ended(attempt, task, channel);
  const declared = attempted(() => task.app.declared.get(task.type)?.declaration()["policy"] as Fields | undefined);
  const { failure } = channel;
  if (failure) channel.failure = { ...failure, outcome: outcomeUnder(declared ?? {}, failure) };
  return channel;
}

/** Returns an attempt whose messages a trial receives. */
export function begun(task: AnyTask, message: AttemptMessage, channel: Trial<unknown>): Attempt {
  captureOutput();
  return new Attempt(task as Task<never, unknown>, { ...message, isSuspect: true }, channel);
}

/** Runs an attempt to its end, and returns its result as JSON has it. */
export async function ended(attempt: Attempt, task: AnyTask, channel: Trial<unknown>): Promise<unknown> {
  channel.send(await attempt.run());
  attempt.cx.ended = true;
  const result = channel.result?.value;
  if (channel.result) channel.result = { value: await task.received(result) };
  return result;
}
