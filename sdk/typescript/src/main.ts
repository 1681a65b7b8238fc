/** Start of a process that a worker has started: it takes the socket, loads the program, and serves its app. */

import { writeSync } from "node:fs";
import { isMainThread } from "node:worker_threads";

import type { AnyApp } from "./app.ts";
import { type Connection, ConnectionProblem, stdinKind, takeSocket } from "./connection.ts";
import { running } from "./context.ts";
import { encodeText } from "./json.ts";
import { recordLoads } from "./loaded.ts";
import { loadApp, remedyFor, Unable } from "./loading.ts";
import { captureOutput, Reports } from "./output.ts";
import { PROTOCOL, Session, type Welcome } from "./session.ts";
import { attempted, classOf, isInstance, stackOf, textOf } from "./shown.ts";

/** Name of the variable that keeps child processes from taking their stdin for the socket of a worker. */
const TAKEN = "KAFLEET_SOCKET_TAKEN";

const NO_SOCKET =
  "kafleet: file descriptor 0 is not the socket of a worker, so that no app is served; hint: in `command`, programs that copy " +
  "stdin break the socket: `script`, `nodemon`, `docker run -i`";

/**
 * Age of a process before it asks for its replacement because of an error outside of all attempts: one that fails soon
 * after each start is not replaced again and again.
 */
const MIN_AGE_MS = 30_000;

/**
 * Serves the worker on file descriptor 0 with the app of the main module, if a worker has started this process. Called
 * once, when the package is imported: the socket is taken before any code that is imported later can read stdin.
 */
export function serveIfStarted(): void {
  const isStarted = process.env["KAFLEET_APP"] !== undefined && process.env[TAKEN] === undefined && isMainThread;
  if (!isStarted) return;
  process.env[TAKEN] = "1";
  const stdin = stdinKind();
  // A child process of an app in another language, which uses the client, has another stdin: usually an empty one.
  if (stdin === "other") console.error(NO_SOCKET);
  if (stdin !== "socket") return;
  if (process.versions["bun"]) refuseBun();
  captureOutput();
  if (process.env["KAFLEET_DEV"]) recordLoads();
  const server = new Server(takeSocket());
  process.on("uncaughtException", (error) => server.onError(error));
  process.on("unhandledRejection", (error) => server.onError(error));
  process.on("exit", () => server.flush());
  void server.serve();
}

/** Life of the process: the program is loaded, attempts run until the worker ends the stream, and the lifespan ends. */
class Server {
  readonly #connection: Connection;
  readonly #early: string[] = [];
  readonly #reports = new Reports();
  #isRetiring = false;
  #session: Session | undefined;
  #lifespan: AsyncGenerator | Generator | undefined;
  #welcomed = false;
  #ending = false;
  #onWelcome!: (welcome: Welcome) => void;
  readonly #welcome = new Promise<Welcome>((resolve) => (this.#onWelcome = resolve));

  constructor(connection: Connection) {
    this.#connection = connection;
    connection.listen(
      (line) => this.#receive(line),
      () => this.#onEnd(),
    );
  }

  async serve(): Promise<void> {
    try {
      const welcome = await this.#welcome;
      if (welcome.protocol < PROTOCOL) {
        throw new Unable(`the worker speaks version ${welcome.protocol} of the app protocol, this SDK ${PROTOCOL}`);
      }
      const app = await loadApp();
      const session = new Session(this.#connection, app, welcome, () => void this.#finish());
      session.state = await this.#enter(app);
      session.begin();
      for (const line of this.#early) session.receive(line);
      this.#session = session;
      if (this.#connection.ended) session.end();
    } catch (error) {
      this.onError(error);
    }
  }

  /** Ends the attempt that an error belongs to; without one, lets the running attempts end, and then this process. */
  onError(error: unknown): void {
    if (this.#ending) return;
    if (isInstance(error, ConnectionProblem)) die(error.message);
    const session = this.#session;
    if (!session) return this.#refuse(error);
    const cx = running.getStore();
    if (session.failed(cx, error)) return;
    const text = reported(error);
    if (cx) return this.#reports.write(`an error after the end of the attempt ${cx.n} at \`${cx.id}\`: ${text}`);
    this.#reports.write(`an error outside of all attempts; the process is replaced when its attempts have ended: ${text}`);
    if (this.#isRetiring) return;
    this.#isRetiring = true;
    const reason = encodeText(`an error outside of all attempts: ${textOf(error)}`);
    const retire = () => session.send(`{"retire":{"reason":${reason}}}\n`);
    setTimeout(retire, Math.max(0, MIN_AGE_MS - performance.now())).unref();
  }

  /** Reports that the app cannot serve. */
  #refuse(error: unknown): void {
    this.#ending = true;
    const text = isInstance(error, Unable) ? error.message : reported(error);
    const remedy = isInstance(error, Unable) ? undefined : attempted(() => remedyFor(error, text));
    const message = remedy ? `${text}; hint: ${remedy}` : text;
    this.#connection.send(`{"unable":{"message":${encodeText(message)}}}\n`);
    void this.#connection.close().then(() => process.exit(0));
  }

  /** Sends everything that is pending. */
  flush(): void {
    this.#session?.flush();
    this.#connection.flush();
  }

  #receive(line: string): void {
    if (this.#session) return this.#session.receive(line);
    if (this.#welcomed) return void this.#early.push(line);
    const welcome = line.startsWith('{"welcome"') && (JSON.parse(line) as { welcome: Welcome }).welcome;
    if (!welcome) throw new ConnectionProblem(`the worker sent no \`welcome\`: ${line.slice(0, 200)}`);
    this.#welcomed = true;
    this.#onWelcome(welcome);
  }

  #onEnd(): void {
    this.#session?.end();
    if (!this.#welcomed) die("the worker ended before it sent `welcome`");
  }

  async #enter(app: AnyApp): Promise<unknown> {
    if (!app.lifespan) return undefined;
    try {
      this.#lifespan = app.lifespan();
      if (typeof this.#lifespan?.next !== "function") {
        throw new TypeError(`it returns a value of type ${classOf(this.#lifespan)}; ${LIFESPAN_HINT}`);
      }
      const { value, done } = await this.#lifespan.next();
      if (done) throw new TypeError(`it ends without a \`yield\`; ${LIFESPAN_HINT}`);
      return value;
    } catch (error) {
      throw new Unable(`the lifespan of the app failed: ${reported(error)}`);
    }
  }

  async #finish(): Promise<void> {
    if (this.#ending) return;
    this.#ending = true;
    try {
      const end = await this.#lifespan?.next();
      if (end && !end.done) throw new TypeError(`it has a second \`yield\`; ${LIFESPAN_HINT}`);
      await this.#connection.close();
      process.exit(0);
    } catch (error) {
      die(`the lifespan of the app failed: ${reported(error)}`);
    }
  }
}

const LIFESPAN_HINT = "hint: write `async function* () { …; yield state; … }`";

/** Returns the text about an error in reports. */
function reported(error: unknown): string {
  return stackOf(error) ?? textOf(error);
}

/** Ends a process of Bun, whose `net` cannot take over a file descriptor. */
function refuseBun(): never {
  const message =
    "Bun runs no apps, because it cannot take over the socket of the worker; hint: run them with `node`: it runs `.ts` files";
  writeSync(0, `{"unable":{"message":${encodeText(message)}}}\n`);
  process.exit(0);
}

function die(message: string): never {
  console.error(`error: ${message}`);
  process.exit(1);
}
