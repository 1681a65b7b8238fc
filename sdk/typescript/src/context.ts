/** Context of an attempt: the API available to a handler. */

import { AsyncLocalStorage } from "node:async_hooks";
import { types } from "node:util";

import { batches } from "./batches.ts";
import { Call, callsOf, type Group } from "./canvas.ts";
import { encode, encodeText, exceeds } from "./json.ts";
import { hintFor } from "./names.ts";
import type { CallOptions, ChildOptions, ThenOptions } from "./options.ts";
import { Cancelled, Fail, type SoftTimeout } from "./outcomes.ts";
import { attempted, clipped, isError, messageOf, stackOf, textOf } from "./shown.ts";
import type { Arguments, Target } from "./task.ts";

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
  /** Whether the params may be unsuitable for the handler. */
  isSuspect?: boolean;
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

/** Number of lines that are logged together: more would be over the limit of the log. */
const MAX_LINES = 1 << 20;

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
  #cause: Cancelled | SoftTimeout | undefined;
  #signalled: Error | undefined;
  #lines: { stream: Stream | undefined; lines: string[] }[] = [];
  #lineSize = 0;
  #dropped = 0;
  #progress = "";
  readonly #partials = new Map<Stream | undefined, string>();
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

  /** Signal that is aborted when the attempt should stop, also by its timeout or its `softTimeout`. */
  get signal(): AbortSignal {
    this.#signalled = new Error("`cx.signal` was last passed on here");
    this.#abort ??= new AbortController();
    if (this.#cause && !this.#abort.signal.aborted) this.#abort.abort(this.#cause);
    return this.#abort.signal;
  }

  /** Throws `Cancelled` if the attempt should stop, and `SoftTimeout` once after `softTimeout`. For long loops without a signal. */
  check(): void {
    const cause = this.#cause;
    if (this.reason === undefined) this.#cause = undefined;
    if (cause) throw cause;
  }

  /**
   * Publishes the state of the work, any JSON; the newest value replaces earlier ones. One that has no JSON form or is too
   * large is dropped, with a line in the log.
   */
  progress(value: unknown, options?: Silent): void {
    const silent = this.#isSilent(options);
    this.#unlessRefused("a progress value", () => {
      const text = encode(value);
      const limit = this.#channel.limits.progress;
      if (exceeds(text, limit)) throw new TypeError(`it has over ${limit} bytes`);
      if (!this.#channel.isCrowded) return this.#message("progress", `"value":${text}`, silent);
      this.#progress = this.#line("progress", `"value":${text}`, silent);
      this.#channel.buffered(this as Context);
    });
  }

  /**
   * Appends lines to the task's log: text, an array of lines, or any value, which is shown as `console.log` does. `silent`
   * ones do not count as activity for `stallTimeout`.
   */
  log(lines: unknown, options?: Silent): void {
    const silent = this.#isSilent(options);
    if (silent !== this.#silent) this.#channel.send(this.flush());
    this.#silent = silent;
    const values = attempted(() => Array.isArray(lines) && (Array.prototype.slice.call(lines, 0, MAX_LINES) as unknown[]));
    this.#append((values || [lines]).flatMap((line) => loggedText(line).split("\n")));
  }

  /**
   * Appends text to the task's log, as `console.log` does; an incomplete line is kept until it is completed. A carriage
   * return within a line starts it again, as on a terminal: of a progress bar, the last state is kept. `stream` is the output
   * stream that the lines are shown with, if they come from one.
   */
  write(text: string, stream?: Stream): void {
    const whole = (this.#partials.get(stream) ?? "") + text;
    const lines = whole.split("\n").map((line) => line.slice(line.slice(0, -1).lastIndexOf("\r") + 1));
    const isTooLong = lines.at(-1)!.length > this.#channel.limits.log_line;
    this.#partials.set(stream, isTooLong ? "" : lines.pop()!);
    if (lines.length) this.#append(lines, stream);
  }

  /** Marks the task with a warning until it ends: text, an error, or any value, which is shown as text. */
  warn(message: unknown, options?: Silent): void {
    const text = typeof message === "string" ? clipped(message, MAX_TEXT_CHARS) : textOf(message);
    this.#message("warn", `"message":${encodeText(text)}`, this.#isSilent(options));
  }

  /**
   * Stores a small value with the task, replacing an earlier one of the same name. One that is too large or has no valid
   * name is dropped, with a line in the log.
   */
  attach(name: string, data: string | Uint8Array, options?: { media?: string }): void {
    this.#checkOptions(options, ["media"], "attach");
    this.#unlessRefused(`the attachment \`${clipped(textOf(name), 100)}\``, () => {
      const media = options?.media ?? "application/octet-stream";
      if (typeof data !== "string" && !types.isUint8Array(data))
        throw new TypeError("its data is neither text nor a `Uint8Array`");
      const bytes = Buffer.from(data as Uint8Array);
      const limit = this.#channel.limits.attachment;
      if (bytes.length > limit) throw new TypeError(`it has ${bytes.length} bytes: at most ${limit} are allowed`);
      if (typeof name !== "string" || typeof media !== "string") throw new TypeError("its name or media type is no text");
      if (name.length + media.length > MAX_TEXT_CHARS) throw new TypeError("its name or media type is too long");
      this.#message("attach", encode({ name, media, data: bytes.toString("base64") }).slice(1, -1), false);
    });
  }

  /** Reports activity, which restarts the type's `stallTimeout`. */
  heartbeat(): void {
    this.#channel.send(`${this.flush()}{"heartbeat":{"n":${this.n}}}\n`);
  }

  /** Ends this process once its running attempts have ended; the worker replaces it. */
  retire(reason: string): void {
    this.#channel.send(`${this.flush()}{"retire":{"reason":${encodeText(textOf(reason))}}}\n`);
  }

  /**
   * Spawns a child. It is published before this attempt's result; a failed attempt spawns nothing. The promise is
   * fulfilled when there is room for more: await it if there are many children.
   */
  spawn<P>(task: Target<P, unknown, never>, ...[params, options]: Arguments<NoInfer<P>, ChildOptions>): Promise<void>;
  /** Spawns a call, such as a chain, or all calls of a group. */
  spawn(calls: Call | Group): Promise<void>;
  spawn(given: unknown, params?: unknown, options?: ChildOptions): Promise<void> {
    const calls = callsOf(given, "spawn") ?? [new Call(given as Target<never, unknown>, params, options)];
    return calls.reduce((_, call) => this.#spawn(call), Promise.resolve());
  }

  #spawn(call: Call): Promise<void> {
    const child = this.#child(call);
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
  async spawnNow(calls: Iterable<Call>): Promise<string[]> {
    const ids: string[] = [];
    const children = Iterator.from(calls).map((call) => this.#child(call));
    for (const tasks of batches(children, (child) => child.length, BATCH)) {
      for (const id of await this.#channel.call(this as Context, tasks)) ids.push(id);
    }
    return ids;
  }

  /** Adds a continuation: a task that runs when this one and all its children have ended. */
  then<C>(task: Target<never, unknown, C>, ...[params, options]: Arguments<NoInfer<C>, ThenOptions>): void;
  /** Adds a call as a continuation, such as a chain. */
  then(call: Call): void;
  then(given: unknown, params?: unknown, options?: ThenOptions): void {
    if (typeof given === "function") throw new TypeError("a context is not a promise: do not await or return it");
    const call = callsOf(given, "then")?.[0] ?? new Call(given as Target<never, unknown>, params, options as CallOptions);
    this.#message("then", `"task":${this.#checked(call, "then", "continuation")}`, false);
  }

  /** Requests the attempt to stop. Called by the app, and by tests. */
  cancel(reason: string, detail = reason): void {
    this.reason = reason;
    this.interrupt(new Cancelled(detail));
  }

  /** Aborts the signal, and lets `check()` throw the error. Called by the app. */
  interrupt(cause: Cancelled | SoftTimeout): void {
    this.#cause = cause;
    this.#abort?.abort(cause);
  }

  /** Stack of the last use of `signal`, which is where the attempt probably waits. */
  get signalled(): string | undefined {
    return stackOf(this.#signalled);
  }

  /** Returns the pending log lines and progress as messages. */
  flush(): string {
    const progress = this.#progress;
    this.#progress = "";
    if (!this.#lines.length) return progress;
    const pending = this.#lines;
    if (this.#dropped) {
      const lines = [`(${this.#dropped} lines were dropped: the worker does not read them in time)`];
      pending.push({ stream: undefined, lines });
    }
    this.#lines = [];
    this.#lineSize = this.#dropped = 0;
    const message = ({ stream, lines }: (typeof pending)[number]) =>
      this.#line("log", `"lines":${encode(lines)}${stream ? `,"stream":"${stream}"` : ""}`, this.#silent);
    return progress + pending.map(message).join("");
  }

  /** Returns everything that is pending at the end of the attempt as messages. */
  finish(succeeded: boolean): string {
    for (const [stream, partial] of this.#partials) if (partial) this.write("\n", stream);
    return this.flush() + (succeeded ? this.#takeChildren() : "");
  }

  /** Sends something that is shown with the task. What cannot be sent never fails the attempt: the log has the reason. */
  #unlessRefused(what: string, send: () => void): void {
    try {
      send();
    } catch (error) {
      this.log(`${what} was dropped: ${messageOf(error)}`);
    }
  }

  #isSilent(options: Silent | undefined): boolean {
    this.#checkOptions(options, ["silent"], "progress, log and warn");
    return attempted(() => options?.silent) === true;
  }

  #checkOptions(options: object | undefined, allowed: string[], owner: string): void {
    const names = typeof options === "object" ? attempted(() => Object.keys(options)) : undefined;
    const unknown = names?.find((name) => !allowed.includes(name));
    if (unknown !== undefined) this.log(`\`${clipped(unknown, 64)}\` is not an option of ${owner}${hintFor(unknown, allowed)}`);
  }

  #append(lines: readonly string[], stream?: Stream): void {
    const { log, log_line } = this.#channel.limits;
    for (const line of lines) {
      if (this.#lineSize > log) {
        this.#dropped += 1;
        continue;
      }
      const kept = (exceeds(line, log_line) ? truncated(line, log_line) : line).toWellFormed();
      const last = this.#lines.at(-1);
      if (last?.stream === stream && last) last.lines.push(kept);
      else this.#lines.push({ stream, lines: [kept] });
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

  #child(call: Call): string {
    const { children } = this.#channel.limits;
    const child = this.#checked(call, "spawn", "child");
    this.#count += 1;
    if (this.#count > children) throw new Fail(`more than ${children} children`, { kind: "bad_child" });
    return child;
  }

  /** Returns the document of a task, which must fit into a message. */
  #checked(call: Call, use: "spawn" | "then", name: string): string {
    const fields = call.document(use);
    for (const label of LABELS) {
      const whole = wellFormed(fields[label]);
      if (whole === fields[label]) continue;
      fields[label] = whole;
      this.log(`half of a character in \`${label}\` of a ${name} of type \`${call.target.name}\` was replaced`);
    }
    const document = encode(fields);
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

/** Output stream of a process. */
export type Stream = "stdout" | "stderr";

/** Option of progress, log lines and warnings: they do not count as activity for `stallTimeout`. */
export interface Silent {
  silent?: boolean;
}

/** Fields of a task that are text for people. */
const LABELS = ["name", "tags", "creator"];

/** Returns text, or a list with texts, that UTF-8 can represent; the value itself if it is. */
function wellFormed(value: unknown): unknown {
  if (typeof value === "string") return value.toWellFormed();
  if (!Array.isArray(value) || value.every((each) => wellFormed(each) === each)) return value;
  return value.map(wellFormed);
}

/** Returns what the log has of a value: of an error its stack, as `console.log`. */
function loggedText(value: unknown): string {
  if (typeof value === "string") return value;
  return (isError(value) && stackOf(value)) || textOf(value);
}

function truncated(line: string, limit: number): string {
  // As in a stream: a character that is cut in two is left out.
  return new TextDecoder().decode(Buffer.from(line).subarray(0, limit), { stream: true });
}
