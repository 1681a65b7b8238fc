/**
 * Text about values and errors, for people. Values of users may do anything when they are read: getters and proxies
 * throw, names are no text, causes form circles. Nothing here throws, and every text is bounded.
 */

import { relative } from "node:path";
import { fileURLToPath } from "node:url";
import { types } from "node:util";

import { inspected } from "./inspected.ts";

const MAX_MESSAGE_CHARS = 2000;
const MAX_STACK_CHARS = 16 << 10;

/** Number of errors of which a stack consists: the error itself, its causes, and those that it aggregates. */
const MAX_STACKS = 10;

const SDK_FOLDER = fileURLToPath(new URL(".", import.meta.url));

/** Number of prototypes of an object. A proxy may claim to be its own prototype, which is an endless chain. */
const MAX_PROTOTYPES = 100;

/** Integers from here on, of about 100,000 digits: their conversion to text takes seconds. */
const LARGE_INTEGER = 1n << 340_000n;

/** Returns what a function returns, or `undefined` if it throws. For reading values of users. */
export function attempted<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch {
    return undefined;
  }
}

/** Whether a value is an error, also one of another realm. */
export function isError(value: unknown): value is Error {
  return isInstance(value, Error) || types.isNativeError(value);
}

/** Whether a value is of a class, as `instanceof`, which throws or never ends for some proxies. */
export function isInstance<T>(value: unknown, kind: abstract new (...args: never[]) => T): value is T {
  return prototypesOf(value).includes(kind.prototype as object);
}

/** Returns the prototypes of an object, the nearest first; none if they cannot be read. */
export function prototypesOf(value: unknown): object[] {
  const found: object[] = [];
  const next = (at: object) => attempted(() => Object.getPrototypeOf(at) as object | null);
  if (typeof value !== "object" || value === null) return found;
  for (let at = next(value); at && found.length < MAX_PROTOTYPES; at = next(at)) found.push(at);
  return found.length < MAX_PROTOTYPES ? found : [];
}

/** Whether an integer has too many digits for a conversion to text. */
export function isLargeInteger(value: bigint): boolean {
  return value >= LARGE_INTEGER || value <= -LARGE_INTEGER;
}

/** Returns any value as one text, an object with its fields. */
export function textOf(value: unknown): string {
  if (typeof value === "string") return clipped(value, MAX_MESSAGE_CHARS);
  if (isError(value)) return clipped(`${nameOf(value)}: ${messageOf(value)}`, MAX_MESSAGE_CHARS);
  return clipped(inspected(value), MAX_MESSAGE_CHARS);
}

/** Returns the message of anything that was thrown; never an empty text. */
export function messageOf(error: unknown): string {
  if (!isError(error)) return textOf(error) || "error";
  const message = attempted(() => ({ text: error.message as unknown }));
  if (!message) return "(the message of the error throws when it is read)";
  if (typeof message.text !== "string") return textOf(message.text);
  const parts = message.text ? [message.text] : [];
  const withCauses = (each: unknown) => [each, ...causesOf(each)].map(ownMessage).join(": ");
  for (const part of [aggregated(error).map(withCauses).join("; "), ...causesOf(error).map(ownMessage)]) {
    // Many messages already have that of the cause.
    if (part && !parts.some((text) => text.includes(part))) parts.push(part);
  }
  return clipped(parts.join(": "), MAX_MESSAGE_CHARS) || nameOf(error);
}

/** Returns the text about a value that was thrown instead of an error. */
export function thrownText(value: unknown): string {
  const text = textOf(value);
  if (text && value !== null && value !== undefined) return text;
  return `\`${text || '""'}\` was thrown, which is no error; hint: write \`throw new Error("…")\``;
}

/** Returns the causes of an error, the nearest first. */
function causesOf(error: unknown): unknown[] {
  const causes = new Set<unknown>([error]);
  for (let at = error; isError(at) && causes.size < MAX_STACKS;) {
    const cause: unknown = attempted(() => (at as Error).cause);
    if (cause === undefined || causes.has(cause)) break;
    causes.add(cause);
    at = cause;
  }
  return [...causes].slice(1);
}

/** Returns the message of one error, without its causes; for one that aggregates others without a text, theirs. */
function ownMessage(error: unknown): string {
  const text: unknown = isError(error) ? attempted(() => error.message) : textOf(error);
  if (typeof text === "string" && text) return text;
  const inner = aggregated(error).flatMap((each) => attempted(() => (each as Error).message) ?? []);
  return inner.filter((each) => typeof each === "string").join("; ");
}

/** Returns the class name of an error, which is the kind of a failure that is not an `Outcome`. */
export function nameOf(error: unknown): string {
  if (!isError(error)) return "error";
  const name: unknown = attempted(() => error.name);
  return typeof name === "string" && name && name !== "Error" ? clipped(name, MAX_MESSAGE_CHARS) : classOf(error);
}

/** Returns a name with the characters and the length that the protocol allows for a kind. */
export function kindOf(name: unknown): string {
  return (typeof name === "string" && name.slice(0, 64).replace(/[^A-Za-z0-9._-]/g, "_")) || "error";
}

/** Returns the name of the class of a value, or that of its type. */
export function classOf(value: unknown): string {
  if (typeof value !== "object" || value === null) return value === null ? "null" : typeof value;
  const name: unknown = attempted(() => value.constructor.name);
  if (typeof name === "string" && name && name !== "Object") return clipped(name, 64);
  // The classes of generators and of some iterators have no name of their own.
  const tag = attempted(() => Object.prototype.toString.call(value).slice("[object ".length, -1));
  return clipped(tag ?? "object", 64);
}

/** Returns the stack of an error and of its causes, without the frames of the SDK and of Node. */
export function stackOf(error: unknown): string | undefined {
  if (!isError(error)) return undefined;
  const seen = new Set<unknown>();
  const stacks: string[] = [];
  const waiting: [string, unknown][] = [["", error]];
  for (const [link, at] of waiting) {
    if (seen.size === MAX_STACKS) break;
    if (seen.has(at)) continue;
    seen.add(at);
    stacks.push(link + (isError(at) ? ownStack(at) : textOf(at)));
    const cause = isError(at) ? attempted(() => at.cause) : undefined;
    if (cause !== undefined) waiting.push(["caused by ", cause]);
    waiting.push(...aggregated(at).map((each): [string, unknown] => ["one of them: ", each]));
  }
  return clipped(stacks.join("\n"), MAX_STACK_CHARS);
}

/** Returns file and line of a line of a stack, such as `tasks.ts:12`, from the working directory on. */
export function sourceOf(line: string): string | undefined {
  const [, file, number] = /(file:\/\/\S+?|\/\S+?):(\d+):\d+\)?$/.exec(line) ?? [];
  const path = file && attempted(() => relative(process.cwd(), file.startsWith("file:") ? fileURLToPath(file) : file));
  return path && `${path}:${number}`;
}

/**
 * Returns file and line of the program that declares something, in a process that a worker has started: only a worker shows
 * it, and a stack costs time.
 */
export function declaredAt(): string | undefined {
  return process.env["KAFLEET_APP"] === undefined ? undefined : sourceOf(callerOf(new Error()));
}

/** Returns the place of the program at which an error was made, such as `at file:///srv/shop/tasks.ts:4:20`. */
export function callerOf(error: Error): string {
  return ownStack(error).split("\n").at(1)?.trim() ?? "at an unknown place";
}

/** Returns a text for people that UTF-8 can represent, with at most so many characters. */
export function clipped(text: string, maxChars: number): string {
  return text.slice(0, maxChars).toWellFormed();
}

/** Returns the first errors of an `AggregateError`. */
function aggregated(error: unknown): unknown[] {
  if (!isInstance(error, AggregateError)) return [];
  const errors = attempted(() => Array.prototype.slice.call(error.errors, 0, MAX_STACKS) as unknown);
  return Array.isArray(errors) ? errors : [];
}

function ownStack(error: Error): string {
  const stack: unknown = attempted(() => error.stack);
  if (typeof stack !== "string") return textOf(error);
  const lines = stack.slice(0, MAX_STACK_CHARS).split("\n");
  const isFrame = (line: string | undefined) => line !== undefined && /^\s+at /.test(line);
  const isOurs = (line: string | undefined) => isFrame(line) && (line!.includes(SDK_FOLDER) || line!.includes("node:"));
  // A function of JavaScript, such as `Array.map`, belongs to the frame that calls it, which is the next one.
  const isBuiltin = (line: string) => isFrame(line) && line.endsWith("(<anonymous>)");
  return lines.filter((line, at) => !isOurs(line) && !(isBuiltin(line) && isOurs(lines[at + 1]))).join("\n");
}
