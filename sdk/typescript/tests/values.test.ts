/**
 * Values of everyday, both ways: as params of a submitted task and as the result of a handler they arrive as they are, or are
 * refused with their place and what to write instead. And types in schemas that JSON does not have.
 */

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { type } from "arktype";
import { App, type Schema } from "kafleet";
import { recorded, trial } from "kafleet/testing";
import { z } from "zod";

const app = new App({ numbers: "exact" });
const elsewhere = app.remote("elsewhere");

class Money {
  cents = 5;
}
class Amount {
  #cents = 5;
  toJSON(): string {
    return `${this.#cents} ct`;
  }
}
class Hidden {
  #cents = 5;
  get cents(): number {
    return this.#cents;
  }
}
const Size = { small: 0, large: "large" } as const;

/** Values, each with its form at the other end. */
const ARRIVES: Record<string, [unknown, unknown]> = {
  text: ["Ada 🎉 \u2028 \0", "Ada 🎉 \u2028 \0"],
  "text like a number": ["1e400", "1e400"],
  number: [[0.1, 5, 1e21, 2 ** 53 - 1, -(2 ** 60)], [0.1, 5, 1e21, 2 ** 53 - 1, -(2 ** 60)]],
  "negative zero": [[-0], [-0]],
  "small bigint": [[5n], [5]],
  "large bigint": [[2n ** 64n], [2n ** 64n]],
  boolean: [[true, false], [true, false]],
  null: [[null], [null]],
  "missing member": [{ a: undefined, b: 1 }, { b: 1 }],
  "members of enum": [[Size.small, Size.large], [0, "large"]],
  date: [{ at: new Date("2026-01-31T12:00:00+01:00") }, { at: "2026-01-31T11:00:00.000Z" }],
  URL: [[new URL("http://a/b?c")], ["http://a/b?c"]],
  "instance of a class": [new Money(), { cents: 5 }],
  "instance with toJSON": [[new Amount()], ["5 ct"]],
  "object without a prototype": [Object.assign(Object.create(null), { a: 1 }), { a: 1 }],
  "member of the name __proto__": [JSON.parse('{"__proto__": {"a": 1}}'), JSON.parse('{"__proto__": {"a": 1}}')],
  "tuple and nested lists": [[1, ["a", [null, {}]]], [1, ["a", [null, {}]]]],
}; // prettier-ignore

const BYTES = 'hint: write text, as of `Buffer.from(bytes).toString("base64")`, or numbers: `Array.from(bytes)`';
const PAIRS = "hint: write `Object.fromEntries(value)`";
const ITERATOR = "hint: write `[...values]`, or for an asynchronous one `await Array.fromAsync(values)`";
const COPY = "hint: copy what is needed into a plain object, or give the class a `toJSON`";
const BOXED = "hint: write `value.valueOf()`";

/** Values that are refused at the member `a` of an object, each with the text about it. */
const REFUSED: Record<string, [unknown, string]> = {
  NaN: [NaN, "`NaN` at `/a` has no JSON form; hint: write null, or a text"],
  infinity: [-Infinity, "`-Infinity` at `/a` has no JSON form; hint: write null, or a text"],
  "invalid date": [new Date(NaN), "an invalid `Date` at `/a` has no JSON form; hint: write null, or another time"],
  map: [
    new Map([["x", 1]]),
    `a value of type Map at \`/a\` has no JSON form; ${PAIRS}, or \`[...value]\` if its keys are no texts`,
  ],
  set: [new Set([1]), "a value of type Set at `/a` has no JSON form; hint: write `[...value]`"],
  "typed array": [new Float64Array(2), `a value of type Float64Array at \`/a\` has no JSON form; ${BYTES}`],
  bytes: [new Uint8Array(2), `a value of type Uint8Array at \`/a\` has no JSON form; ${BYTES}`],
  buffer: [Buffer.from("a"), `a value of type Buffer at \`/a\` has no JSON form; ${BYTES}`],
  "array buffer": [new ArrayBuffer(1), `a value of type ArrayBuffer at \`/a\` has no JSON form; ${BYTES}`],
  promise: [Promise.resolve(1), "a value of type Promise at `/a` has no JSON form; hint: write `await` before it"],
  error: [
    new RangeError("x"),
    "a value of type RangeError at `/a` has no JSON form; hint: write `{ name: error.name, message: error.message }`",
  ],
  "regular expression": [/a/, "a value of type RegExp at `/a` has no JSON form; hint: write `value.source`"],
  headers: [new Headers(), `a value of type Headers at \`/a\` has no JSON form; ${PAIRS}`],
  "search params": [new URLSearchParams("a=1"), `a value of type URLSearchParams at \`/a\` has no JSON form; ${PAIRS}`],
  response: [
    new Response("a"),
    "a value of type Response at `/a` has no JSON form; hint: write `await response.json()`, or `await response.text()`",
  ],
  blob: [new Blob(["a"]), "a value of type Blob at `/a` has no JSON form; hint: write `await blob.text()`"],
  generator: [(function* () {})(), `a value of type Generator at \`/a\` has no JSON form; ${ITERATOR}`],
  iterator: [[1].values(), / at `\/a` has no JSON form; hint: write `\[\.\.\.values\]`/ as unknown as string],
  function: [() => 1, "a value of type function at `/a` has no JSON form; hint: write what it returns"],
  symbol: [Symbol("s"), "a value of type symbol at `/a` has no JSON form; hint: copy what is needed into a plain object"],
  "instance with private members": [new Hidden(), `a value of type Hidden at \`/a\` has no JSON form; ${COPY}`],
  "boxed number": [new Number(5), `a value of type Number at \`/a\` has no JSON form; ${BOXED}`],
  "undefined in a list": [[1, undefined], "`undefined` in an array at `/a/1` has no JSON form; hint: use null"],
  "half of a character": [
    "🎉".slice(0, 1),
    "a text with half of a character (a lone surrogate) at `/a` has no JSON form; hint: write `text.toWellFormed()`",
  ],
  "object that contains itself": [
    ((object: Record<string, unknown>) => (object["self"] = object))({}),
    "an object that contains itself at `/a/self` has no JSON form; hint: write an id in its place",
  ],
};

describe("value", () => {
  for (const [name, [value, expected]] of Object.entries(ARRIVES)) {
    test(`arrives as params and as a result: ${name}`, async () => {
      const returns = app.task(`arrives-${app.declared.size}`, (params: unknown) => params);
      assert.deepEqual((await trial(returns, value)).output, expected);
      const [task] = await recorded(() => elsewhere.submit(value));
      assert.deepEqual(task!.params, expected);
    });
  }

  for (const [name, [value, message]] of Object.entries(REFUSED)) {
    test(`is refused as params, as a result and for a child: ${name}`, async () => {
      const matches = (found: string, expected: string | RegExp) =>
        typeof expected === "string" ? assert.equal(found, expected) : assert.match(found, expected);
      const returns = app.task(`returns-${app.declared.size}`, () => ({ a: value }));
      const { failure } = await trial(returns);
      assert.deepEqual([failure?.outcome, failure?.kind], ["fail", "bad_output"]);
      matches(failure!.message.replace("the result cannot be stored: ", ""), message);
      const spawns = app.task(`spawns-${app.declared.size}`, (_: unknown, cx) => cx.spawn(elsewhere, { a: value }));
      for (const found of [
        await recorded(() => elsewhere.submit({ a: value })).then(String, (error: Error) => error.message),
        (await trial(spawns)).failure!.message,
      ]) {
        matches(found.replaceAll("`/params/a", "`/a"), message);
      }
    });
  }
});

const DATE = "JSON has times as text: write `z.iso.datetime()`, and `.transform((text) => new Date(text))` for a `Date`";

describe("type of a schema that JSON does not have", () => {
  for (const [name, schema, problem] of [
    ["date", z.date(), `Date cannot be represented in JSON Schema; hint: ${DATE}`],
    ["coerced date", z.coerce.date(), `Date cannot be represented in JSON Schema; hint: ${DATE}`],
    [
      "date of a member",
      z.object({ at: z.array(z.date()).optional() }),
      `Date cannot be represented in JSON Schema at \`/at/*\`; hint: ${DATE}`,
    ],
    [
      "bigint of a tuple",
      z.tuple([z.string(), z.bigint()]),
      'BigInt cannot be represented in JSON Schema at `/1`; hint: write `z.any().transform(BigInt)` with `numbers: "exact"`, or a text',
    ],
    [
      "map of a record",
      z.record(z.string(), z.map(z.string(), z.int())),
      /^Map cannot be represented in JSON Schema at `\/\*`; hint: JSON has objects: write `z\.record/,
    ],
    [
      "set of a union",
      z.object({ a: z.union([z.string(), z.set(z.int())]) }),
      /^Set cannot be represented in JSON Schema at `\/a`; hint: JSON has lists: write `z\.array/,
    ],
    [
      "class",
      z.object({ a: z.instanceof(Money) }),
      /^Custom types cannot be represented .* at `\/a`; hint: declare its form in JSON/,
    ],
    [
      "nothing",
      z.void(),
      "Void cannot be represented in JSON Schema; hint: omit it: the result of a handler that returns nothing is null",
    ],
  ] as [string, Schema, string | RegExp][]) {
    // prettier-ignore
    test(`is refused when the app starts: ${name}`, () => {
      for (const part of ["params", "output"] as const) {
        const task = new App().task("a", { [part]: schema } as { params: Schema }, () => 1);
        assert.throws(() => task.declaration(), (error: Error) => {
          const found = error.message.replace(`the schema of the ${part} of \`a\` has no JSON Schema: `, "");
          if (typeof problem === "string") assert.equal(found, problem);
          else assert.match(found, problem);
          return true;
        });
      }
    });
  }

  test("is explained by the attempt, if its library describes it as anything", async () => {
    const params = type({ at: "Date" }) as Schema<{ at: unknown }>;
    const { failure } = await trial(
      app.task("ark", { params }, () => 1),
      { at: new Date(0) },
    );
    assert.equal(failure!.message, `the params do not fit the type: /at: at must be a Date (was string); hint: ${DATE}`);
  });

  test("may be made of what JSON has", async () => {
    const at = z.iso.datetime({ offset: true }).transform((text) => new Date(text));
    const schema = z.object({ at, all: z.array(z.int()).transform((list) => new Set(list)) });
    const make = app.task("make", { params: schema, output: schema }, ({ at, all }) => ({ at: at.toISOString(), all: [...all] }));
    make.declaration();
    const { output } = await trial(make, { at: "2026-01-31T12:00:00+01:00", all: [1, 1, 2] });
    assert.deepEqual(output, { at: new Date("2026-01-31T11:00:00Z"), all: new Set([1, 2]) });
  });
});

test("result that does not fit its schema names the place", async () => {
  const wrong = app.task("wrong", { output: z.object({ n: z.int() }) }, () => ({ n: "1" }) as unknown as { n: number });
  const { failure } = await trial(wrong);
  assert.deepEqual([failure!.outcome, failure!.kind], ["fail", "bad_output"]);
  assert.match(failure!.message, /^the result cannot be stored: \/n: Invalid input: expected (int|number), received string$/);
});
