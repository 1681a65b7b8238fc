/** Source files that the program has loaded, for the reload of `kafleet dev`: a change of another file restarts nothing. */

import { realpathSync } from "node:fs";
import * as modules from "node:module";
import { sep } from "node:path";
import { fileURLToPath } from "node:url";

import { encode } from "./json.ts";
import { attempted } from "./shown.ts";

/** Time between two looks at the loaded files, in milliseconds: a handler may import further ones. */
const INTERVAL_MS = 250;

const loaded = new Set<string>();

/** Begins to record the files that are loaded; nothing with a Node before 22.15. */
export function recordLoads(): void {
  // A later Node, or another runtime, may lack it, or refuse it.
  attempted(() =>
    modules.registerHooks?.({
      load(url, context, nextLoad) {
        const file = url.startsWith("file:") ? attempted(() => realpathSync(fileURLToPath(url))) : undefined;
        if (file && !file.includes(`${sep}node_modules${sep}`)) loaded.add(file);
        return nextLoad(url, context);
      },
    }),
  );
}

/** Adds a folder of which the program loads all files, so that new ones count. */
export function recordFolder(folder: string): void {
  loaded.add(attempted(() => realpathSync(folder)) ?? folder);
}

/** Sends the files that are loaded now, and from then on further ones. */
export function reportLoads(send: (line: string) => void): void {
  const program = attempted(() => realpathSync(process.argv[1]!));
  // If the program was loaded before the recording began, so were others: the worker takes all files of the folder.
  if (!program || !loaded.has(program)) return;
  const sent = new Set<string>();
  const sendNew = () => {
    const paths = [...loaded].filter((file) => !sent.has(file));
    if (!paths.length) return;
    for (const path of paths) sent.add(path);
    send(`{"files":${encode({ paths })}}\n`);
  };
  sendNew();
  setInterval(sendNew, INTERVAL_MS).unref();
}
