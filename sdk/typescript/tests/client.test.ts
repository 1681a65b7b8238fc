/** The client against an API that fails in all ways, and against a real fleet in memory. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import {
  ApiError,
  App,
  Client,
  Conflict,
  Forbidden,
  Handle,
  Invalid,
  NotFound,
  type Status,
  TaskFailed,
  TimedOut,
  Unavailable,
} from "kafleet";
import { type Fleet, fleet } from "kafleet/testing";
import { z } from "zod";

import { document, FakeApi, stream } from "./server.ts";

const PATIENCE = "60s";
const CREATED = document(201, { id: "a", position: "0:1" });
const BUSY = document(503, { code: "kafka_unavailable", detail: "no answer" });
const RUNNING = { id: "a", state: "running", position: "0:2", result: null };

describe("client of an API that fails", () => {
  test("repeats lost and refused requests with the same id", async (t) => {
    const api = await FakeApi.start(t, { cut: "" }, BUSY, { cut: "HTTP/1.1 2" }, CREATED);
    const handle = await new App({ api: api.url, token: "secret" }).remote("echo").submit({ n: 1 });
    assert.deepEqual([handle.id, handle.position], ["a", "0:1"]);
    assert.equal(api.requests.length, 4);
    assert.equal(new Set(api.requests.map(({ body }) => body.id)).size, 1);
    assert.match(api.requests[0]!.body.id, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    assert.equal(api.requests[0]!.headers["authorization"], "Bearer secret");
  });

  test("opens a lost stream again", async (t) => {
    const ended = { ...RUNNING, state: "succeeded", position: "0:3", result: "line\u2028break" };
    const api = await FakeApi.start(
      t,
      CREATED,
      stream(["status", RUNNING]),
      stream(["status", RUNNING], ["end", { reason: "shutdown" }]),
      BUSY,
      stream(["status", ended], ["end", { reason: "finished" }]),
    );
    assert.equal(await new App({ api: api.url }).remote("echo").run(), "line\u2028break");
    assert.equal(api.requests[2]!.path, "/v1/tasks/a/watch?after=0%3A2");
  });

  test("reports a removed task", async (t) => {
    const gone = document(404, { code: "not_found", detail: "no such task" });
    const api = await FakeApi.start(t, CREATED, stream(["status", RUNNING], ["end", { reason: "gone" }]), gone);
    await assert.rejects(new App({ api: api.url }).remote("echo").run(), NotFound);
  });

  test("reports a refused token at once", async (t) => {
    const api = await FakeApi.start(t, document(401, { code: "unauthorized", detail: "invalid token" }));
    await assert.rejects(new App({ api: api.url }).remote("echo").submit(), (error: Error) => {
      return error instanceof Forbidden && error.message === "unauthorized: invalid token";
    });
  });

  test("sends unavailable items of a batch again", async (t) => {
    const unknown = { outcome: "unknown", problem: { status: 503, code: "outcome_unknown", detail: "…" } };
    const api = await FakeApi.start(
      t,
      document(200, { items: [{ outcome: "accepted", id: "a", position: "0:1" }, unknown] }),
      document(200, { items: [{ outcome: "accepted", id: "b", position: "0:2" }] }),
    );
    const app = new App({ api: api.url });
    const outcomes = await app.submitMany([1, 2].map((n) => app.remote("echo").call(n)));
    assert.deepEqual(
      outcomes.map((outcome) => (outcome as Handle).id),
      ["a", "b"],
    );
    assert.deepEqual(api.requests[1]!.body, api.requests[0]!.body.slice(1));
  });

  test("keeps the tasks of earlier batches when the API goes away", async (t) => {
    const items = Array.from({ length: 1000 }, (_, n) => ({ outcome: "accepted", id: `t${n}`, position: "0:1" }));
    const api = await FakeApi.start(t, document(200, { items }), document(413, { code: "too_large", detail: "…" }));
    const app = new App({ api: api.url });
    const calls = Array.from({ length: 1001 }, (_, n) => app.remote("echo").call(n));
    const outcomes = await app.submitMany(calls);
    assert.equal(outcomes.filter((outcome) => outcome instanceof Handle).length, 1000);
    assert.equal((outcomes[1000] as ApiError).code, "too_large");
    assert.equal(api.requests.length, 2);
    // A value without JSON form is found before anything is created.
    await assert.rejects(app.submitMany([...calls, app.remote("echo").call(NaN)]), TypeError);
    assert.equal(api.requests.length, 2);
  });

  test("does not repeat a retry that may have been carried out", async (t) => {
    const invisible = document(503, { code: "not_visible_yet", detail: "…" });
    const done = document(202, { run: 2, status: { position: "0:9" } });
    const api = await FakeApi.start(t, CREATED, BUSY, done, { cut: "" }, invisible);
    const handle = await new App({ api: api.url }).remote("echo").submit();
    assert.equal(await handle.retry(), 2);
    await assert.rejects(handle.retry(), (error: Unavailable) => error.status === 0);
    await assert.rejects(handle.retry(), (error: Unavailable) => error.code === "not_visible_yet");
    assert.equal(api.requests.length, 5);
  });

  test("names an API that cannot be reached", async (t) => {
    const api = await FakeApi.start(t);
    await api.stop();
    const app = new App({ api: api.url });
    app.client.patienceMs = 0;
    await assert.rejects(app.remote("echo").submit(), (error: Unavailable) => {
      assert.ok(error instanceof Unavailable && error.status === 0);
      assert.match(error.message, new RegExp(`\`${api.url}\` cannot be reached: .*; hint: start \`kafleet dev\``));
      return true;
    });
  });

  test("warns once for each call that it repeats the request", async (t) => {
    const api = await FakeApi.start(t);
    await api.stop();
    const app = new App({ api: api.url });
    app.client.patienceMs = 700;
    const warnings: string[] = [];
    const keep = ({ name, message }: Error) => void (name === "KafleetWarning" && warnings.push(message));
    process.on("warning", keep);
    for (let call = 0; call < 2; call++) await assert.rejects(app.remote("echo").submit(), Unavailable);
    process.off("warning", keep);
    assert.equal(warnings.length, 2);
    for (const warning of warnings) {
      assert.match(
        warning,
        new RegExp(`^unreachable: the API at \`${api.url}\` cannot be reached: .*; trying again for up to 1 s$`),
      );
    }
  });

  test("stops waiting when its signal is aborted", async (t) => {
    const api = await FakeApi.start(t, CREATED, ...Array.from({ length: 50 }, () => stream(["status", RUNNING])));
    const handle = await new App({ api: api.url }).remote("echo").submit();
    const stop = new AbortController();
    setTimeout(() => stop.abort(new Error("the user has left")), 300);
    await assert.rejects(handle.result({ signal: stop.signal }), /the user has left/);
  });

  test("refuses a URL that is none", () => {
    const refused = (url: string) =>
      assert.throws(
        () => new Client({ url }),
        (error: Error) => {
          assert.match(error.message, new RegExp(`^\`${url}\` is not the URL of an API; hint: write `));
          hints.push(error.message.split("write ")[1]!);
          return true;
        },
      );
    const hints: string[] = [];
    ["myhost:9", "ftp://myhost", ""].forEach(refused);
    assert.deepEqual(hints, ["`http://myhost:9`", "`http://myhost`", "`http://127.0.0.1:8080`"]);
  });
});

describe("client of a fleet", () => {
  let running: Fleet;
  let app: App;
  before(async () => {
    running = await fleet();
    app = new App({ api: running.api });
  });
  // As `await using` ends it, which Node 22 does not parse.
  after(() => running?.[Symbol.asyncDispose]());

  test("returns results, statuses and trees", async () => {
    const handle = await app.remote("echo").submit({ n: 1 });
    assert.deepEqual(await handle.result({ timeout: PATIENCE }), { n: 1 });
    const status = await handle.status();
    assert.deepEqual([status.state, status.type, status.id], ["succeeded", "echo", handle.id]);
    const states: string[] = [];
    for await (const { state } of handle.watch()) states.push(state);
    assert.deepEqual(states, ["succeeded"]);
    const child = await app.remote("echo").submit(2, { parent: handle.id, id: "child" });
    await child.result({ timeout: PATIENCE });
    const tree = await handle.tree({ depth: 1 });
    assert.deepEqual([tree.id, tree.below.map(({ id }) => id)], [handle.id, [`${handle.id}:child`]]);
  });

  test("decodes the result with the schema of the type", async () => {
    const other = new App({ api: running.api });
    const output = z.object({ day: z.iso.date().transform((text) => new Date(text)) });
    const echo = other.task("echo", { output }, (params: { day: string }) => params);
    assert.deepEqual(await echo.run({ day: "2026-01-31" }), { day: new Date("2026-01-31") });
  });

  test("passes options on, times out, and cancels", async () => {
    const at = new Date(Date.now() + 3_600_000);
    const handle = await app.remote("echo").submit(null, { id: "with-options", tags: ["shop"], name: "Name", at });
    const { id, tags, name, state } = await handle.status();
    assert.deepEqual([id, tags, name, state], ["with-options", ["shop"], "Name", "scheduled"]);
    await assert.rejects(handle.result({ timeout: 100 }), (error: Error) => {
      return (
        error instanceof TimedOut &&
        /^the task `with-options` has not ended in time(: it is scheduled)?; hint: `kafleet why with-options`$/.test(
          error.message,
        )
      );
    });
    await handle.cancel("not needed");
    await assert.rejects(handle.result({ timeout: PATIENCE }), (error: TaskFailed) => {
      assert.ok(error instanceof TaskFailed);
      assert.deepEqual([error.state, error.id], ["cancelled", "with-options"]);
      return true;
    });
    await handle.cancel();
  });

  test("retries an ended task", async () => {
    const handle = await app.remote("echo").submit({ n: 1 });
    await handle.result({ timeout: PATIENCE });
    assert.equal(await handle.retry({ reason: "once more" }), 2);
    let last: Status | undefined;
    for await (const status of handle.watch({ timeout: PATIENCE })) last = status;
    assert.deepEqual([last?.run, last?.state], [2, "succeeded"]);
    await assert.rejects(handle.retry({ onlyFailed: true }), (error: ApiError) => error.code === "nothing_to_retry");
  });

  test("starts a delayed task now", async () => {
    const handle = await app.remote("echo").submit({ n: 1 }, { delay: "1h" });
    assert.ok(Array.isArray(await handle.startNow({ reason: "it is urgent" })));
    assert.deepEqual(await handle.result({ timeout: PATIENCE }), { n: 1 });
    await assert.rejects(handle.startNow(), (error: Conflict) => error.code === "already_finished");
  });

  test("creates a task with an id once", async () => {
    const submit = async (n: number) => (await app.remote("echo").submit({ n }, { id: "same" })).id;
    assert.deepEqual([await submit(1), await submit(1)], ["same", "same"]);
    await assert.rejects(submit(2), (error: Conflict) => {
      assert.ok(error instanceof Conflict);
      assert.deepEqual([error.code, error.existing], ["duplicate_id", "same"]);
      return true;
    });
  });

  test("throws errors with the code of the problem", async () => {
    await assert.rejects(
      app.remote("nowhere").submit(),
      (error: Error) => error instanceof NotFound && /unknown_type/.test(error.message),
    );
    for (const operation of ["status", "result", "tree", "cancel", "retry", "startNow"] as const) {
      await assert.rejects(
        app.remote("echo").handle("nobody")[operation](),
        (error: NotFound) => error.code === "not_found",
        operation,
      );
    }
    await assert.rejects(app.remote("echo").submit(1, { id: "not an id" }), (error: Invalid) => error.code === "bad_id");
    for (const id of ["", ".", "..", "a:..", "a::b"]) {
      await assert.rejects(app.remote("echo").handle(id).cancel(), (error: Invalid) => error.code === "bad_id", id);
    }
    await assert.rejects(app.remote("foreach").submit(5), (error: Error) => error instanceof Invalid && error.code === "schema");
    const wrong = { tag: "shop" } as object;
    await assert.rejects(app.remote("echo").submit(1, wrong), /`tag` is not an option of a submitted task \(`echo`\)/);
  });

  test("creates batches with one outcome for each task", async () => {
    const calls = Array.from({ length: 2100 }, (_, n) => app.remote(n % 500 === 7 ? "nowhere" : "echo").call({ n }));
    const outcomes = await app.submitMany(calls);
    assert.equal(outcomes.length, 2100);
    const refused = outcomes.flatMap((outcome, n) => (outcome instanceof ApiError ? [n] : []));
    assert.deepEqual(refused, [7, 507, 1007, 1507, 2007]);
    assert.deepEqual(await (outcomes.at(-1) as Handle).result({ timeout: PATIENCE }), { n: 2099 });
    assert.deepEqual(await app.submitMany([]), []);
  });
});
