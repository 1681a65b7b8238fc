/** Messages about mistakes of new users: what happened, the value, and what to do. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { describe, test } from "node:test";

import { App, chain, Invalid } from "kafleet";
import { recorded, trial } from "kafleet/testing";
import { z } from "zod";

import {
  APP_METHODS,
  APP_PROPERTIES,
  CONTEXT_METHODS,
  CONTEXT_PROPERTIES,
  formOfClass,
  formOfOption,
  HANDLE_METHODS,
  HANDLE_PROPERTIES,
  TASK_METHODS,
  TASK_PROPERTIES,
} from "../src/foreign.ts";
import { hintOfSdk } from "../src/hints.ts";
import { POLICY_KEYS } from "../src/settings.ts";
import { ROOT } from "./driver.ts";
import { document, FakeApi } from "./server.ts";

const app = new App({ api: "http://127.0.0.1:9" });
const greet = app.task("greet", { params: z.object({ name: z.string(), mail: z.email().optional() }) }, ({ name }) => name);
const nightly = app.task("nightly", () => 1);
const remote = app.remote("elsewhere");

/** Name of a type that is not declared yet. */
const unused = () => `task-${app.declared.size}`;

/** Runs code of a handler, and returns the message of its failure. */
async function inHandler(run: (cx: any) => unknown): Promise<string> {
  const { failure } = await trial(app.task(unused(), async (_: unknown, cx) => void (await run(cx))));
  throw new Error(failure?.message ?? "no failure");
}

const submit = (options: object) => recorded(() => greet.submit({ name: "Ada" }, options));
const declare = (options: object) => app.task("a", options as { retries: number }, () => 1);
const durations = "hint: write `1500ms`, `30s`, `10m`, `2h` or `7d`, or a number of milliseconds";
const zoned = "hint: write the time with its zone, as in `2026-12-24T18:00:00+01:00`, or a `Date`";
const noTask = 'is no task type; hint: declare it: `const task = app.task("name", async (params, cx) => …)`';
const cronFields = "five fields, or six with seconds in front, or `@daily`; hint: `0 3 * * *` is 3:00 each day";

const MESSAGES: Record<string, [() => unknown, string]> = {
  "function as a child": [() => inHandler((cx) => cx.spawn(() => 1)), `a value of type function ${noTask}`],
  "name as a child": [() => inHandler((cx) => cx.spawn("greet", {})), `a value of type string ${noTask}`],
  "task instead of a call": [
    () => inHandler((cx) => cx.spawnNow([greet])),
    "`document` is not a method of a task type; hint: write `task.call(params)` where a call is needed",
  ],
  "params of a child": [
    () => inHandler((cx) => cx.spawn(greet, { name: 5 })),
    "the params of `greet` do not fit: /name: Invalid input: expected string, received number",
  ],
  "params of a child that is published at once": [
    () => inHandler((cx) => cx.spawnNow([greet.call({ name: "Ada", mail: "ada" })])),
    "the params of `greet` do not fit: /mail: Invalid email address",
  ],
  "params of a continuation": [
    () => inHandler((cx) => cx.then(greet)),
    "the params of `greet` do not fit: Invalid input: expected object, received null",
  ],
  "params of a continuation of a child": [
    () => inHandler((cx) => cx.spawn(nightly, undefined, { then: [greet.call({} as never)] })),
    "the params of `greet` do not fit: /name: Invalid input: expected string, received undefined",
  ],
  "tags that are no list": [() => submit({ tags: "shop" }), '`greet`: `tags` is `shop`; hint: write a list: `["shop"]`'],
  "tags of a child": [
    () => inHandler((cx) => cx.spawn(greet, { name: "Ada" }, { tags: "shop" })),
    '`greet`: `tags` is `shop`; hint: write a list: `["shop"]`',
  ],
  "tags that are no texts": [() => submit({ tags: [1] }), "`greet`: `tags` is of type Array: a list of texts is allowed"],
  "negative retries": [() => declare({ retries: -1 }), "`a`: `retries` is `-1`: a whole number from 0 to 1,000 is allowed"],
  "negative retries of a call": [
    () => submit({ retries: -1 }),
    "`greet`: `retries` is `-1`: a whole number from 0 to 1,000 is allowed",
  ],
  "retries as text": [() => declare({ retries: "5" }), "`a`: `retries` is `5`: a whole number from 0 to 1,000 is allowed"],
  "concurrency of none": [
    () => declare({ concurrency: 0 }),
    "`a`: `concurrency` is `0`: a whole number from 1 to 100,000 is allowed",
  ],
  "timeout that is no duration": [() => declare({ timeout: "30 sec" }), `\`a\`: \`timeout\` is \`30 sec\`; ${durations}`],
  "negative timeout": [() => declare({ timeout: -5 }), `\`a\`: \`timeout\` is \`-5\`; ${durations}`],
  "delay that is no duration": [() => submit({ delay: "soon" }), `\`greet\`: \`delay\` is \`soon\`; ${durations}`],
  "soft timeout after the timeout": [
    () => declare({ timeout: "5s", softTimeout: 5000 }),
    "`a`: `softTimeout` is not shorter than `timeout`, 5 s; hint: raise `timeout`",
  ],
  "time without a zone": [() => submit({ at: "2026-12-24T18:00" }), `\`greet\`: \`at\` is \`2026-12-24T18:00\`; ${zoned}`],
  "invalid date": [() => submit({ at: new Date(NaN) }), "`greet`: `at` is of type Date: it is an invalid `Date`"],
  "unknown consequence": [
    () => declare({ onError: "ignore" }),
    "`a`: `onError` is `ignore`: `retry`, `fail`, `skip` are allowed",
  ],
  "class that is no list": [
    () => declare({ failOn: RangeError }),
    "`a`: `failOn` is no list; hint: write `failOn: [RangeError]`",
  ],
  "kind that is no list": [() => declare({ retryOn: "busy" }), '`a`: `retryOn` is no list; hint: write `retryOn: ["busy"]`'],
  "headers that are no texts": [
    () => submit({ headers: { tenant: 5 } }),
    "`greet`: `headers` is of type Object: an object with texts is allowed",
  ],
  "name with a dot": [
    () => app.task("Shop.Report", () => 1),
    "`Shop.Report` is not a name of a type: 1 to 64 characters of `a-z 0-9 -`; hint: write `shop-report`",
  ],
  "app with a name": [
    () => new App("shop" as never),
    "`App` takes an object with options, not `shop`; hint: write `new App()`: it has no name",
  ],
  "option of a type in a call": [
    () => submit({ tripOn: ["busy"] }),
    "`tripOn` is not an option of a submitted task (`greet`); hint: it belongs to the type: " +
      '`app.task("greet", { tripOn: … }, handler)`',
  ],
  "option of a call in a declaration": [
    () => declare({ delay: "5s" }),
    "`a`: `delay` is not a key of a policy; hint: it belongs to a call: `task.submit(params, { delay: … })`",
  ],
  "option of a continuation in a call": [
    () => submit({ withResults: true }),
    "`withResults` is not an option of a submitted task (`greet`); hint: it belongs to a continuation, as in " +
      "`cx.then(task, params, options)`",
  ],
  "option of BullMQ in a declaration": [
    () => declare({ attempts: 5 }),
    "`a`: `attempts` is not a key of a policy; hint: write `retries: 4` for 5 attempts",
  ],
  "option of BullMQ in a call": [
    () => submit({ jobId: "a" }),
    '`jobId` is not an option of a submitted task (`greet`); hint: write `id: "cover-42"`',
  ],
  "option of BullMQ for a child": [
    () => inHandler((cx) => cx.spawn(greet, { name: "Ada" }, { failParentOnFailure: true })),
    "`failParentOnFailure` is not an option of a child (`greet`); hint: remove it: a failed child fails its parent",
  ],
  "option of Celery for an app": [
    () => new App({ broker: "redis://" } as object),
    "`broker` is not an option of `App`; hint: remove it: the fleet has Kafka and Redis, and a client the URL of the API in " +
      "KAFLEET_API or `new App({ api })`",
  ],
  "method of BullMQ": [
    () => (greet as any).add({ name: "Ada" }),
    "`add` is not a method of a task type; hint: write `task.submit(params, options)`",
  ],
  "method of Celery": [
    () => (greet as any).delay("Ada"),
    "`delay` is not a method of a task type; hint: write `task.submit(params, options)`",
  ],
  "option of BullMQ for a task, in a declaration": [
    () => declare({ eta: new Date() }),
    "`a`: `eta` is not a key of a policy; hint: it belongs to a call: write `at: new Date(…)`",
  ],
  "option of BullMQ for a worker, in a call": [
    () => submit({ limiter: { max: 10 } }),
    '`limiter` is not an option of a submitted task (`greet`); hint: it belongs to the type: write `rate: { count: 10, per: "1s" }`',
  ],
  "option of a declaration in a call": [
    () => submit({ softTimeout: "5s" }),
    "`softTimeout` is not an option of a submitted task (`greet`); hint: it belongs to the type: " +
      '`app.task("greet", { softTimeout: … }, handler)`',
  ],
  "method of BullMQ for a job": [
    () => (greet.handle("a") as any).waitUntilFinished(),
    '`waitUntilFinished` is not a method of a handle; hint: write `await handle.result({ timeout: "30s" })`',
  ],
  "property of a job": [
    () => inHandler((cx) => cx.attemptsMade),
    "`attemptsMade` is not a property of a context; hint: write `cx.number`, the number of the attempt from 1",
  ],
  "method of a job": [
    () => inHandler((cx) => cx.updateProgress(5)),
    "`updateProgress` is not a method of a context; hint: write `cx.progress(value)`",
  ],
  "option of a task in its bundle": [
    () => new App().bundle("b", { softTimeout: "5s" } as object),
    "`b`: `softTimeout` is not a key of a policy; hint: it belongs to a task of the bundle, in `b.task(…)`",
  ],
  "list of a bundle's task without effect": [
    () => new App().bundle("b", { onError: "fail" }).task("c", { retryOn: [TypeError] }, () => 1),
    "`c`: `retryOn` has no effect: the bundle decides about all its errors; hint: list the classes in " +
      '`app.bundle("b", { retryOn: … })`',
  ],
  "schedule without a cron expression": [
    () => app.schedule("0 3 * *", nightly),
    `the schedule \`nightly\`: \`0 3 * *\` is no cron expression: ${cronFields}`,
  ],
  "zone of an interval": [
    () => app.schedule("1h", nightly, { zone: "Europe/Berlin" }),
    "the schedule `nightly`: `zone` is for a cron expression, an interval is the same everywhere; hint: remove it",
  ],
  "schedule of a task with params": [
    () => app.schedule("0 3 * * *", greet, {} as never),
    "the params of a schedule of `greet` do not fit: Invalid input: expected object, received null",
  ],
  "schedule with a time zone of BullMQ": [
    () => app.schedule("0 3 * * *", nightly, { tz: "Europe/Berlin" } as object),
    '`tz` is not an option of `app.schedule`; hint: write `zone: "Europe/Berlin"` in `app.schedule("0 3 * * *", task, { … })`',
  ],
  "schedule without a task": [
    () => app.schedule("0 3 * * *", undefined as never),
    'a schedule has no task; hint: write `app.schedule("0 3 * * *", task, { zone: "Europe/Berlin" })`',
  ],
  "schedule with options of a call": [
    () => app.schedule("0 3 * * *", nightly.call(undefined, { id: "a" })),
    "`id` is not an option of a scheduled task (`nightly`); hint: it belongs to a submitted task",
  ],
  "two schedules of one id": [
    () => [1, 2].map(() => app.schedule("0 3 * * *", remote, { id: "twice" })),
    "the schedule `twice` is declared twice; hint: give one of them another `id`",
  ],
};

const DURATIONS = ["soon", "5", "-5s", "1.5h", "", "10 minutes", -1, NaN, {}, true];
const OF_TYPES = "minBackoff maxBackoff backoffReset maxWait timeout totalTimeout stallTimeout softTimeout failurePeriod".split(
  " ",
);
const OF_TASKS = "minBackoff maxBackoff backoffReset maxWait timeout totalTimeout stallTimeout delay expires".split(" ");
const CRON = { cron: "0 3 * * *" };
const WRONG_SCHEDULES: [object, RegExp][] = [
  [{ cron: "bad cron" }, /`bad cron` is no cron expression/],
  [{ cron: "@dayly" }, /`@dayly` is no cron expression/],
  [{ cron: 5 }, /`cron` is `5`: a text is allowed/],
  [{ every: "1500ms" }, /`every` is `1500ms`: whole seconds from 1 are allowed/],
  [{ every: "soon" }, /`every` is `soon`; hint: write/],
  [{ ...CRON, zone: 1 }, /is `1`: a text is allowed/],
  [{ ...CRON, zone: "UTC", timezone: "UTC" }, /`zone` and `timezone`/],
  [{ every: "1h", zone: "UTC" }, /`zone` is for a cron expression/],
  [{ ...CRON, overlap: "never" }, /`overlap` is `never`/],
  [{ ...CRON, catchUp: "1 week" }, /`catchUp` is `1 week`; hint/],
  [{ ...CRON, jitter: -1 }, /`jitter` is `-1`; hint/],
  [{ ...CRON, startAt: "tomorrow" }, /`startAt` is `tomorrow`; hint/],
  [{ ...CRON, endAt: "2026-12-24T18:00" }, /`endAt` is `2026-12-24T18:00`; hint/],
  [{ ...CRON, crn: "@daily" }, /`crn` is not an option of a schedule; hint: did you mean `cron`/],
  [{}, /needs `cron` or `every`/],
];

describe("values", () => {
  test("of durations are checked in each option", async () => {
    assert.deepEqual(
      OF_TYPES.filter((key) => key !== "softTimeout" && !POLICY_KEYS.has(key)),
      [],
    );
    for (const value of DURATIONS) {
      for (const key of OF_TYPES) assert.throws(() => declare({ [key]: value }), new RegExp(`\`${key}\` is `));
      for (const key of OF_TASKS) await assert.rejects(submit({ [key]: value }), new RegExp(`\`${key}\` is `));
      assert.throws(() => declare({ rate: { count: 1, per: value } }), /its `per`/);
      await assert.rejects(submit({ unique: { key: "a", for: value } }), /its `for`/);
    }
  });

  test("of schedules are checked in each place", async () => {
    for (const [spec, problem] of WRONG_SCHEDULES) {
      assert.throws(() => app.schedule("any", { ...spec, task: nightly } as never), problem);
      await assert.rejects(app.schedules.upsert("any", { ...spec, task: nightly } as never), problem);
    }
  });
});

for (const [mistake, [make, message]] of Object.entries(MESSAGES)) {
  test(`mistake is explained: ${mistake}`, async () => {
    await assert.rejects(
      async () => make(),
      (error: Error) => {
        assert.equal(error.message, message);
        return true;
      },
    );
  });
}

describe("params that the API refuses", () => {
  const refused = { code: "schema", detail: '"ada" does not match "^(?!\\\\.)…$"', pointer: "/params/mail" };
  const hint = "GET /v1/types shows the schema of `greet`";
  const wrong = { name: "Ada", mail: "ada" };

  test("are explained in the words of their schema", async (t) => {
    const api = await FakeApi.start(t, document(422, { ...refused, hint }));
    const client = new App({ api: api.url });
    const own = client.task("greet", { params: z.object({ name: z.string(), mail: z.email() }) }, () => 1);
    await assert.rejects(own.submit(wrong), (error: Invalid) => {
      assert.ok(error instanceof Invalid);
      assert.deepEqual([error.status, error.code, error.pointer], [422, "schema", "/params/mail"]);
      assert.equal(error.detail, "the params of `greet` do not fit: /mail: Invalid email address");
      return true;
    });
  });

  test("of a batch are explained each", async (t) => {
    const problem = { status: 422, ...refused, hint };
    const items = [
      { outcome: "accepted", id: "a", position: "0:1" },
      { outcome: "refused", problem },
    ];
    const api = await FakeApi.start(t, document(200, { items }));
    const client = new App({ api: api.url });
    const own = client.task("greet", { params: z.object({ name: z.string(), mail: z.email().optional() }) }, () => 1);
    const [handle, error] = await client.submitMany([own.call({ name: "Ada" }), own.call(wrong)]);
    assert.equal((handle as { id: string }).id, "a");
    assert.equal((error as Invalid).detail, "the params of `greet` do not fit: /mail: Invalid email address");
  });

  test("of a chain and of a group are explained too", async (t) => {
    const api = await FakeApi.start(t, document(422, refused), document(422, { ...refused, pointer: "/2/params/mail" }));
    const client = new App({ api: api.url });
    const own = client.task("greet", { params: z.object({ name: z.string(), mail: z.email().optional() }) }, () => 1);
    const explained = (pointer: string) => (error: Invalid) => {
      assert.equal(error.detail, "the params of `greet` do not fit: /mail: Invalid email address");
      assert.equal(error.pointer, pointer);
      return true;
    };
    await assert.rejects(chain(own.call(wrong), own.call({ name: "Ada" })).submit(), explained("/params/mail"));
    await assert.rejects(own.map([{ name: "Ada" }, wrong]).submit(), explained("/2/params/mail"));
  });

  test("of a type without a schema keep the words of the API, without a request in the hint", async (t) => {
    const api = await FakeApi.start(t, document(422, { ...refused, hint }));
    await assert.rejects(new App({ api: api.url }).remote("greet").submit(wrong), (error: Invalid) => {
      assert.equal(error.hint, "the page of the type `greet` in the web UI shows its schema");
      return true;
    });
  });
});

test("hints of the API name no requests", () => {
  const found = execFileSync(
    "grep",
    ["-rhoE", '"[^"]*(GET|POST|PUT|PATCH|DELETE) /v1/[^"]*"', "--include=*.rs", "crates/api/src"],
    {
      cwd: ROOT,
      encoding: "utf8",
    },
  );
  // Those of the routes are whole requests.
  const hints = found.split("\n").filter((text) => / /.test(text.replace(/^"[A-Z]+ \S+"$/, "")));
  assert.ok(hints.length >= 8, found);
  for (const hint of hints) assert.doesNotMatch(hintOfSdk(hint.slice(1, -1)), /\/v1\//);
});

describe("names of BullMQ and Celery", () => {
  const ours = new Set([
    ...POLICY_KEYS,
    ..."after count per softTimeout aliases slots api include delay at id parent then on onFailure zone tags name cx cron task".split(
      " ",
    ),
  ]);
  const ofTask = [...TASK_METHODS, ...TASK_PROPERTIES];
  const ofApp = [...APP_METHODS, ...APP_PROPERTIES];
  const ofContext = [...CONTEXT_METHODS, ...CONTEXT_PROPERTIES];
  const ofHandle = [...HANDLE_METHODS, ...HANDLE_PROPERTIES];
  const names = [...ofTask, ...ofApp, ...ofContext, ...ofHandle];
  const known = JSON.parse(readFileSync(`${ROOT}/sdk/foreign_names.json`, "utf8")) as Record<string, string[]>;
  const plain = (name: string) => name.replaceAll("_", "").toLowerCase();
  const message = (run: () => unknown) => {
    try {
      run();
    } catch (error) {
      return (error as Error).message;
    }
    return undefined;
  };

  test("have a form in each place that takes options", () => {
    const bundle = new App().bundle("b") as any;
    const places: Record<string, (options: object) => unknown> = {
      declaration: declare,
      bundle: (options) => new App().bundle("b", options),
      "task of a bundle": (options) => bundle.task("c", options, () => 1),
      call: (options) => greet.call({ name: "Ada" }, options).document("submit", false),
      child: (options) => greet.call({ name: "Ada" }, options).document("spawn", false),
      continuation: (options) => greet.call({ name: "Ada" }, options).document("then", false),
    };
    // Names that a place of kafleet has, too.
    const own = new Set(["parent", "concurrency", "typing"]);
    const lacking: string[] = [];
    for (const name of known["keywords"]!.filter((name) => !own.has(name))) {
      for (const [place, give] of Object.entries(places)) {
        const refusal = message(() => give({ [name]: Symbol("any") }));
        if (!refusal?.includes("; hint: ") || refusal.includes("did you mean")) lacking.push(`${name}, ${place}: ${refusal}`);
      }
    }
    assert.deepEqual(lacking, []);
  });

  test("have a form as members of each class", async () => {
    const members: [string, object, [string, string][]][] = [
      ["task", greet, ofTask],
      ["app", app, ofApp],
      ["handle", greet.handle("a"), ofHandle],
    ];
    await trial(
      app.task(unused(), (_: unknown, cx) => {
        members.push(["context", cx, ofContext]);
      }),
    );
    for (const [kind, owner, table] of members) {
      const mapped = new Set(table.map(([name]) => plain(name)));
      const own = new Set<string>();
      for (let at = owner; at !== Object.prototype; at = Object.getPrototypeOf(at)) {
        for (const name of Object.getOwnPropertyNames(at)) own.add(plain(name));
      }
      assert.deepEqual(
        known[kind]!.filter((name) => !mapped.has(plain(name)) && !own.has(plain(name))),
        [],
        kind,
      );
    }
  });

  test("are found in any spelling", () => {
    for (const name of ["jobId", "job_id", "JobID"]) assert.equal(formOfOption(name, "call"), 'write `id: "cover-42"`');
    assert.equal(formOfOption("toString"), undefined);
    assert.ok(formOfClass("UnrecoverableError"));
  });

  test("are no names of this SDK", () => {
    for (const key of ours)
      if (!["parent", "concurrency", "cron"].includes(key)) assert.equal(formOfOption(key) && key, undefined);
    for (const name of TASK_METHODS.keys()) assert.throws(() => (greet as any)[name](), TypeError);
  });

  test("lead to forms whose options exist", () => {
    const options = [
      "attempts",
      "backoff",
      "limiter",
      "eta",
      "countdown",
      "ignoreDependencyOnFailure",
      "softTimeLimit",
      "rateLimit",
    ];
    const forms = [...names.map(([, form]) => form), ...options.map((name) => formOfOption(name)!)];
    for (const form of forms) {
      for (const [, key] of form.matchAll(/[`{] ?(\w+): (?!\/)/g)) assert.ok(ours.has(key!), `${key} in ${form}`);
    }
  });

  test("are refused where they are called", async () => {
    for (const [members, owner] of [[ofApp, app] as const, [ofTask, greet] as const, [ofHandle, greet.handle("a")] as const]) {
      for (const [name, form] of members) {
        assert.throws(
          () => (owner as any)[name](),
          (error: Error) => error.message.endsWith(`; hint: ${form}`),
        );
      }
    }
    for (const [name, form] of ofContext) {
      const { failure } = await trial(app.task(unused(), (_: unknown, cx) => (cx as any)[name]()));
      assert.ok(failure!.message.endsWith(`; hint: ${form}`), failure!.message);
    }
  });
});
