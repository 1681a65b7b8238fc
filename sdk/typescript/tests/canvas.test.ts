/** Chains, groups and chords: the documents that are sent, what is refused, and what runs on a real fleet. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import { App, Call, chain, chord, group, type Group, type Invalid, type TaskFailed } from "kafleet";
import { type Fleet, fleet, recorded, trial } from "kafleet/testing";
import { z } from "zod";

import * as tasks from "./apps/canvas.ts";
import { APPS } from "./driver.ts";
import { document, FakeApi, stream } from "./server.ts";

const PATIENCE = { timeout: "60s" } as const;
const { add, busy, invoice, mail, order, page, smallMail, smallPage } = tasks;

describe("documents", () => {
  const [first] = [invoice.call({ part: "a" })];

  test("chain is read from left to right", async () => {
    const steps = chain(first!, mail.call({ to: "ada" }, { name: "mail" }), page.call({ title: "t" }));
    const [sent] = await recorded(() => steps.submit());
    assert.deepEqual(sent, {
      type: "invoice",
      params: { part: "a" },
      id: sent!.id,
      then: [
        {
          type: "mail",
          params: { to: "ada" },
          with_results: true,
          name: "mail",
          then: [{ type: "page", params: { title: "t" }, with_results: true }],
        },
      ],
    });
  });

  test("chain of chains, and of a step with continuations of its own", async () => {
    const apologise = page.call({ title: "sorry" }, { on: "failed" });
    const steps = chain(chain(invoice.call({ part: "a" }, { then: [apologise] }), busy.call(0)), busy.call(1));
    const [sent] = await recorded(() => steps.submit());
    const [own, next] = sent!["then"] as { type: string; on?: string; then?: unknown[] }[];
    assert.deepEqual([own?.type, own?.on, next?.type], ["page", "failed", "busy"]);
    assert.deepEqual(next?.then, [{ type: "busy", params: 1 }]);
  });

  test("a param that is given by hand is an ordinary one", async () => {
    const [sent] = await recorded(() => chain(first!, mail.call({ to: "ada", files: ["b"] })).submit());
    assert.deepEqual(sent!["then"], [{ type: "mail", params: { to: "ada", files: ["b"] } }]);
    const [alone] = await recorded(() => mail.submit({ to: "ada", files: ["b"] }));
    assert.deepEqual(alone!.params, { to: "ada", files: ["b"] });
  });

  test("chains may be given wherever a call may", async () => {
    const steps = chain(first!, busy.call(0));
    const app = new App();
    const spawns = app.task("spawns", async (_: unknown, cx) => {
      await cx.spawn(steps);
      await cx.spawnNow([steps]);
      cx.then(steps);
      cx.then(chain(page.call({ title: "t" }), busy.call(1)));
    });
    const run = await trial(spawns);
    const sent = { type: "invoice", params: { part: "a" }, then: [{ type: "busy", params: 0 }] };
    assert.deepEqual(run.children, [sent, sent]);
    assert.deepEqual(run.then, [
      sent,
      { type: "page", params: { title: "t" }, with_results: true, then: [{ type: "busy", params: 1 }] },
    ]);
    const submitted = await recorded(() => app.submitMany([steps, ...group(steps)]));
    assert.equal(submitted.length, 2);
    for (const { id, ...document } of submitted) assert.deepEqual(document, sent, id);
  });

  test("map, starmap and chunks are groups", async () => {
    const numbers = tasks.app.task("sum", (all: number[]) => all.length);
    const paramsOf = (calls: Group) => calls.calls.map(({ params, options }) => [params, options.id]);
    assert.deepEqual(paramsOf(busy.map([1, 2])), [[1, undefined], [2, undefined]]); // prettier-ignore
    assert.deepEqual(paramsOf(busy.starmap([[1], [2, { id: "b" }]])), [[1, undefined], [2, "b"]]); // prettier-ignore
    assert.deepEqual(paramsOf(numbers.chunks(new Set([1, 2, 3]), 2)), [[[1, 2], undefined], [[3], undefined]]); // prettier-ignore
    assert.deepEqual(paramsOf(numbers.chunks([], 2)), []);
    assert.throws(() => numbers.chunks([1], 0), /the size of a chunk is 0; hint: give a whole number from 1/);
    const spawns = tasks.app.task("spawns-group", async (_: unknown, cx) => {
      await cx.spawn(busy.map([1, 2]));
      return cx.spawnNow(busy.map([3]));
    });
    const run = await trial(spawns);
    assert.deepEqual(
      run.children.map(({ params }) => params),
      [3, 1, 2],
    );
  });

  test("group is one atomic batch", async (t) => {
    const items = [{ id: "g", position: "0:1" }, { id: "g:0" }, { id: "g:b" }];
    const api = await FakeApi.start(t, document(200, { items }), document(200, { items }));
    const app = new App({ api: api.url });
    const item = app.remote("item");
    await group(item.call(1), item.call(2, { id: "b" })).submit({ id: "g", name: "Parts", maxFailed: 1 });
    const children = [
      { id: "0", type: "item", params: 1, parent: "g" },
      { id: "b", type: "item", params: 2, parent: "g" },
    ];
    const root = { type: "group", id: "g", name: "Parts", max_failed: 1, external: true, state: "waiting_for_children" };
    assert.equal(api.requests[0]!.path, "/v1/batches?atomic=true");
    assert.deepEqual(api.requests[0]!.body, [root, ...children]);

    const body = app.task("body", { upstream: "all" }, ({ all }: { all: unknown[] }) => all.length);
    await chord([item.call(1)], body.call()).submit({ id: "h", parent: "order" });
    const then = [{ type: "body", params: null, with_results: true }];
    assert.deepEqual(api.requests[1]!.body, [
      { type: "group", id: "h", parent: "order", external: true, state: "waiting_for_children", then },
      { id: "0", type: "item", params: 1, parent: "order:h" },
    ]);
  });

  test("groups that an attempt submits have the same ids in every attempt", async () => {
    const app = new App();
    const submits = app.task("submits", async (_: unknown) => (await busy.map([1, 2]).submit()).id);
    const sent = await recorded(async () => {
      assert.equal((await trial(submits)).output, (await trial(submits, undefined, { number: 2 })).output);
    });
    assert.deepEqual(sent.slice(0, 3), sent.slice(3));
  });

  test("results of a group have the order of its calls", async (t) => {
    const child = (n: number, state = "succeeded") => ({ id: `g:${n}`, state, result: n * 10 });
    const ended = { id: "g", state: "succeeded", own_state: "succeeded", run: 1, position: "0:9" };
    const api = await FakeApi.start(
      t,
      document(200, { items: [{ id: "g" }] }),
      stream(["status", ended], ["end", { reason: "finished" }]),
      document(200, { tasks: [child(2), { id: "g:then", state: "succeeded", result: 5 }], next: "c" }),
      document(200, { tasks: [child(0), child(1, "failed")], next: null }),
    );
    const handle = await new App({ api: api.url }).remote("item").map([0, 1, 2]).submit({ id: "g", maxFailed: 1 });
    assert.deepEqual(await handle.result(PATIENCE), [0, 20]);
    assert.match(api.requests[3]!.path, /\/children\?after=0%3A9&limit=200&cursor=c$/);
  });

  const calls = (n: number) => Array.from({ length: n }, () => busy.call(0));
  const [start, ...many] = calls(18) as [Call, Call, ...Call[]];
  const stepOf = (n: number) => many.slice(0, n) as [Call, ...Call[]];

  for (const [name, use, message] of [
    [
      "chain of 18 steps",
      () => chain(start, ...stepOf(17)),
      /^TypeError: the chain has 18 steps: at most 17 .* hint: let the handler/,
    ],
    ["empty group", () => group().submit(), /^TypeError: the group is empty/],
    [
      "group of 1,000",
      () => group(calls(1000)).submit(),
      /^TypeError: the group has 1000 calls: at most 999 .* `cx.spawn\(group/,
    ],
    [
      "group as a later step",
      () => chain(start, group(start) as never),
      /`chain` has a group where a call has to be; hint: let a task/,
    ],
    ["group in a group", () => group(group(start) as never, start), /`group` has a group where a call has to be/],
    ["task in a chain", () => chain(start, busy as never), /`chain` has `<Task busy\(\)>` where .* hint: write `task.call\(…\)`/],
    ["params in a group", () => group(1 as never), /`group` has `1` where a call has to be/],
    [
      "body without results",
      () => chord([start], busy.call(1) as never),
      /`busy` takes no results .* hint: declare it with `upstream`/,
    ],
    ["type that joins as first step", () => chain(tasks.joins.call(), start).submit(), /`joins` is declared with `app.joined`/],
    [
      "first step without its param",
      () => chain(mail.call({ to: "a" }), start).submit(),
      /`files` of `mail` is missing, which only/,
    ],
    ["child without its param", () => group(mail.call({ to: "a" })).submit(), /`files` of `mail` is missing/],
    ["child with a parent", () => group(busy.call(1, { parent: "a" })).submit(), /`parent` is not an option of a child/],
    ["step with an id", () => chain(start, busy.call(1, { id: "a" })).submit(), /`id` is not an option of a continuation/],
    [
      "misspelt option of a group",
      () => group(start).submit({ nam: "a" } as object),
      /`nam` is not an option of a group .* `name`/,
    ],
  ] as [string, () => unknown, RegExp][]) {
    test(`refused: ${name}`, async () => {
      const sent: unknown[] = await recorded(() => assert.rejects(async () => use(), message));
      assert.deepEqual(sent, []);
    });
  }

  test("chords and groups in attempts have a hint", async () => {
    const failureOf = async (use: (cx: any) => unknown) => {
      const { failure } = await trial(new App().task("a", async (_: unknown, cx) => void (await use(cx))));
      return failure!.message;
    };
    const all = chord([start], mail.call({ to: "a" }) as never);
    const way = "spawn its group with `cx.spawn`, and its last step with `cx.then`";
    const end = "or `submit()` it as a task of its own";
    assert.equal(await failureOf((cx) => cx.spawn(all)), `a chord cannot be a child; hint: ${way}, ${end}`);
    assert.equal(await failureOf((cx) => cx.then(all)), `a group cannot be a continuation; hint: ${way}, ${end}`);
    assert.equal(
      await failureOf((cx) => cx.then(group(start))),
      `a group cannot be a continuation; hint: use \`cx.spawn\`, ${end}`,
    );
  });
});

describe("declarations", () => {
  const app = new App();
  for (const [name, options, message] of [
    ["upstream that is no name", { upstream: 5 }, "`upstream` is `5`; hint: give the name of a member"],
    ["upstream and joined", { upstream: "a", joined: "optional" }, "`upstream` is `a`; hint: "],
    ["joined that is another value", { joined: true }, "`joined` is `true`; hint: write `app.joined(…)`"],
    ["results without joined", { results: z.string() }, "`results` is for a type that joins other tasks; hint: use `app.joined`"],
  ] as [string, object, string][]) {
    test(`refused: ${name}`, () => {
      assert.throws(
        () => app.task("a", options, () => 1),
        (error: Error) => error.message.startsWith(`\`a\`: ${message}`),
      );
    });
  }

  test("member that the params do not have", () => {
    const wrong = app.task("wrong", { params: z.object({ files: z.string() }), upstream: "file" as never }, () => 1);
    const message = "`wrong`: `upstream` is `file`, which is not a member of the params; hint: did you mean `files`?";
    assert.throws(() => wrong.declaration(), { name: "DeclarationError", message });
  });

  test("a member with a default may be left out of a task of its own", async () => {
    const params = z.object({ files: z.array(z.string()).default([]) });
    const task = app.task("with-default", { params, upstream: "files" }, ({ files }) => files.length);
    const [sent] = await recorded(() => task.submit({}));
    assert.deepEqual(sent!.params, {});
    assert.equal((await trial(task, {})).output, 0);
  });

  test("tasks and handles say what they are", () => {
    assert.equal(`${mail}`, "<Task mail({ to: string, files: string[] }) -> string>");
    const options = { params: z.object({ size: z.enum(["s", "m"]).optional() }), output: z.array(z.int()) };
    assert.equal(`${app.task("sized", options, () => [1])}`, '<Task sized({ size?: "s" | "m" }) -> integer[]>');
    assert.equal(`${add}`, "<Task add()>");
    assert.equal(`${app.remote("elsewhere")}`, "<Remote elsewhere>");
    assert.equal(`${mail.handle("a")} ${app.handle("b")}`, "<Handle a of mail> <Handle b>");
  });
});

test("trial fills what a chain fills", async () => {
  const task = { id: "a", state: "succeeded", output: 5 };
  assert.equal((await trial(add, { more: 2 }, { task })).output, 7);
  const results = ["x", "y"].map((output) => ({ id: output, state: "succeeded", output }));
  const failed = { id: "z", state: "failed", error: { kind: "a", message: "b" } };
  assert.equal((await trial(mail, { to: "ada" }, { task, results: [...results, failed] })).output, "x+y to ada");
  assert.equal((await trial(smallMail, { to: "ada" }, { results })).output, "small-mail: x+y to ada");
  assert.equal((await trial(page, { title: "t" }, { results })).output, "t: x,y");
  assert.equal((await trial(page, { title: "t" })).output, "t alone");
  const wrong = await trial(mail, { to: "ada" }, { task });
  assert.match(`${wrong.failure?.kind}: ${wrong.failure?.message}`, /^bad_params: the params do not fit the type: \/files: /);
});

describe("on a fleet", () => {
  let running: Fleet;
  before(async () => {
    running = await fleet({ target: "canvas.ts", cwd: APPS });
  });
  after(() => running?.stop());

  test("result of a chain is that of its last step", async () => {
    const handle = await chain(busy.call(1), add.call({ more: 5 }), add.call({ more: 10 })).submit();
    assert.equal(await handle.finalResult(PATIENCE), 17);
    assert.equal(await handle.result(PATIENCE), 2);
    assert.equal((await handle.continuation().status()).result, 7);
    assert.equal(await add.handle(handle.continuation().continuation().id).result(PATIENCE), 17);
  });

  test("last continuation that a handler has added is followed", async () => {
    const handle = await order.submit({ parts: ["a"] });
    assert.equal(await handle.finalResult(PATIENCE), "a.pdf to ada");
    const both = await chain(order.call({ parts: ["a"] }), page.call({ title: "t" })).submit();
    // The chain's own step, although the handler's continuation has a higher number.
    assert.equal(await both.finalResult(PATIENCE), "t: a.pdf");
    assert.equal(await tasks.app.handle(both.id).finalResult(PATIENCE), "a.pdf to ada");
    assert.equal(await busy.call(0).submit().then((single) => single.finalResult(PATIENCE)), 1); // prettier-ignore
  });

  test("step after a task with children has the list of their results", async () => {
    const handle = await chain(order.call({ parts: ["a"] }), smallMail.call({ to: "eve" }), smallPage.call("page")).submit();
    assert.equal(await handle.finalResult(PATIENCE), "page after 0");
    assert.equal((await handle.continuation().status()).result, "small-mail: a.pdf to eve");
  });

  test("one function serves in a chain and alone", async () => {
    assert.equal(await page.run({ title: "t" }), "t alone");
    assert.equal(await smallPage.run("t"), "t alone");
    assert.equal(await mail.run({ to: "a", files: ["x"] }), "x to a");
    const counted = await chain(tasks.parts.call(["a", "b"]), tasks.count.call({ unit: "parts" })).submit();
    assert.equal(await counted.finalResult(PATIENCE), "2 parts");
    for (const [type, params, pointer] of [
      ["mail", { to: 5, files: [] }, "/params/to"],
      ["mail", { to: "a" }, "/params"],
      ["count", { unit: "parts", parts: [{ name: "a", parts: [{ name: 5, parts: [] }] }] }, "/params/parts/0/parts/0/name"],
      ["small", { task: "small-mail", params: { to: 5, files: [] } }, "/params/params/to"],
    ] as [string, unknown, string][]) {
      await assert.rejects(tasks.app.remote(type).submit(params), (error: Invalid) => error.pointer === pointer);
    }
  });

  test("failed descendant is named", async () => {
    const handle = await chain(order.call({ parts: ["a", "lost"] }), page.call({ title: "t" })).submit();
    const check = (error: TaskFailed) => {
      const { descendant, kind, reason, state } = error;
      assert.match(descendant!, new RegExp(`^${handle.id}:invoice-`));
      assert.deepEqual([kind, reason, state], ["lost_part", "no such part", "failed"]);
      const place = `because of its descendant \`${descendant}\`: lost_part: no such part`;
      assert.equal(
        error.message,
        `the task \`${handle.id}\` ended as failed ${place}\nlog of \`${descendant}\`:\n  looking for lost`,
      );
      return true;
    };
    await assert.rejects(handle.result(PATIENCE), check);
    await assert.rejects(handle.finalResult(PATIENCE), check);
    const own = await chain(invoice.call({ part: "lost" }), busy.call(0)).submit();
    await assert.rejects(own.finalResult(PATIENCE), (error: TaskFailed) => {
      return error.descendant === undefined && error.kind === "lost_part";
    });
  });

  test("group ends with its calls, and passes their results on in their order", async () => {
    const invoices = invoice.map(["b", "c", "a"].map((part) => ({ part })));
    const handle = await chain(invoices, mail.call({ to: "ada" })).submit();
    assert.deepEqual(await handle.result(PATIENCE), ["b.pdf", "c.pdf", "a.pdf"]);
    assert.equal(await handle.finalResult(PATIENCE), "b.pdf+c.pdf+a.pdf to ada");
    const partly = await group(invoice.call({ part: "a" }), invoice.call({ part: "lost" })).submit({ maxFailed: 1 });
    assert.deepEqual(await partly.result(PATIENCE), ["a.pdf"]);
    const failed = await group(invoice.call({ part: "lost" })).submit();
    await assert.rejects(failed.result(PATIENCE), (error: TaskFailed) => error.descendant === `${failed.id}:0`);
  });
});

test("error of a descendant is left out where the API does not tell it", async (t) => {
  const failed = { id: "a", state: "failed", own_state: "succeeded", position: "0:3", error: null };
  const api = await FakeApi.start(
    t,
    stream(["status", failed], ["end", { reason: "finished" }]),
    document(403, { code: "forbidden", detail: "…" }),
  );
  const handle = new App({ api: api.url }).handle("a");
  await assert.rejects(handle.result(PATIENCE), {
    message: "the task `a` ended as failed because of a descendant; hint: `kafleet why a` names that task",
  });
});
