/**
 * Checks the links of a web site in a folder: files, headings that are linked to, and pages of other sites.
 *
 *     npm ci --prefix ../../../sdk/typescript
 *     npm ci
 *     kafleet dev tasks.ts
 *     kafleet submit site '{"folder": "/srv/www"}' --id www --wait
 *     kafleet status www:then
 *
 * A site spawns a task for each of its pages. When all of them have ended, its continuation reports the broken links. A page
 * that cannot be read fails its own task, and is named in the report.
 */

import { readdir, readFile, stat } from "node:fs/promises";
import { dirname, join, relative, resolve } from "node:path";

import { App, Fail, Retry } from "kafleet";
import { z } from "zod";

export const app = new App();

const Broken = z.object({ link: z.string(), reason: z.string() });
const Checked = z.object({
  page: z.string(),
  links: z.int(),
  broken: z.array(Broken),
});

/** Checks all pages of a folder. */
export const site = app.task(
  "site",
  {
    params: z.object({
      folder: z.string(),
      external: z.boolean().default(true),
    }),
    doc: "Checks the links of a web site.",
  },
  async ({ folder, external }, cx) => {
    const names = await readdir(folder, { recursive: true });
    const pages = names.filter((name) => name.endsWith(".html")).sort();
    if (!pages.length)
      throw new Fail(`there are no pages in \`${folder}\``, {
        kind: "empty_folder",
      });
    for (const [number, page] of pages.entries()) {
      // Named children: a repeated attempt, or a retry of the site, spawns the same tasks.
      await cx.spawn(
        checkPage,
        { folder, page, external },
        { id: `${number}`, name: page, onFailure: "ignore" },
      );
    }
    cx.then(report, {});
    return pages.length;
  },
);

/** Checks the links of one page. */
export const checkPage = app.task(
  "page",
  {
    params: z.object({
      folder: z.string(),
      page: z.string(),
      external: z.boolean(),
    }),
    output: Checked,
    retries: 2,
    minBackoff: "100ms",
    timeout: "1m",
  },
  async ({ folder, page, external }, cx) => {
    const file = join(folder, page);
    const links = linksOf(await readFile(file, "utf8"));
    console.log(`${page}: ${links.length} links`);
    const broken: z.infer<typeof Broken>[] = [];
    for (const [done, link] of links.entries()) {
      cx.check();
      const isLastAttempt = cx.number > 2;
      const reason = /^https?:/.test(link)
        ? external && (await problemOfUrl(link, cx.signal, isLastAttempt))
        : await problemOfFile(folder, file, link);
      if (reason) broken.push({ link, reason });
      cx.progress({ checked: done + 1, of: links.length });
    }
    return { page, links: links.length, broken };
  },
);

/** Reports the broken links of all pages. */
export const report = app.joined(
  "report",
  { params: z.object({}), results: checkPage },
  (_, cx) => {
    const checked = cx.results.flatMap(({ output }) => output ?? []);
    const failed = cx.results.flatMap(({ id, error }) =>
      error ? [`${id}: ${error.message}`] : [],
    );
    const broken = checked.flatMap(({ page, broken }) =>
      broken.map(({ link, reason }) => `${page}: ${link}: ${reason}`),
    );
    for (const line of [...broken, ...failed]) console.log(line);
    if (broken.length) cx.warn(`${broken.length} broken links`);
    return {
      pages: checked.length,
      links: checked.reduce((sum, { links }) => sum + links, 0),
      broken: broken.sort(),
      failed,
    };
  },
);

/** Returns the targets of links, pictures and scripts in a page, each once. */
export function linksOf(html: string): string[] {
  const targets = [
    ...html.matchAll(/\s(?:href|src)\s*=\s*["']([^"']+)["']/gi),
  ].map(([, target]) => target!);
  return [
    ...new Set(
      targets.filter(
        (target) => !/^(mailto|tel|data|javascript):/i.test(target),
      ),
    ),
  ];
}

/** Returns the reason why a link to a file of the site is broken. */
async function problemOfFile(
  folder: string,
  from: string,
  link: string,
): Promise<string | undefined> {
  const [path = "", heading] = link.split("#");
  let target = path
    ? resolve(
        path.startsWith("/") ? folder : dirname(from),
        path.replace(/^\/+/, ""),
      )
    : from;
  if (relative(folder, target).startsWith("..")) return "outside of the site";
  const found = await stat(target).catch(() => undefined);
  if (found?.isDirectory()) target = join(target, "index.html");
  const text = await readFile(target, "utf8").catch(() => undefined);
  if (text === undefined) return "no such file";
  const hasHeading =
    !heading ||
    new RegExp(`\\s(?:id|name)\\s*=\\s*["']${escaped(heading)}["']`).test(text);
  return hasHeading ? undefined : `no \`${heading}\` in the page`;
}

/** Returns the reason why a link to another site is broken. A site that is busy is asked again in the next attempt. */
async function problemOfUrl(
  url: string,
  signal: AbortSignal,
  isLastAttempt: boolean,
): Promise<string | undefined> {
  const { status } = await fetch(url, { method: "HEAD", signal });
  if ((status === 429 || status === 503) && !isLastAttempt)
    throw new Retry(`\`${url}\` is busy`, { kind: "busy" });
  return status < 400 ? undefined : `status ${status}`;
}

function escaped(text: string): string {
  return text.replace(/[^\w]/g, "\\$&");
}
