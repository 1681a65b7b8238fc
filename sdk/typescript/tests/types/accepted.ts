/** Code that the compiler accepts. */

import { type } from "arktype";
import {
  type ApiError,
  App,
  type Call,
  chain,
  chord,
  type Context,
  current,
  type Ended,
  Fail,
  group,
  type Handle,
  type Joined,
  Retry,
  SoftTimeout,
  type State,
  type Status,
  type Task,
} from "kafleet";
import { recorded, trial } from "kafleet/testing";
import { z } from "zod";

type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
function same<A>() {
  return { as: <B>(_: Same<A, B>): void => {} };
}

interface Pool {
  query(text: string): Promise<number>;
}

export const app = new App({
  slots: 4,
  lifespan: async function* () {
    const pool: Pool = { query: async () => 1 };
    yield pool;
  },
});

const Thumb = z.object({ path: z.string(), made: z.iso.datetime().transform((text) => new Date(text)) });

export const thumbnail = app.task(
  "thumbnail",
  {
    params: z.object({ path: z.string(), width: z.int().default(200) }),
    output: Thumb,
    retries: 5,
    timeout: "30s",
    failOn: [TypeError, "bad_width"],
  },
  async ({ path, width }, cx) => {
    same<typeof width>().as<number>(true);
    same<typeof cx.state>().as<Pool>(true);
    if (width < 1) throw new Fail("width must be positive", { kind: "bad_width" });
    if (cx.leftMs < 5) throw new Retry("busy", { after: "30s" });
    await fetch(path, { signal: cx.signal });
    return { path, made: new Date().toISOString() };
  },
);

export const album = app.task("album", async ({ folder }: { folder: string }, cx) => {
  await cx.spawn(thumbnail, { path: folder }, { name: "a", onFailure: "ignore" });
  cx.then(sheet, { title: folder }, { on: "ended" });
  const ids = await cx.spawnNow([thumbnail.call({ path: "a.jpg", width: 100 }, { id: "a" })]);
  same<typeof ids>().as<string[]>(true);
  return { count: ids.length, at: new Date(), rest: undefined };
});

export const sheet = app.joined("sheet", { params: z.object({ title: z.string() }), results: thumbnail }, ({ title }, cx) => {
  same<typeof cx.results>().as<readonly Ended<{ path: string; made: Date }>[]>(true);
  return title + cx.results.map(({ output }) => output?.made.getTime()).join();
});

export const annotated = app.joined("annotated", (params: { title: string }, cx: Joined<number>) => {
  same<typeof cx.results>().as<readonly Ended<number>[]>(true);
  return params.title;
});

export const ark = app.task("ark", { params: type({ count: "number" }) }, ({ count }) => count > 1);

export const plain = app.task("plain", () => current().id);

export const described = app.task("described", { doc: "Adds.", retries: 0 }, (numbers: number[]) => Math.max(...numbers));

export const pay = app.task("pay", { numbers: "exact", params: z.any().transform(BigInt) }, (wei) => {
  same<typeof wei>().as<bigint>(true);
  return { half: wei / 2n, list: [1, undefined] as (number | undefined)[] };
});

const small = app.bundle("small", { concurrency: 4, retries: 3, timeout: "30s", failOn: [TypeError, "bad_width"] });

export const resize = small.task(
  "resize",
  { params: z.object({ path: z.string(), width: z.int().default(200) }), output: Thumb, failOn: [TypeError] },
  async ({ path, width }, cx) => {
    same<typeof width>().as<number>(true);
    same<typeof cx>().as<Context<Pool>>(true);
    same<typeof cx.taskName>().as<string>(true);
    return { path, made: new Date().toISOString() };
  },
);

export const mosaic = small.joined("mosaic", { params: z.object({ title: z.string() }), results: resize }, ({ title }, cx) => {
  same<typeof cx.results>().as<readonly Ended<{ path: string; made: Date }>[]>(true);
  cx.then(resize, { path: title });
  return title;
});

export const pinged = small.task("ping", () => 1);

export const mail = app.task(
  "mail",
  { params: z.object({ to: z.string(), files: z.array(z.string()) }), upstream: "files" },
  ({ to, files }) => {
    same<typeof files>().as<string[]>(true);
    return to.length;
  },
);

export const add = app.task("add", { upstream: "sum" }, ({ sum, more }: { sum: number; more: number }) => sum + more);

export const filled = small.task("filled", { upstream: "sum" }, ({ sum }: { sum: number }) => `${sum}`);

export const gallery = app.task(
  "gallery",
  { params: z.object({ title: z.string() }), joined: "optional", results: thumbnail },
  ({ title }, cx) => {
    same<typeof cx.state>().as<Pool>(true);
    if (!cx.results) return title;
    same<typeof cx>().as<Joined<{ path: string; made: Date }, Pool>>(true);
    same<typeof cx.results>().as<readonly Ended<{ path: string; made: Date }>[]>(true);
    return title + cx.results.length;
  },
);

export const path = app.task("path", { output: z.string() }, (n: number) => `${n}`);

export const spawning = app.task("spawning", async (numbers: number[], cx) => {
  await cx.spawn(path.map(numbers));
  await cx.spawn(chain(path.call(1), mail.call({ to: "a" })));
  await cx.spawnNow(path.map(numbers));
  cx.then(mail, { to: "a" });
  cx.then(filled);
  cx.then(chain(gallery.call({ title: "a" }), plain.call()));
});

export async function canvas(): Promise<void> {
  const steps = chain(path.call(1), mail.call({ to: "a" }), add.call({ more: 5 }));
  const handle = await steps.submit();
  same<typeof handle>().as<Handle<string, number>>(true);
  same<number>().as<Awaited<ReturnType<typeof handle.finalResult>>>(true);
  const longer = chain(steps, filled.call(), plain.call());
  same<string>().as<Awaited<ReturnType<Awaited<ReturnType<typeof longer.submit>>["finalResult"]>>>(true);
  const nested = chain(path.call(1), steps);
  same<number>().as<Awaited<ReturnType<Awaited<ReturnType<typeof nested.submit>>["finalResult"]>>>(true);

  const results = await (await group(path.call(1), mail.call({ to: "a", files: [] })).submit({ name: "a" })).result();
  same<typeof results>().as<(string | number)[]>(true);
  const all = chord(path.map([1, 2]), mail.call({ to: "a" }));
  same<number>().as<Awaited<ReturnType<Awaited<ReturnType<typeof all.submit>>["finalResult"]>>>(true);
  // What a schema makes a date of travels as text.
  chord([thumbnail.call({ path: "a" })], gallery.call({ title: "a" }));
  chord([thumbnail.call({ path: "a" })], sheet.call({ title: "a" }));
  chord([path.call(1)], app.remote("elsewhere").call());
  chain(group(path.call(1)), mail.call({ to: "a" }), plain.call());
  const [first] = await (await path.starmap([[1, { id: "a" }], [2]]).submit()).result();
  same<typeof first>().as<string | undefined>(true);
  described.chunks([1, 2, 3], 2);
  const tree = await trial.tree(steps);
  same<typeof tree.output>().as<string>(true);
  same<typeof tree.finalOutput>().as<number>(true);
  same<string[]>().as<Awaited<ReturnType<typeof trial.tree<string>>>["output"]>(true);
  (await trial.tree(thumbnail, { path: "a" })).output.made.getTime();
  (await trial(mail, { to: "a" }, { results: [] })).output.toFixed();
  const call: Call = steps;
  call satisfies unknown;
}

export async function operations(): Promise<void> {
  const untyped = app.handle("a");
  same<typeof untyped>().as<Handle>(true);
  const status: Status = await untyped.status();
  same<State>().as<typeof status.state>(true);
  same<string | undefined>().as<(typeof status.tags)[0] | undefined>(true);
  for await (const child of untyped.children()) child.error?.kind.toUpperCase();
  for await (const { id, error } of app.tasks.search("state:failed", { limit: 5 })) console.log(id, error?.message);
  (await (await app.bulk.cancel("type:mail")).result()).done.toFixed();
  await app.schedules.upsert("nightly", { cron: "0 3 * * *", timezone: "Europe/Berlin", task: plain.call() });
  for await (const { ids } of app.events({ type: "mail" })) console.log(ids?.length);
  await (await app.external("import").submit({ blockWhenDone: false })).report("succeeded", { result: 1 });
  await untyped.patch({ name: null, delay: "5s" });
  (await app.client.request<{ id: string }>("GET", "/v1/tasks/a")).id.toUpperCase();
}
export const renamed = app.task(
  "renamed",
  { aliases: ["old-name"], softTimeout: "5s", timeout: "6s" },
  async (_: unknown, cx) => {
    cx.check();
    return new SoftTimeout(5000).message;
  },
);

app.schedule("0 3 * * *", plain);
app.schedule("1h", described, { params: [1, 2], overlap: "skip", jitter: "5m", id: "hourly" });
app.schedule("@daily", ark.call({ count: 1 }, { retries: 2 }), { startAt: new Date() });
app.schedule("weekly", { cron: "@weekly", timezone: "UTC", task: { type: "elsewhere", params: 1 } });
export const several = new App({ include: ["./tasks/*.ts", () => import("kafleet/testing")], stacks: true });

app.around(async (cx, next) => {
  same<typeof cx>().as<Context<Pool>>(true);
  return next();
});

export async function uses(): Promise<void> {
  const handle = await thumbnail.submit({ path: "a.jpg" }, { id: "cover-42", tags: ["shop"], delay: "10m" });
  same<typeof handle>().as<Handle<{ path: string; made: Date }>>(true);
  const thumb = await handle.result({ timeout: "30s" });
  same<typeof thumb>().as<{ path: string; made: Date }>(true);
  const made = await album.run({ folder: "a" });
  same<typeof made.at>().as<string>(true);
  same<typeof made.count>().as<number>(true);
  for await (const status of handle.watch({ timeout: 5000 })) console.log(status.state, status["tags"]);
  const outcomes = await app.submitMany(["a", "b"].map((path) => thumbnail.call({ path })));
  same<typeof outcomes>().as<(Handle<{ path: string; made: Date }> | ApiError)[]>(true);
  same<boolean>().as<Awaited<ReturnType<typeof ark.run>>>(true);
  const paid = await pay.run(5n);
  same<typeof paid>().as<{ half: number | bigint; list: number[] }>(true);
  await plain.submit();
  await described.submit([1, 2], { then: [plain.call(undefined, { on: "failed" })] });
  const bundled = await resize.submit({ path: "a.jpg" }, { tags: ["shop"] });
  same<typeof bundled>().as<Handle<{ path: string; made: Date }>>(true);
  same<number>().as<Awaited<ReturnType<typeof pinged.run>>>(true);
  same<string>().as<Awaited<ReturnType<typeof mosaic.run>>>(true);
  (await trial(resize, { path: "a" })).output.made.getTime();
  await app.remote("elsewhere").submit({ anything: 1 });
  same<number>().as<Awaited<ReturnType<typeof described.run>>>(true);
  const run = await trial(thumbnail, { path: "a" }, { number: 2 });
  same<typeof run.output>().as<{ path: string; made: Date }>(true);
  const submitted = await recorded(() => uses());
  same<string | undefined>().as<(typeof submitted)[0]["id"] | undefined>(true);
  const fn: (params: { title: string }, cx: Joined<number, Pool>) => string = annotated.fn;
  fn satisfies unknown;
  const any: Task<{ path: string }, { path: string; made: Date }> = thumbnail;
  any satisfies unknown;
}
