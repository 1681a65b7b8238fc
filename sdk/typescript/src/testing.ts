/**
 * Tests of apps: `trial` runs one attempt, `trial.tree` a task with all that follows, `recorded` collects submitted tasks, `fleet`
 * runs a real fleet in memory.
 */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, open, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import { App, type AnyApp } from "./app.ts";
import { AttachedApp } from "./attached.ts";
import { type Recorded, recorder } from "./client.ts";
import { testFleets } from "./handle.ts";
import { refuseUnknown } from "./names.ts";
import { findProgram } from "./program.ts";
import { tree } from "./tree.ts";
import { trial as trialOfAttempt } from "./trial.ts";
import type { Ended, Joined } from "./upstream.ts";

const START_MS = 90_000;
const STOP_MS = 30_000;
const CANCEL_MS = 5_000;

/**
 * Runs one attempt in this process, through JSON and the schemas of the type. `trial.tree` runs a task with its retries, children
 * and continuations, in virtual time.
 */
export const trial: typeof trialOfAttempt & { readonly tree: typeof tree } = Object.assign(trialOfAttempt, { tree });

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
  /**
   * App whose handlers run in the process of the test, without timeouts, so that mocks and breakpoints work. `target` then only
   * names its program, whose settings in kafleet.toml it gets.
   */
  inProcess?: AnyApp;
}

/** A running `kafleet dev`. While it runs, the message of a `TaskFailed` has the log of the task that failed. */
export class Fleet implements AsyncDisposable {
  /** URL of its API; also in KAFLEET_API, so that the clients of all apps use it. */
  readonly api: string;
  readonly #options: FleetOptions;
  readonly #folder: string;
  readonly #attached: AttachedApp | undefined;
  readonly #earlier = process.env["KAFLEET_API"];
  #running: Running;

  constructor(options: FleetOptions, folder: string, attached: AttachedApp | undefined, running: Running) {
    this.api = running.url;
    this.#options = options;
    this.#folder = folder;
    this.#attached = attached;
    this.#running = running;
    process.env["KAFLEET_API"] = this.api;
    testFleets.add(this);
  }

  /** Returns its output, since its start or its last reset. */
  log(): Promise<string> {
    return readFile(join(this.#folder, "log"), "utf8");
  }

  /** Starts it again at the same URL: without tasks, dead letters, schedules, pauses and limits. For the time between two tests. */
  async reset(): Promise<void> {
    await stopProcess(this.#running);
    await this.#attached?.cancel(CANCEL_MS);
    this.#running = await begin(this.#options, this.#folder, new URL(this.api).host, this.#attached);
  }

  /** Ends the fleet. */
  async stop(): Promise<void> {
    if (this.#earlier === undefined) delete process.env["KAFLEET_API"];
    else process.env["KAFLEET_API"] = this.#earlier;
    testFleets.delete(this);
    await stopProcess(this.#running);
    await this.#attached?.close(CANCEL_MS);
    await rm(this.#folder, { recursive: true, force: true });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }
}

/** Runs `kafleet dev` with an app, in memory, on a free port. The program is KAFLEET_BINARY or that of the npm packages. */
export async function fleet(options: FleetOptions = {}): Promise<Fleet> {
  refuseUnknown(options, ["target", "command", "cwd", "inProcess"], "`fleet`");
  const attached = await attach(options);
  const folder = await mkdtemp(join(tmpdir(), "kafleet-dev-"));
  try {
    return new Fleet(options, folder, attached, await begin(options, folder, "127.0.0.1:0", attached));
  } catch (error) {
    await attached?.close(CANCEL_MS);
    throw error;
  }
}

/** Listens for the worker of a fleet whose handlers run in this process. */
async function attach({ target = "", command, cwd = "", inProcess }: FleetOptions): Promise<AttachedApp | undefined> {
  if (inProcess === undefined) return undefined;
  if (!(inProcess instanceof App)) {
    throw new TypeError("`inProcess` of `fleet` is no `App`; hint: import the app of the tasks, and write `inProcess: app`");
  }
  if (command) throw new TypeError("`fleet` takes `command` or `inProcess`, not both");
  return AttachedApp.listen(inProcess, dirname(resolve(cwd, target)));
}

interface Running {
  url: string;
  child: ChildProcess;
  exit: Promise<unknown>;
}

async function begin(
  { target, command, cwd }: FleetOptions,
  folder: string,
  address: string,
  attached: AttachedApp | undefined,
): Promise<Running> {
  const program = findProgram();
  const log = await open(join(folder, "log"), "w");
  const inProcess = attached && ["--no-timeouts", "--", ...attached.command(program, target)];
  const app = inProcess ?? (command ? ["--", ...command] : target ? [target] : []);
  // Its own group: a SIGINT of the terminal ends the tests first.
  const child = spawn(program, ["dev", "--no-sample", "--no-reload", "--listen", address, ...app], {
    cwd,
    detached: true,
    stdio: ["ignore", log.fd, log.fd],
  });
  const exit = once(child, "exit").catch((error: Error) => error);
  try {
    return { url: await urlOf(child, exit, join(folder, "log")), child, exit };
  } catch (error) {
    await stopProcess({ child, exit });
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

async function stopProcess({ child, exit }: Pick<Running, "child" | "exit">): Promise<void> {
  child.kill("SIGINT");
  const timer = setTimeout(() => child.kill("SIGKILL"), STOP_MS);
  await exit;
  clearTimeout(timer);
}

export type { Ended, Joined, Recorded };
export { type TreeOptions, TreeTrial } from "./tree.ts";
export { TreeTask } from "./tree_task.ts";
export { type Failure, type TaskDocument, Trial, type TrialOptions } from "./trial.ts";
