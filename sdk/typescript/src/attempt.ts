/** Execution of one attempt: from the params to the answer. */

import { fileURLToPath } from "node:url";

import type { AnyApp } from "./app.ts";
import { type AttemptMessage, type Channel, Context, type Ended, Joined, running } from "./context.ts";
import type { ErrorClass } from "./options.ts";
import { Cancelled, nameOf, kindOf, Outcome, Retry } from "./outcomes.ts";
import { encode, exceeds, Mismatch, validated } from "./schema.ts";
import { type Handler, Target, type Task } from "./task.ts";

const MAX_MESSAGE_CHARS = 2000;
const MAX_STACK_CHARS = 16 << 10;
const SDK_FOLDER = fileURLToPath(new URL(".", import.meta.url));

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
  readonly #app: AnyApp;
  readonly #task: AnyTask;
  readonly #message: AttemptMessage;
  readonly #channel: Channel;

  constructor(task: AnyTask, message: AttemptMessage, channel: Channel) {
    this.#app = task.app;
    this.#task = task;
    this.#message = message;
    this.#channel = channel;
    const { task: before, results } = (message.params ?? {}) as Partial<JoinedParams>;
    const joins = task.joined && before && Array.isArray(results);
    this.cx = joins ? new Joined(message, channel, before, results) : new Context(message, channel);
    this.cx.taskName = task.name;
  }

  /** Runs the handler and returns the last messages of the attempt. */
  run(): Promise<string> {
    return running.run(this.cx, () => this.#run());
  }

  /** Returns the last messages of an attempt that ends with an error. */
  failed(error: unknown): string {
    if (this.#isCancelled(error)) {
      return this.#error("cancelled", "cancelled", new Cancelled(this.cx.reason).message);
    }
    const message = (error instanceof Error ? error.message : String(error)) || nameOf(error);
    const listed = this.#listed(error);
    if (!(error instanceof Outcome)) {
      return this.#error(listed ?? "retry", kindOf(nameOf(error)), message, { stack: stackOf(error) });
    }
    const isKept = error.outcome === "dead" || (error.outcome === "wait" && listed === "retry");
    const outcome = isKept ? error.outcome : (listed ?? error.outcome);
    return this.#error(outcome, error.kind, message, { after_ms: error instanceof Retry ? error.afterMs : undefined });
  }

  async #run(): Promise<string> {
    let params: unknown;
    try {
      params = await this.#load();
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      return this.#error("dead", "bad_params", `the params do not fit the type: ${reason}`);
    }
    try {
      const handler = this.#task.fn as AnyHandler;
      let next = async (): Promise<unknown> => handler(params, this.cx);
      for (const around of this.#app.arounds.toReversed()) {
        const inner = next;
        next = async () => around(this.cx as never, inner);
      }
      return this.#succeeded(await this.#checked(await next()));
    } catch (error) {
      return this.failed(error);
    }
  }

  /** Returns the params of the handler; those of a continuation contain the results of other tasks. */
  async #load(): Promise<unknown> {
    const { definition, joined } = this.#task;
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

  /** Returns the JSON of a result that fits its schema. */
  async #checked(output: unknown): Promise<string | Mismatch> {
    try {
      const text = encode(output);
      if (this.#task.definition.output) await validated(this.#task.definition.output, JSON.parse(text));
      return text;
    } catch (error) {
      return new Mismatch(error instanceof Error ? error.message : String(error));
    }
  }

  #succeeded(text: string | Mismatch): string {
    if (text instanceof Mismatch) return this.#error("fail", "bad_output", `the result cannot be stored: ${text.message}`);
    const limit = this.#channel.limits.output;
    if (exceeds(text, limit)) return this.#error("fail", "result_too_large", `the result has over ${limit} bytes`);
    return `${this.cx.finish(true)}{"ok":{"n":${this.cx.n},"output":${text}}}\n`;
  }

  #isCancelled(error: unknown): boolean {
    if (error instanceof Cancelled) return true;
    return this.cx.cancelled && error instanceof Error && error.name === "AbortError";
  }

  /** Returns the outcome that the policy gives to the class of an error: the nearest class decides. */
  #listed(error: unknown): "fail" | "retry" | undefined {
    const { failOn, retryOn } = this.#task.definition.policy;
    if (!(error instanceof Error) || !(failOn.length || retryOn.length)) return undefined;
    for (let at: unknown = error.constructor; typeof at === "function"; at = Object.getPrototypeOf(at)) {
      if (failOn.includes(at as ErrorClass)) return "fail";
      if (retryOn.includes(at as ErrorClass)) return "retry";
    }
    return undefined;
  }

  #error(outcome: string, kind: string, message: string, more: Record<string, unknown> = {}): string {
    return this.cx.finish(false) + errorLine(this.cx.n, outcome, kind, message, more);
  }
}

/** Returns an `error` message. */
export function errorLine(n: number, outcome: string, kind: string, message: string, more: Record<string, unknown> = {}): string {
  return `{"error":${encode({ n, outcome, kind, message: message.slice(0, MAX_MESSAGE_CHARS).toWellFormed(), ...more })}}\n`;
}

/** Returns the stack of an error and of its causes, without the frames of the SDK and of Node. */
export function stackOf(error: unknown): string | undefined {
  if (!(error instanceof Error)) return undefined;
  const stacks: string[] = [];
  for (let at: unknown = error; at instanceof Error && stacks.length < 10; at = at.cause) {
    const lines = (at.stack ?? String(at)).split("\n");
    stacks.push(
      lines.filter((line) => !/^\s+at /.test(line) || !(line.includes(SDK_FOLDER) || line.includes("node:"))).join("\n"),
    );
  }
  return stacks.join("\ncaused by ").slice(0, MAX_STACK_CHARS).toWellFormed();
}
