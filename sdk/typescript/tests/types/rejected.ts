/** Code that the compiler rejects: each line that ends with `// error`, and no other. */

import { App, Fail, type Joined, Retry } from "kafleet";
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

app.task("children", async (_: unknown, cx) => {
  await cx.spawn(thumbnail, { path: 5 }); // error
  await cx.spawn(album, { folder: "a" }, { parent: "a" }); // error
  cx.then(sheet, { heading: "a" }); // error
  cx.then(sheet, { title: "a" }, { delay: "5s" }); // error
  await cx.spawn(() => 1); // error
  await cx.spawnNow([album]); // error
  cx.state.query(); // error
});
