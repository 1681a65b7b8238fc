/** Context of an attempt: the API available to a handler. */

import { AsyncLocalStorage } from "node:async_hooks";

import type { CallOptions, ChildOptions, ThenOptions } from "./options.ts";
import { Cancelled, Fail } from "./outcomes.ts";
import { encode, encodeText, exceeds } from "./schema.ts";
import { type Arguments, Call, type Target } from "./task.ts";

/** Limits of a worker that does not send them, in bytes; `children` and `calls` are numbers. */
export const LIMITS = {
  line: 8 << 20,
  output: 256 << 10,
  params: 1 << 20,
  progress: 16 << 10,
  log: 1 << 20,
  log_line: 16 << 10,
  attachment: 64 << 10,
  children: 100_000,
  children_bytes: 64 << 20,
  calls: 16,
};

/** Limits of the worker. */
export type Limits = typeof LIMITS;

/** Attempt, as the worker sends it. */
export interface AttemptMessage {
  n: number;
  type: string;
  id: string;
  run: number;
  number: number;
  left_ms: number;
  trace?: { parent: string; state?: string };
  name?: string;
  tags?: string[];
  creator?: string;
  options?: Record<string, unknown>;
  headers?: Record<string, string>;
  params: unknown;
}

/** Receiver of an attempt's messages: the worker, or a test. */
export interface Channel {
  readonly limits: Limits;
  readonly state: unknown;
  /** Whether more waits to be sent than should. */
  readonly isCrowded: boolean;
  /** Sends complete lines. */
  send(lines: string): void;
  /** Waits until the receiver has taken most of what was sent. */
  room(): Promise<void>;
  /** Publishes children at once and returns their ids. */
  call(cx: Context, tasks: string[]): Promise<string[]>;
  /** Sends the pending log lines and progress of an attempt soon. */
  buffered(cx: Context): void;
}

/** Size at which pending log lines and children are sent, in characters. */
const BATCH = 256 << 10;

/** Length of a warning and of the reason to retire; the worker keeps no more. */
const MAX_TEXT_CHARS = 4000;

/** Number of tasks that are created together. */
const BATCH_ITEMS = 1000;

/** Splits items into lists that one message carries. One that is too large for a list is alone in it. */
export function* batches<T>(items: Iterable<T>, size: (item: T) => number, maxSize: number): Generator<T[]> {
  let batch: T[] = [];
  let total = 0;
  for (const item of items) {
    if (batch.length === BATCH_ITEMS || (batch.length && total + size(item) > maxSize)) {
      yield batch;
      [batch, total] = [[], 0];
    }
    batch.push(item);
    total += size(item);
  }
  if (batch.length) yield batch;
}

export const running = new AsyncLocalStorage<Context>();

/** Returns the context of the running attempt. Throws outside of an attempt. */
export function current(): Context {
  const cx = running.getStore();
  if (!cx) throw new Error("no attempt is running here");
  return cx;
}

/** Identity of an attempt, and its connection to the task. `S`: value of the app's `lifespan`. */
export class Context<S = unknown> {
  /** Number of the attempt on the worker's socket. */
  readonly n: number;
  /** Name of the task's type. */
  readonly type: string;
  /** Name of the task in its bundle, otherwise that of its type. */
  taskName: string;
  /** Task id. */
  readonly id: string;
  /** Run of the task, from 1: a retry on request starts the next one. */
  readonly run: number;
  /** Number of the attempt in its run, from 1. */
  readonly number: number;
  /** Display name of the task. */
  readonly name: string | undefined;
  /** Tags of the task. */
  readonly tags: readonly string[];
  /** Creator of the task. */
  readonly creator: string | undefined;
  /** Options of the task: the JSON object that was stored with it. */
  readonly options: Readonly<Record<string, unknown>>;
  /** Headers that were given with the task, and those of its record that the type keeps (`keep_headers`). */
  readonly headers: Readonly<Record<string, string>>;
  /** W3C trace context of the attempt, or of the producer if the attempt has none. */
  readonly trace: { parent: string; state?: string } | undefined;
  /** Value of the app's `lifespan`. */
  readonly state: S;
  /** Cause of the cancellation: `cancelled`, `timeout`, `stalled` or `shutdown`; `undefined` while it is not cancelled. */
  reason: string | undefined;
  /** Whether the attempt has been answered. */
  ended = false;
  /** Numbers of equal tasks that the attempt has submitted, by a digest of each. */
  readonly submits = new Map<string, number>();

  readonly #channel: Channel;
  readonly #deadline: number;
  #abort: AbortController | undefined;
  #lines: string[] = [];
  #lineSize = 0;
  #dropped = 0;
  #progress = "";
  #partial = "";
  #silent = false;
  #children: string[] = [];
  #childrenSize = 0;
  #count = 0;
  #total = 0;

  constructor(attempt: AttemptMessage, channel: Channel) {
    this.n = attempt.n;
    this.type = this.taskName = attempt.type;
    this.id = attempt.id;
    this.run = attempt.run;
    this.number = attempt.number;
    this.name = attempt.name;
    this.tags = attempt.tags ?? [];
    this.creator = attempt.creator;
    this.options = attempt.options ?? {};
    this.headers = attempt.headers ?? {};
    this.trace = attempt.trace;
    this.state = channel.state as S;
    this.#channel = channel;
    this.#deadline = performance.now() + attempt.left_ms;
  }

  /** Milliseconds until the timeout of the attempt. */
  get leftMs(): number {
    return this.#deadline - performance.now();
  }

  /** Key for calls to other systems: the same in every attempt and redelivery of this run. */
  get idempotencyKey(): string {
    return `${this.id}/${this.run}`;
  }

  /** Whether the attempt should stop. */
  get cancelled(): boolean {
    return this.reason !== undefined;
  }

  /** Signal that is aborted when the attempt should stop, also by its timeout. */
  get signal(): AbortSignal {
    this.#abort ??= new AbortController();
    if (this.reason !== undefined && !this.#abort.signal.aborted) this.#abort.abort(new Cancelled(this.reason));
    return this.#abort.signal;
  }

  /** Throws `Cancelled` if the attempt should stop. For long loops without a signal. */
  check(): void {
    if (this.reason !== undefined) throw new Cancelled(this.reason);
  }

  /** Publishes the state of the work, any JSON; the newest value replaces earlier ones. */
  progress(value: unknown, { silent = false } = {}): void {
    const text = encode(value);
    const limit = this.#channel.limits.progress;
    if (exceeds(text, limit)) return this.log(`a progress value of over ${limit} bytes was dropped`);
    if (!this.#channel.isCrowded) return this.#message("progress", `"value":${text}`, silent);
    this.#progress = this.#line("progress", `"value":${text}`, silent);
    this.#channel.buffered(this as Context);
  }

  /** Appends lines to the task's log. `silent` ones do not count as activity for `stallTimeout`. */
  log(lines: string | readonly string[], { silent = false } = {}): void {
    if (silent !== this.#silent) this.#channel.send(this.flush());
    this.#silent = silent;
    this.#append((typeof lines === "string" ? [lines] : lines).flatMap((line) => line.split("\n")));
  }

  /**
   * Appends text to the task's log, as `console.log` does; an incomplete line is kept until it is completed. A carriage
   * return within a line starts it again, as on a terminal: of a progress bar, the last state is kept.
   */
  write(text: string): void {
    const lines = (this.#partial + text).split("\n").map((line) => line.slice(line.slice(0, -1).lastIndexOf("\r") + 1));
    this.#partial = lines.pop()!;
    if (this.#partial.length > this.#channel.limits.log_line) {
      lines.push(this.#partial);
      this.#partial = "";
    }
    if (lines.length) this.#append(lines);
  }

  /** Marks the task with a warning until it ends. */
  warn(message: string, { silent = false } = {}): void {
    this.#message("warn", `"message":${encodeText(message.slice(0, MAX_TEXT_CHARS))}`, silent);
  }

  /** Stores a small value with the task, replacing an earlier one of the same name. */
  attach(name: string, data: string | Uint8Array, { media = "application/octet-stream" } = {}): void {
    const bytes = Buffer.from(data as Uint8Array);
    const limit = this.#channel.limits.attachment;
    if (bytes.length > limit) {
      throw new Fail(`the attachment has ${bytes.length} bytes: at most ${limit} are allowed`, { kind: "bad_attachment" });
    }
    if (name.length + media.length > MAX_TEXT_CHARS) {
      throw new Fail("the name or the media type of the attachment is too long", { kind: "bad_attachment" });
    }
    this.#message("attach", encode({ name, media, data: bytes.toString("base64") }).slice(1, -1), false);
  }

  /** Reports activity, which restarts the type's `stallTimeout`. */
  heartbeat(): void {
    this.#channel.send(`${this.flush()}{"heartbeat":{"n":${this.n}}}\n`);
  }

  /** Ends this process once its running attempts have ended; the worker replaces it. */
  retire(reason: string): void {
    this.#channel.send(`${this.flush()}{"retire":{"reason":${encodeText(reason.slice(0, MAX_TEXT_CHARS))}}}\n`);
  }

  /**
   * Spawns a child. It is published before this attempt's result; a failed attempt spawns nothing. The promise is
   * fulfilled when there is room for more: await it if there are many children.
   */
  spawn<P>(task: Target<P, unknown>, ...[params, options]: Arguments<NoInfer<P>, ChildOptions>): Promise<void> {
    const child = this.#child(new Call(task, params, options));
    this.#children.push(child);
    this.#childrenSize += child.length;
    this.#total += child.length;
    const limit = this.#channel.limits.children_bytes;
    if (this.#total > limit)
      throw new Fail(`the children have over ${limit} bytes; hint: use \`spawnNow\``, { kind: "bad_child" });
    if (this.#childrenSize <= BATCH) return Promise.resolve();
    this.#channel.send(this.#takeChildren());
    return this.#channel.room();
  }

  /** Publishes children at once and returns their ids. They remain if this attempt fails later. */
  async spawnNow(calls: Iterable<Call<unknown>>): Promise<string[]> {
    const ids: string[] = [];
    const children = Iterator.from(calls).map((call) => this.#child(call));
    for (const tasks of batches(children, (child) => child.length, BATCH)) {
      for (const id of await this.#channel.call(this as Context, tasks)) ids.push(id);
    }
    return ids;
  }

  /** Adds a continuation: a task that runs when this one and all its children have ended. */
  then<P>(task: Target<P, unknown>, ...[params, options]: Arguments<NoInfer<P>, ThenOptions>): void {
    if (typeof task === "function") throw new TypeError("a context is not a promise: do not await or return it");
    const call = new Call(task, params, options as CallOptions);
    this.#message("then", `"task":${this.#checked(call, "then", "continuation")}`, false);
  }

  /** Requests the attempt to stop. Called by the app, and by tests. */
  cancel(reason: string): void {
    this.reason = reason;
    this.#abort?.abort(new Cancelled(reason));
  }

  /** Returns the pending log lines and progress as messages. */
  flush(): string {
    const progress = this.#progress;
    this.#progress = "";
    if (!this.#lines.length) return progress;
    const dropped = this.#dropped ? [`(${this.#dropped} lines were dropped: the worker does not read them in time)`] : [];
    const lines = encode([...this.#lines, ...dropped]);
    this.#lines = [];
    this.#lineSize = this.#dropped = 0;
    return progress + this.#line("log", `"lines":${lines}`, this.#silent);
  }

  /** Returns everything that is pending at the end of the attempt as messages. */
  finish(succeeded: boolean): string {
    if (this.#partial) this.write("\n");
    return this.flush() + (succeeded ? this.#takeChildren() : "");
  }

  #append(lines: readonly string[]): void {
    const { log, log_line } = this.#channel.limits;
    for (const line of lines) {
      if (this.#lineSize > log) {
        this.#dropped += 1;
        continue;
      }
      const kept = (exceeds(line, log_line) ? truncated(line, log_line) : line).toWellFormed();
      this.#lines.push(kept);
      this.#lineSize += kept.length + 4;
    }
    this.#channel.buffered(this as Context);
  }

  /** Whether the pending log lines are to be sent without delay. */
  get isFull(): boolean {
    return this.#lineSize > BATCH;
  }

  #message(kind: string, fields: string, silent: boolean): void {
    this.#channel.send(this.flush() + this.#line(kind, fields, silent));
  }

  #line(kind: string, fields: string, silent: boolean): string {
    return `{"${kind}":{"n":${this.n},${fields}${silent ? ',"silent":true' : ""}}}\n`;
  }

  #child(call: Call<unknown>): string {
    const { children } = this.#channel.limits;
    const child = this.#checked(call, "spawn", "child");
    this.#count += 1;
    if (this.#count > children) throw new Fail(`more than ${children} children`, { kind: "bad_child" });
    return child;
  }

  /** Returns the document of a task, which must fit into a message. */
  #checked(call: Call<unknown>, use: "spawn" | "then", name: string): string {
    const document = encode(call.document(use));
    if (exceeds(document, this.#channel.limits.params + (64 << 10))) {
      throw new Fail(`a ${name} of type \`${call.target.name}\` is too large`, { kind: "bad_child" });
    }
    return document;
  }

  #takeChildren(): string {
    if (!this.#children.length) return "";
    const tasks = this.#children.join(",");
    this.#children = [];
    this.#childrenSize = 0;
    return `{"spawn":{"n":${this.n},"tasks":[${tasks}]}}\n`;
  }
}

/** Outcome of one task. */
export interface Ended<T = unknown> {
  id: string;
  type?: string;
  state: string;
  /** Result of a task that succeeded. */
  output?: T;
  /** Error of a task that did not. */
  error?: { kind: string; message: string; attempt?: number };
}

/** Context of a continuation with the outcomes of the task before it and of that task's children. */
export class Joined<T = unknown, S = unknown> extends Context<S> {
  /** Task that this one continues. */
  readonly task: Ended;
  /** Its other children, in the order they were first seen. */
  readonly results: readonly Ended<T>[];

  constructor(attempt: AttemptMessage, channel: Channel, task: Ended, results: readonly Ended<T>[]) {
    super(attempt, channel);
    this.task = task;
    this.results = results;
  }
}

function truncated(line: string, limit: number): string {
  // As in a stream: a character that is cut in two is left out.
  return new TextDecoder().decode(Buffer.from(line).subarray(0, limit), { stream: true });
}
