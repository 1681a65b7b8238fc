/** The socket between the app and its worker. */

import childProcess from "node:child_process";
import { createReadStream, fstatSync, writeSync } from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { Socket } from "node:net";

/** The worker cannot be reached, or violates the protocol. */
export class ConnectionProblem extends Error {}

const NEWLINE = 0x0a;

/** Size of unsent messages from which on progress and log lines wait, in characters. */
const CROWD = 1 << 20;

/** Stream of lines in both directions. */
export class Connection {
  /** Whether the worker has ended its stream. */
  ended = false;
  /** Longest line that the worker may send, in bytes. */
  maxLine = 8 << 20;
  readonly #socket: Socket;
  #parts: Buffer[] = [];
  #size = 0;
  #unsent = "";

  /** `onLost` is called when the worker is gone, by default with the end of this process. */
  constructor(socket: Socket, onLost: () => void = leave) {
    this.#socket = socket;
    socket.on("error", () => onLost());
  }

  /** Passes each line on, and then the end of the worker's stream. */
  listen(onLine: (line: string) => void, onEnd: () => void): void {
    this.#socket.on("data", (chunk: Buffer) => this.#receive(chunk, onLine));
    const end = () => {
      if (this.ended) return;
      this.ended = true;
      onEnd();
    };
    this.#socket.on("end", end);
    this.#socket.on("close", end);
  }

  /** Sends complete lines, together with others of this turn of the event loop. */
  send(lines: string): void {
    if (!lines) return;
    if (!this.#unsent) process.nextTick(() => this.flush());
    this.#unsent += lines;
  }

  /** Passes everything that was sent to the socket. */
  flush(): void {
    const lines = this.#unsent;
    this.#unsent = "";
    if (lines && !this.#socket.writableEnded) this.#socket.write(lines);
  }

  /** Whether more waits to be sent than should. */
  get isCrowded(): boolean {
    return this.#socket.writableNeedDrain || this.#unsent.length > CROWD;
  }

  /** Waits until the socket has taken what was sent. */
  room(): Promise<void> {
    this.flush();
    if (!this.#socket.writableNeedDrain) return Promise.resolve();
    return new Promise((resolve) => this.#socket.once("drain", resolve));
  }

  /** Ends the stream, when everything is sent. */
  close(): Promise<void> {
    this.flush();
    return new Promise((resolve) => this.#socket.end(resolve));
  }

  #receive(chunk: Buffer, onLine: (line: string) => void): void {
    let start = 0;
    for (let end = chunk.indexOf(NEWLINE); end >= 0; end = chunk.indexOf(NEWLINE, start)) {
      onLine(this.#complete(chunk.subarray(start, end)));
      start = end + 1;
    }
    if (start === chunk.length) return;
    this.#parts.push(chunk.subarray(start));
    this.#size += chunk.length - start;
    if (this.#size > this.maxLine + 1024) throw new ConnectionProblem(`the worker sent a line of over ${this.maxLine} bytes`);
  }

  #complete(last: Buffer): string {
    if (!this.#parts.length) return last.toString();
    const line = Buffer.concat([...this.#parts, last]).toString();
    this.#parts = [];
    this.#size = 0;
    return line;
  }
}

/** Ends this process at once, because its worker is gone: nothing can receive its results. */
function leave(): never {
  writeSync(2, "kafleet: the worker has ended, and its app process ends too\n");
  process.exit(1);
}

/** Returns the kind of file descriptor 0: a socket, as in a process that a worker has started, no input, or another. */
export function stdinKind(): "socket" | "none" | "other" {
  try {
    const stdin = fstatSync(0);
    return stdin.isSocket() ? "socket" : stdin.isCharacterDevice() ? "none" : "other";
  } catch {
    return "none";
  }
}

/** Takes the socket on file descriptor 0, and keeps it from everything else that would read stdin. */
export function takeSocket(): Connection {
  const socket = new Socket({ fd: 0, readable: true, writable: true, allowHalfOpen: true });
  let stdin: unknown;
  Object.defineProperty(process, "stdin", { configurable: true, get: () => (stdin ??= createReadStream("/dev/null")) });
  guardChildProcesses();
  return new Connection(socket);
}

type Stdio = "inherit" | string | unknown[] | undefined;
type Spawning = { spawn: (options: { stdio?: Stdio }) => unknown };

/**
 * Gives child processes an empty stdin where they would inherit file descriptor 0, and take the next attempt. The
 * descriptor itself cannot be moved: Node has no call that duplicates one.
 */
function guardChildProcesses(): void {
  const prototype = childProcess.ChildProcess.prototype as unknown as Spawning;
  const { spawn } = prototype;
  prototype.spawn = function (options) {
    return spawn.call(this, { ...options, stdio: withoutStdin(options.stdio) });
  };
  const module = childProcess as unknown as Record<string, (...args: unknown[]) => unknown>;
  for (const name of ["spawnSync", "execSync", "execFileSync"]) {
    const original = module[name]!;
    module[name] = (...args) =>
      original(...args.map((arg) => (isOptions(arg) ? { ...arg, stdio: withoutStdin(arg.stdio) } : arg)));
  }
  syncBuiltinESMExports();
}

function isOptions(value: unknown): value is { stdio?: Stdio } {
  return typeof value === "object" && value !== null && "stdio" in value;
}

function withoutStdin(stdio: Stdio): Stdio {
  if (stdio === "inherit") return ["ignore", "inherit", "inherit"];
  if (!Array.isArray(stdio)) return stdio;
  const [first, ...rest] = stdio;
  return first === "inherit" || first === 0 || first === process.stdin ? ["ignore", ...rest] : stdio;
}
