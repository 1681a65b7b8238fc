/** Child processes and threads of handlers: whatever they do, their attempt has one answer, and others go on. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { type Fields, Worker } from "./driver.ts";

/** Expected results, or kinds of errors. */
const EXPECTED: Record<string, { output: unknown } | { kind: string }> = {
  "fork exits": { output: 3 },
  "fork throws": { output: 1 },
  "fork rejects": { output: 1 },
  "fork aborts": { output: "SIGABRT" },
  "fork is killed": { output: "SIGKILL" },
  "fork of the program of the app": { output: 0 },
  "fork reads stdin": { output: 0 },
  "fork sends a message": { output: "hello" },
  "listener of a message throws": { kind: "RangeError" },
  "spawn reads stdin": { output: 0 },
  "spawn of no program": { kind: "Error" },
  "spawn lives longer": { output: "answered" },
  "exec fails": { kind: "Error" },
  "execFile fails": { kind: "Error" },
  "execFileSync fails": { kind: "Error" },
  "cluster worker exits": { output: 3 },
  "thread exits": { output: 3 },
  "thread ends": { output: 0 },
  "thread throws": { kind: "RangeError" },
  "thread throws null": { kind: "Error" },
  "thread rejects": { kind: "RangeError" },
  "thread is terminated": { output: "terminated" },
  "thread prints": { output: "printed" },
  "thread imports the program of the app": { output: 0 },
};

test("children of handlers harm no other attempt", async (t) => {
  const worker = await Worker.ready(t, "children.ts");
  const neighbour = worker.begin("neighbour");
  await worker.next("heartbeat");
  for (const [how, expected] of Object.entries(EXPECTED)) {
    await t.test(`child: ${how}`, async () => {
      const answer: Fields = await worker.run("item", how);
      const [field, value] = Object.entries(expected)[0]!;
      assert.equal(answer[field], value, JSON.stringify(answer));
    });
  }
  worker.send("cancel", { n: neighbour, reason: "cancelled" });
  const answers: Fields[] = [await worker.next("ok", "error")];
  worker.end();
  for (let message = await worker.receive(); message; message = await worker.receive()) {
    if (message["ok"] ?? message["error"]) answers.push(message);
  }
  assert.deepEqual(answers, [{ n: neighbour, output: worker.process.pid }]);
  await worker.exited(0);
});
