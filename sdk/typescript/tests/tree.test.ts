/** `trial.tree`: whole trees in virtual time. Trees of all kinds end as on a real fleet. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { after, before, describe, test } from "node:test";

import { App, chain, chord, group, type Joined, Retry, TaskFailed, TimedOut, Wait } from "kafleet";
import { type Fleet, fleet, trial, type TreeTrial } from "kafleet/testing";

import * as canvas from "./apps/canvas.ts";
import { app as trees, type Plan, type Planned, node } from "./apps/trees.ts";
import { APPS, ROOT } from "./driver.ts";

/** Numbers that are the same in every run. */
class Dice {
  #state: number;

  constructor(seed: number) {
    this.#state = seed;
  }

  below(limit: number): number {
    this.#state = (Math.imul(this.#state, 1103515245) + 12345) >>> 0;
    return (this.#state >>> 8) % limit;
  }

  of<T>(values: readonly T[]): T {
    return values[this.below(values.length)]!;
  }

  many<T>(limit: number, make: (n: number) => T): T[] {
    return Array.from({ length: this.below(limit + 1) }, (_, n) => make(n));
  }
}

const OUTCOMES = ["fail", "retry", "retry", "range", "type", "dead", "unsuccessful"];

function planOf(dice: Dice, level: number): Plan {
  const below = level < 3 ? 2 : 0;
  return {
    outcomes: dice.below(3) ? [] : dice.many(4, () => dice.of(OUTCOMES)),
    output: dice.below(5),
    children: dice.many(below, (n) => childOf(dice, level, n)),
    now: dice.below(4) ? [] : dice.many(below, (n) => childOf(dice, level, n + 10)),
    then: dice.below(2) ? [] : dice.many(below, () => continuationOf(dice, level)),
  };
}

function childOf(dice: Dice, level: number, n: number): Planned {
  const options = {
    ...(dice.below(2) && { id: `c${n}` }),
    ...(!dice.below(4) && { onFailure: "ignore" as const }),
    ...(!dice.below(4) && { maxFailed: 1 }),
    ...(!dice.below(5) && { retries: dice.below(4) }),
  };
  const after = dice.below(4) ? [] : [continuationOf(dice, level + 1)];
  return { plan: planOf(dice, level + 1), type: dice.below(5) ? "node" : "skips", options, after };
}

function continuationOf(dice: Dice, level: number): Planned {
  const options = {
    on: dice.of(["succeeded", "failed", "ended"] as const),
    withResults: !dice.below(2),
    ...(!dice.below(4) && { onFailure: "ignore" as const }),
  };
  return { plan: planOf(dice, level + 1), type: "node", options };
}

/** What a tree has ended with, a line for each task; lists of results are sorted, since their order is that of the server. */
type Line = [string, unknown[]];

function linesOfTrial(tree: TreeTrial): Line[] {
  return tree.tasks.map(({ id, state, ownState, running, error, attempts }) => {
    const result = ownState === "succeeded" ? running.result : undefined;
    return [id, [state, ownState, attempts.length, sorted(result), error?.kind ?? null]];
  });
}

function sorted(result: unknown): unknown {
  if (!Array.isArray(result)) return result ?? null;
  return result.map((each) => JSON.stringify(sorted(each))).sort();
}

describe("random trees end as on a fleet", () => {
  let running: Fleet;
  before(async () => {
    running = await fleet({ target: "trees.ts", cwd: APPS });
  });
  after(() => running?.stop());

  const seeds = Array.from({ length: 100 }, (_, n) => n + 1);

  test(`${seeds.length} trees`, async () => {
    const handles = await Promise.all(seeds.map((seed) => node.submit(planOf(new Dice(seed), 0), { id: `t${seed}` })));
    for (const [n, handle] of handles.entries()) {
      await handle.result({ timeout: "60s" }).catch((error) => assert.ok(error instanceof TaskFailed, `${error}`));
      const found: Line[] = [];
      for await (const status of trees.tasks.search(`under:"${handle.id}"`)) {
        const { id, state, own_state, attempt, result, error } = status;
        found.push([id, [state, own_state, attempt, sorted(result), error?.kind ?? null]]);
      }
      const tree = await trial.tree(node, planOf(new Dice(seeds[n]!), 0), { id: handle.id });
      assert.deepEqual(Object.fromEntries(linesOfTrial(tree)), Object.fromEntries(found), `seed ${seeds[n]}\n${tree}`);
    }
  });
});

const app = new App<string>();
const orders: string[] = [];

test("retries, children and continuations run in virtual time", async () => {
  const policy = { retries: 3, minBackoff: "1h", maxBackoff: "3h" } as const;
  const flaky = app.task("flaky", policy, (n: number, cx) => {
    console.log("attempt", cx.number);
    if (cx.number < n) throw new Retry("busy");
    return n;
  });
  const parent = app.task("parent", async (_: unknown, cx) => {
    await cx.spawn(flaky.map([1, 4, 2]));
    cx.then(total);
    return cx.state;
  });
  const total = app.joined("total", (_: unknown, cx: Joined<number>) => {
    return cx.results.map(({ output }) => output);
  });
  const began = performance.now();
  const tree = await trial.tree(parent, undefined, { state: "pool", id: "p" });
  assert.ok(performance.now() - began < 10_000);
  assert.deepEqual([tree.output, tree.finalOutput, tree.state], ["pool", [1, 4, 2], "succeeded"]);
  // 1 h, 2 h and 3 h of backoff.
  assert.equal(tree.elapsedMs, 6 * 3_600_000);
  const [, second] = tree.root.children;
  assert.deepEqual([second!.attempts.length, second!.log], [4, ["attempt 1", "attempt 2", "attempt 3", "attempt 4"]]);
  assert.deepEqual(tree.task("then").params, tree.task("p:then").params);
  assert.throws(() => tree.task("nobody"), /^Error: the tree has no task `nobody`:\np \(parent\) succeeded\n {2}p:flaky-/);
});

test("delays are times of the start", async () => {
  const at = new Date(Date.now() + 7_200_000);
  const leaf = app.task("leaf", (name: string) => void orders.push(name));
  const parent = app.task("delays", async (_: unknown, cx) => {
    await cx.spawn(leaf, "at", { at });
    await cx.spawn(leaf, "delay", { delay: "1h" });
    await cx.spawn(leaf, "now");
  });
  const tree = await trial.tree(parent);
  assert.deepEqual(orders.splice(0), ["now", "delay", "at"]);
  assert.ok(Math.abs(tree.elapsedMs - 7_200_000) < 60_000, `${tree.elapsedMs}`);
});

test("waits are not counted until they have taken too long", async () => {
  let calls = 0;
  const policy = { retries: 1, minBackoff: "1m", maxBackoff: "1m", maxWait: "1h" } as const;
  const limited = app.task("limited", policy, (_: unknown, cx) => {
    calls += 1;
    assert.equal(cx.number, calls > 5 ? 2 : 1);
    throw new Wait("limited", { kind: "limited", after: "15m" });
  });
  const tree = await trial.tree(limited);
  // At 0, 15, 30, 45 and 60 minutes; the one after an hour counts, and so does the next.
  assert.deepEqual([calls, tree.state, tree.root.error?.kind], [6, "failed", "limited"]);
});

test("backoff of waits grows, and the total timeout ends them", async () => {
  const waits = app.task("waits", { minBackoff: "1s", totalTimeout: "1h" }, () => {
    throw new Wait("not yet");
  });
  const tree = await trial.tree(waits);
  assert.deepEqual([tree.root.error?.kind, tree.root.attempts.length], ["timeout", 15]);
});

test("failure has the log of the task that failed, and mocks of the test are used", async (t) => {
  const shop = { charge: async (card: string) => card.length };
  const charge = app.task("charge", { retries: 0 }, async (card: string) => {
    console.log("charging", card);
    return shop.charge(card);
  });
  const order = app.task("order", async (card: string, cx) => void (await cx.spawn(charge, card, { id: "charge" })));
  assert.equal((await trial.tree(order, "1234")).task("charge").output, 4);
  t.mock.method(shop, "charge", async () => {
    throw new RangeError("no money");
  });
  const tree = await trial.tree(order, "1234");
  assert.throws(
    () => tree.output,
    (error: TaskFailed) => {
      const place = "because of its descendant `trial:charge`: RangeError: no money";
      assert.equal(error.message, `the task \`trial\` ended as failed ${place}\nlog of \`trial:charge\`:\n  charging 1234`);
      return error.descendant === "trial:charge" && error.kind === "RangeError";
    },
  );
  assert.throws(() => tree.finalOutput, TaskFailed);
  assert.equal(`${tree}`, "trial (order) failed\n  trial:charge (charge) failed: RangeError: no money");
});

test("chains, groups and chords", async () => {
  const { add, busy, invoice, mail, page, smallMail, smallPage } = canvas;
  const sum = await trial.tree(chain(busy.call(2), add.call({ more: 1 }), smallPage.call("t")));
  assert.deepEqual([sum.output, sum.task("then").output, sum.finalOutput], [3, 4, "t after 0"]);
  const parts = invoice.map(["c", "a", "b"].map((part) => ({ part })));
  const all = await trial.tree(parts, { id: "g" });
  assert.deepEqual([all.output, all.task("g:2").output], [["c.pdf", "a.pdf", "b.pdf"], "b.pdf"]);
  const mailed = await trial.tree(chord(parts, smallMail.call({ to: "ada" })));
  assert.equal(mailed.finalOutput, "small-mail: c.pdf+a.pdf+b.pdf to ada");
  const then = await trial.tree(chain(parts, page.call({ title: "t" }), smallPage.call("end")));
  assert.deepEqual([then.task("then").output, then.finalOutput], ["t: c.pdf,a.pdf,b.pdf", "end after 0"]);
  const lost = await trial.tree(chord([invoice.call({ part: "lost" })], mail.call({ to: "ada" })));
  assert.deepEqual([lost.state, lost.root.continuations, lost.task("0").error?.kind], ["failed", [], "lost_part"]);
  const ordered = await trial.tree(canvas.order, { parts: ["c", "a"] });
  assert.equal(ordered.finalOutput, "c.pdf+a.pdf to ada");
  await assert.rejects(trial.tree(group()), /the group is empty/);
});

test("the first failed child cancels the others with failFast", async () => {
  const leaf = app.task("one-of-many", { retries: 0 }, (fails: boolean) => {
    if (fails) throw new RangeError("broken");
  });
  const parent = app.task("fails-fast", async (fails: boolean[], cx) => void (await cx.spawn(leaf.map(fails))));
  const failing = chain(parent.call([false, true, false, false], { failFast: true }), leaf.call(false, { on: "ended" }));
  const tree = await trial.tree(failing);
  assert.deepEqual(
    tree.root.children.map(({ state }) => state),
    ["succeeded", "failed", "cancelled", "cancelled"],
  );
  assert.deepEqual([tree.state, tree.root.error?.kind], ["failed", "child_failed"]);
  assert.equal(tree.task("then").state, "succeeded");
  const tolerant = await trial.tree(parent.call([true, false], { failFast: true, maxFailed: 1 }));
  assert.equal(tolerant.state, "succeeded");
});

test("types of other programs are stubs, and declared ones may be", async () => {
  const remote = app.remote("elsewhere");
  const uses = app.task("uses", async (_: unknown, cx) => {
    await cx.spawn(remote, { n: 2 });
    await cx.spawn(app.remote("leaf"), "not this one");
    cx.then(remote, { n: 3 }, { withResults: true });
  });
  await assert.rejects(
    trial.tree(uses),
    /`elsewhere` is not declared by the app; hint: give `stubs: { "elsewhere": \(params\) => … }`/,
  );
  const stubs = { elsewhere: (params: any) => params.n ?? params.results.map(({ output }: any) => output), leaf: () => "stub" };
  const tree = await trial.tree(uses, undefined, { stubs });
  assert.deepEqual(tree.finalOutput, [2, "stub"]);
  assert.deepEqual(orders, []);
});

test("tasks that handlers submit are recorded, and do not run", async () => {
  const submits = app.task("submits", async () => (await canvas.busy.submit(5, { id: "b" })).id);
  const tree = await trial.tree(submits);
  assert.deepEqual([tree.output, tree.submitted], ["b", [{ type: "busy", params: 5, id: "b" }]]);
});

test("attempts are stopped at their timeout, and the tree at its own", async () => {
  const hangs = app.task("hangs", { timeout: "20ms", retries: 1 }, (_: unknown, cx) => {
    return cx.number > 1 ? "done" : sleep(600_000, 0, { signal: cx.signal, ref: false });
  });
  const tree = await trial.tree(hangs);
  assert.deepEqual([tree.output, tree.root.attempts[0]?.failure?.message], ["done", "timeout of 0.02 s"]);
  const deaf = app.task("deaf", () => sleep(600_000, 0, { ref: false }));
  const alive = setInterval(() => {}, 1000);
  await assert.rejects(trial.tree(deaf, undefined, { timeout: 50 }), (error: Error) => {
    return (
      error instanceof TimedOut &&
      /^the tree has not ended in time: `trial` was running; hint: raise `timeout`/.test(error.message)
    );
  });
  clearInterval(alive);
});

test("endless trees are given up", async () => {
  const endless = app.task("endless", async (n: number, cx) => void (await cx.spawn(app.remote("endless"), n + 1)));
  await assert.rejects(
    trial.tree(endless, 0, { maxAttempts: 20 }),
    /^Error: the tree has not ended after 20 attempts; hint: raise/,
  );
});

test("a ninth continuation fails the task", async () => {
  const leaf = app.task("continues", (n: number, cx) => {
    for (let count = 0; count < n; count++) cx.then(app.remote("elsewhere"), count);
  });
  const stubs = { elsewhere: () => null };
  assert.equal((await trial.tree(leaf, 8, { stubs })).tasks.length, 9);
  assert.equal((await trial.tree(leaf, 9, { stubs })).root.error?.kind, "bad_then");
});

test("wide trees take no long time", async () => {
  const leaf = app.task("wide-leaf", (n: number) => n);
  const wide = app.task(
    "wide",
    async (_: unknown, cx) => void (await cx.spawn(leaf.map(Array.from({ length: 5000 }, (_, n) => n)))),
  );
  const tree = await trial.tree(wide);
  assert.deepEqual([tree.tasks.length, tree.state], [5001, "succeeded"]);
});

test("misspelt option of a tree is refused", async () => {
  await assert.rejects(
    trial.tree(canvas.busy, 0, { stub: {} } as object),
    /`stub` is not an option of `trial.tree`; hint: did you mean `stubs`\?/,
  );
});

test("ids of children are those of workers", async () => {
  const { vectors } = JSON.parse(readFileSync(`${ROOT}/schemas/spawn-hash.json`, "utf8")) as {
    vectors: { type: string; params: string; hash: string }[];
  };
  const exact = new App({ numbers: "exact" });
  const parent = exact.task("spawns", async ({ type, params }: { type: string; params: unknown }, cx) => {
    await cx.spawn(exact.remote(type), params);
    await cx.spawn(exact.remote(type), params);
  });
  let checked = 0;
  for (const { type, params, hash } of vectors) {
    // Numbers that a double changes keep their own form here, of which the ids are no matter.
    if (/\d[.\d]{15}|\d[eE]/.test(params)) continue;
    checked += 1;
    const tree = await trial.tree(parent, { type, params: JSON.parse(params) }, { stubs: { [type]: () => null } });
    const ids = tree.root.children.map(({ id }) => id);
    assert.deepEqual(ids, [`trial:${type}-${hash}`, `trial:${type}-${hash}-2`], params);
  }
  assert.ok(checked > 3, `${checked}`);
});
