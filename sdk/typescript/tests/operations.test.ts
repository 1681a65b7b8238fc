/** The rest of the API: handles, searches, bulk actions, dead letters, schedules, events and external tasks. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";

import { ApiError, App, type Handle, type NotFound, type TaskFailed } from "kafleet";
import { type Fleet, fleet, recorded } from "kafleet/testing";

import { app, refuses, echo } from "./apps/operated.ts";
import { APPS, ROOT, until } from "./driver.ts";
import { document, FakeApi } from "./server.ts";

const PATIENCE = { timeout: "60s" } as const;
const LATER = new Date(Date.now() + 3_600_000);

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

describe("on a fleet", () => {
  let running: Fleet;
  before(async () => {
    running = await fleet({ target: "operated.ts", cwd: APPS });
  });
  after(() => running?.stop());

  test("handle shows everything about its task", async () => {
    const handle = await echo.submit({ n: 1 }, { id: "shown", headers: { tenant: "a" } });
    await handle.result(PATIENCE);
    const { own_state, tree, headers, error, root } = await handle.status();
    assert.deepEqual([own_state, tree.total, headers, error, root], ["succeeded", 1, { tenant: "a" }, null, "shown"]);
    assert.deepEqual(await handle.params(), { n: 1 });
    const { lines, total } = await handle.log();
    assert.deepEqual([lines.map(({ text }) => text), total], [["echo of { n: 1 }"], 1]);
    assert.deepEqual((await handle.log({ from: 1 })).lines, []);
    assert.deepEqual(
      (await handle.history()).events.map(({ kind }) => kind),
      ["submitted", "started", "succeeded"],
    );
    assert.deepEqual(
      (await app.handle("shown").why()).findings.map(({ code, task }) => [code, task]),
      [["ended", null]],
    );
  });

  test("children of a handle are read over pages", async () => {
    const handle = await echo.submit(0, { id: "many" });
    await app.submitMany(Array.from({ length: 450 }, (_, n) => echo.call(n, { parent: "many", id: `${n}` })));
    await handle.result(PATIENCE);
    const results = (await all(handle.children())).map(({ result }) => result as number);
    assert.deepEqual(
      results.toSorted((one, other) => one - other),
      Array.from({ length: 450 }, (_, n) => n),
    );
    const found = await all(app.tasks.search("under:many -id:many", { limit: 250 }));
    assert.equal(new Set(found.map(({ id }) => id)).size, 250);
  });

  test("fields of a task are changed", async () => {
    const handle = await echo.submit("late", { id: "late", delay: "1h", name: "Name" });
    const status = await handle.patch({ name: null, tags: ["a"], minBackoff: "2s", delay: "0s" });
    assert.deepEqual([status.name, status.tags], [null, ["a"]]);
    assert.equal(await handle.result(PATIENCE), "late");
    await assert.rejects(handle.patch({ delay: "1h" }), ApiError);
    await assert.rejects(handle.patch({ retries: "3" as never }), /^TypeError: `late`: `retries` is `3`: a whole number/);
    await assert.rejects(
      handle.patch({ nam: "a" } as object),
      /`nam` is not an option of a change \(`late`\); hint: did you mean `name`\?/,
    );
  });

  test("tasks are found by a search", async () => {
    const ids = ["found-1", "found-2"];
    for (const id of ids) await (await echo.submit(id, { id, tags: ["found"] })).result(PATIENCE);
    assert.deepEqual((await all(app.tasks.search("tag:found"))).map(({ id }) => id).toSorted(), ids);
    assert.deepEqual(await all(app.tasks.search("tag:found state:failed")), []);
    assert.equal((await all(app.tasks.search("tag:found", { limit: 1 }))).length, 1);
    await assert.rejects(all(app.tasks.search("state:faild")), /did you mean `failed`/);
  });

  test("many tasks are cancelled and run again", async () => {
    const ids = ["bulk-1", "bulk-2"];
    const handles = await Promise.all(ids.map((id) => echo.submit(id, { id, at: LATER, tags: ["bulk"] })));
    // A status waits until its task is visible; a search does not.
    for (const handle of handles) assert.equal((await handle.status()).state, "scheduled");
    const started = await app.bulk.startNow(["bulk-1"]);
    assert.deepEqual(await started.result(PATIENCE), { done: 1, refused: 0, skipped: 0, changed: ["bulk-1"] });
    await handles[0]!.result(PATIENCE);
    const cancelled = await app.bulk.cancel("tag:bulk", { limit: 10, reason: "not needed" });
    assert.deepEqual(await cancelled.result(PATIENCE), { done: 1, refused: 0, skipped: 1, changed: ["bulk-2"] });
    await assert.rejects(handles[1]!.result(PATIENCE), (error: TaskFailed) => error.state === "cancelled");
    const again = await app.bulk.retry("tag:bulk state:cancelled", { onlyFailed: true });
    assert.equal((await again.result(PATIENCE)).done, 1);
    assert.equal(`${again}`, `<Handle ${again.id} of kafleet-bulk>`);
    const misspelt = { onlyfailed: true } as object;
    await assert.rejects(
      app.bulk.retry("tag:bulk", misspelt),
      /`onlyfailed` is not an option of a bulk action; hint: did you mean `onlyFailed`/,
    );
  });

  test("dead letters are listed, run again and dropped", async () => {
    const failed = async (id: string) => {
      const handle = await refuses.submit({}, { id });
      await assert.rejects(handle.result(PATIENCE), (error: TaskFailed) => error.kind === "not_yet");
      return handle;
    };
    const lettersOf = async () => (await all(app.deadLetters.list({ type: "refuses" }))).filter(({ code }) => code === "dead");
    const [first] = [await failed("dead-1"), await failed("dead-2"), await failed("dead-3")];
    await until(async () => (await lettersOf()).length === 3, "three letters");
    const letters = await lettersOf();
    assert.deepEqual(
      letters.map(({ task, error }) => [task, error]),
      ["dead-3", "dead-2", "dead-1"].map((id) => [id, "not yet"]),
    );
    await app.deadLetters.redrive(letters[2]!.id, { params: { fixed: true } });
    // The handle knows nothing of the new run, which is visible only when it has been projected.
    await until(async () => (await first.status()).state === "succeeded", "the end of the new run");
    assert.equal(await first.result(PATIENCE), "fixed");
    const patched = await app.bulk.redrive([letters[1]!.id], { patch: { fixed: true }, reason: "fixed" });
    assert.deepEqual(await patched.result(PATIENCE), { done: 1, refused: 0, skipped: 0, changed: ["dead-2"] });
    const { done, refused, more } = await app.deadLetters.drop({ type: "refuses", limit: 10 });
    assert.deepEqual([done, refused, more], [[letters[0]!.id], [], false]);
    assert.deepEqual(await lettersOf(), []);
    const none = await app.bulk.redrive({ type: "refuses", code: "dead" });
    assert.deepEqual(await none.result(PATIENCE), { done: 0, refused: 0, skipped: 0 });
    await assert.rejects(app.deadLetters.drop({ typ: "refuses" } as object), /`typ` is not an option of `drop`/);
  });

  test("schedules", async () => {
    const { schedules } = app;
    const spec = {
      cron: "0 3 * * *",
      timezone: "Europe/Berlin",
      catchUp: "2h",
      task: echo.call("hello", { name: "Nightly" }),
    } as const;
    const made = (await schedules.upsert("nightly", spec)) as { spec: { catch_up: string; task: object } };
    assert.deepEqual([made.spec.catch_up, made.spec.task], ["2h", { type: "echo", params: "hello", name: "Nightly" }]);
    await schedules.upsert("nightly", { cron: "@daily", zone: "Asia/Tokyo", task: echo });
    assert.equal(((await schedules.get("nightly"))["spec"] as { timezone: string }).timezone, "Asia/Tokyo");
    assert.deepEqual(
      (await schedules.list()).map(({ id, paused }) => [id, paused]),
      [["nightly", null]],
    );
    await schedules.pause("nightly", "holidays");
    assert.equal(((await schedules.get("nightly"))["paused"] as { reason: string }).reason, "holidays");
    await schedules.resume("nightly");
    const handle = await schedules.trigger("nightly");
    assert.equal(await handle.result(PATIENCE), null);
    await schedules.delete("nightly");
    await assert.rejects(schedules.get("nightly"), (error: NotFound) => error.code === "unknown_schedule");
    const misspelt = { timezon: "Europe/Berlin", cron: "0 3 * * *", task: echo.call(1) } as never;
    await assert.rejects(
      schedules.upsert("a", misspelt),
      /`timezon` is not an option of a schedule; hint: did you mean `timezone`\?/,
    );
    const task = echo.call(1, { parent: "a" });
    await assert.rejects(
      async () => schedules.upsert("a", { every: "1h", task }),
      /`parent` is not an option of a scheduled task/,
    );
  });

  test("types and workers", async () => {
    const names = (await app.types()).map(({ type }) => type as string);
    assert.deepEqual(names.filter((name) => name !== "kafleet-bulk").toSorted(), ["echo", "refuses"]);
    assert.deepEqual(
      (await app.workers()).map(({ state }) => state),
      ["alive"],
    );
  });

  test("events name the tasks that have changed", async () => {
    const changed = new Set<string>();
    for await (const { ids } of app.events({ root: "watched" })) {
      if (!ids) void echo.submit(1, { id: "watched" });
      for (const id of ids ?? []) changed.add(id);
      if (changed.has("watched")) break;
    }
    assert.deepEqual([...changed], ["watched"]);
  });

  test("external system reports on its task", async () => {
    const handle = await app.external("import").submit({ id: "import-1", name: "Import", options: { file: "a.csv" } });
    const first = await handle.report("running", { message: "reading" });
    assert.deepEqual([first.status.state, first.ignored], ["running", false]);
    const child = await echo.submit("row", { parent: handle.id, id: "row" });
    await handle.report("succeeded", { result: { rows: 1 } });
    assert.deepEqual(await app.external("import").handle("import-1").result(PATIENCE), { rows: 1 });
    assert.equal(await child.result(PATIENCE), "row");
    assert.equal((await handle.report("failed")).ignored, true);
    await assert.rejects(
      app.external("import").submit({ retries: 1 } as object),
      /`retries` is not an option of an external task/,
    );
    await assert.rejects(echo.handle("watched").report("failed"), (error: ApiError) => error.code === "not_external");
  });

  test("any request can be sent", async () => {
    const { client } = app;
    assert.equal((await client.request<{ id: string }>("GET", "/v1/tasks/watched/state")).id, "watched");
    await client.request("POST", "/v1/types/echo/pause", { reason: "maintenance" });
    const paused = (await app.types()).find(({ type }) => type === "echo")!["paused"] as { reason: string };
    assert.equal(paused.reason, "maintenance");
    await client.request("POST", "/v1/types/echo/resume");
    assert.match(await client.request<string>("GET", "/metrics"), /^# (HELP|TYPE) /m);
    await assert.rejects(client.request("GET", "/v1/nothing"), (error: NotFound) => error.code === "unknown_route");
  });

  test("reset leaves nothing", async () => {
    await app.schedules.upsert("nightly", { every: "1h", task: echo.call(1) });
    const { api } = running;
    await running.reset();
    assert.equal(running.api, api);
    assert.deepEqual([await all(app.tasks.search("level:any")), await app.schedules.list()], [[], []]);
    assert.equal(await echo.run("other params", { id: "shown" }), "other params");
  });
});

describe("with an API of the test", () => {
  test("events resume where they were lost", async (t) => {
    const event = (id: number) => ({
      status: 200,
      stream: true,
      body: `event: changed\nid: ${id}\ndata: {"ids":["t${id}"]}\n\n`,
    });
    const api = await FakeApi.start(t, event(1), { cut: "" }, event(2));
    const ids: string[] = [];
    for await (const change of new App({ api: api.url }).events({ type: "echo" })) {
      ids.push(...change.ids!);
      if (ids.length === 2) break;
    }
    assert.deepEqual(ids, ["t1", "t2"]);
    assert.deepEqual(
      api.requests.map(({ path, headers }) => [path, headers["last-event-id"]]),
      ["/v1/watch?type=echo", undefined, "/v1/watch?type=echo", "1", "/v1/watch?type=echo", "1"].flatMap((value, n, list) =>
        n % 2 ? [] : [[value, list[n + 1]]],
      ),
    );
  });

  test("external task has its options, and no state before it is reported", async (t) => {
    const api = await FakeApi.start(t, document(201, { id: "a", position: "0:1" }));
    const imports = new App({ api: api.url }).external("import");
    const handle = await imports.submit({ id: "a", blockWhenDone: false });
    assert.equal(`${handle}`, "<Handle a of import>");
    assert.deepEqual(api.requests[0]!.body, { type: "import", external: true, id: "a", block_when_done: false });
    const wrong = imports.submit({ id: "a", state: "running" } as never);
    await assert.rejects(
      wrong,
      /^TypeError: `state` is not an option of an external task \(`import`\); hint: report it: `handle\.report\(state\)`$/,
    );
    assert.equal(api.requests.length, 1);
  });

  test("requests that must not be carried out twice are sent once", async (t) => {
    const answers = Array.from({ length: 5 }, () => document(503, { code: "outcome_unknown", detail: "…" }));
    const api = await FakeApi.start(t, ...answers);
    const { schedules, bulk, client, handle } = new App({ api: api.url });
    const target: Handle = handle.call(new App({ api: api.url }), "a");
    const uses = [
      () => schedules.trigger("a"),
      () => bulk.retry("tag:a"),
      () => bulk.redrive({ type: "a" }),
      () => client.request("post", "/v1/x"),
      () => target.report("failed"),
    ];
    for (const use of uses) await assert.rejects(use, (error: ApiError) => error.code === "outcome_unknown");
    assert.equal(api.requests.length, 5);
  });

  test("nothing is sent while tasks are recorded", async () => {
    await recorded(async () => {
      await assert.rejects(app.types(), /tasks are recorded here/);
      await app.external("import").submit({ id: "a" });
    });
  });
});

test("documents have the names of the API", () => {
  const source = readFileSync(join(import.meta.dirname, "../src/documents.ts"), "utf8");
  const { schemas } = JSON.parse(readFileSync(join(ROOT, "schemas/openapi.json"), "utf8")).components as {
    schemas: Record<string, any>;
  };
  const interfaces = [...source.matchAll(/^export interface (\w+)( extends Part)? \{\n([^]*?)^\}/gm)];
  const declared = new Set(interfaces.map(([, name]) => name!).concat("State"));
  for (const [, name, isPart, body] of interfaces) {
    const found = Object.fromEntries([...body!.matchAll(/^ {2}(\w+): (.*);$/gm)].map(([, field, type]) => [field, type]));
    const expected = Object.entries(schemas[name!].properties).map(([field, schema]) => [
      field,
      typeOf(schema, schemas, declared),
    ]);
    const compared = expected.filter(([field]) => !isPart || field! in found);
    assert.deepEqual(found, Object.fromEntries(compared), name);
  }
  const union = source.slice(source.indexOf("export type OpenState"), source.indexOf("/** Last error"));
  const states = [...union.matchAll(/"(\w+)"/g)].map(([, state]) => state);
  const named = schemas["State"].oneOf.flatMap((one: { enum?: string[]; const: string }) => one.enum ?? [one.const]);
  assert.deepEqual(states.toSorted(), named.toSorted());
  assert.deepEqual([...declared].includes("Status"), true);
});

/** Returns the TypeScript of a JSON Schema. */
function typeOf(schema: any, schemas: Record<string, any>, declared: ReadonlySet<string>): string {
  const inner = (each: any) => typeOf(each, schemas, declared);
  if (schema.$ref) {
    const name = schema.$ref.split("/").at(-1);
    const isText = (schemas[name].oneOf ?? [schemas[name]]).every(({ type }: any) => type === "string");
    return name === "AnyJson" ? "unknown" : declared.has(name) ? name : isText ? "string" : "Part";
  }
  if (schema.anyOf) {
    const types: string[] = schema.anyOf.map(inner);
    return types.includes("unknown") ? "unknown" : types.join(" | ");
  }
  if (Array.isArray(schema.type)) return schema.type.map((type: string) => inner({ ...schema, type })).join(" | ");
  if (schema.type === "array") return `${inner(schema.items)}[]`;
  if (schema.type === "object") return `Record<string, ${inner(schema.additionalProperties)}>`;
  return schema.type === "integer" ? "number" : (schema.type ?? "unknown");
}
