/** Functions around attempts: what they return, catch and forget. */

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { test } from "node:test";

import { App, type Around, DeclarationError, Retry } from "kafleet";
import { trial } from "kafleet/testing";

/** Runs a handler within hooks; returns its result, or the kind and the message of its error, and how often it has run. */
async function run(handler: () => unknown, ...hooks: Around<undefined>[]): Promise<unknown[]> {
  const app = new App();
  for (const hook of hooks) app.around(hook);
  let runs = 0;
  const item = app.task("item", () => {
    runs += 1;
    return handler();
  });
  const { result, failure } = await trial(item);
  return failure ? [failure.kind, failure.message, runs] : [result?.value, runs];
}

const later = () => sleep(5, "result");
const throws = () => { throw new RangeError("no"); }; // prettier-ignore
const fails = () => sleep(5).then(() => Promise.reject(new RangeError("no")));

const NAMED = "the hook `timed`";
const TWICE = "called `next()` twice, but an attempt runs once; hint: throw `Retry` for another attempt";
const NOTHING = "has neither called `next()` nor returned a result; hint: return null for no result";

const CASES: Record<string, [() => unknown, Around<undefined>, unknown[]]> = {
  "returns the result of next": [later, (_, next) => next(), ["result", 1]],
  "returns another result": [later, async (_, next) => [await next()], [["result"], 1]],
  "returns null instead of the result": [later, async (_, next) => (await next(), null), [null, 1]],
  "returns a result without the handler": [later, () => "cached", ["cached", 0]],
  "returns nothing": [later, async (_, next) => void (await next()), ["result", 1]],
  "does not wait": [later, (_, next) => void next(), ["result", 1]],
  "does not wait for an error": [fails, (_, next) => void next(), ["RangeError", "no", 1]],
  "does not wait for an error at once": [throws, async (_, next) => void next(), ["RangeError", "no", 1]],
  "waits for something else": [fails, (_, next) => (void next(), sleep(20)), ["RangeError", "no", 1]],
  "catches the error": [fails, async (_, next) => void (await next().catch(() => {})), [null, 1]],
  "returns another result for an error": [fails, (_, next) => next().catch(() => "none"), ["none", 1]],
  "throws another error": [fails, (_, next) => next().catch(() => { throw new Retry("again", { kind: "again" }); }), ["again", "again", 1]], // prettier-ignore
  "ends before the handler": [
    later,
    (_, next) => Promise.race([next(), Promise.reject(new Retry("slow"))]),
    ["error", "slow", 1],
  ],
  "calls next twice": [later, async function timed(_, next) { await next(); return next(); }, ["HookError", `${NAMED} ${TWICE}`, 1]], // prettier-ignore
  "calls next again after an error": [fails, async (_, next) => next().catch(() => next()), ["HookError", `the hook 1 of \`app.around\` ${TWICE}`, 1]], // prettier-ignore
  "calls next twice at once": [later, (_, next) => Promise.all([next(), next()]), ["HookError", `the hook 1 of \`app.around\` ${TWICE}`, 1]], // prettier-ignore
  "does nothing": [later, function timed() {}, ["HookError", `${NAMED} ${NOTHING}`, 0]],
};

for (const [name, [handler, hook, expected]] of Object.entries(CASES)) {
  test(`hook that ${name}`, async () => {
    assert.deepEqual(await run(handler, hook), expected);
    const plain: Around<undefined> = (_, next) => next();
    const inner = expected.map((each) => (typeof each === "string" ? each.replace("the hook 1", "the hook 2") : each));
    assert.deepEqual(await run(handler, plain, hook), inner, "within another hook");
    assert.deepEqual(await run(handler, hook, plain), expected, "around another hook");
  });
}

test("functions that run nothing when they are called are refused where they are declared", () => {
  const app = new App();
  const wrong: [unknown, string][] = [
    [function* () {}, "has a generator function, of which a call runs nothing; hint: write `async (…) => …`, without `*`"],
    [async function* () {}, "has a generator function"],
    [class Handler {}, "has a class, which cannot be called"],
  ];
  for (const [run, message] of wrong) {
    const declare = [
      () => app.task("a", run as () => 1),
      () => app.task("a", { retries: 1 }, run as () => 1),
      () => app.joined("a", run as () => 1),
      () => app.bundle("b").task("a", run as () => 1),
      () => app.around(run as () => 1),
    ];
    declare.forEach((each, n) => {
      const name = n === 4 ? "app.around" : "a";
      assert.throws(
        each,
        (error: Error) => error instanceof DeclarationError && error.message.startsWith(`\`${name}\` ${message}`),
      );
      app.declared.delete("b");
    });
  }
  assert.throws(() => app.around("log" as never), /`app.around` has no function, but a value of type string/);
});
