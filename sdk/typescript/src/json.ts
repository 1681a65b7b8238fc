/** Values as JSON: what is written and read back is the same, or refused. */

import { types } from "node:util";

import { classOf, isError, isLargeInteger } from "./shown.ts";

/** Levels of nested arrays and objects of a value. */
export const MAX_DEPTH = 1000;

/** Characters of a value: a message and a request have at most 8 MiB. */
const MAX_CHARS = 8 << 20;

/** Digits of an integer that becomes a `bigint`: the conversion of more takes seconds. */
const MAX_DIGITS = 100_000;

/**
 * Texts with a number that a double may change: at least 15 digits, or a large exponent. Others are parsed in the
 * fastest way.
 */
const SUSPECT = /\d[\d.]{15}|\d[eE][+-]?\d{3}/;

/** Text of a number that `JSON.stringify` writes as it is. Newer than the types of the compiler. */
interface RawJson {
  readonly rawJSON: string;
}
type Reviver = (this: unknown, key: string, value: unknown, context: { source?: string }) => unknown;
const json = JSON as unknown as {
  rawJSON(text: string): RawJson;
  isRawJSON(value: unknown): value is RawJson;
  parse(text: string, reviver?: Reviver): unknown;
};

const COPY_HINT = "copy what is needed into a plain object";
const BYTES_HINT = 'write text, as of `Buffer.from(bytes).toString("base64")`, or numbers: `Array.from(bytes)`';
const PAIRS_HINT = "write `Object.fromEntries(value)`";
const ITERATOR_HINT = "write `[...values]`, or for an asynchronous one `await Array.fromAsync(values)`";

/** Remedies for built-in classes, by their tags. */
const REMEDIES: Record<string, string> = {
  Map: `${PAIRS_HINT}, or \`[...value]\` if its keys are no texts`,
  Set: "write `[...value]`",
  ArrayBuffer: BYTES_HINT,
  Promise: "write `await` before it",
  Error: "write `{ name: error.name, message: error.message }`",
  RegExp: "write `value.source`",
  Headers: PAIRS_HINT,
  URLSearchParams: PAIRS_HINT,
  FormData: PAIRS_HINT,
  Response: "write `await response.json()`, or `await response.text()`",
  Blob: "write `await blob.text()`",
  Generator: ITERATOR_HINT,
  AsyncGenerator: ITERATOR_HINT,
  Number: "write `value.valueOf()`",
  String: "write `value.valueOf()`",
  Boolean: "write `value.valueOf()`",
};

/** A value has too many characters as JSON. */
export class TooLarge extends TypeError {}

/** Returns a value as JSON. Throws a `TypeError` that names the place of what JSON would lose or change, such as a `Map`. */
export function encode(value: unknown): string {
  return new Writer().write(value);
}

/** Returns text for people as JSON; surrogates without their pair, which UTF-8 cannot represent, are replaced. */
export function encodeText(text: string): string {
  return JSON.stringify(text.toWellFormed());
}

/** Value of a JSON text. `isExact`: it has numbers that a JavaScript number would change, as `bigint` or `JSON.rawJSON`. */
export interface Decoded {
  value: unknown;
  isExact: boolean;
}

/** Returns the value of a JSON text, with all its numbers. */
export function decode(text: string): Decoded {
  if (!SUSPECT.test(text)) return { value: JSON.parse(text), isExact: false };
  let isExact = false;
  const value = json.parse(text, (_, value, { source }) => {
    if (typeof value !== "number" || source === undefined || isSame(source, value)) return value;
    isExact = true;
    return source.length <= MAX_DIGITS && /^-?\d+$/.test(source) ? BigInt(source) : json.rawJSON(source);
  });
  return { value, isExact };
}

/**
 * Returns why a decoded value is not suitable for code that expects JavaScript numbers, or is nested too deeply for
 * recursive code; otherwise nothing.
 */
export function unsuitable(value: unknown, allowsExact: boolean): string | undefined {
  const waiting: Place[] = [{ value, depth: 0 }];
  for (let place = waiting.pop(); place; place = waiting.pop()) {
    const exact = typeof place.value === "bigint" ? `${place.value}` : json.isRawJSON(place.value) && place.value.rawJSON;
    if (exact && !allowsExact) return changed(exact, pointerOf(place));
    if (exact || typeof place.value !== "object" || place.value === null) continue;
    if (place.depth === MAX_DEPTH) return `it is nested more than ${MAX_DEPTH} levels deep`;
    const members = Object.entries(place.value).reverse();
    for (const [name, value] of members) waiting.push({ value, name, above: place, depth: place.depth + 1 });
  }
  return undefined;
}

interface Place {
  value: unknown;
  depth: number;
  name?: string;
  above?: Place;
}

function pointerOf(place: Place): string {
  const names: string[] = [];
  for (let at: Place | undefined = place; at?.name !== undefined; at = at.above) names.push(at.name);
  return pointer(names.reverse());
}

function changed(exact: string, at: string): string {
  const shown = exact.length > 100 ? `${exact.slice(0, 100)}…` : exact;
  const place = at && ` at \`${at}\``;
  return `\`${shown}\`${place} would become \`${Number(exact)}\` as a JavaScript number; hint: set \`numbers: "exact"\`, or use a string`;
}

/** Returns a JSON pointer. */
function pointer(names: readonly (string | number)[]): string {
  return names.map((name) => `/${`${name}`.replaceAll("~", "~0").replaceAll("/", "~1").toWellFormed()}`).join("");
}

/** Whether a number, written again, has the value of its source: so it is with up to 15 digits. */
function isSame(source: string, number: number): boolean {
  if (!Number.isFinite(number)) return false;
  const written = numberText(number);
  return source === written || decimal(source) === decimal(written);
}

/** Returns a number of JSON in a form that is the same for the same value: its digits and its exponent. */
function decimal(text: string): string {
  const [, sign, whole = "", fraction = "", exponent = "0"] = /^(-?)(\d+)(?:\.(\d+))?(?:[eE](.+))?$/.exec(text) ?? [];
  const all = (whole + fraction).replace(/^0+/, "");
  const digits = all.replace(/0+$/, "");
  if (!digits) return `${sign}0`;
  return `${sign}${digits}e${Number(exponent) - fraction.length + all.length - digits.length}`;
}

/** Returns a number as JavaScript prints it, which is as RFC 8785 has it, but with the sign of zero. */
function numberText(number: number): string {
  return Object.is(number, -0) ? "-0" : `${number}`;
}

/**
 * Writes one value. Allowed are plain objects, arrays, text, finite numbers, `bigint`, booleans, null, objects with
 * `toJSON`, and instances of classes whose contents are their own enumerable members.
 */
class Writer {
  /** Names and indices of the members above the current value, and their owners. */
  readonly #path: (string | number)[] = [];
  readonly #above: object[] = [];
  /** JSON of the names: objects in a list have the same ones. */
  readonly #names = new Map<string, string>();
  #size = 0;

  write(value: unknown): string {
    return this.#value(value, "") ?? "null";
  }

  /** Returns the JSON of a value; nothing for `undefined`. */
  #value(given: unknown, key: string | number): string | undefined {
    const value = typeof given === "object" && given !== null ? this.#resolved(given, key) : given;
    switch (typeof value) {
      case "undefined":
        return undefined;
      case "string":
        return this.#text(value, "a text");
      case "number":
        if (!Number.isFinite(value)) this.#refuse(`\`${value}\``, "write null, or a text");
        return this.#counted(numberText(value));
      case "bigint":
        if (isLargeInteger(value)) throw new TooLarge(`an integer has over ${MAX_DIGITS} digits`);
        return this.#counted(`${value}`);
      case "boolean":
        return this.#counted(`${value}`);
      case "object":
        return value === null ? this.#counted("null") : this.#nested(value);
      default:
        return this.#refuse(`a value of type ${typeof value}`, typeof value === "function" ? "write what it returns" : COPY_HINT);
    }
  }

  /** Returns the value that stands for an object in JSON: that of its `toJSON`. */
  #resolved(value: object, key: string | number): unknown {
    const { toJSON } = value as { toJSON?: unknown };
    // The `toJSON` of a `Buffer` makes an object, which nothing reads back as bytes.
    if (typeof toJSON !== "function" || ArrayBuffer.isView(value)) return value;
    const result: unknown = toJSON.call(value, `${key}`);
    if (result === null && types.isDate(value)) this.#refuse("an invalid `Date`", "write null, or another time");
    return result;
  }

  #nested(value: object): string {
    if (this.#above.length === MAX_DEPTH) this.#refuseDepth();
    this.#above.push(value);
    const text = Array.isArray(value) ? this.#array(value) : this.#object(value);
    this.#above.pop();
    return text;
  }

  #array(items: readonly unknown[]): string {
    const { length } = items;
    const names = Reflect.ownKeys(items);
    // The indices come first, then `length`.
    if (names.length > length + 1) this.#refuse(`an array with the member ${shown(names.at(-1)!)}`, "use an object");
    let text = "";
    for (let index = 0; index < length; index++) {
      this.#path.push(index);
      const item = this.#value(items[index], index) ?? this.#refuse("`undefined` in an array", "use null");
      text += index ? `,${item}` : item;
      this.#path.pop();
    }
    this.#size += length;
    return this.#counted(`[${text}]`, 2);
  }

  #object(value: object): string {
    const isPlain = hasPlainPrototype(value);
    if (isPlain ? json.isRawJSON(value) : isOpaque(value)) return this.#special(value);
    // Hidden members are notes of libraries, which are not copied either.
    const names = Object.keys(value);
    let text = "";
    for (const name of names) {
      this.#path.push(name);
      const member = this.#value((value as Record<string, unknown>)[name], name);
      if (member !== undefined) text += `${text && ","}${this.#name(name)}:${member}`;
      this.#path.pop();
    }
    if (Object.getOwnPropertySymbols(value).length || !names.length) this.#checkOthers(value, isPlain);
    this.#size += names.length;
    return this.#counted(`{${text}}`, 2);
  }

  /** Refuses an object if it has members that are not written, and none that are. */
  #checkOthers(value: object, isPlain: boolean): void {
    const others = Reflect.ownKeys(value);
    const symbol = others.find((name) => typeof name === "symbol" && Object.prototype.propertyIsEnumerable.call(value, name));
    if (!isPlain && (symbol || !Object.keys(value).length)) this.#refuseClass(value);
    if (symbol) this.#refuse(`an object with the symbol ${shown(symbol)} as a name`, COPY_HINT);
    if (others.length && !Object.keys(value).length) this.#refuse("an object with hidden members only", COPY_HINT);
  }

  /** Returns a number that has its text with it; refuses an instance of a class with contents of its own. */
  #special(value: object): string {
    if (!json.isRawJSON(value)) return this.#refuseClass(value);
    return /^[-\d]/.test(value.rawJSON) ? this.#counted(value.rawJSON) : this.write(JSON.parse(value.rawJSON));
  }

  #name(name: string): string {
    const known = this.#names.get(name);
    if (known !== undefined) return this.#counted(known);
    const text = this.#text(name, "a name of a member");
    this.#names.set(name, text);
    return text;
  }

  #text(text: string, what: string): string {
    if (!text.isWellFormed()) this.#refuse(`${what} with half of a character (a lone surrogate)`, "write `text.toWellFormed()`");
    return this.#counted(JSON.stringify(text));
  }

  /** Returns a text, and counts its characters, or those of it that are not counted yet. */
  #counted(text: string, size = text.length): string {
    this.#size += size;
    if (this.#size > MAX_CHARS) throw new TooLarge(`the value has over ${MAX_CHARS} characters as JSON`);
    return text;
  }

  #refuseClass(value: object): never {
    const tag = Object.prototype.toString.call(value).slice("[object ".length, -1);
    const known = ArrayBuffer.isView(value) ? BYTES_HINT : (REMEDIES[tag] ?? (/Iterator$/.test(tag) ? ITERATOR_HINT : undefined));
    this.#refuse(`a value of type ${classOf(value)}`, known ?? `${COPY_HINT}, or give the class a \`toJSON\``);
  }

  #refuseDepth(): never {
    const again = this.#above.findIndex((each, depth) => this.#above.indexOf(each) < depth);
    if (again < 0) throw new TypeError(`the value is nested more than ${MAX_DEPTH} levels deep`);
    this.#path.length = again;
    this.#refuse("an object that contains itself", "write an id in its place");
  }

  #refuse(what: string, hint?: string): never {
    const place = pointer(this.#path);
    throw new TypeError(`${what}${place && ` at \`${place}\``} has no JSON form${hint ? `; hint: ${hint}` : ""}`);
  }
}

/** Whether the members of an object are all that it is: it has no class, or is an object of another realm. */
function hasPlainPrototype(value: object): boolean {
  const prototype = Object.getPrototypeOf(value) as object | null;
  return prototype === null || prototype === Object.prototype || Object.getPrototypeOf(prototype) === null;
}

/** Whether the contents of an object are not in its members: built-in classes, most of which have a tag or accessors. */
function isOpaque(value: object): boolean {
  const isAccessor = (name: string) => !("value" in (Object.getOwnPropertyDescriptor(value, name) ?? { value: 0 }));
  return Symbol.toStringTag in value || types.isBoxedPrimitive(value) || isError(value) || Object.keys(value).some(isAccessor);
}

function shown(name: PropertyKey): string {
  return `\`${String(name).slice(0, 64).toWellFormed()}\``;
}

/** Returns whether a text has more bytes in UTF-8 than a limit. */
export function exceeds(text: string, limit: number): boolean {
  return text.length > limit || (text.length * 3 > limit && Buffer.byteLength(text) > limit);
}
