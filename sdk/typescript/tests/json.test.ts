/** What is written as JSON and read back is the same, or refused with its place. */

import assert from "node:assert/strict";
import { EventEmitter } from "node:events";
import { describe, test } from "node:test";
import { runInNewContext } from "node:vm";

import { decode, encode, MAX_DEPTH, unsuitable } from "../src/json.ts";
import { Random } from "./hostile_values.ts";

const half = "🎉".slice(0, 1);
const raw = (text: string): unknown => (JSON as unknown as { rawJSON(text: string): unknown }).rawJSON(text);

class Point {
  x = 1;
  y = [new Inner()];
  get sum(): number {
    return 2;
  }
}
class Inner {
  z = null;
}
class Money {
  #cents = 5n;
  toJSON(): unknown {
    return { cents: this.#cents };
  }
}
class Private {
  #secret = 1;
  get secret(): number {
    return this.#secret;
  }
}
class Empty {}
class Registry extends Map<string, number> {
  name = "registry";
}

const ALLOWED: Record<string, [unknown, string]> = {
  "plain object": [{ a: 1, "b/c": [true, null, "x\u2028"], skipped: undefined }, '{"a":1,"b/c":[true,null,"x\u2028"]}'],
  "object without a prototype": [Object.assign(Object.create(null), { a: 1 }), '{"a":1}'],
  "object of another realm": [runInNewContext("({ a: [1] })"), '{"a":[1]}'],
  "member of the name __proto__": [JSON.parse('{"__proto__":{"a":1}}'), '{"__proto__":{"a":1}}'],
  accessor: [{ a: { get b() { return 1; } } }, '{"a":{"b":1}}'], // prettier-ignore
  "hidden member beside others": [Object.defineProperty({ a: 1 }, "note", { value: 2 }), '{"a":1}'],
  "instance with members": [new Point(), '{"x":1,"y":[{"z":null}]}'],
  "object with toJSON": [[new Money(), new URL("http://a/")], '[{"cents":5},"http://a/"]'],
  date: [new Date(5), '"1970-01-01T00:00:00.005Z"'],

  bigint: [[2n ** 89n - 1n, -5n], "[618970019642690137449562111,-5]"],
  "raw number": [raw("0.10"), "0.10"],
  "integer beyond 2^53": [[2 ** 60, -(2 ** 60), 1e21], "[1152921504606847000,-1152921504606847000,1e+21]"],
  "negative zero": [-0, "-0"],
  frozen: [Object.freeze({ a: Object.freeze([1]) }), '{"a":[1]}'],
  nothing: [undefined, "null"],
  "same object twice": [((same) => [same, same])({ a: 1 }), '[{"a":1},{"a":1}]'],
};

for (const [name, [value, expected]] of Object.entries(ALLOWED)) {
  test(`value is written: ${name}`, () => assert.equal(encode(value), expected));
}

const CLASSES: Record<string, unknown> = {
  Map: new Map([[1, 2]]),
  Set: new Set([1]),
  WeakMap: new WeakMap(),
  WeakRef: new WeakRef({}),
  Promise: Promise.resolve(1),
  Error: new Error("x"),
  RangeError: Object.assign(new RangeError("x"), { code: 1 }),
  DOMException: new DOMException("x"),
  RegExp: /x/,
  ArrayBuffer: new ArrayBuffer(1),
  Uint8Array: new Uint8Array(1),
  Buffer: Buffer.from("a"),
  DataView: new DataView(new ArrayBuffer(1)),
  "Map Iterator|Iterator": new Map().values(),
  "Array Iterator|Iterator": [1].values(),
  Generator: (function* () {})(),
  AsyncGenerator: (async function* () {})(),
  Headers: new Headers({ x: "1" }),
  URLSearchParams: new URLSearchParams("x=1"),
  FormData: new FormData(),
  Blob: new Blob(["x"]),
  File: new File(["x"], "x"),
  Response: new Response("x"),
  Request: new Request("http://a"),
  ReadableStream: new ReadableStream(),
  Event: new Event("x"),
  AbortSignal: new AbortController().signal,
  AbortController: new AbortController(),
  TextEncoder: new TextEncoder(),
  NumberFormat: new Intl.NumberFormat(),
  DateTimeFormat: new Intl.DateTimeFormat(),
  Number: new Number(5),
  String: new String("ab"),
  EventEmitter: new EventEmitter(),
  Private: new Private(),
  Empty: new Empty(),
  Registry: new Registry([["x", 1]]),
  function: () => 1,
  symbol: Symbol("s"),
};

for (const [name, value] of Object.entries(CLASSES)) {
  test(`value is refused by the name of its class: ${name}`, () => {
    for (const [nested, place] of [
      [value, ""],
      [{ a: [0, value] }, " at `/a/1`"],
    ] as const) {
      const found = assert.throws(() => encode(nested), TypeError) as unknown;
      assert.equal(found, undefined);
      const message = messageOf(() => encode(nested));
      const names = name.split("|").map((each) => `a value of type ${each}${place} has no JSON form`);
      assert.ok(
        names.some((expected) => message.startsWith(expected)),
        message,
      );
    }
  });
}

const cyclic: Record<string, unknown> = {};
cyclic["self"] = { cyclic };
let deep: unknown = 1;
for (let level = 0; level <= MAX_DEPTH; level++) deep = [deep];

const REFUSED: Record<string, [unknown, string]> = {
  NaN: [{ "a/b": { "c~": NaN } }, "`NaN` at `/a~1b/c~0` has no JSON form"],
  infinity: [[-Infinity], "`-Infinity` at `/0` has no JSON form"],
  "half of a character": [[half], "a text with half of a character (a lone surrogate) at `/0`"],
  "name with half of a character": [{ [half]: 1 }, "a name of a member with half of a character (a lone surrogate) at `/\ufffd`"],
  "invalid date": [{ at: new Date(NaN) }, "an invalid `Date` at `/at` has no JSON form"],
  "undefined in an array": [[1, undefined], "`undefined` in an array at `/1` has no JSON form; hint: use null"],
  "empty place of an array": [[, 1], "`undefined` in an array at `/0`"],
  "members of an array": [{ found: "abc".match(/b/) }, "an array with the member `groups` at `/found`"],
  "symbol as a name": [{ [Symbol("s")]: 1 }, "an object with the symbol `Symbol(s)` as a name has no JSON form"],
  "instance with an accessor": [
    Object.defineProperty(new Point(), "z", { get: () => 1, enumerable: true }),
    "a value of type Point",
  ],
  "hidden members only": [Object.defineProperty({}, "a", { value: 1 }), "an object with hidden members only"],
  "inherited members only": [Object.create({ a: 1 }), "a value of type Object"],
  "object that contains itself": [cyclic, "an object that contains itself at `/self/cyclic` has no JSON form"],
  "too many levels": [deep, `the value is nested more than ${MAX_DEPTH} levels deep`],
  "too many characters": [Array(3000).fill("x".repeat(3000)), "the value has over 8388608 characters as JSON"],
  "too many digits": [1n << 400_000n, "an integer has over 100000 digits"],
  "toJSON that throws": [{ toJSON: () => assert.fail("no") }, "no"],
};

for (const [name, [value, expected]] of Object.entries(REFUSED)) {
  test(`value is refused: ${name}`, () => assert.ok(messageOf(() => encode(value)).startsWith(expected)));
}

function messageOf(run: () => unknown): string {
  try {
    return `no error: ${run()}`;
  } catch (error) {
    return (error as Error).message;
  }
}

describe("number", () => {
  const text = (source: string): string => encode(decode(source).value);

  for (const [source, expected] of [
    ["9007199254740991", 9007199254740991],
    ["9007199254740992", 9007199254740992],
    ["9007199254740993", 9007199254740993n],
    ["-9007199254740993", -9007199254740993n],
    ["1152921504606846976", 2n ** 60n],
    ["1152921504606847000", 2 ** 60],
    ["618970019642690137449562111", 2n ** 89n - 1n],
    ["0.10", 0.1],
    ["1e2", 100],
    ["-0", -0],
    ["-0.000000000000000000", -0],
    ["0.30000000000000004", 0.1 + 0.2],
    ["6.02214076e23", 6.02214076e23],
    ["1.7976931348623157e308", Number.MAX_VALUE],
    ["5e-324", Number.MIN_VALUE],
    ["0.1234567890123456789", raw("0.1234567890123456789")],
    ["12345678901234567.89", raw("12345678901234567.89")],
    ["9007199254740993.0", raw("9007199254740993.0")],
    ["1e400", raw("1e400")],
    ["-1E-400", raw("-1E-400")],
    ["0e999999999999", 0],
  ] as const) {
    test(`${source} is read exactly`, () => {
      const { value, isExact } = decode(`{"a":[${source}]}`);
      assert.deepEqual(value, { a: [expected] });
      assert.equal(isExact, typeof expected !== "number");
      const refused = unsuitable(value, false);
      assert.equal(refused === undefined, typeof expected === "number");
      if (refused)
        assert.match(refused, /^`.*` at `\/a\/0` would become `.*` as a JavaScript number; hint: set `numbers: "exact"`/);
      assert.equal(unsuitable(value, true), undefined);
    });
  }

  test("of any form is written again with its value", () => {
    const random = new Random(7);
    const digits = (most: number) => Array.from({ length: 1 + random.below(most) }, () => random.below(10)).join("");
    for (let count = 0; count < 20_000; count++) {
      const whole = random.below(3) ? `${1 + random.below(9)}${digits(25)}` : `${random.below(10)}`;
      const fraction = random.below(2) ? `.${digits(25)}` : "";
      const exponent = random.below(3) ? "" : `${random.pick(["e", "E", "e+", "e-"])}${random.below(330)}`;
      const source = `${random.pick(["", "-"])}${whole}${fraction}${exponent}`;
      assert.ok(isEqual(text(source), source), `${source} became ${text(source)}`);
    }
  });

  test("of JavaScript is written and read again as itself", () => {
    const random = new Random(8);
    const view = new DataView(new ArrayBuffer(8));
    for (let count = 0; count < 20_000; count++) {
      for (const place of [0, 4]) view.setUint32(place, random.below(2 ** 32));
      const number = random.below(2) ? view.getFloat64(0) : random.below(2 ** 32) * 2 ** random.below(60);
      if (Number.isFinite(number)) assert.ok(Object.is(decode(encode(number)).value, number), `${number}`);
    }
  });

  test("in a text is a text", () => {
    assert.deepEqual(decode('["9007199254740993", "1e999", {"1e999": "x"}]'), {
      value: ["9007199254740993", "1e999", { "1e999": "x" }],
      isExact: false,
    });
  });

  test("of a million digits is read in time", () => {
    const long = "1".repeat(1_000_000);
    const start = performance.now();
    assert.deepEqual(decode(`[${long}]`).value, [raw(long)]);
    assert.ok(performance.now() - start < 5000);
  });
});

/** Compares two numbers of JSON as fractions of integers. */
function isEqual(one: string, other: string): boolean {
  const [[a, b], [c, d]] = [fraction(one), fraction(other)];
  return a * d === c * b && one.startsWith("-") === other.startsWith("-");
}

function fraction(text: string): [bigint, bigint] {
  const [, digits = "", decimals = "", exponent = "0"] = /^(-?\d+)(?:\.(\d+))?(?:[eE](.*))?$/.exec(text)!;
  const scale = Number(exponent) - decimals.length;
  return [BigInt(digits + decimals) * 10n ** BigInt(Math.max(scale, 0)), 10n ** BigInt(Math.max(-scale, 0))];
}

test("params of any depth are read or refused", () => {
  assert.equal(unsuitable(decode(`${"[".repeat(MAX_DEPTH)}${"]".repeat(MAX_DEPTH)}`).value, true), undefined);
  const refused = unsuitable(decode(`${"[".repeat(100_000)}${"]".repeat(100_000)}`).value, true);
  assert.equal(refused, `it is nested more than ${MAX_DEPTH} levels deep`);
});
