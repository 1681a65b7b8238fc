/** Tests of apps: `trial` runs one attempt, `recorded` collects submitted tasks, `fleet` runs a real fleet in memory. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, open, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import { Attempt } from "./attempt.ts";
import { type Recorded, recorder } from "./client.ts";
import { type Channel, type Context, type Ended, type Joined, LIMITS, type Limits } from "./context.ts";
import { decode, encode } from "./json.ts";
import { refuseUnknown } from "./names.ts";
import { captureOutput } from "./output.ts";
import { findProgram } from "./program.ts";
import type { Arguments, Handler, Task } from "./task.ts";

const START_MS = 90_000;
const STOP_MS = 30_000;

/** Failure of an attempt. */
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

  constructor(state: unknown) {
    this.state = state;
  }

  /** Result, converted to JSON and back. Throws if the attempt has failed. */
  get output(): R {
    if (this.result) return this.result.value;
    throw new Error(`the attempt failed: ${this.failure?.kind}: ${this.failure?.stack ?? this.failure?.message}`);
  }

  send(lines: string): void {
    for (const line of lines.split("\n")) if (line) this.#receive(line);
  }

  async room(): Promise<void> {}

  async call(cx: Context, tasks: string[]): Promise<string[]> {
    const children = tasks.map((task) => decode(task).value as TaskDocument);
    const first = this.children.length;
    this.children.push(...children);
    return children.map((child, n) => `${cx.id}:${child["id"] ?? first + n}`);
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
export async function trial<P, R>(
  task: Task<P, R, (params: never, cx: never) => unknown>,
  ...[params, options = {}]: Arguments<NoInfer<P>, TrialOptions>
): Promise<Trial<R>> {
  refuseUnknown(options, TRIAL_OPTIONS, "`trial`");
  const { id = "trial", run = 1, number = 1, state, cancelled } = options;
  const channel = new Trial<R>(state);
  const { task: before = { id, state: "succeeded" }, results = [] } = options;
  const own = task.wrapped(params);
  const given = task.joined ? { params: own, task: before, results } : own;
  const { value } = decode(encode(given));
  const message = { n: 1, type: task.type, id, run, number, left_ms: 60_000, params: value, isSuspect: true };
  const attempt = new Attempt(task as Task<never, unknown, Handler>, message, channel);
  if (cancelled) attempt.cx.cancel(cancelled);
  captureOutput();
  channel.send(await attempt.run());
  attempt.cx.ended = true;
  if (channel.result) channel.result = { value: await task.received(channel.result.value) };
  return channel;
}

/** Collects the documents of the tasks that a function submits; nothing is created. */
export async function recorded(run: () => unknown): Promise<Recorded[]> {
  const submitted: Recorded[] = [];
  await recorder.run(submitted, async () => run());
  return submitted;
}

/** Options of a fleet. */
export interface FleetOptions {
  /** Program of the app, such as `tasks.ts`. */
  target?: string;
  /** Command of the app, instead of `target`. */
  command?: readonly string[];
  cwd?: string;
}

/** A running `kafleet dev`. */
export class Fleet implements AsyncDisposable {
  /** URL of its API; also in KAFLEET_API, so that the clients of all apps use it. */
  readonly api: string;
  readonly #process: ChildProcess;
  readonly #exit: Promise<unknown>;
  readonly #folder: string;
  readonly #earlier = process.env["KAFLEET_API"];

  constructor(api: string, process: ChildProcess, exit: Promise<unknown>, folder: string) {
    this.api = api;
    this.#process = process;
    this.#exit = exit;
    this.#folder = folder;
    globalThis.process.env["KAFLEET_API"] = api;
  }

  /** Returns its output. */
  log(): Promise<string> {
    return readFile(join(this.#folder, "log"), "utf8");
  }

  /** Ends the fleet. */
  async stop(): Promise<void> {
    if (this.#earlier === undefined) delete process.env["KAFLEET_API"];
    else process.env["KAFLEET_API"] = this.#earlier;
    await stopProcess(this.#process, this.#exit);
    await rm(this.#folder, { recursive: true, force: true });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }
}

/** Runs `kafleet dev` with an app, in memory, on a free port. The program is KAFLEET_BINARY or that of the npm packages. */
export async function fleet(options: FleetOptions = {}): Promise<Fleet> {
  refuseUnknown(options, ["target", "command", "cwd"], "`fleet`");
  const { target, command, cwd } = options;
  const program = findProgram();
  const folder = await mkdtemp(join(tmpdir(), "kafleet-dev-"));
  const log = await open(join(folder, "log"), "w");
  const app = command ? ["--", ...command] : target ? [target] : [];
  // Its own group: a SIGINT of the terminal ends the tests first.
  const child = spawn(program, ["dev", "--no-sample", "--no-reload", "--listen", "127.0.0.1:0", ...app], {
    cwd,
    detached: true,
    stdio: ["ignore", log.fd, log.fd],
  });
  const exit = once(child, "exit").catch((error: Error) => error);
  try {
    return new Fleet(await urlOf(child, exit, join(folder, "log")), child, exit, folder);
  } catch (error) {
    await stopProcess(child, exit);
    throw error;
  } finally {
    await log.close();
  }
}

async function urlOf(child: ChildProcess, exit: Promise<unknown>, log: string): Promise<string> {
  const deadline = performance.now() + START_MS;
  for (;;) {
    const ended = await Promise.race([exit, sleep(20)]);
    const output = await readFile(log, "utf8");
    if (ended instanceof Error) throw new Error(`\`kafleet dev\` cannot be started: ${ended.message}`, { cause: ended });
    const url = /^ +api +(http:\/\/\S+)/m.exec(output)?.[1];
    if (url && output.includes("serving until")) return url;
    if (!ended && performance.now() < deadline) continue;
    const state = ended ? `ended with code ${child.exitCode}` : "is not ready";
    throw new Error(`\`kafleet dev\` ${state}:\n${output.slice(-4096)}`);
  }
}

async function stopProcess(child: ChildProcess, exit: Promise<unknown>): Promise<void> {
  child.kill("SIGINT");
  const timer = setTimeout(() => child.kill("SIGKILL"), STOP_MS);
  await exit;
  clearTimeout(timer);
}

export type { Ended, Joined, Recorded };
