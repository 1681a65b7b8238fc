/** Bundles: many tasks, one type. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { App, DeclarationError } from "kafleet";
import { recorded, trial } from "kafleet/testing";
import { z } from "zod";

import { Worker } from "./driver.ts";

const app = new App({ api: "http://127.0.0.1:1" });
const small = app.bundle("small", { concurrency: 4, failOn: [RangeError, TypeError, "bad_width"], retryOn: [URIError] });

const Thumb = z.object({
  path: z.string(),
  get parts() {
    return z.array(Thumb);
  },
});

const resize = small.task(
  "resize",
  { params: z.object({ path: z.string(), width: z.int().default(200) }), doc: "Makes a thumbnail.\n\nOf the whole picture." },
  ({ path, width }, cx) => {
    console.log(cx.type, cx.taskName);
    return `${path} at ${width}`;
  },
);

const count = small.task("count", { params: z.array(Thumb), output: z.int() }, (thumbs) => thumbs.length);

const fails = small.task("fails", { failOn: [URIError], retryOn: [TypeError] }, ({ error }: { error: string }) => {
  throw new { uri: URIError, range: RangeError, type: TypeError, other: SyntaxError }[error]!("no");
});

const album = small.task("album", async (_: unknown, cx) => {
  await cx.spawn(resize, { path: "a.jpg" }, { name: "cover" });
  cx.then(sheet, { title: "summer" });
});

const sheet = small.joined("sheet", { params: z.object({ title: z.string() }), results: resize }, ({ title }, cx) => {
  return [title, ...cx.results.map(({ output }) => output ?? "lost")];
});

function joined(params: unknown): Record<string, unknown> {
  return { params, task: { id: "a", state: "succeeded" }, results: [] };
}

test("submitted tasks name their task in the params", async () => {
  const submitted = await recorded(async () => {
    await resize.submit({ path: "a.jpg", width: 5 });
    await resize.submit({ path: "b.jpg" }, { name: "cover", tags: ["shop", "resize"], retries: 1 });
    await app.submitMany([count.call([])]);
    await album.submit();
  });
  const [plain, labelled, whole, empty] = submitted.map(({ id: _, ...task }) => task);
  const params = { task: "resize", params: { path: "a.jpg", width: 5 } };
  assert.deepEqual(plain, { type: "small", params, name: "resize", tags: ["resize"] });
  assert.deepEqual([labelled!["name"], labelled!["tags"], labelled!["retries"]], ["cover", ["resize", "shop"], 1]);
  assert.deepEqual(whole!["params"], { task: "count", params: [] });
  assert.deepEqual(empty!["params"], { task: "album", params: null });
});

test("children and continuations are tasks of the bundle", async () => {
  const { children, then } = await trial(album, undefined);
  const child = { task: "resize", params: { path: "a.jpg" } };
  assert.deepEqual(children, [{ type: "small", params: child, name: "cover", tags: ["resize"] }]);
  const next = { task: "sheet", params: { title: "summer" } };
  assert.deepEqual(then, [{ type: "small", params: next, with_results: true, name: "sheet", tags: ["sheet"] }]);
  await assert.rejects(async () => sheet.submit({ title: "a" }), /`sheet` is declared with `app.joined`/);
});

test("trial runs a bundled task", async () => {
  const run = await trial(resize, { path: "a.jpg" });
  assert.deepEqual([run.output, run.log], ["a.jpg at 200", ["small resize"]]);
  assert.equal((await trial(count, [{ path: "a", parts: [] }])).output, 1);
  const results = [
    { id: "trial:a", state: "succeeded", output: "a.jpg at 200" },
    { id: "trial:b", state: "failed" },
  ];
  assert.deepEqual((await trial(sheet, { title: "summer" }, { results })).output, ["summer", "a.jpg at 200", "lost"]);
  const { failure } = await trial(resize, { path: 5 as unknown as string });
  assert.match(failure!.message, /the params do not fit the type: \/path: /);
});

// Listed by the task; by the bundle; by both, where the task's own list counts; by neither.
for (const [error, outcome] of Object.entries({ uri: "fail", range: "fail", type: "retry", other: "retry" })) {
  test(`an error of class ${error} leads to ${outcome}`, async () => {
    assert.equal((await trial(fails, { error })).failure?.outcome, outcome);
  });
}

test("declaration has the policy, the tasks and their schemas", () => {
  const { policy, doc, params, output } = small.declaration() as Record<string, any>;
  // Without the classes about which a task decides otherwise.
  assert.deepEqual(policy, { concurrency: 4, fail_on: ["bad_width", "RangeError"] });
  assert.deepEqual(doc.split("\n"), ["resize: Makes a thumbnail.", "count", "fails", "album", "sheet"]);
  assert.equal(output, undefined);
  const cases = params.dependentSchemas.task.allOf;
  // Without a JSON Schema, any params are accepted.
  assert.deepEqual(
    cases.map((each: any) => each.if.properties.task),
    [{ const: "resize" }, { const: "count" }, { type: "object" }],
  );
  assert.equal(cases[0].then.properties.params.$id, undefined);
  assert.deepEqual([cases[1].then.properties.params.$id, cases[1].then.properties.params.$schema], ["count", undefined]);
});

test("recursive schema of a continuation refers to itself, not to the params with the results", () => {
  const { params } = new App().joined("mosaic", { params: Thumb }, () => 1).declaration() as Record<string, any>;
  const own = params.properties.params;
  assert.deepEqual([own.$id, own.properties.parts.items.$ref], ["mosaic", "#"]);
});

test("two hundred tasks fit into a declaration", () => {
  const many = new App().bundle("many");
  const params = z.object({ recipient: z.string(), subject: z.string(), urgent: z.boolean().default(false) });
  for (let number = 0; number < 200; number++) many.task(`send-notification-${number}`, { params }, () => number);
  assert.ok(JSON.stringify(many.declaration()["params"]).length < 62 << 10);
});

test("wrong declarations name the remedy", () => {
  const app = new App();
  const bundle = app.bundle("small");
  bundle.task("twice", () => 1);
  app.task("other", () => 1);
  const whole = "is for the whole bundle; a task has only its schemas, `doc`, and classes in `failOn` and `retryOn`";
  const wrong: [() => unknown, string][] = [
    [() => bundle.task("twice", () => 1), "`twice` is declared twice; hint: rename one"],
    [() => app.bundle("other"), "`other` is declared twice"],
    [() => app.task("small", () => 1), "`small` is declared twice"],
    [() => app.bundle("small"), "`small` is declared twice"],
    [() => app.bundle("Small Tasks"), "`Small Tasks` is not a name of a type: 1 to 64 characters of `a-z 0-9 -`"],
    [() => bundle.task("No Name", () => 1), "`No Name` is not a name of a type"],
    [
      () => bundle.task("a", { maxWait: "1h" } as object, () => 1),
      `\`a\`: \`maxWait\` ${whole}; hint: use \`app.bundle("small", { maxWait: … })\``,
    ],
    [() => bundle.task("a", { failOn: ["bad_width"] } as object, () => 1), `\`a\`: \`failOn\` ${whole}`],
    [() => app.bundle("more", { retrys: 3 } as object), "`more`: `retrys` is not a key of a policy"],
    [() => bundle.task("a", {} as never), "`a` has no handler"],
    [() => app.bundle("empty").declaration(), "the bundle `empty` has no tasks; hint: add one with its `task(…)`"],
  ];
  for (const [declare, message] of wrong) {
    assert.throws(declare, (error: Error) => error instanceof DeclarationError && error.message.includes(message), message);
  }
});

test("unknown task is answered with a wait that names some known ones", async (t) => {
  const worker = await Worker.start(t, "bundled.ts");
  assert.deepEqual((await worker.welcome())["types"][0].policy, { retries: 1 });
  const unknown = await worker.run("many", { task: "x".repeat(5000), params: null });
  assert.deepEqual([unknown["outcome"], unknown["kind"]], ["wait", "unknown_task"]);
  assert.ok(unknown["message"].startsWith(`the bundle \`many\` has no task \`${"x".repeat(64)}\`, but \`task-0\`, `));
  assert.match(unknown["message"], /`task-19` and 5 more; hint:/);
  assert.equal((await worker.run("many", joined({ task: "new", params: null })))["kind"], "unknown_task");
  for (const params of [null, { task: 5 }, joined(null)]) {
    const { outcome, kind } = await worker.run("many", params);
    assert.deepEqual([outcome, kind], ["dead", "bad_params"]);
  }
  assert.equal((await worker.run("many", { task: "task-24", params: null }))["output"], 24);
});
