/** Options that nothing understands are refused where they are written. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { App, Client, Dead, Fail, group, Retry, Unsuccessful, Wait } from "kafleet";
import { fleet, recorded, trial } from "kafleet/testing";
import { z } from "zod";

const app = new App({ api: "http://127.0.0.1:9" });
const item = app.task("item", () => 1);
const handle = item.handle("a");

/** Everything that takes options, with a misspelt one, and the option that is meant. */
const MISSPELT: Record<string, [(options: any) => unknown, string, string]> = {
  "new App": [(options) => new App(options), "slot", "slots"],
  "app.task": [(options) => app.task("a", options, () => 1), "retrys", "retries"],
  "app.task, of its schemas": [(options) => app.task("a", options, () => 1), "ouput", "output"],
  "app.joined": [(options) => app.joined("a", options, () => 1), "timout", "timeout"],
  "app.bundle": [(options) => app.bundle("a", options), "concurency", "concurrency"],
  "task of a bundle": [(options) => new App().bundle("a").task("b", options, () => 1), "parms", "params"],
  submit: [(options) => item.submit(undefined, options), "tag", "tags"],
  run: [(options) => item.run(undefined, options), "totaltimeout", "totalTimeout"],
  call: [(options) => app.submitMany([item.call(undefined, options)]), "dealy", "delay"],
  status: [(options) => handle.tree(options), "dept", "depth"],
  watch: [(options) => handle.watch(options).next(), "timeOut", "timeout"],
  result: [(options) => handle.result(options), "singal", "signal"],
  retry: [(options) => handle.retry(options), "onlyfailed", "onlyFailed"],
  log: [(options) => handle.log(options), "form", "from"],
  patch: [(options) => handle.patch(options), "tag", "tags"],
  report: [(options) => handle.report("failed", options), "mesage", "message"],
  external: [(options) => app.external("a").submit(options), "blockwhendone", "blockWhenDone"],
  group: [(options) => group(item.call()).submit(options), "maxfailed", "maxFailed"],
  "app.tasks.search": [(options) => app.tasks.search("a", options), "limmit", "limit"],
  "app.bulk": [(options) => app.bulk.cancel("a", options), "reson", "reason"],
  "app.deadLetters.list": [(options) => app.deadLetters.list(options), "typ", "type"],
  "app.bulk.redrive": [(options) => app.bulk.redrive(["a:0:1"], options), "path", "patch"],
  "app.bulk.redrive of letters": [(options) => app.bulk.redrive(options as never), "kid", "kind"],
  "app.deadLetters.redrive": [(options) => app.deadLetters.redrive("a:0:1", options), "parms", "params"],
  "app.deadLetters.drop": [(options) => app.deadLetters.drop(options), "cod", "code"],
  "app.schedules.upsert": [(options) => app.schedules.upsert("a", options), "timezon", "timezone"],
  "app.events": [(options) => app.events(options).next(), "rot", "root"],
  "trial.tree": [(options) => trial.tree(item, undefined, options), "maxattempts", "maxAttempts"],
  "new Client": [(options) => new Client(options), "uri", "url"],
  Fail: [(options) => new Fail("a", options), "kid", "kind"],
  Dead: [(options) => new Dead("a", options), "case", "cause"],
  Unsuccessful: [(options) => new Unsuccessful("a", options), "kinds", "kind"],
  Retry: [(options) => new Retry("a", options), "afterMs", "after"],
  Wait: [(options) => new Wait("a", options), "afer", "after"],
  trial: [(options) => trial(item, undefined, options), "numbr", "number"],
  fleet: [(options) => fleet(options), "targets", "target"],
};

for (const [owner, [use, misspelt, meant]] of Object.entries(MISSPELT)) {
  test(`misspelt option is refused: ${owner}`, async () => {
    await assert.rejects(
      recorded(async () => use({ [misspelt]: 1 })),
      (error: Error) => {
        assert.ok(error.message.includes(`\`${misspelt}\` is not `), error.message);
        assert.ok(error.message.endsWith(`; hint: did you mean \`${meant}\`?`), error.message);
        return true;
      },
    );
  });
}

test("misspelt options of children and continuations are refused, and those of what is shown are logged", async () => {
  const wrong = async (use: (cx: any) => unknown) => {
    const { failure, log } = await trial(app.task(`task-${app.declared.size}`, async (_: unknown, cx) => void (await use(cx))));
    return [failure?.message, log];
  };
  const place = "(`item`); hint: did you mean `retries`?";
  assert.deepEqual(await wrong((cx) => cx.spawn(item, 1, { retrys: 1 })), [
    `\`retrys\` is not an option of a child ${place}`,
    [],
  ]);
  assert.deepEqual(await wrong((cx) => cx.then(item, 1, { retrys: 1 })), [
    `\`retrys\` is not an option of a continuation ${place}`,
    [],
  ]);
  for (const use of [(cx: any) => cx.progress(1, { slient: true }), (cx: any) => cx.warn("a", { slient: true })]) {
    const hint = "`slient` is not an option of progress, log and warn; hint: did you mean `silent`?";
    assert.deepEqual(await wrong(use), [undefined, [hint]]);
  }
});

test("name that resembles no option has no hint", () => {
  assert.throws(
    () => app.task("a", { zzzzzz: 1 } as object, () => 1),
    /^DeclarationError: `a`: `zzzzzz` is not a key of a policy$/,
  );
});

const hint = "hint: list classes of errors, and names of kinds";
const schemaHint = "hint: use one of zod, arktype, valibot or another library with Standard Schema";
for (const [name, options, message] of [
  ["class that is undefined", { failOn: [undefined] }, "`a`: `failOn` has `undefined`"],
  ["function instead of a class", { retryOn: [function isBusy() {}] }, "`a`: `retryOn` has `isBusy`"],
  ["class of no error", { failOn: [class Other {}] }, "`a`: `failOn` has `Other`"],
  ["no list", { failOn: { busy: true } }, "`a`: `failOn` is of type Object"],
  ["JSON Schema as params", { params: { type: "object" } }, "`a`: `params` is no schema, but a value of type Object"],
  ["class as output", { output: Date }, "`a`: `output` is no schema, but a value of type function"],
  ["results without a joined type", { results: z.string() }, "`a`: `results` is for a type that joins other tasks"],
  ["unknown numbers", { numbers: "big" }, "`a`: `numbers` is `big`; hint: write `checked` or `exact`"],
] as const) {
  test(`wrong declaration is refused: ${name}`, () => {
    assert.throws(
      () => app.task("a", options as object, () => 1),
      (error: Error) => {
        assert.ok(error.message.startsWith(message), error.message);
        if ("failOn" in options || "retryOn" in options) assert.ok(error.message.endsWith(hint));
        if ("params" in options || "output" in options) assert.ok(error.message.endsWith(schemaHint));
        return true;
      },
    );
  });
}

for (const after of [NaN, Infinity, 1e300, "soon", "99999999999999999d", {}] as never[]) {
  test(`duration is refused: ${JSON.stringify(after)}`, () => {
    assert.throws(() => new Retry("busy", { after }), /is not a duration; hint: write `1500ms`, `30s`/);
  });
}

test("a submitted task alone may be unique", () => {
  const rule = { key: "customer-42", mode: "latest" } as const;
  for (const unique of ["customer-42", rule]) {
    assert.deepEqual(item.call(undefined, { unique }).document("submit")["unique"], unique);
    assert.throws(() => item.call(undefined, { unique }).document("spawn"), /`unique` is not an option of a child/);
  }
  assert.throws(() => item.call(undefined, { unique: 7 as never }).document("submit"), /a text or an object is allowed/);
});
