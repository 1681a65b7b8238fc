/** Loading of a program: its app, the modules that the app includes, and remedies for errors of Node's loader. */

import { existsSync, globSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, extname, relative, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

import { type AnyApp, App, createdApps } from "./app.ts";
import { formOfClass } from "./foreign.ts";
import { recordFolder } from "./loaded.ts";
import { attempted, isError, messageOf } from "./shown.ts";

/** The app cannot serve; the message is shown to people. */
export class Unable extends Error {}

/** Returns the app of the main module, when its evaluation and that of the modules that it includes have ended. */
export async function loadApp(): Promise<AnyApp> {
  const program = process.argv[1];
  if (!program) throw new Unable("there is no program: run `node tasks.ts`, not code on the command line");
  const path = createRequire(program).resolve(program);
  const module = (await import(pathToFileURL(path).href)) as Record<string, unknown>;
  const app = exportedApp(program, module);
  await complete(app, dirname(path));
  warnAboutOthers(app);
  return app;
}

/** Imports the modules that an app includes. `folder`: that of its program. */
export async function complete(app: AnyApp, folder: string): Promise<void> {
  for (const entry of app.include) await (typeof entry === "function" ? entry() : includeFiles(entry, folder));
  if (!app.declared.size) throw new Unable('the app declares no task types; hint: write `app.task("name", …)`');
}

function exportedApp(program: string, module: Record<string, unknown>): AnyApp {
  const named = { ...(module["default"] as object | undefined), ...module };
  const apps = new Map(Object.entries(named).filter((entry): entry is [string, AnyApp] => entry[1] instanceof App));
  const distinct = new Set(apps.values());
  const app = apps.get("app") ?? [...distinct][0];
  if (!app) throw new Unable(`\`${program}\` exports no \`App\`; hint: write \`export const app = new App()\``);
  if (distinct.size > 1 && !apps.has("app")) {
    const names = [...apps.keys()].map((name) => `\`${name}\``).join(", ");
    throw new Unable(`\`${program}\` exports several apps (${names}); hint: export one, or name one of them \`app\``);
  }
  return app;
}

/** Imports the files that match a pattern, in the order of their names. Tests and declarations match no wildcard. */
async function includeFiles(pattern: string, folder: string): Promise<void> {
  const isExact = existsSync(resolve(folder, pattern));
  const found = isExact ? [pattern] : globSync(pattern, { cwd: folder }).sort();
  const files = found.filter((name) => /\.[cm]?[jt]s$/.test(name) && (isExact || !/\.(test|spec|d)\.[cm]?[jt]s$/.test(name)));
  if (!files.length) {
    const hint = "hint: write paths from the folder of the program, such as `./tasks/*.ts`, or `() => import(…)`";
    throw new Unable(`\`include\` has \`${pattern}\`, which is no file in \`${folder}\`; ${hint}`);
  }
  if (!isExact) for (const name of files) recordFolder(dirname(resolve(folder, name)));
  for (const name of files) await import(pathToFileURL(resolve(folder, name)).href);
}

/** Reports apps of the program whose tasks nothing runs. */
function warnAboutOthers(app: AnyApp): void {
  const place = createdApps.find((created) => created.app === app)?.place;
  for (const other of createdApps) {
    if (other.app === app || !other.app.declared.size) continue;
    const types = [...other.app.declared.keys()].slice(0, 5).map((name) => `\`${name}\``);
    console.error(
      `kafleet: the program has a second \`App\`, ${other.place}, whose types (${types.join(", ")}) are not served: the one ` +
        `that is served was made ${place}; hint: make one \`App\` in a file of its own, and import it where types are declared`,
    );
  }
}

const TSX = (program: string) => `run it with \`-- npx tsx ${program}\``;

/** Returns the remedy for an error of the loading of a program. `text`: what is shown of it. */
export function remedyFor(error: unknown, text: string): string | undefined {
  if (!isError(error)) return undefined;
  const program = process.argv[1] && relative(process.cwd(), process.argv[1]);
  const { code } = error as NodeJS.ErrnoException;
  const message = messageOf(error);
  const [, missing] = /does not provide an export named '(\w+)'/.exec(message) ?? [];
  if (missing && /module 'kafleet'/.test(message) && formOfClass(missing)) return formOfClass(missing);
  if (missing) return `if \`${missing}\` is a type, write \`import type { ${missing} }\``;
  if (code === "ERR_MODULE_NOT_FOUND" || code === "ERR_UNSUPPORTED_DIR_IMPORT") return remedyForPath(message, program!);
  if (code === "ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX")
    return `${TSX(program!)}, or write \`const Size = { … } as const\` for \`enum\``;
  if (code === "ERR_UNKNOWN_FILE_EXTENSION" || code === "ERR_UNSUPPORTED_NODE_MODULES_TYPE_STRIPPING") return TSX(program!);
  if (/Cannot use import statement outside a module/.test(message)) return "run `npm pkg set type=module`";
  const [, name] = /Cannot access '(\w+)' before initialization/.exec(message) ?? [];
  if (name) return `modules that import each other cannot use \`${name}\` yet; make it in a file of its own, or use \`include\``;
  // Node knows the line of a syntax error, but shows it only itself.
  return error instanceof SyntaxError && !/:\d+/.test(text) ? `\`node ${program}\` shows the line` : undefined;
}

/** Returns the remedy for an import without the ending of its file, or with one that only the compiler knows. */
function remedyForPath(message: string, program: string): string | undefined {
  const [, name, importer = ""] = /^Cannot find package '(.+?)' imported from (.+)/.exec(message) ?? [];
  if (name)
    return /^[@~#]\//.test(name)
      ? `Node does not know \`paths\` of tsconfig.json: ${TSX(program)}`
      : `run \`npm install ${name}\``;
  const [, path = "", from = importer] = /'(.+?)'.* imported from (.+)/.exec(message) ?? [];
  const bare = /\.[cm]?jsx?$/.test(path) ? path.slice(0, -extname(path).length) : path;
  const endings = [".ts", ".mts", ".cts", ".js", ".mjs", ".cjs", "/index.ts", "/index.js"];
  const found = endings.map((ending) => `${bare}${ending}`).find((file) => existsSync(file));
  if (!found || !from) return undefined;
  const folder = dirname(attempted(() => fileURLToPath(from)) ?? from);
  const written = relative(folder, found);
  return `write the ending of the file: \`${written.startsWith(".") ? "" : "./"}${written}\``;
}
