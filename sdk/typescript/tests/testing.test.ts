/** `trial` and `recorded`. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { type } from "arktype";
import { App, type Context, type Joined, Retry, type Schema, Unavailable, Wait } from "kafleet";
import { recorded, trial } from "kafleet/testing";
import { z } from "zod";

const app = new App<string>();

const thumbnail = app.task(
  "thumbnail",
  {
    params: z.object({ path: z.string(), width: z.int().default(200) }),
    output: z.object({ path: z.string(), made: z.iso.date().transform((text) => new Date(text)) }),
  },
  async ({ path, width }, cx) => {
    if (path === "busy") throw new Retry("busy", { after: "2s", kind: "busy" });
    if (path === "limited") throw new Wait("limited", { after: "3s" });
    console.log("opening", path);
    cx.progress({ width });
    return { path, made: "2026-01-31" };
  },
);

const album = app.task("album", async ({ folder }: { folder: string }, cx) => {
  for (const name of ["a", "b"]) await cx.spawn(thumbnail, { path: `${folder}/${name}.jpg` }, { name, delay: "5s" });
  cx.then(sheet, { title: folder });
  cx.warn("two pictures");
  cx.attach("index.txt", "a\nb", { media: "text/plain" });
  return (await cx.spawnNow([thumbnail.call({ path: "c.jpg" })])).length;
});

const sheet = app.joined("contact-sheet", { params: z.object({ title: z.string() }), results: thumbnail }, ({ title }, cx) => {
  const paths = cx.results.map(({ output, state }) => output?.made.getFullYear() ?? `(${state})`);
  return `${title} of ${cx.task.output}: ${paths.join(", ")}`;
});

const annotated = app.joined("annotated", (_: unknown, cx: Joined<number>) => cx.results.length);

const stoppable = app.task("stoppable", (_: unknown, cx) => {
  cx.signal.throwIfAborted();
  cx.check();
  return cx.state;
});

const submitter = app.task("submitter", async () => {
  const same = [await thumbnail.submit({ path: "a.jpg" }), await thumbnail.submit({ path: "a.jpg" })];
  const other = await thumbnail.submit({ path: "b.jpg" });
  return [...same, other].map(({ id }) => id);
});

test("trial returns the decoded result", async () => {
  const run = await trial(thumbnail, { path: "a.jpg" });
  assert.deepEqual(run.output, { path: "a.jpg", made: new Date("2026-01-31") });
  assert.deepEqual([run.log, run.progress], [["opening a.jpg"], [{ width: 200 }]]);
});

test("trial reports the failure", async () => {
  const run = await trial(thumbnail, { path: "busy" });
  assert.deepEqual(run.failure, { outcome: "retry", kind: "busy", message: "busy", after_ms: 2000 });
  assert.throws(() => run.output, /the attempt failed: busy: busy/);
  const limited = await trial(thumbnail, { path: "limited" });
  assert.deepEqual(limited.failure, { outcome: "wait", kind: "error", message: "limited", after_ms: 3000 });
});

test("halves of characters are replaced in text and refused in results", async () => {
  const half = "🎉".slice(0, 1);
  const prints = app.task("prints", async (n: number, cx) => {
    console.log(`a${half}`);
    cx.warn(half);
    if (n) throw new Error(`b${half}`);
    return half;
  });
  const failed = await trial(prints, 1);
  assert.deepEqual([failed.log, failed.failure?.message], [["a\ufffd"], "b\ufffd"]);
  assert.equal((await trial(prints, 0)).failure?.kind, "bad_output");
});

describe("what is shown with a task never fails it", () => {
  const half = "🎉".slice(0, 1);
  const child = app.remote("child");
  const large = "x".repeat(70_000);

  for (const [name, use, log] of [
    [
      "progress of NaN",
      (cx) => cx.progress({ loss: NaN }),
      "a progress value was dropped: `NaN` at `/loss` has no JSON form; hint: write null, or a text",
    ],
    ["progress of a Map", (cx) => cx.progress(new Map()), /^a progress value was dropped: a value of type Map has no JSON form/],
    ["progress that is too large", (cx) => cx.progress(large), "a progress value was dropped: it has over 16384 bytes"],
    ["log of a number", (cx) => cx.log(5), "5"],
    ["log of nothing", (cx) => cx.log(undefined), "undefined"],
    ["log of an object", (cx) => cx.log([{ a: [1] }]), "{ a: [ 1 ] }"],
    ["log of an error", (cx) => cx.log(new RangeError("x")), /^RangeError: x$/],
    [
      "attachment that is too large",
      (cx) => cx.attach("a", large),
      "the attachment `a` was dropped: it has 70000 bytes: at most 65536 are allowed",
    ],
    [
      "attachment with half a character in its name",
      (cx) => cx.attach(half, "x"),
      /^the attachment `\ufffd` was dropped: a text with half/,
    ],
    [
      "attachment of a number",
      (cx) => cx.attach("a", 5 as never),
      "the attachment `a` was dropped: its data is neither text nor a `Uint8Array`",
    ],
    [
      "name with half of a character",
      (cx) => cx.spawn(child, 1, { name: half }),
      "half of a character in `name` of a child of type `child` was replaced",
    ],
    [
      "tag with half of a character",
      (cx) => cx.then(child, 1, { tags: ["a", half] }),
      "half of a character in `tags` of a continuation of type `child` was replaced",
    ],
  ] as [string, (cx: Context) => unknown, string | RegExp][]) {
    test(name, async () => {
      const run = await trial(
        app.task(`task-${app.declared.size}`, async (_: unknown, cx) => (await use(cx as Context), "done")),
      );
      assert.equal(run.output, "done");
      if (typeof log === "string") assert.equal(run.log[0], log);
      else assert.match(run.log[0]!, log);
      if (/with half of a character$/.test(name)) assert.ok(JSON.stringify([run.children, run.then]).includes("\ufffd"));
    });
  }

  test("warnings", async () => {
    const warns = app.task("warns", (_: unknown, cx) => {
      for (const value of [new Error("low on memory"), 5, { a: 1 }, half]) cx.warn(value);
    });
    assert.deepEqual((await trial(warns)).warnings, ["Error: low on memory", "5", "{ a: 1 }", "\ufffd"]);
  });
});

describe("message of what is thrown", () => {
  const cause = new Error("inner");
  for (const [name, error, message, kind] of [
    ["object", { code: 5, details: "no such customer" }, "{ code: 5, details: 'no such customer' }", "error"],
    ["object without a prototype", Object.create(null), "[Object: null prototype] {}", "error"],
    ["nothing", undefined, /^`undefined` was thrown, which is no error; hint: write `throw/, "error"],
    ["symbol", Symbol("s"), "Symbol(s)", "error"],
    ["list", [1, "a", [null]], "[ 1, 'a', [ null ] ]", "error"],
    ["map", new Map([["a", new Set([1])]]), "Map [ [ 'a', Set [ 1 ] ] ]", "error"],
    ["instance", new (class Point { x = 1; })(), "Point { x: 1 }", "error"], // prettier-ignore
    ["class without members", new Headers(), "[Headers]", "error"],
    ["bytes", { body: new Uint8Array(5) }, "{ body: [Uint8Array of 5 bytes] }", "error"],
    ["levels", { a: { a: { a: { a: {} } } } }, "{ a: { a: { a: { a: [Object] } } } }", "error"],
    ["message that is a number", Object.assign(new Error("a"), { message: 5 }), "5", "Error"],
    ["name that is a number", Object.assign(new RangeError("a"), { name: 5 }), "a", "RangeError"],
    ["several errors", new AggregateError([new Error("a"), new Error("b")], ""), "a; b", "AggregateError"],
    ["cause that is the error", Object.assign(cause, { cause }), "inner", "Error"],
    [
      "many members",
      Object.fromEntries(Array.from({ length: 1000 }, (_, n) => [`k${n}`, n])),
      /^\{ k0: 0, .* k19: 19, … 980 more \}$/,
      "error",
    ],
  ] as [string, unknown, string | RegExp, string][]) {
    test(name, async () => {
      const task = app.task(`task-${app.declared.size}`, () => {
        throw error;
      });
      const { failure } = await trial(task);
      assert.deepEqual([failure?.outcome, failure?.kind], ["retry", kind]);
      if (typeof message === "string") assert.equal(failure!.message, message);
      else assert.match(failure!.message, message);
    });
  }
});

test("values that JSON would empty are refused", async () => {
  const lost = [Promise.resolve(1), new Error("x"), new Date(NaN), new Uint8Array(1), Symbol("s"), new Set([1])];
  const returns = app.task("returns", async (n: number): Promise<unknown> => ({ value: lost[n] }));
  for (const n of lost.keys()) assert.equal((await trial(returns, n)).failure?.kind, "bad_output", `value ${n}`);
});

test("a progress bar leaves its last state in the log", async () => {
  const bar = app.task("bar", async (_: number, cx) => {
    for (let n = 0; n < 20_000; n++) cx.write(`\r${n} of 20000 ${".".repeat(60)}`);
    cx.write("\rready\nend");
  });
  assert.deepEqual((await trial(bar, 0)).log, ["ready", "end"]);
});

test("trial checks params against the schema", async () => {
  const { failure } = await trial(thumbnail, { path: "a.jpg", width: "wide" as unknown as number });
  assert.deepEqual([failure?.outcome, failure?.kind], ["dead", "bad_params"]);
  assert.match(failure!.message, /the params do not fit the type: \/width: /);
});

test("trial has children, continuations and attachments", async () => {
  const run = await trial(album, { folder: "summer" });
  assert.equal(run.output, 1);
  assert.deepEqual(
    run.children.map(({ params }) => params),
    [{ path: "c.jpg" }, { path: "summer/a.jpg" }, { path: "summer/b.jpg" }],
  );
  assert.deepEqual(run.children[1], { type: "thumbnail", params: { path: "summer/a.jpg" }, name: "a", delay: "5s" });
  assert.deepEqual(run.then, [{ type: "contact-sheet", params: { title: "summer" }, with_results: true }]);
  assert.deepEqual([run.warnings, run.attachments["index.txt"]?.toString()], [["two pictures"], "a\nb"]);
});

test("schemas of other libraries check params", async () => {
  const fromArktype = app.task("from-arktype", { params: type({ "count?": "number" }) }, ({ count = 5 }) => count + 1);
  assert.equal((await trial(fromArktype, {})).output, 6);
  const { failure } = await trial(fromArktype, { count: "1" as unknown as number });
  assert.match(failure!.message, /the params do not fit the type: \/count: count must be a number/);
  assert.deepEqual((fromArktype.declaration()["params"] as { type: string }).type, "object");

  // Without a JSON Schema, and asynchronous.
  const validate = async (value: unknown) => {
    return value === "even" ? { value: 2 } : { issues: [{ message: "not even", path: [{ key: "a" }, 0] }] };
  };
  const params: Schema<string, number> = { "~standard": { version: 1, vendor: "test", validate } };
  const plain = app.task("plain-schema", { params }, (n) => n / 2);
  assert.equal((await trial(plain, "even")).output, 1);
  assert.equal((await trial(plain, "odd")).failure?.message, "the params do not fit the type: /a/0: not even");
  assert.equal(plain.declaration()["params"], undefined);
});

test("trial of a continuation has results", async () => {
  const results = [
    { id: "trial:a", state: "succeeded", output: { path: "a.jpg", made: "2026-01-31" } },
    { id: "trial:b", state: "failed", error: { kind: "broken", message: "broken" } },
  ];
  const task = { id: "trial", state: "succeeded", output: 2 };
  assert.equal((await trial(sheet, { title: "summer" }, { task, results })).output, "summer of 2: 2026, (failed)");
  const wrong = await trial(sheet, { title: "summer" }, { results: [{ id: "a", state: "succeeded", output: 5 }] });
  assert.equal(wrong.failure?.kind, "bad_params");
  assert.equal((await trial(annotated, undefined, { results })).output, 2);
});

test("continuation is refused as a task and as a child", async () => {
  const calls = [() => sheet.submit({ title: "a" }), () => app.submitMany([sheet.call({ title: "a" })])];
  for (const call of calls) await assert.rejects(call, /`contact-sheet` is declared with `app.joined` .* hint: use `cx.then`/);
});

test("trial can be cancelled, and has a state", async () => {
  const { failure } = await trial(stoppable, undefined, { cancelled: "timeout" });
  assert.deepEqual([failure?.outcome, failure?.message], ["cancelled", "the attempt was cancelled: timeout"]);
  assert.equal((await trial(stoppable, undefined, { state: "state" })).output, "state");
});

test("recorded tasks are not created", async () => {
  const submitted = await recorded(async () => {
    const handle = await thumbnail.submit({ path: "a.jpg", width: 64 }, { id: "cover", tags: ["shop"] });
    await app.submitMany(["b", "c"].map((path) => thumbnail.call({ path })));
    await assert.rejects(handle.result(), /tasks are recorded here/);
  });
  assert.deepEqual(submitted[0], { type: "thumbnail", params: { path: "a.jpg", width: 64 }, id: "cover", tags: ["shop"] });
  assert.deepEqual(
    submitted.slice(1).map(({ params }) => params),
    [{ path: "b" }, { path: "c" }],
  );
  const unreachable = new App({ api: "http://127.0.0.1:9" });
  unreachable.client.patienceMs = 0;
  await assert.rejects(unreachable.remote("a").submit(), Unavailable);
});

test("tasks submitted in an attempt have the same ids in every attempt", async () => {
  await recorded(async () => {
    const first = (await trial(submitter)).output;
    const second = (await trial(submitter, undefined, { number: 2 })).output;
    const later = (await trial(submitter, undefined, { run: 2 })).output;
    assert.deepEqual(first, second);
    assert.equal(new Set([...first, ...later]).size, 6);
  });
});

test("attempt does not wait for another task", async () => {
  const waits = app.task("waits", () => thumbnail.run({ path: "a.jpg" }));
  const submitted = await recorded(async () => {
    const { failure } = await trial(waits);
    assert.match(failure!.message, /an attempt must not wait for another task.*`cx\.then\(…\)`/);
  });
  assert.deepEqual(submitted, []);
});

test("values without JSON form are refused when a task is submitted", async () => {
  const remote = app.remote("a");
  const wrong: [unknown, RegExp][] = [
    [NaN, /`NaN` at `\/params` has no JSON form/],
    [{ deep: [new Set()] }, /a value of type Set at `\/params\/deep\/0` has no JSON form; hint: write `\[\.\.\.value\]`/],
    [() => 1, /a value of type function at `\/params` has no JSON form/],
  ];
  for (const [params, message] of wrong)
    await assert.rejects(
      recorded(() => remote.submit(params)),
      message,
    );
});
