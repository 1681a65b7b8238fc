/**
 * Measures the rate of attempts through one app process, without a worker: `node tests/rate.ts [ATTEMPTS]`.
 *
 * Prints attempts per second, and microseconds of CPU of the app for each. The driver is a Node program, which limits the
 * rate; the CPU time is that of the app alone.
 */

import { readFileSync } from "node:fs";

import { Worker } from "./driver.ts";

const count = Number(process.argv[2] ?? 100_000);

/** CPU seconds of a process, with 100 clock ticks a second. */
function cpuOf(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(")").at(-1)!.trim().split(" ");
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

for (const atOnce of [1, 10]) {
  const worker = await Worker.ready({ after() {} }, "doubling.ts");
  const line = (n: number) =>
    `{"attempt":{"n":${n},"type":"double","id":"task-${n}","run":1,"number":1,"left_ms":60000,"params":{"x":2}}}\n`;
  const [cpu, start] = [cpuOf(worker.process.pid!), performance.now()];
  let [sent, answered] = [0, 0];
  const send = (more: number): void => {
    let lines = "";
    for (; more > 0 && sent < count; more--) lines += line(++sent);
    if (lines) worker.socket.write(lines);
  };
  const done = new Promise<void>((resolve) => {
    worker.socket.removeAllListeners("data").on("data", (chunk) => {
      const more = String(chunk).split("\n").length - 1;
      answered += more;
      send(more);
      if (answered >= count) resolve();
    });
  });
  send(atOnce);
  await done;
  const seconds = (performance.now() - start) / 1000;
  const each = ((cpuOf(worker.process.pid!) - cpu) / count) * 1e6;
  console.log(`${atOnce} at a time: ${(count / seconds).toFixed(0)}/s, ${each.toFixed(1)} µs of CPU each`);
  await worker.stop();
}
