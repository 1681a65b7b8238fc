/** App processes that die, hang or exit, workers that die, and apps that cannot be loaded. */

import assert from "node:assert/strict";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, describe, test } from "node:test";

import { APPS, newFile, type Options, type Scope, until, Worker } from "./driver.ts";

const APP = "mixed.ts";

for (const [how, code] of [
  ["kill", "SIGKILL"],
  ["abort", "SIGABRT"],
  ["exit", 3],
] as const) {
  test(`death of the process by ${how} ends the stream`, async (t) => {
    const worker = await Worker.ready(t, APP);
    worker.begin("end", { how });
    const lines: string[] = [];
    for (let message = await worker.receive(); message; message = await worker.receive()) lines.push(...message["log"]!["lines"]);
    await worker.exited(code);
    assert.deepEqual(lines, ["outer begins", "inner", "the end is near"]);
  });
}

test("running attempt is answered after the end of the stream", async (t) => {
  const worker = await Worker.ready(t, APP);
  const n = worker.begin("forever", { swallow: true });
  await worker.next("heartbeat");
  worker.send("cancel", { n, reason: "shutdown" });
  worker.end();
  assert.equal((await worker.next("ok"))["output"], "finished after shutdown");
  assert.equal(await worker.exited(0), "entered\nleft\n");
});

test("death of the worker ends a busy process", async (t) => {
  const worker = await Worker.ready(t, APP);
  worker.begin("forever");
  await worker.next("heartbeat");
  worker.socket.destroy();
  assert.match(await worker.exited(1), /the worker has ended/);
});

test("death of the worker ends an idle process", async (t) => {
  const worker = await Worker.ready(t, APP);
  worker.socket.destroy();
  await worker.exited(0);
});

test("slow reader receives everything", async (t) => {
  const worker = await Worker.ready(t, APP);
  worker.socket.pause();
  for (let n = 0; n < 30; n++) worker.begin("large", { bytes: 200_000 });
  worker.begin("many", { count: 3000 });
  await new Promise((resolve) => setTimeout(resolve, 200));
  worker.socket.resume();
  let [answers, children] = [0, 0];
  while (answers < 31) {
    const message = await worker.receive();
    children += message!["spawn"]?.["tasks"].length ?? 0;
    if (message!["ok"]) answers += 1;
  }
  assert.equal(children, 3000);
});

test("slow reader receives the newest progress and a part of the log", async (t) => {
  const worker = await Worker.ready(t, APP);
  worker.socket.pause();
  const file = newFile();
  worker.begin("chatters", { count: 3000, file });
  await until(() => existsSync(file), "the end of the handler");
  worker.socket.resume();
  let [progress, lines, dropped, newest] = [0, 0, 0, 0];
  for (let message = await worker.receive(); !message?.["ok"]; message = await worker.receive()) {
    if (message!["progress"]) [progress, newest] = [progress + 1, message!["progress"]["value"]["n"]];
    for (const line of message!["log"]?.["lines"] ?? []) {
      const count = /^\((\d+) lines were dropped/.exec(line)?.[1];
      if (count) dropped += Number(count);
      else lines += 1;
    }
  }
  assert.equal(newest, 3000);
  // With the three lines of the hooks.
  assert.equal(lines + dropped, 3003);
  assert.ok(progress < 3000 && lines < 3000, `${progress} values, ${lines} lines`);
});

test("process without a socket names the cause", async (t) => {
  const worker = await Worker.start(t, "conformance.ts", { stdin: join(APPS, "conformance.ts") });
  assert.match(await worker.exited(0), /file descriptor 0 is not the socket of a worker.*nodemon/);
});

test("client in a child process of an app says nothing", async (t) => {
  const worker = await Worker.start(t, "conformance.ts", { stdin: "/dev/null" });
  assert.equal(await worker.exited(0), "");
});

for (const line of ["{", "[]", '{"a":{},"b":{}}']) {
  test(`message ${line} of the worker ends the process`, async (t) => {
    const worker = await Worker.ready(t, APP);
    worker.sendLine(line);
    assert.match(await worker.exited(1), /the worker sent an invalid message/);
  });
}

test("too long line ends the process", async (t) => {
  const worker = await Worker.ready(t, APP);
  worker.socket.write(" ".repeat(9 << 20));
  assert.match(await worker.exited(1), /line of over 8388608 bytes/);
});

test("first message that is no welcome ends the process", async (t) => {
  const worker = await Worker.start(t, APP);
  worker.send("ping", { at: 1 });
  assert.match(await worker.exited(1), /the worker sent no `welcome`/);
});

describe("app that cannot serve", () => {
  const unable = async (t: Scope, program: string, options: Options & { protocol?: number } = {}): Promise<string> => {
    const worker = await Worker.start(t, program, options);
    worker.sendWelcome({ protocol: options.protocol ?? 1 });
    const message = await worker.receive();
    assert.deepEqual(Object.keys(message!), ["unable"]);
    await worker.exited(0);
    return message!["unable"]!["message"];
  };
  // Below this folder, so that the packages are found.
  const folder = mkdtempSync(join(APPS, ".program-"));
  after(() => rmSync(folder, { recursive: true }));
  const program = (text: string): string => {
    const file = join(mkdtempSync(join(folder, "app-")), "tasks.ts");
    writeFileSync(file, text);
    return file;
  };
  const APP_LINE = 'import { App } from "kafleet";\nexport const app = new App();\n';

  test("because its lifespan fails says so", async (t) => {
    const message = await unable(t, APP, { env: { TEST_LIFESPAN: "fails" } });
    assert.match(message, /^the lifespan of the app failed: Error: the database is down\n +at .*mixed\.ts/);
  });

  test("because the worker is too old says so", async (t) => {
    assert.match(await unable(t, APP, { protocol: 0 }), /version 0 of the app protocol/);
  });

  test("because its module throws shows the place", async (t) => {
    const message = await unable(t, program('import "kafleet";\nnull.x;\n'));
    assert.match(message, /^TypeError: .*\n +at .*tasks\.ts:2:6$/);
  });

  test("because of a syntax error shows the line, or the way to it", async (t) => {
    const typescript = await unable(t, program("const x = ;\n"), { arguments: ["--import", "kafleet"] });
    assert.match(typescript, /tasks\.ts:1\nconst x = ;\n +\^/);
    const file = program('import "kafleet";\nawait import("./broken.js");\n');
    writeFileSync(join(file, "../broken.js"), "const x = ;\n");
    assert.match(await unable(t, file), /^SyntaxError: Unexpected token ';'; hint: `node .*tasks\.ts` shows the line$/);
  });

  test("because a module is missing names it", async (t) => {
    const message = await unable(t, program('import "kafleet";\nawait import("./nowhere.ts");\n'));
    assert.match(message, /Cannot find module '.*nowhere\.ts'/);
  });

  test("because it exports no app names the remedy", async (t) => {
    assert.match(
      await unable(t, program('import "kafleet";\n')),
      /exports no `App`; hint: write `export const app = new App\(\)`/,
    );
    const several = 'import { App } from "kafleet";\nexport const [one, two] = [new App(), new App()];\n';
    assert.match(await unable(t, program(several)), /exports several apps \(`one`, `two`\); hint: export one/);
    assert.match(await unable(t, program(APP_LINE)), /declares no task types/);
  });

  test("because a type is declared wrongly names it", async (t) => {
    const task = 'app.task("a", () => 1);\n';
    assert.match(await unable(t, program(APP_LINE + task + task)), /the type `a` is declared twice; hint: rename one/);
    assert.match(await unable(t, program(`${APP_LINE}app.task("A b", () => 1);`)), /`A b` is not a name of a type/);
    assert.match(
      await unable(t, program(`${APP_LINE}app.task("a", { retrys: 3 }, () => 1);`)),
      /`a`: `retrys` is not a key of a policy/,
    );
    assert.match(await unable(t, program(`${APP_LINE}app.task("a", {});`)), /`a` has no handler/);
    assert.match(await unable(t, program(`${APP_LINE}app.bundle("small");`)), /the bundle `small` has no tasks; hint: add one/);
    const date = 'import { z } from "zod";\napp.task("a", { params: z.date() }, () => 1);';
    assert.match(await unable(t, program(APP_LINE + date)), /the schema of the params of `a` has no JSON Schema: Date cannot/);
  });
});

test("program is found as node finds it, and with the package loaded before it", async (t) => {
  const worker = await Worker.start(t, "./common.cjs", { cwd: APPS });
  assert.deepEqual((await worker.welcome())["types"], [{ name: "common", source: "common.cjs:4" }]);
  const preloaded = await Worker.start(t, "mixed.ts", { arguments: ["--import", "kafleet"] });
  assert.equal((await preloaded.welcome())["slots"], 10);
});
