/** Code that the compiler rejects: each line that ends with `// error`, and no other. */

import { App, chain, chord, Fail, group, type Joined, Retry } from "kafleet";
import { trial } from "kafleet/testing";
import { z } from "zod";

const app = new App();

const thumbnail = app.task(
  "thumbnail",
  { params: z.object({ path: z.string(), width: z.int().default(200) }) },
  ({ path, width }) => path.repeat(width),
);

const album = app.task("album", ({ folder }: { folder: string }) => folder.length);

const sheet = app.joined("sheet", ({ title }: { title: string }, cx: Joined<number>) => {
  cx.results[0]?.output?.toUpperCase(); // error
  return title;
});

await thumbnail.submit(); // error
await thumbnail.submit(5); // error
await thumbnail.submit({ path: "a.jpg", width: "64" }); // error
await thumbnail.submit({ path: "a.jpg", height: 64 }); // error
await thumbnail.submit({ path: "a.jpg" }, { tag: "shop" }); // error
await thumbnail.submit({ path: "a.jpg" }, { retries: "3" }); // error
await thumbnail.submit({ path: "a.jpg" }, { delay: "soon" }); // error
await thumbnail.submit({ path: "a.jpg" }, { withResults: true }); // error
thumbnail("a.jpg"); // error
(await thumbnail.run({ path: "a.jpg" })).toFixed(); // error
(await album.run({ folder: "a" })).toUpperCase(); // error
await album.submit({ folder: 5 }); // error
sheet.call({ heading: "a" }); // error
await trial(album, {}); // error
await trial(album, { folder: "a" }, { numbr: 2 }); // error
new App({ slot: 1 }); // error
new App({ numbers: "big" }); // error
app.task("numbers", { numbers: true }, () => 1); // error
app.around((_, next) => next(1)); // error
new Retry("busy", { after: "thirty seconds" }); // error
new Fail("busy", { after: "30s" }); // error

const small = app.bundle("small", { retries: 3 });
const resize = small.task("resize", { params: z.object({ path: z.string() }) }, ({ path }) => path.length);
await resize.submit(); // error
await resize.submit({ path: 5 }); // error
await resize.submit({ path: "a.jpg" }, { tag: "shop" }); // error
(await resize.run({ path: "a.jpg" })).toUpperCase(); // error
app.bundle("misspelt", { retrys: 3 }); // error
small.task("policy", { retries: 3 }, () => 1); // error
small.task("kinds", { failOn: ["bad_width"] }, () => 1); // error
small.task("handler", { params: z.string() }, (path: number) => path); // error

app.task("misspelt", { retrys: 3 }, () => 1); // error
app.task("duration", { params: z.string(), timeout: "30 sec" }, () => 1); // error
app.task("handler", { params: z.string() }, (path: number) => path); // error
app.task("output", { output: z.string() }, () => 5); // error

app.task("soft", { softTimeout: "5 sec" }, () => 1); // error
app.task("alias", { aliases: "old" }, () => 1); // error
app.schedule("0 3 * * *", thumbnail); // error
app.schedule("0 3 * * *", album, { params: { folder: 5 } }); // error
app.schedule("0 3 * * *", album, { params: { folder: "a" }, tz: "UTC" }); // error
app.schedule("nightly", { cron: "@daily" }); // error
new App({ include: "./tasks/*.ts" }); // error
app.add({ folder: "a" }); // error

app.task("children", async (_: unknown, cx) => {
  await cx.spawn(thumbnail, { path: 5 }); // error
  await cx.spawn(album, { folder: "a" }, { parent: "a" }); // error
  cx.then(sheet, { heading: "a" }); // error
  cx.then(sheet, { title: "a" }, { delay: "5s" }); // error
  await cx.spawn(() => 1); // error
  await cx.spawnNow([album]); // error
  cx.state.query(); // error
});

const text = app.task("text", { output: z.string() }, (n: number) => `${n}`);
const mail = app.task("mail", { params: z.object({ to: z.string(), files: z.array(z.string()) }), upstream: "files" }, () => 1);
const sum = app.task("sum", { upstream: "numbers" }, ({ numbers }: { numbers: number[] }) => numbers.length);
await mail.submit({ to: "a" }); // error
mail.call({ files: [] }); // error
mail.call({ to: 5 }); // error
app.task("wrong", { params: z.object({ files: z.string() }), upstream: "file" }, () => 1); // error
app.task("wrong", { joined: true }, () => 1); // error
app.joined("wrong", { params: z.string(), upstream: "files" }, () => 1); // error
chord(text.map([1]), sum.call({})); // error
chord(text.map([1]), album.call({ folder: "a" })); // error
chord(text.map([1]), mail.call({ to: "a" }), 5); // error
chain(text.call(1)); // error
chain(text.call(1), group(text.call(1))); // error
chain(text, text.call(1)); // error
(await chain(text.call(1), sum.call({})).submit()).finalResult().then((n) => n.toUpperCase()); // error
(await (await text.map([1, 2]).submit()).result()).map((each) => each.toFixed()); // error
text.map(["a"]); // error
text.chunks([1], 2); // error
await group(text.call(1)).submit({ retries: 3 }); // error
(await text.handle("a").status()).sate; // error
await text.handle("a").report("done"); // error
await text.handle("a").patch({ type: "b" }); // error
await app.schedules.upsert("a", { cron: "0 3 * * *" }); // error
await app.external("a").submit({ retries: 3 }); // error
await app.external("a").submit({ state: "running" }); // error
await trial.tree(text, "a"); // error
(await trial.tree(text, 1)).finalOutput.toFixed(); // error

app.task("canvas", async (_: unknown, cx) => {
  await cx.spawn(chord(text.map([1]), mail.call({ to: "a" }))); // error
  cx.then(group(text.call(1))); // error
  cx.then(mail, { files: [] }); // error
});
