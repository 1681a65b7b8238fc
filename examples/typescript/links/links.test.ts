/** Tests of the link check: single attempts without a fleet, and a whole site on a real one. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";

import { fleet } from "kafleet/testing";
import { trial } from "kafleet/testing";

import { checkPage, linksOf, report, site } from "./tasks.ts";

/** Another site: the first request of `/busy` is refused. */
const requests: string[] = [];
const other = createServer((request, response) => {
  requests.push(request.url!);
  const isBusy =
    request.url === "/busy" &&
    requests.filter((url) => url === "/busy").length === 1;
  response.writeHead(isBusy ? 503 : request.url === "/gone" ? 404 : 200).end();
});
const folder = mkdtempSync(join(tmpdir(), "links-"));

before(async () => {
  other.listen(0, "127.0.0.1");
  await once(other, "listening");
  const url = `http://127.0.0.1:${(other.address() as AddressInfo).port}`;
  const files = {
    "index.html": `<h1 id="top">Home</h1><a href="docs/">Docs</a> <a href="#top">Top</a> <a href="${url}/busy">Busy</a>
      <img src="/logo.png"> <a href='missing.html'>Missing</a> <a href="mailto:ada@example.org">Ada</a>`,
    "docs/index.html": `<a href="../index.html#top">Home</a> <a href="../index.html#bottom">Bottom</a> <a href="${url}/gone">Gone</a>`,
    "docs/up.html": '<a href="../../secret.html">Outside</a>',
    "logo.png": "a picture",
    "notes.txt": '<a href="nowhere">Not a page</a>',
  };
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(dirname(join(folder, name)), { recursive: true });
    writeFileSync(join(folder, name), text);
  }
  mkdirSync(join(folder, "unreadable.html"));
});
after(() => {
  other.closeAllConnections();
  other.close();
  rmSync(folder, { recursive: true });
});

test("site spawns a task for each page", async () => {
  const run = await trial(site, { folder });
  assert.equal(run.output, 4);
  assert.deepEqual(
    run.children.map(({ name }) => name),
    ["docs/index.html", "docs/up.html", "index.html", "unreadable.html"],
  );
  assert.equal(run.then[0]?.type, "report");
  const empty = await trial(site, {
    folder: mkdtempSync(join(tmpdir(), "links-")),
  });
  assert.deepEqual(
    [empty.failure?.outcome, empty.failure?.kind],
    ["fail", "empty_folder"],
  );
});

test("page reports links without a target", async () => {
  const run = await trial(checkPage, {
    folder,
    page: "index.html",
    external: false,
  });
  assert.deepEqual(run.output, {
    page: "index.html",
    links: 5,
    broken: [{ link: "missing.html", reason: "no such file" }],
  });
  assert.deepEqual(run.log, ["index.html: 5 links"]);
  assert.deepEqual(run.progress.at(-1), { checked: 5, of: 5 });
  const outside = await trial(checkPage, {
    folder,
    page: "docs/up.html",
    external: true,
  });
  assert.deepEqual(outside.output.broken, [
    { link: "../../secret.html", reason: "outside of the site" },
  ]);
});

test("links are found once", () => {
  const html =
    '<a href="a">x</a><A HREF = \'a\'>y</A><img src="b"><a href="javascript:void(0)"><a data-href="c">';
  assert.deepEqual(linksOf(html), ["a", "b"]);
});

test("report joins the pages", async () => {
  const results = [
    {
      id: "www:0",
      state: "succeeded",
      output: {
        page: "a.html",
        links: 2,
        broken: [{ link: "b", reason: "no such file" }],
      },
    },
    {
      id: "www:1",
      state: "failed",
      error: { kind: "Error", message: "unreadable" },
    },
  ];
  const run = await trial(report, {}, { results });
  assert.deepEqual(run.output, {
    pages: 1,
    links: 2,
    broken: ["a.html: b: no such file"],
    failed: ["www:1: unreadable"],
  });
  assert.deepEqual(run.warnings, ["1 broken links"]);
});

test("site is checked in this process", async () => {
  requests.length = 0;
  const tree = await trial.tree(site, { folder });
  assert.equal(tree.output, 4);
  const { pages, links, failed } = tree.task<{
    pages: number;
    links: number;
    failed: string[];
  }>("then").output;
  assert.deepEqual([pages, links, failed.length], [3, 9, 1]);
  // The busy page is tried again: its second attempt succeeds.
  assert.equal(tree.task("2").attempts.length, 2);
});

test("site is checked by a fleet", async (t) => {
  requests.length = 0;
  const running = await fleet({
    target: "tasks.ts",
    cwd: import.meta.dirname,
  });
  t.after(() => running.stop());
  const handle = await site.submit({ folder }, { id: "www" });
  assert.equal(await handle.result({ timeout: "60s" }), 4);
  const { pages, links, broken, failed } = await report
    .handle("www:then")
    .result({ timeout: "60s" });
  assert.deepEqual([pages, links], [3, 9]);
  const withoutPort = broken.map((line) =>
    line.replace(/127\.0\.0\.1:\d+/, "other"),
  );
  assert.deepEqual(withoutPort, [
    "docs/index.html: ../index.html#bottom: no `bottom` in the page",
    "docs/index.html: http://other/gone: status 404",
    "docs/up.html: ../../secret.html: outside of the site",
    "index.html: missing.html: no such file",
  ]);
  assert.match(failed.join(), /www:3: EISDIR/);
  assert.equal(requests.filter((url) => url === "/busy").length, 2);
});
