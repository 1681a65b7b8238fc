/** Test app with tasks for chains, groups and chords. */

import { App, Fail, Joined, Retry } from "kafleet";
import { z } from "zod";

export const app = new App();

export const invoice = app.task("invoice", { params: z.object({ part: z.string() }), output: z.string() }, ({ part }) => {
  console.log("looking for", part);
  if (part === "lost") throw new Fail("no such part", { kind: "lost_part" });
  return `${part}.pdf`;
});

export const mail = app.task(
  "mail",
  { params: z.object({ to: z.string(), files: z.array(z.string()) }), output: z.string(), upstream: "files" },
  ({ to, files }) => `${files.join("+")} to ${to}`,
);

export const add = app.task("add", { upstream: "sum" }, ({ sum, more }: { sum: number; more: number }) => sum + more);

export const page = app.task(
  "page",
  { params: z.object({ title: z.string() }), joined: "optional", results: invoice },
  ({ title }, cx) => (cx instanceof Joined ? `${title}: ${cx.results.map(({ output }) => output).join()}` : `${title} alone`),
);

const Part = z.object({
  name: z.string(),
  get parts() {
    return z.array(Part);
  },
});

export const parts = app.task("parts", { output: z.array(Part) }, (names: string[]) =>
  names.map((name) => ({ name, parts: [] })),
);

export const count = app.task(
  "count",
  { params: z.object({ unit: z.string(), parts: z.array(Part) }), upstream: "parts" },
  ({ unit, parts }) => `${parts.length} ${unit}`,
);

export const order = app.task("order", async ({ parts }: { parts: string[] }, cx) => {
  await cx.spawn(invoice.map(parts.map((part) => ({ part }))));
  cx.then(mail, { to: "ada" });
  return parts.length;
});

export const busy = app.task("busy", { retries: 2, minBackoff: "10ms", maxBackoff: "20ms" }, (failures: number, cx) => {
  if (cx.number <= failures) throw new Retry("busy", { kind: "busy" });
  return cx.number;
});

export const joins = app.joined("joins", (_: unknown, cx: Joined) => cx.results.length);

const small = app.bundle("small");
export const smallMail = small.task(
  "small-mail",
  { params: z.object({ to: z.string(), files: z.array(z.string()) }), upstream: "files" },
  ({ to, files }, cx) => `${cx.taskName}: ${files.join("+")} to ${to}`,
);
export const smallPage = small.task("small-page", { joined: "optional" }, (title: string, cx) => {
  return cx instanceof Joined ? `${title} after ${cx.results.length}` : `${title} alone`;
});
