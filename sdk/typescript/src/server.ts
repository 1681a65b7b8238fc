/** Service of an app at the socket of a worker, in a process that the worker has started, or in that of a test. */

import type { AnyApp } from "./app.ts";
import { type Connection, ConnectionProblem } from "./connection.ts";
import { running } from "./context.ts";
import { encodeText } from "./json.ts";
import { remedyFor, Unable } from "./loading.ts";
import { Reports } from "./output.ts";
import { PROTOCOL, Session, type Welcome } from "./session.ts";
import { attempted, classOf, isInstance, stackOf, textOf } from "./shown.ts";

/**
 * Age of a process before it asks for its replacement because of an error outside of all attempts: one that fails soon
 * after each start is not replaced again and again.
 */
const MIN_AGE_MS = 30_000;

/** Process or part of a process that serves an app. */
export interface Host {
  /** Returns the app. */
  load(): Promise<AnyApp>;
  /** Called at the end; `problem`: the reason of an end that is no success. */
  exit(problem?: string): void;
}

/** Life of an app at the socket of a worker: attempts run until the worker ends the stream, and the lifespan ends. */
export class Server {
  readonly #connection: Connection;
  readonly #host: Host;
  readonly #early: string[] = [];
  readonly #reports = new Reports();
  #isRetiring = false;
  #session: Session | undefined;
  #lifespan: AsyncGenerator | Generator | undefined;
  #welcomed = false;
  #ending = false;
  #onWelcome!: (welcome: Welcome) => void;
  readonly #welcome = new Promise<Welcome>((resolve) => (this.#onWelcome = resolve));

  constructor(connection: Connection, host: Host) {
    this.#connection = connection;
    this.#host = host;
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
      const app = await this.#host.load();
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
    if (isInstance(error, ConnectionProblem)) return this.#fail(error.message);
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

  /** Requests the running attempts to stop: nothing can receive their results. */
  cancel(): void {
    this.#session?.cancelAll();
  }

  #fail(problem: string): void {
    this.#ending = true;
    this.#host.exit(problem);
  }

  /** Reports that the app cannot serve. */
  #refuse(error: unknown): void {
    this.#ending = true;
    const text = isInstance(error, Unable) ? error.message : reported(error);
    const remedy = isInstance(error, Unable) ? undefined : attempted(() => remedyFor(error, text));
    const message = remedy ? `${text}; hint: ${remedy}` : text;
    this.#connection.send(`{"unable":{"message":${encodeText(message)}}}\n`);
    void this.#connection.close().then(() => this.#host.exit());
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
    if (!this.#welcomed) this.#fail("the worker ended before it sent `welcome`");
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
    } catch (error) {
      return this.#host.exit(`the lifespan of the app failed: ${reported(error)}`);
    }
    this.#host.exit();
  }
}

const LIFESPAN_HINT = "hint: write `async function* () { …; yield state; … }`";

/** Returns the text about an error in reports. */
function reported(error: unknown): string {
  return stackOf(error) ?? textOf(error);
}
