/** Numbers that a JavaScript number would change arrive exactly or are refused, and are sent with all digits. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { App } from "kafleet";
import { recorded, trial } from "kafleet/testing";
import { z } from "zod";

import { Worker } from "./driver.ts";
import { FakeApi, stream } from "./server.ts";

const LARGE = 618970019642690137449562111n;
const raw = (text: string): unknown => (JSON as unknown as { rawJSON(text: string): unknown }).rawJSON(text);

/** Numbers that a JavaScript number would change, and what they become. */
const CHANGED: [string, unknown, string][] = [
  ["618970019642690137449562111", LARGE, "6.189700196426902e+26"],
  ["9007199254740993", 9007199254740993n, "9007199254740992"],
  ["0.1234567890123456789", raw("0.1234567890123456789"), "0.12345678901234568"],
  ["1e400", raw("1e400"), "Infinity"],
];

/** Numbers that stay as they are. */
const KEPT = ["0.10", "1e2", "-0", "9007199254740992", "5e-324", "123456789012345000"];

const line = (n: number, type: string, params: string): string =>
  `{"attempt":{"n":${n},"type":"${type}","id":"a","run":1,"number":1,"left_ms":60000,"params":${params}}}`;

describe("attempt", () => {
  for (const [source, , changed] of CHANGED) {
    test(`gets ${source} exactly if it is asked for, and otherwise none`, async (t) => {
      const worker = await Worker.ready(t, "numbers.ts");
      worker.sendLine(line(1, "checked", `{"a":[0,${source}]}`));
      const hint = 'hint: set `numbers: "exact"`, or use a string';
      const { outcome, kind, message } = await worker.next("ok", "error");
      assert.deepEqual([outcome, kind], ["dead", "bad_params"]);
      const problem = `\`${source}\` at \`/a/1\` would become \`${changed}\` as a JavaScript number; ${hint}`;
      assert.equal(message, `the params do not fit the type: ${problem}`);
      worker.sendLine(line(2, "exact", `{"a":[0,${source}]}`));
      // The line itself: the test would read it with JavaScript numbers.
      const lines: string[] = [];
      worker.socket.on("data", (chunk) => lines.push(String(chunk)));
      assert.equal((await worker.next("ok"))["n"], 2);
      assert.match(lines.join(""), new RegExp(`"output":\\{"a":\\[0,${source.replace(".", "\\.")}\\]\\}`));
    });
  }

  test("gets numbers that do not change as numbers", async (t) => {
    const worker = await Worker.ready(t, "numbers.ts");
    worker.sendLine(line(1, "types", `[${KEPT}]`));
    assert.deepEqual(
      (await worker.next("ok", "error"))["output"],
      KEPT.map(() => "number"),
    );
    worker.sendLine(line(2, "types", `[${CHANGED.map(([source]) => source)}]`));
    assert.deepEqual((await worker.next("ok", "error"))["output"], ["bigint", "bigint", "object", "object"]);
  });

  test("of a continuation gets the results of others exactly", async () => {
    const app = new App({ numbers: "exact" });
    const results = app.task("sum", { output: z.any().transform(BigInt) }, () => LARGE);
    const joined = app.joined("joined", { params: z.any(), results }, (_, cx) =>
      cx.results.map(({ output }) => output === LARGE),
    );
    const run = await trial(joined, undefined, { results: [{ id: "a", state: "succeeded", output: LARGE }] });
    assert.deepEqual(run.output, [true]);
    const checked = new App().joined("checked", { params: z.any(), results }, () => 1);
    const { failure } = await trial(checked, undefined, { results: [{ id: "a", state: "succeeded", output: LARGE }] });
    assert.match(failure!.message, /`618970019642690137449562111` at `\/results\/0\/output` would become/);
  });

  test("of a bundle has the option of its task or of its app", async () => {
    const bundle = new App({ numbers: "exact" }).bundle("small");
    assert.equal(
      (
        await trial(
          bundle.task("a", (n: bigint) => typeof n),
          LARGE,
        )
      ).output,
      "bigint",
    );
    const checked = bundle.task("b", { numbers: "checked" }, (n: bigint) => typeof n);
    assert.equal((await trial(checked, LARGE)).failure?.kind, "bad_params");
  });

  test("sends children, progress and results with all digits", async () => {
    const app = new App({ numbers: "exact" });
    const item = app.task("item", async (n: bigint, cx) => {
      cx.progress({ n });
      await cx.spawn(item, n);
      cx.then(item, n);
      return [n, raw("0.10")];
    });
    const run = await trial(item, LARGE);
    assert.deepEqual(run.output, [LARGE, 0.1]);
    assert.deepEqual([run.progress[0], run.children[0]!.params, run.then[0]!.params], [{ n: LARGE }, LARGE, LARGE]);
  });
});

describe("client", () => {
  const created = { status: 201, body: '{"id":"a","position":"0:1"}' };
  const ended = (result: string) => {
    const status = `{"id":"a","state":"succeeded","position":"0:2","progress":null,"result":${result}}`;
    const events = `event: status\ndata: ${status}\n\nevent: end\ndata: {"reason":"finished"}\n\n`;
    return { status: 200, body: events, stream: true };
  };

  for (const [source, exact, changed] of CHANGED) {
    test(`gets ${source} exactly if it is asked for, and otherwise none`, async (t) => {
      const api = await FakeApi.start(t, created, ended(`{"n":${source}}`), created, ended(`{"n":${source}}`));
      const result = (numbers: "checked" | "exact") => new App({ api: api.url, numbers }).remote("echo").run(1);
      await assert.rejects(result("checked"), (error: Error) => {
        const hint = 'hint: set `numbers: "exact"`, or use a string';
        const problem = `\`${source}\` at \`/n\` would become \`${changed}\` as a JavaScript number; ${hint}`;
        assert.equal(error.message, `the result of \`echo\` cannot be read: ${problem}`);
        return true;
      });
      assert.deepEqual(await result("exact"), { n: exact });
    });
  }

  test("has all numbers of statuses and trees, which are of any type", async (t) => {
    const list = `[${CHANGED.map(([source]) => source)}]`;
    const answer = { status: 200, body: `{"id":"a","state":"running","progress":${list},"result":null,"below":[]}` };
    const api = await FakeApi.start(t, answer, answer, stream(["end", {}]));
    const handle = new App({ api: api.url }).remote("echo").handle("a");
    const exact = CHANGED.map(([, value]) => value);
    assert.deepEqual([(await handle.status()).progress, (await handle.tree()).progress], [exact, exact]);
  });

  test("sends params with all digits", async (t) => {
    const api = await FakeApi.start(t, created, { status: 200, body: '{"items":[{"outcome":"accepted","id":"a"}]}' });
    const remote = new App({ api: api.url }).remote("echo");
    const params = [LARGE, -0, raw("0.10"), 1e21];
    await remote.submit(params);
    await remote.app.submitMany([remote.call(params)]);
    for (const { text } of api.requests) assert.match(text, /"params":\[618970019642690137449562111,-0,0\.10,1e\+21\]/);
    const [submitted] = await recorded(() => remote.submit(params));
    assert.deepEqual(submitted!.params, [LARGE, -0, 0.1, 1e21]);
  });
});

describe("id that a URL changes", () => {
  for (const id of ["", ".", "..", "a:..", ".:a", "\ud83d", undefined, 5] as string[]) {
    test(`is refused before a request: ${JSON.stringify(id)}`, async (t) => {
      const api = await FakeApi.start(t);
      const remote = new App({ api: api.url }).remote("echo");
      const handle = remote.handle(id);
      const uses = [
        () => handle.status(),
        () => handle.tree(),
        () => handle.cancel(),
        () => handle.retry(),
        () => handle.result(),
        ...(id === undefined ? [] : [() => remote.submit(1, { id }), () => remote.submit(1, { id: "a", parent: id })]),
      ];
      for (const use of uses) await assert.rejects(async () => use(), { name: "Invalid", code: "bad_id", status: 400 });
      if (id === "a:..") {
        const message = "bad_id: `..` cannot be an id or a segment of one: URLs drop it; choose another name";
        await assert.rejects(handle.status(), { message });
      }
      assert.equal(api.requests.length, 0);
    });
  }

  for (const id of ["...", ".a", "a..b", "%2e%2e", "a/b", "a?b#c", "a\\..\\b", "a:b"]) {
    test(`reaches its task: ${id}`, async (t) => {
      const api = await FakeApi.start(t, { status: 200, body: '{"state":"queued"}' });
      await new App({ api: api.url }).remote("echo").handle(id).status();
      assert.equal(decodeURIComponent(api.requests[0]!.path), `/v1/tasks/${id}`);
    });
  }
});
