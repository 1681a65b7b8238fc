/** Recorded sessions, played against the SDK over a real socket: whole, byte by byte, and cut off. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { type Event, type Recording, SESSIONS, Worker } from "./driver.ts";

const program = ({ head }: Recording) => (head.app === "broken" ? "broken.ts" : "conformance.ts");

// JavaScript runs all types on one event loop: none of them is `sync`.
const PLAYED = SESSIONS.filter(({ name }) => name !== "sync-async");

for (const session of PLAYED) {
  test(`session ${session.name} is answered as recorded`, async (t) => {
    const worker = await Worker.start(t, program(session));
    await worker.play(session.events);
  });

  test(`session ${session.name} in single bytes is answered as recorded with 3 slots`, async (t) => {
    const worker = await Worker.start(t, program(session), { env: { TEST_SLOTS: "3" } });
    await worker.play(withSlots(session.events, 3), async (line) => {
      const bytes = Buffer.from(`${line}\n`);
      // Long lines of brackets or digits are sent in larger pieces.
      const size = Math.ceil(bytes.length / 2000);
      for (let start = 0; start < bytes.length; start += size) {
        await new Promise((sent) => worker.socket.write(bytes.subarray(start, start + size), sent));
      }
    });
  });
}

test("session that is cut off anywhere ends the app, and complete attempts are answered", async (t) => {
  const { events } = SESSIONS.find(({ name }) => name === "spawn")!;
  const lines = events.filter((event) => event.from === "worker" && event.message);
  const data = Buffer.from(lines.map(({ message }) => `${JSON.stringify(message)}\n`).join(""));
  const ends = [...data.entries()].filter(([, byte]) => byte === 0x0a).map(([index]) => index);
  const cuts = ends.flatMap((end, n) => [Math.floor(((ends[n - 1] ?? 0) + end) / 2), end, end + 1]);
  for (const cut of [0, ...cuts]) {
    const worker = await Worker.start(t);
    worker.socket.end(data.subarray(0, cut));
    let answers = 0;
    for (let message = await worker.receive(); message; message = await worker.receive()) {
      answers += Number("ok" in message || "error" in message);
    }
    const attempts = data.subarray(0, cut).toString().split("\n").slice(1, -1).length;
    assert.equal(answers, attempts, `cut after ${cut} bytes`);
    await worker.exited(cut > ends[0]! ? 0 : 1);
  }
});

/** Returns the events of a session for an app with another number of slots. */
function withSlots(events: Event[], slots: number): Event[] {
  return events.map((event) => {
    const ready = event.message?.["ready"];
    return ready?.["slots"] ? { ...event, message: { ready: { ...ready, slots } } } : event;
  });
}
