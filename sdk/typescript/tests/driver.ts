/** Plays the worker: starts an app process with a socket as file descriptor 0, and exchanges messages with it. */

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, mkdtempSync, openSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { connect, createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";

export const ROOT = join(import.meta.dirname, "../../..");
export const APPS = join(import.meta.dirname, "apps");

/** Milliseconds that a test waits for a message or an exit. */
export const PATIENCE_MS = 60_000;

export type Fields = Record<string, any>;
export type Message = Record<string, Fields>;

/** Event of a recorded session. */
export interface Event {
  from: "worker" | "app";
  message?: Message;
  text?: string;
  end?: boolean;
}

/** A recorded session. */
export interface Recording {
  name: string;
  head: { app: string; types: string[] };
  events: Event[];
}

export const SESSIONS: Recording[] = readdirSync(join(ROOT, "schemas/examples/app")).map((file) => {
  const lines = readFileSync(join(ROOT, "schemas/examples/app", file), "utf8")
    .trimEnd()
    .split("\n");
  const [head, ...events] = lines.map((line) => JSON.parse(line));
  return { name: basename(file, ".jsonl"), head, events };
});

/** Options of an app process. */
export interface Options {
  cwd?: string;
  env?: Record<string, string>;
  /** File that is opened as file descriptor 0 instead of a socket. */
  stdin?: string;
  arguments?: string[];
}

/** Context of a test: calls a function at its end. Node 22 has no `await using`. */
export interface Scope {
  after(end: () => Promise<void>): void;
}

/** One app process and the worker's end of its socket. */
export class Worker {
  readonly process: ChildProcess;
  readonly socket: Socket;
  readonly exit: Promise<number | string>;
  #messages: Message[] = [];
  #rest = "";
  #ended = false;
  #changed: () => void = () => {};
  #attempts = 0;
  #output = "";

  private constructor(socket: Socket, process: ChildProcess) {
    this.socket = socket;
    this.process = process;
    this.exit = once(process, "close").then(([code, signal]) => code ?? signal);
    for (const stream of [process.stdout!, process.stderr!]) stream.on("data", (chunk) => (this.#output += chunk));
    socket.setEncoding("utf8");
    socket.on("data", (chunk) => this.#receive(chunk as unknown as string));
    socket.on("error", () => this.#end());
    socket.on("end", () => this.#end());
  }

  /** Starts an app, which ends with the test. */
  static async start(t: Scope, program = "conformance.ts", options: Options = {}): Promise<Worker> {
    const folder = mkdtempSync(join(tmpdir(), "kafleet-ts-"));
    const server = createServer({ pauseOnConnect: true }).listen(join(folder, "socket"));
    await once(server, "listening");
    const ours = connect({ path: join(folder, "socket"), allowHalfOpen: true });
    const [theirs] = (await once(server, "connection")) as [Socket];
    const stdin = options.stdin ? openSync(options.stdin, "r") : theirs;
    const child = spawn(process.execPath, [...(options.arguments ?? []), program], {
      cwd: options.cwd ?? APPS,
      env: { ...environment(), KAFLEET_APP: "shop", ...options.env },
      stdio: [stdin, "pipe", "pipe"],
      detached: true,
    });
    theirs.destroy();
    server.close();
    if (typeof stdin === "number") closeSync(stdin);
    rmSync(folder, { recursive: true });
    const worker = new Worker(ours, child);
    t.after(() => worker.stop());
    return worker;
  }

  /** Starts an app and waits until it is ready. */
  static async ready(t: Scope, program?: string, options: Options & { welcome?: Fields } = {}): Promise<Worker> {
    const worker = await Worker.start(t, program, options);
    await worker.welcome(options.welcome);
    return worker;
  }

  async stop(): Promise<void> {
    this.socket.destroy();
    if (this.process.exitCode === null && this.process.signalCode === null) process.kill(-this.process.pid!, "SIGKILL");
    await this.exit;
  }

  sendLine(line: string): void {
    this.socket.write(`${line}\n`);
  }

  send(kind: string, fields: Fields): void {
    this.sendLine(JSON.stringify({ [kind]: fields }));
  }

  sendWelcome(more: Fields = {}): void {
    const fields = { protocol: 1, app: "shop", worker: "w-1", version: "0.1.0", grace_ms: 5000, limits: {}, dev: false };
    this.send("welcome", { ...fields, ...more });
  }

  /** Sends `welcome` and returns the fields of `ready`. */
  async welcome(more: Fields = {}): Promise<Fields> {
    this.sendWelcome(more);
    const message = await this.receive();
    assert.ok(message?.["ready"], `${JSON.stringify(message)} ${this.#output}`);
    return message["ready"];
  }

  /** Sends an attempt and returns its number. */
  begin(type: string, params: unknown = {}, more: Fields = {}): number {
    const n = ++this.#attempts;
    this.send("attempt", { n, type, id: `task-${n}`, run: 1, number: 1, left_ms: 60_000, ...more, params });
    return n;
  }

  /** Waits for the next message; `undefined` at the end of the stream. */
  async receive(): Promise<Message | undefined> {
    await this.#until(() => this.#messages.length > 0 || this.#ended, "a message");
    return this.#messages.shift();
  }

  /** Waits for the next message of a kind; others are skipped. */
  async next(...kinds: string[]): Promise<Fields> {
    for (;;) {
      const message = await this.receive();
      assert.ok(message, `the stream ended before ${kinds}: ${this.#output}`);
      const [kind, fields] = Object.entries(message)[0]!;
      if (kinds.includes(kind)) return fields;
    }
  }

  /** Runs one attempt and returns its log lines and its answer. */
  async run(type: string, params: unknown = {}, more: Fields = {}): Promise<Fields & { lines: string[] }> {
    this.begin(type, params, more);
    const lines: string[] = [];
    for (;;) {
      const message = await this.receive();
      assert.ok(message, `the stream ended before the answer: ${this.#output}`);
      if (message["log"]) lines.push(...message["log"]["lines"]);
      const answer = message["ok"] ?? message["error"];
      if (answer) return { ...answer, lines };
    }
  }

  /** Ends the worker's stream. */
  end(): void {
    this.socket.end();
  }

  /** Waits for the process to exit, and returns its output. */
  async exited(code: number | string): Promise<string> {
    const found = await Promise.race([this.exit, expired("the exit of the process")]);
    assert.equal(found, code, this.#output);
    return this.#output;
  }

  /** Asserts that the app sends nothing but log lines in the next 100 ms. */
  async expectSilence(): Promise<void> {
    await new Promise((resolve) => setTimeout(resolve, 100));
    const others = this.#messages.filter((message) => !message["log"]);
    assert.deepEqual(others, []);
  }

  /** Plays a session; `send` sends a line of the worker. */
  async play(events: Event[], send: (line: string) => void | Promise<void> = (line) => this.sendLine(line)): Promise<void> {
    for (const event of events) {
      if (event.from === "worker" && event.end) this.end();
      else if (event.from === "worker") await send(event.text ?? JSON.stringify(event.message));
      else if (event.end) {
        assert.equal(await this.receive(), undefined);
        await this.exited(0);
      } else {
        const message = await this.receive();
        assert.ok(message, `the stream ended before ${JSON.stringify(event.message)}: ${this.#output}`);
        assert.deepEqual(differences(event.message, message), [], JSON.stringify(message));
      }
    }
  }

  #receive(chunk: string): void {
    const lines = (this.#rest + chunk).split("\n");
    this.#rest = lines.pop()!;
    this.#messages.push(...lines.map((line) => JSON.parse(line) as Message));
    this.#changed();
  }

  #end(): void {
    this.#ended = true;
    this.#changed();
  }

  async #until(condition: () => boolean, what: string): Promise<void> {
    while (!condition()) {
      const changed = new Promise<void>((resolve) => (this.#changed = resolve));
      await Promise.race([changed, expired(`${what}; output: ${this.#output}`)]);
    }
  }
}

/** Environment of the tests without that of a fleet. */
function environment(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^(KAFLEET_|NODE_)/.test(name)));
}

/** Rejects after the patience of the tests. */
function expired(what: string): Promise<never> {
  return new Promise((_, reject) => {
    setTimeout(() => reject(new Error(`waited ${PATIENCE_MS} ms for ${what}`)), PATIENCE_MS).unref();
  });
}

/** Returns the path of a file that a handler or a test can create. */
export function newFile(): string {
  return join(mkdtempSync(join(tmpdir(), "kafleet-ts-")), "file");
}

/** Waits for a condition. */
export async function until(condition: () => unknown, what: string): Promise<void> {
  const deadline = performance.now() + PATIENCE_MS;
  while (!(await condition())) {
    assert.ok(performance.now() < deadline, `waited ${PATIENCE_MS} ms for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Compares a message with a recorded one, as docs/app-protocol.md describes. */
export function differences(expected: any, actual: any, path = ""): string[] {
  if (/\/(message|stack|sdk|runtime)$/.test(path) && typeof actual === "string") return [];
  if (path === "/ready/types") {
    const names = (types: Fields[]) => types.map((type) => type["name"]).sort();
    return String(names(expected)) === String(names(actual)) ? [] : [`${path}: ${names(actual)}`];
  }
  const bothObjects = typeof expected === "object" && expected && typeof actual === "object" && actual;
  if (!bothObjects || Array.isArray(expected) !== Array.isArray(actual)) {
    return expected === actual ? [] : [`${path}: ${JSON.stringify(actual)} instead of ${JSON.stringify(expected)}`];
  }
  if (Array.isArray(expected) && expected.length !== actual.length) return [`${path}: ${actual.length} items`];
  return Object.keys(expected).flatMap((key) => differences(expected[key], actual[key], `${path}/${key}`));
}
