/** Whatever a value does when it is read, each attempt gets one answer, and the process and its other attempts go on. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { type Fields, Worker } from "./driver.ts";

/** Number of values for each use. */
const SEEDS = Number(process.env["KAFLEET_HOSTILE"] ?? 60);

/** Attempts that are answered before the next ones begin. */
const AT_ONCE = 8;

/** Milliseconds for the answers to some attempts: none of them waits for anything. */
const ANSWER_MS = 20_000;

const OUTCOMES = ["retry", "wait", "fail", "dead", "cancelled"];

/** Answers to a use that are right; by default all are. */
const EXPECTED: Record<string, (answer: Fields) => boolean> = {
  throw: isError,
  reject: isError,
  return: () => true,
  "timer throws": isError,
  "nobody catches": isError,
  "emits an error": isError,
  "late error": isDone,
  "late rejection": isDone,
  log: isDone,
  warn: isDone,
  progress: isDone,
  attach: isDone,
  "hook throws": isError,
  "hook returns": () => true,
};

function isError(answer: Fields): boolean {
  return "outcome" in answer;
}

function isDone(answer: Fields): boolean {
  return answer["output"] === "done";
}

/** Returns what is wrong with the form of an answer. */
function wrongForm(answer: Fields): string | undefined {
  if (!isError(answer)) return "output" in answer ? undefined : "neither a result nor an error";
  const { outcome, kind, message, after_ms, stack } = answer;
  if (!OUTCOMES.includes(outcome)) return `outcome ${outcome}`;
  if (!/^[\w.-]{1,64}$/.test(kind)) return `kind ${kind}`;
  if (typeof message !== "string" || !message || message.length > 2000) return "no message of at most 2,000 characters";
  if (after_ms !== undefined && !Number.isSafeInteger(after_ms)) return `after_ms ${after_ms}`;
  if (message === "an error that cannot be described") return "the last resort";
  return stack === undefined || (typeof stack === "string" && stack.length <= 16 << 10) ? undefined : "a stack that is too long";
}

/** Runs attempts at once and returns the answers of each. */
async function answersOf(worker: Worker, attempts: Fields[]): Promise<Fields[][]> {
  const numbers = attempts.map((params) => worker.begin("item", params));
  const answers = attempts.map((): Fields[] => []);
  const deadline = new Promise<undefined>((resolve) => setTimeout(() => resolve(undefined), ANSWER_MS).unref());
  while (answers.some((each) => !each.length)) {
    const message = await Promise.race([worker.receive(), deadline]);
    if (!message) break;
    const answer = message["ok"] ?? message["error"];
    if (answer) answers[numbers.indexOf(answer["n"])]!.push(answer);
  }
  return answers;
}

for (const [how, isExpected] of Object.entries(EXPECTED)) {
  test(`attempt has one answer: ${how}`, async (t) => {
    const worker = await Worker.ready(t, "hostile.ts");
    const neighbour = worker.begin("neighbour");
    await worker.next("heartbeat");
    for (let seed = 0; seed < SEEDS; seed += AT_ONCE) {
      const attempts = Array.from({ length: AT_ONCE }, (_, n) => ({ seed: seed + n, how }));
      const answers = await answersOf(worker, attempts);
      for (const [n, each] of answers.entries()) {
        const shown = `${JSON.stringify(attempts[n])}: ${JSON.stringify(each).slice(0, 500)}`;
        assert.equal(each.length, 1, `not one answer to ${shown}`);
        assert.equal(wrongForm(each[0]!), undefined, shown);
        assert.ok(isExpected(each[0]!), `unexpected answer to ${shown}`);
      }
    }
    worker.send("cancel", { n: neighbour, reason: "cancelled" });
    const answer = await worker.next("ok", "error");
    assert.deepEqual([answer["n"], answer["output"]], [neighbour, worker.process.pid]);
    worker.end();
    const output = await worker.exited(0);
    assert.ok(output.length < 1 << 20, `${output.length} characters on stderr`);
  });
}
