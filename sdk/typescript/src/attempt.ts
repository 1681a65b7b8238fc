/** Execution of one attempt: from the params to the answer. */

import { type AttemptMessage, type Channel, Context, running } from "./context.ts";
import { wrapped } from "./hooks.ts";
import { decode, encode, exceeds, TooLarge, unsuitable } from "./json.ts";
import { decidesUnnamed, type ErrorClass, kindOfClass } from "./options.ts";
import { CONTEXT_METHODS, CONTEXT_PROPERTIES, refuseMembers } from "./foreign.ts";
import { Cancelled, durationText, Outcome, Retry, SoftTimeout } from "./outcomes.ts";
import { Mismatch, validated } from "./schema.ts";
import { attempted, isError, isInstance, kindOf, messageOf, nameOf, prototypesOf, stackOf, textOf, thrownText } from "./shown.ts";
import { type Handler, Target, type Task } from "./task.ts";
import { type Ended, Joined, joinedParams, type JoinedParams, upstreamResult } from "./upstream.ts";

/** Lines of at least this length may have params that are nested too deeply. */
const LONG_LINE = 2000;

type AnyTask = Task<never, unknown, Handler>;
type AnyHandler = (params: unknown, cx: Context) => unknown;

/** Time after a limit from which on an attempt ends late, in milliseconds. */
const LATE_MS = 100;

/** Line about a handler that waits. Node has no stack of it: only what runs has one. */
const WAITS =
  "the handler waits, so that there is no stack; hint: pass `cx.signal` to what it waits for, and this line names the place";

refuseMembers(Context.prototype, "a context", CONTEXT_METHODS, CONTEXT_PROPERTIES);

/** One attempt at a task. */
export class Attempt {
  readonly cx: Context;
  readonly #task: AnyTask;
  readonly #message: AttemptMessage;
  readonly #channel: Channel;
  /** Params of a continuation with results. */
  readonly #joined: JoinedParams | undefined;
  /** Time at which the attempt is over its timeout. */
  readonly #deadline: number;
  #softTimeout: SoftTimeout | undefined;
  /** Time of the cancel because of a limit, and where the attempt was, until that is in the log. */
  #overdue: { at: number; lines: string[] } | undefined;

  constructor(task: AnyTask, message: AttemptMessage, channel: Channel) {
    this.#task = task;
    this.#message = message;
    this.#channel = channel;
    this.#deadline = performance.now() + message.left_ms;
    const { joins, member } = task.definition.upstream;
    const joined = joins === "never" ? undefined : joinedParams(message.params);
    const isJoined = joined && member === undefined;
    this.cx = isJoined ? new Joined(message, channel, joined.task, joined.results) : new Context(message, channel);
    this.#joined = joined;
    this.cx.taskName = task.name;
  }

  /** Runs the handler and returns the last messages of the attempt. It is never rejected. */
  run(): Promise<string> {
    const answer = running.run(this.cx, () => this.#run()).catch((error) => this.failed(error));
    const limit = this.#task.definition.softTimeoutMs;
    if (limit === undefined) return answer;
    const timer = setTimeout(() => this.#interrupt(limit), limit);
    return answer.finally(() => clearTimeout(timer));
  }

  /** Requests the attempt to stop, and logs where it is if it has reached a limit. */
  cancel(reason: string): void {
    const { cx } = this;
    const detail = this.#reason(reason);
    if ((reason === "timeout" || reason === "stalled") && !this.#overdue) {
      // A blocked event loop reads the cancel late.
      const at = reason === "timeout" ? Math.min(this.#deadline, performance.now()) : performance.now();
      this.#overdue = { at, lines: [`${detail}: ${cx.signalled ?? WAITS}`] };
      // An attempt that does not end is killed; the answer of any other has the lines.
      setTimeout(() => !cx.ended && cx.log(this.#overdue!.lines.splice(0), { silent: true }), LATE_MS).unref();
    }
    // Within the attempt, to which errors of the signal's listeners belong.
    running.run(cx, () => cx.cancel(reason, detail));
  }

  /** Logs the stack of an attempt that blocks the event loop beyond its timeout. */
  blocked(frames: string[]): void {
    this.#overdue = { at: this.#deadline, lines: [] };
    this.cx.log([`${this.#reason("timeout")}: the event loop is blocked here`, ...frames], { silent: true });
  }

  /** Returns the reason of a cancel for people. */
  #reason(reason: string): string {
    return reason === "timeout" ? `timeout of ${durationText(this.#message.left_ms)}` : reason;
  }

  #interrupt(limitMs: number): void {
    this.#softTimeout = new SoftTimeout(limitMs);
    if (!this.cx.cancelled) running.run(this.cx, () => this.cx.interrupt(this.#softTimeout!));
  }

  /** Returns the last messages of an attempt that ends with an error. It never throws: without an answer, the attempt would hang. */
  failed(thrown: unknown): string {
    const isAbort = attempted(() => isError(thrown) && nameOf(thrown) === "AbortError" && !this.cx.cancelled);
    const error = (isAbort && this.#softTimeout) || thrown;
    return attempted(() => this.#failure(error)) ?? errorLine(this.cx.n, "retry", "error", "an error that cannot be described");
  }

  #failure(error: unknown): string {
    if (this.#isCancelled(error)) {
      const { message } = isInstance(error, Cancelled) ? error : new Cancelled(this.#reason(this.cx.reason!));
      return this.#error("cancelled", "cancelled", message);
    }
    const [listed, listedKind] = this.#listed(error);
    const message = isError(error) ? messageOf(error) : thrownText(error);
    if (!isInstance(error, Outcome)) {
      return this.#error(listed ?? "retry", listedKind ?? kindOf(nameOf(error)), message, { stack: stackOf(error) });
    }
    // Subclasses may have put anything in the place of these.
    const own = attempted(() => error.outcome) ?? "retry";
    const isKept = own === "dead" || (own === "wait" && listed === "retry");
    const outcome = isKept ? own : (listed ?? own);
    const after_ms = isInstance(error, Retry) ? delayOf(error) : undefined;
    const kind = listedKind ?? kindOf(attempted(() => error.kind));
    return this.#error(OUTCOMES.has(outcome) ? outcome : "retry", kind, message, { after_ms });
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
    const { params, isSuspect } = this.#message;
    const problem = isSuspect && unsuitable(params, this.#task.isExact);
    if (problem) throw new Mismatch(problem);
    if (joined && !this.#joined) {
      throw new Mismatch("`params`, `task` or `results` is missing: the type runs as a continuation only");
    }
    await this.#loadResults();
    const own = this.#task.unwrapped(this.#joined ? this.#joined.params : params);
    const { member } = definition.upstream;
    const isFilled = this.#joined && member !== undefined;
    return validated(definition.params, isFilled ? { ...(own as object), [member]: upstreamResult(this.#joined!) } : own);
  }

  /** Decodes the results of other tasks in the context. */
  async #loadResults(): Promise<void> {
    const { results } = this.#task.definition.upstream;
    if (!results || !(this.cx instanceof Joined)) return;
    for (const result of this.cx.results as Ended[]) {
      if (result.state !== "succeeded") continue;
      result.output = results instanceof Target ? await results.decode(result.output) : await validated(results, result.output);
    }
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
    const overdue = this.#overdueLines();
    if (overdue.length) this.cx.log(overdue, { silent: true });
    return `${this.cx.finish(true)}{"ok":{"n":${this.cx.n},"output":${text}}}\n`;
  }

  #isCancelled(error: unknown): boolean {
    return isInstance(error, Cancelled) || (this.cx.cancelled && isError(error) && nameOf(error) === "AbortError");
  }

  /**
   * Returns the outcome that the policy gives to the class of an error: the nearest class decides. And its kind, if the worker
   * would decide otherwise about that of a subclass, which the policy does not name.
   */
  #listed(error: unknown): ["fail" | "retry", string | undefined] | [] {
    const { policy } = this.#task.definition;
    if (!isError(error) || !(policy.failOn.length || policy.retryOn.length)) return [];
    const find = (kinds: ErrorClass[], prototype: object) => kinds.find((kind) => kind.prototype === prototype);
    for (const prototype of prototypesOf(error)) {
      for (const [outcome, kinds] of [["fail", policy.failOn] as const, ["retry", policy.retryOn] as const]) {
        const kind = find(kinds, prototype);
        if (kind) return [outcome, decidesUnnamed(policy, outcome) ? kindOfClass(kind) : undefined];
      }
    }
    return [];
  }

  /** Returns the lines about the limit that the attempt is over, which are not in the log yet. */
  #overdueLines(): string[] {
    const { at, lines } = this.#overdue ?? { at: Infinity, lines: [] };
    const late = performance.now() - at;
    return [...lines.splice(0), ...(late > LATE_MS ? [`stopped ${durationText(late)} later`] : [])];
  }

  #error(outcome: string, kind: string, message: string, more: ErrorFields = {}): string {
    const stack = [more.stack, ...this.#overdueLines()].filter((part) => part !== undefined).join("\n") || undefined;
    return this.cx.finish(false) + errorLine(this.cx.n, outcome, kind, message, { ...more, stack });
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
