/** A session with the worker: receives attempts, runs them, and sends their answers. */

import type { AnyApp } from "./app.ts";
import { Attempt, errorLine, isSuspect } from "./attempt.ts";
import { LoopWatch } from "./blocked.ts";
import { type Connection, ConnectionProblem } from "./connection.ts";
import { type AttemptMessage, type Channel, type Context, LIMITS, type Limits } from "./context.ts";
import type { Bundle } from "./declare.ts";
import { decode, encode } from "./json.ts";
import { reportLoads } from "./loaded.ts";
import { Outcome, Retry, SpawnFailed } from "./outcomes.ts";
import { isInstance, kindOf, messageOf, nameOf } from "./shown.ts";
import type { Task } from "./task.ts";
import { VERSION } from "./version.ts";

export const PROTOCOL = 1;

/** Delay of log lines, in milliseconds, if many come in this time: then they are sent together. */
const LOG_DELAY_MS = 20;

/** Number of times in `LOG_DELAY_MS` that log lines are sent at once: what a process wrote before it died is not lost. */
const MAX_PROMPT = 50;

/** Interval of the messages that find out whether the worker still receives, after it has ended its stream. */
const PROBE_MS = 1000;

/** First message of the worker. */
export interface Welcome {
  protocol: number;
  types?: string[];
  slots?: number;
  dev?: boolean;
  limits: Partial<Limits>;
}

interface Call {
  resolve: (ids: string[]) => void;
  reject: (error: Error) => void;
}

/** Connection of this process with its worker. */
export class Session implements Channel {
  readonly limits: Limits;
  state: unknown;
  readonly #connection: Connection;
  readonly #slots: number;
  readonly #tasks = new Map<string, Task<never, unknown> | Bundle>();
  readonly #running = new Map<number, Attempt>();
  readonly #calls = new Map<number, Call>();
  readonly #waiting: string[] = [];
  readonly #unsent = new Set<Context>();
  readonly #onFinished: () => void;
  readonly #app: AnyApp;
  readonly #watch: LoopWatch | undefined;
  readonly #isDev: boolean;
  #lastCall = 0;
  #prompt = 0;
  #promptSince = -Infinity;

  /** `onFinished` is called once the worker has ended the stream and all attempts are answered. */
  constructor(connection: Connection, app: AnyApp, welcome: Welcome, onFinished: () => void) {
    this.#connection = connection;
    this.limits = { ...LIMITS, ...welcome.limits };
    this.#app = app;
    if (app.stacks ?? welcome.dev) this.#watch = new LoopWatch(this.#running, ({ cx }) => this.#sendNow(cx));
    this.#isDev = welcome.dev ?? false;
    this.#slots = welcome.slots ?? app.slots;
    this.#onFinished = onFinished;
    for (const [name, task] of app.declared) {
      if (!welcome.types || welcome.types.includes(name)) this.#tasks.set(name, task);
    }
  }

  /** Reports that the app can run attempts. */
  begin(): void {
    const types = [...this.#tasks.values()].map((task) => task.declaration());
    const { deno } = process.versions;
    const runtime = deno ? `Deno ${deno}` : `Node.js ${process.version}`;
    const sdk = `kafleet ${VERSION}`;
    const schedules = this.#schedules();
    const ready = { protocol: PROTOCOL, sdk, runtime, slots: this.#slots, responsive: true, types, schedules };
    if (this.#isDev) reportLoads((line) => this.send(line));
    this.send(`{"ready":${encode(ready)}}\n`);
  }

  /** Returns the schedules of the types that this process runs, and of those of other programs, by their ids; nothing without any. */
  #schedules(): Record<string, unknown> | undefined {
    const declared = [...this.#app.declaredSchedules].filter(
      ([, { type }]) => this.#tasks.has(type) || !this.#app.declared.has(type),
    );
    return declared.length ? Object.fromEntries(declared.map(([id, { spec }]) => [id, spec])) : undefined;
  }

  /** Handles a message of the worker. */
  receive(line: string): void {
    const message = parse(line);
    if (message === undefined) return this.#unreadable(line);
    const { kind, fields, isExact } = message;
    if (kind === "attempt") this.#start({ ...(fields as unknown as AttemptMessage), isSuspect: isSuspect(line, isExact) });
    else if (kind === "cancel") this.#running.get(fields["n"] as number)?.cancel(fields["reason"] as string);
    else if (kind === "reply") this.#reply(fields as unknown as Reply);
    else if (kind === "ping") this.send(`{"pong":{"at":${encode(fields["at"])}}}\n`);
  }

  /** Ends the calls that the worker will not answer, and the session when no attempt runs. */
  end(): void {
    for (const call of [...this.#calls.keys()]) this.#reply({ call, error: ENDED });
    if (!this.#running.size) return this.#onFinished();
    // A worker that has died does not wait for the answers: the socket reports it when something is sent.
    setInterval(() => [...this.#running.values()][0]?.cx.heartbeat(), PROBE_MS).unref();
  }

  /** Ends an attempt with an error that its handler did not catch. Returns whether there was one to end. */
  failed(cx: Context | undefined, error: unknown): boolean {
    const attempt = cx && this.#running.get(cx.n);
    if (attempt) this.#answer(attempt, attempt.failed(error));
    return attempt !== undefined;
  }

  /** Requests all running attempts to stop. */
  cancelAll(): void {
    for (const attempt of this.#running.values()) attempt.cancel("shutdown");
  }

  send(lines: string): void {
    this.#connection.send(lines);
  }

  get isCrowded(): boolean {
    return this.#connection.isCrowded;
  }

  room(): Promise<void> {
    return this.#connection.room();
  }

  call(cx: Context, tasks: string[]): Promise<string[]> {
    const call = ++this.#lastCall;
    const message = `{"spawn":{"n":${cx.n},"call":${call},"tasks":[${tasks.join(",")}]}}\n`;
    return new Promise((resolve, reject) => {
      this.#calls.set(call, { resolve, reject });
      if (this.#connection.ended) this.#reply({ call, error: ENDED });
      else if (this.#calls.size > this.limits.calls) this.#waiting.push(message);
      else this.send(cx.flush() + message);
    });
  }

  buffered(cx: Context): void {
    if (this.#unsent.size === 0 && this.#isPrompt()) return this.#sendNow(cx);
    if (cx.isFull && !this.isCrowded) return this.send(cx.flush());
    if (!this.#unsent.size) setTimeout(() => void this.#sendPending(), LOG_DELAY_MS);
    this.#unsent.add(cx);
  }

  /** Whether log lines may be sent at once: some in each while, and only if the socket takes them. */
  #isPrompt(): boolean {
    const now = performance.now();
    if (now - this.#promptSince >= LOG_DELAY_MS) [this.#prompt, this.#promptSince] = [0, now];
    this.#prompt += 1;
    return this.#prompt <= MAX_PROMPT && !this.isCrowded;
  }

  /** Sends everything that is pending. For the end of the process. */
  flush(): void {
    for (const { cx } of this.#running.values()) this.send(cx.flush());
    this.#connection.flush();
  }

  /** Sends what is pending of all attempts when there is room; until then it is kept, up to the limits. */
  async #sendPending(): Promise<void> {
    await this.room();
    for (const cx of this.#unsent) if (!cx.ended) this.send(cx.flush());
    this.#unsent.clear();
  }

  #start(message: AttemptMessage): void {
    let attempt: Attempt;
    try {
      attempt = new Attempt(this.#select(message), message, this);
    } catch (error) {
      const { outcome, kind } = isInstance(error, Outcome) ? error : { outcome: "retry", kind: kindOf(nameOf(error)) };
      return this.send(errorLine(message.n, outcome, kind, messageOf(error)));
    }
    this.#running.set(message.n, attempt);
    this.#watch?.begin(message.left_ms);
    void attempt.run().then((lines) => this.#answer(attempt, lines));
  }

  /** Passes the log lines of an attempt to the socket before this call returns, also if the event loop is blocked afterwards. */
  #sendNow(cx: Context): void {
    this.send(cx.flush());
    this.#connection.flush();
  }

  /** Returns the task that runs an attempt. Throws the outcome of an attempt that none runs. */
  #select({ type, params }: AttemptMessage): Task<never, unknown> {
    const declared = this.#tasks.get(type);
    if (declared) return declared.select(params);
    throw new Retry(`the app does not declare \`${type}\``, { kind: "unknown_type" });
  }

  #answer(attempt: Attempt, lines: string): void {
    const { cx } = attempt;
    if (cx.ended) return;
    cx.ended = true;
    this.#running.delete(cx.n);
    this.send(lines);
    if (this.#connection.ended && !this.#running.size) this.#onFinished();
  }

  #reply({ call, ids, error }: Reply): void {
    const pending = this.#calls.get(call);
    this.#calls.delete(call);
    const next = this.#connection.ended ? undefined : this.#waiting.shift();
    if (next) this.send(next);
    if (error) pending?.reject(new SpawnFailed(error.message, { kind: error.kind }));
    else pending?.resolve(ids ?? []);
  }

  #unreadable(line: string): void {
    const n = /^\{"attempt":\{"n":(\d+)/.exec(line)?.[1];
    if (!n) throw new ConnectionProblem(`the worker sent an invalid message: ${line.slice(0, 200)}`);
    this.send(errorLine(Number(n), "dead", "bad_params", "the params cannot be read"));
  }
}

interface Reply {
  call: number;
  ids?: string[];
  error?: { kind: string; message: string };
}

const ENDED = { kind: "shutdown", message: "the worker is shutting down: it publishes no more children" };

interface Message {
  kind: string;
  fields: Record<string, unknown>;
  isExact: boolean;
}

function parse(line: string): Message | undefined {
  try {
    const { value, isExact } = decode(line);
    const [entry, more] = Object.entries(value as Record<string, Record<string, unknown>>);
    return entry && !more ? { kind: entry[0], fields: entry[1], isExact } : undefined;
  } catch {
    return undefined;
  }
}
