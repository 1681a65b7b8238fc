/** Execution of one attempt: from the params to the answer. */

import { type AttemptMessage, type Channel, Context, type Ended, Joined, running } from "./context.ts";
import { wrapped } from "./hooks.ts";
import { decode, encode, exceeds, TooLarge, unsuitable } from "./json.ts";
import type { ErrorClass } from "./options.ts";
import { Cancelled, Outcome, Retry } from "./outcomes.ts";
import { Mismatch, validated } from "./schema.ts";
import { attempted, isError, isInstance, kindOf, messageOf, nameOf, prototypesOf, stackOf, textOf } from "./shown.ts";
import { type Handler, Target, type Task } from "./task.ts";

/** Lines of at least this length may have params that are nested too deeply. */
const LONG_LINE = 2000;

type AnyTask = Task<never, unknown, Handler>;
type AnyHandler = (params: unknown, cx: Context) => unknown;

/** Params of a continuation with results. */
interface JoinedParams {
  params: unknown;
  task: Ended;
  results: Ended[];
}

/** One attempt at a task. */
export class Attempt {
  readonly cx: Context;
  readonly #task: AnyTask;
  readonly #message: AttemptMessage;
  readonly #channel: Channel;

  constructor(task: AnyTask, message: AttemptMessage, channel: Channel) {
    this.#task = task;
    this.#message = message;
    this.#channel = channel;
    const { task: before, results } = (message.params ?? {}) as Partial<JoinedParams>;
    const joins = task.joined && before && Array.isArray(results);
    this.cx = joins ? new Joined(message, channel, before, results) : new Context(message, channel);
    this.cx.taskName = task.name;
  }

  /** Runs the handler and returns the last messages of the attempt. It is never rejected. */
  run(): Promise<string> {
    return running.run(this.cx, () => this.#run()).catch((error) => this.failed(error));
  }

  /** Returns the last messages of an attempt that ends with an error. It never throws: without an answer, the attempt would hang. */
  failed(error: unknown): string {
    return attempted(() => this.#failure(error)) ?? errorLine(this.cx.n, "retry", "error", "an error that cannot be described");
  }

  #failure(error: unknown): string {
    if (this.#isCancelled(error)) return this.#error("cancelled", "cancelled", new Cancelled(this.cx.reason).message);
    const listed = this.#listed(error);
    const message = messageOf(error);
    if (!isInstance(error, Outcome)) {
      return this.#error(listed ?? "retry", kindOf(nameOf(error)), message, { stack: stackOf(error) });
    }
    // Subclasses may have put anything in the place of these.
    const own = attempted(() => error.outcome) ?? "retry";
    const isKept = own === "dead" || (own === "wait" && listed === "retry");
    const outcome = isKept ? own : (listed ?? own);
    const after_ms = isInstance(error, Retry) ? delayOf(error) : undefined;
    return this.#error(OUTCOMES.has(outcome) ? outcome : "retry", kindOf(attempted(() => error.kind)), message, { after_ms });
  }

  async #run(): Promise<string> {
    let params: unknown;
    try {
      params = await this.#load();
    } catch (error) {
      return this.#error("dead", "bad_params", `the params do not fit the type: ${messageOf(error)}`);
    }
    const handler = this.#task.fn as AnyHandler;
    const run = wrapped(async () => handler(params, this.cx), this.#task.app.arounds, this.cx);
    return this.#succeeded(await this.#checked(await run()));
  }

  /** Returns the params of the handler; those of a continuation contain the results of other tasks. */
  async #load(): Promise<unknown> {
    const { definition, joined } = this.#task;
    const problem = this.#message.isSuspect && unsuitable(this.#message.params, this.#task.isExact);
    if (problem) throw new Mismatch(problem);
    if (!joined) return validated(definition.params, this.#task.unwrapped(this.#message.params));
    if (!(this.cx instanceof Joined)) {
      throw new Mismatch("`params`, `task` or `results` is missing: the type runs as a continuation only");
    }
    const { results } = definition;
    for (const result of this.cx.results as Ended[]) {
      if (!results || result.state !== "succeeded") continue;
      result.output = results instanceof Target ? await results.decode(result.output) : await validated(results, result.output);
    }
    return validated(definition.params, this.#task.unwrapped((this.#message.params as JoinedParams).params));
  }

  /** Returns the JSON of a result that fits its schema, or why there is none. */
  async #checked(output: unknown): Promise<string | TooLarge | Mismatch> {
    try {
      const text = encode(output);
      if (this.#task.definition.output) await validated(this.#task.definition.output, decode(text).value);
      return text;
    } catch (error) {
      return isInstance(error, TooLarge) ? error : new Mismatch(messageOf(error));
    }
  }

  #succeeded(text: string | TooLarge | Mismatch): string {
    if (text instanceof Mismatch) return this.#error("fail", "bad_output", `the result cannot be stored: ${text.message}`);
    const limit = this.#channel.limits.output;
    if (text instanceof TooLarge || exceeds(text, limit)) {
      return this.#error("fail", "result_too_large", `the result has over ${limit} bytes`);
    }
    return `${this.cx.finish(true)}{"ok":{"n":${this.cx.n},"output":${text}}}\n`;
  }

  #isCancelled(error: unknown): boolean {
    return isInstance(error, Cancelled) || (this.cx.cancelled && isError(error) && nameOf(error) === "AbortError");
  }

  /** Returns the outcome that the policy gives to the class of an error: the nearest class decides. */
  #listed(error: unknown): "fail" | "retry" | undefined {
    const { failOn, retryOn } = this.#task.definition.policy;
    if (!isError(error) || !(failOn.length || retryOn.length)) return undefined;
    const has = (kinds: ErrorClass[], prototype: object) => kinds.some((kind) => kind.prototype === prototype);
    for (const prototype of prototypesOf(error)) {
      if (has(failOn, prototype)) return "fail";
      if (has(retryOn, prototype)) return "retry";
    }
    return undefined;
  }

  #error(outcome: string, kind: string, message: string, more: ErrorFields = {}): string {
    return this.cx.finish(false) + errorLine(this.cx.n, outcome, kind, message, more);
  }
}

interface ErrorFields {
  after_ms?: number | undefined;
  stack?: string | undefined;
}

const OUTCOMES = new Set(["retry", "wait", "fail", "dead"]);

function delayOf(error: Retry): number | undefined {
  const delay = attempted(() => error.afterMs);
  return Number.isSafeInteger(delay) && delay! >= 0 ? delay : undefined;
}

/** Returns whether the params of a line need a look: it is long, or has numbers that `decode` has kept exactly. */
export function isSuspect(line: string, isExact: boolean): boolean {
  return isExact || line.length > LONG_LINE;
}

/** Returns an `error` message. */
export function errorLine(n: number, outcome: string, kind: string, message: string, more: ErrorFields = {}): string {
  return `{"error":${encode({ n, outcome, kind, message: textOf(message), ...more })}}\n`;
}
