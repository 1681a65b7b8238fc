/** Functions around attempts: each runs the rest of the attempt at most once, and its result is the attempt's. */

import type { Around } from "./app.ts";
import type { Context } from "./context.ts";
import { textOf } from "./shown.ts";

/** A hook does not do what a hook has to. */
class HookError extends Error {
  override readonly name = "HookError";
}

type Next = () => Promise<unknown>;

/** Returns a function that runs an attempt within its hooks; the first hook is the outermost. */
export function wrapped(run: Next, hooks: readonly Around<any>[], cx: Context): Next {
  return hooks.reduceRight<Next>((next, hook, index) => () => runHook(hook, nameOf(hook, index), next, cx), run);
}

async function runHook(hook: Around<any>, name: string, next: Next, cx: Context): Promise<unknown> {
  let inner: Promise<unknown> | undefined;
  let isPending = true;
  const nextOnce: Next = () => {
    if (inner) {
      const hint = "hint: throw `Retry` for another attempt";
      return Promise.reject(new HookError(`${name} called \`next()\` twice, but an attempt runs once; ${hint}`));
    }
    inner = next();
    const settle = () => (isPending = false);
    inner.then(settle, settle);
    return inner;
  };
  const result = await hook(cx, nextOnce);
  if (result !== undefined) return result;
  if (!inner) {
    throw new HookError(`${name} has neither called \`next()\` nor returned a result; hint: return null for no result`);
  }
  // A hook that does not wait for the handler has not caught its error either.
  return isPending ? inner : (inner as Promise<unknown>).catch(() => null);
}

function nameOf(hook: Around<any>, index: number): string {
  const name: unknown = hook.name;
  return name ? `the hook \`${textOf(name)}\`` : `the hook ${index + 1} of \`app.around\``;
}
