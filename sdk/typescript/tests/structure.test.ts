/** Programs of several files: included modules, a second app, aliases, and schedules from code. */

import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, describe, test } from "node:test";

import { App } from "kafleet";
import { trial } from "kafleet/testing";
import { z } from "zod";

import { APPS, type Fields, type Scope, Worker } from "./driver.ts";

// Below this folder, so that the packages are found.
const folder = mkdtempSync(join(APPS, ".program-"));
after(() => rmSync(folder, { recursive: true }));

/** Writes a program, and returns its main file. */
function program(files: Record<string, string>): string {
  const into = mkdtempSync(join(folder, "app-"));
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(join(into, name, ".."), { recursive: true });
    writeFileSync(join(into, name), text);
  }
  return join(into, "tasks.ts");
}

/** Starts a program, and returns its `ready`. */
async function readyOf(t: Scope, files: Record<string, string>, welcome: Fields = {}): Promise<Fields> {
  return (await Worker.start(t, program(files))).welcome(welcome);
}

const names = (ready: Fields): string[] => ready["types"].map((type: Fields) => type["name"]);
const main = (options: string) => `import { App } from "kafleet";\nexport const app = new App(${options});\n`;
const module = (name: string) =>
  `import { app } from "../tasks.ts";\nexport const task = app.task("${name}", () => "${name}");\n`;

describe("places of declarations", () => {
  test("are those of the program, for types, types with aliases, and bundles", async (t) => {
    const text =
      `${main("")}app.task("plain", () => 1);\napp.task("named", { aliases: ["older"] }, () => 1);\n` +
      'const small = app.bundle("small");\nsmall.task("one", () => 1);\n';
    const ready = await readyOf(t, { "tasks.ts": text });
    const places = ready["types"].map(({ name, source }: Fields) => [name, /([^/]+)$/.exec(source as string)?.[1]]);
    assert.deepEqual(places, [
      ["plain", "tasks.ts:3"],
      ["named", "tasks.ts:4"],
      ["older", "tasks.ts:4"],
      ["small", "tasks.ts:5"],
    ]);
  });

  for (const [problem, declaration, message] of [
    [
      "policy",
      'app.task("x", { stallTimeout: "10s", timeout: "5s" }, () => 1);',
      "`stallTimeout` 10s is longer than `timeout` 5s",
    ],
    ["key", 'app.task("x", { aliases: ["y"], timeOut: "5s" }, () => 1);', "did you mean `timeout`"],
    ["schema", 'app.task("x", { params: z.object({ at: z.date() }) }, () => 1);', "the schema of the params of `x`"],
    ["name", 'app.bundle("Small");', "is not a name of a type"],
    ["schedule", 'app.schedule("bad cron", app.task("x", () => 1));', "is no cron expression"],
    ["map", '["x", "x"].map((name) => app.task(name, () => 1));', "is declared twice"],
  ] as const) {
    test(`are in the refusal of a wrong ${problem}`, async (t) => {
      const text = `import { z } from "zod";\n${main("")}void z;\n${declaration}\n`;
      const worker = await Worker.start(t, program({ "tasks.ts": text }));
      worker.sendWelcome();
      const refusal = ((await worker.next("unable"))["message"] as string).split("\n").slice(0, 2).join("\n");
      assert.ok(refusal.includes(message), refusal);
      assert.match(refusal, /tasks\.ts:5/);
    });
  }
});

describe("included modules", () => {
  const files = {
    "tasks/mail.ts": module("mail"),
    "tasks/orders.ts": module("orders"),
    "tasks/orders.test.ts": "throw new Error('a test was included');\n",
    "tasks/orders.d.ts": "export declare const task: unknown;\n",
    "tasks/notes.md": "no code",
  };

  test("of a pattern declare their types, without tests and declarations", async (t) => {
    const ready = await readyOf(t, { ...files, "tasks.ts": main('{ include: ["./tasks/*"] }') });
    assert.deepEqual(names(ready), ["mail", "orders"]);
  });

  test("of functions and files declare their types, in their order", async (t) => {
    const include = '{ include: [() => import("./tasks/orders.ts"), "./tasks/mail.ts"] }';
    const ready = await readyOf(t, { ...files, "tasks.ts": `${main(include)}app.task("own", () => 1);\n` });
    assert.deepEqual(names(ready), ["own", "orders", "mail"]);
  });

  test("run their handlers", async (t) => {
    const worker = await Worker.ready(t, program({ ...files, "tasks.ts": main('{ include: ["./tasks/*.ts"] }') }));
    assert.equal((await worker.run("mail"))["output"], "mail");
  });

  test("are not imported by a web application", async () => {
    const file = program({
      "tasks.ts": main('{ include: ["./tasks/*.ts"] }'),
      "tasks/fails.ts": "throw new Error('imported');\n",
    });
    const { app } = (await import(file)) as { app: App };
    assert.equal(app.declared.size, 0);
  });

  for (const [name, include, message] of [
    [
      "that do not exist are named",
      '["./taks/*.ts"]',
      /^`include` has `\.\/taks\/\*\.ts`, which is no file in `.*`; hint: write paths from the folder/,
    ],
    ["that throw show the place", '["./tasks/throws.ts"]', /^Error: no database\n +at .*throws\.ts:1:/],
  ] as const) {
    test(name, async (t) => {
      const throws = { "tasks/throws.ts": "throw new Error('no database');\n" };
      const worker = await Worker.start(t, program({ ...throws, "tasks.ts": main(`{ include: ${include} }`) }));
      worker.sendWelcome();
      assert.match((await worker.next("unable"))["message"], message);
    });
  }

  test("imported by a file that makes no app need no option", async (t) => {
    const ready = await readyOf(t, {
      "app.ts": 'import { App } from "kafleet";\nexport const app = new App();\n',
      "mail.ts": 'import { app } from "./app.ts";\napp.task("mail", () => 1);\n',
      "tasks.ts": 'export { app } from "./app.ts";\nimport "./mail.ts";\n',
    });
    assert.deepEqual(names(ready), ["mail"]);
  });
});

describe("second app of a program", () => {
  const second = 'import { App } from "kafleet";\nconst app = new App();\napp.task("mail", () => 1);\n';
  const first = `import "./mail.ts";\n${main("")}app.task("own", () => 1);\n`;

  test("is reported with both places and its types", async (t) => {
    const worker = await Worker.ready(t, program({ "tasks.ts": first, "mail.ts": second }));
    worker.end();
    const output = await worker.exited(0);
    assert.match(
      output,
      /^kafleet: the program has a second `App`, at .*mail\.ts:2:13, whose types \(`mail`\) are not served: .*at .*tasks\.ts:3:20; hint: make one `App`/,
    );
  });

  test("without types is for a client, and not reported", async (t) => {
    const client = second.replace(/app\.task.*/, "export const mail = app.remote('mail');");
    const worker = await Worker.ready(t, program({ "tasks.ts": first, "mail.ts": client }));
    worker.end();
    assert.equal(await worker.exited(0), "");
  });
});

describe("alias", () => {
  const app = new App();
  const options = { params: z.object({ n: z.int() }), retries: 1, aliases: ["add-one", "plus"] };
  const increment = app.task("increment", options, ({ n }, cx) => [cx.type, n + 1]);

  test("is declared as a type with the same schema and policy", () => {
    const [own, ...aliases] = [...app.declared.values()].map((task) => task.declaration());
    assert.equal(own!["name"], "increment");
    assert.deepEqual(
      aliases,
      ["add-one", "plus"].map((name) => ({ ...own, name })),
    );
    assert.deepEqual(own!["policy"], { retries: 1 });
  });

  test("runs the handler", async () => {
    assert.deepEqual((await trial(increment, { n: 1 })).output, ["increment", 2]);
    assert.deepEqual((await trial(app.declared.get("plus") as typeof increment, { n: 1 })).output, ["plus", 2]);
  });

  test("in a bundle is another name of its task", async () => {
    const small = app.bundle("small");
    small.task("resize", { aliases: ["shrink"] }, () => 5);
    assert.equal(await small.select({ task: "shrink", params: null }).fn(undefined as never, undefined as never), 5);
  });

  test("of a taken name is refused", () => {
    assert.throws(() => app.task("other", { aliases: ["plus"] }, () => 1), /the type `plus` is declared twice/);
    assert.throws(
      () => app.task("other", { aliases: "plus" as never }, () => 1),
      /`aliases` is `plus`; hint: write a list: `\["plus"\]`/,
    );
  });
});

describe("schedules", () => {
  const tasks = `
import { z } from "zod";
import { App } from "kafleet";
export const app = new App();
const report = app.task("report", { params: z.object({ kind: z.string() }).optional() }, () => 1);
const clean = app.bundle("small").task("clean", () => 1);
app.schedule("0 3 * * MON-FRI", report, { zone: "Europe/Berlin", params: { kind: "daily" }, overlap: "buffer_one", id: "nightly" });
app.schedule("1h", report.call(undefined, { tags: ["shop"], retries: 2 }), { jitter: "5m", startAt: new Date(0) });
app.schedule("hourly-clean", { cron: "@hourly", task: clean });
app.schedule({ every: "1d", catchUp: "2d", task: { type: "elsewhere", params: [1] } });
`;

  test("are sent with the declarations", async (t) => {
    const { schedules } = await readyOf(t, { "tasks.ts": tasks });
    assert.deepEqual(schedules, {
      nightly: {
        cron: "0 3 * * MON-FRI",
        timezone: "Europe/Berlin",
        overlap: "buffer_one",
        task: { type: "report", params: { kind: "daily" } },
      },
      report: {
        every: "1h",
        jitter: "5m",
        start_at: "1970-01-01T00:00:00.000Z",
        task: { type: "report", params: null, tags: ["shop"], retries: 2 },
      },
      "hourly-clean": {
        cron: "@hourly",
        task: { type: "small", params: { task: "clean", params: null }, name: "clean", tags: ["clean"] },
      },
      elsewhere: { every: "1d", catch_up: "2d", task: { type: "elsewhere", params: [1] } },
    });
  });

  test("of types that another process runs are not sent", async (t) => {
    const { schedules } = await readyOf(t, { "tasks.ts": tasks }, { types: ["small"] });
    assert.deepEqual(Object.keys(schedules), ["hourly-clean", "elsewhere"]);
  });

  test("are no field of an app without any", async (t) => {
    const ready = await readyOf(t, { "tasks.ts": `${main("")}app.task("own", () => 1);\n` });
    assert.equal("schedules" in ready, false);
  });
});
