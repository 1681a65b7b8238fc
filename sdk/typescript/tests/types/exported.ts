/** Exports of all that inference names: declarations of them are portable. */

import { App, type Context } from "kafleet";
import { fleet, recorded, trial } from "kafleet/testing";
import { z } from "zod";
export const app = new App({
  lifespan: async function* () {
    yield 1;
  },
});
export const bundle = app.bundle("b");
export const x = app.task("x", { params: z.object({ a: z.string() }), output: z.object({ n: z.int() }) }, ({ a }) => ({
  n: a.length,
}));
export const call = x.call({ a: "b" });
export const handle = () => x.submit({ a: "b" });
export const status = async () => (await handle()).status();
export const tree = async () => (await handle()).tree();
export const watched = async () => (await handle()).watch();
export const many = () => app.submitMany([call]);
export const client = app.client;
export const remote = app.remote("r");
export const t = () => trial(x, { a: "b" });
export const failure = async () => (await t()).failure;
export const children = async () => (await t()).children;
export const f = () => fleet();
export const r = () => recorded(() => 1);
export const policy = x.definition;
export const fn = x.fn;
export const around = app.arounds;
export const spawnArgs = (cx: Context) => [cx.spawn, cx.then, cx.spawnNow, cx.log, cx.progress] as const;
export const decl = app.declared;
export const limits = app.slots;
export const submit = x.submit;
export const opts = { params: z.object({ a: z.string() }) };
export const y = app.joined("y", { params: z.object({}), results: x }, (_, cx) => cx.results);
