/** Functions around attempts: each runs the rest of the attempt at most once, and its result is the attempt's. */

import type { Around } from "./app.ts";
import type { Context } from "./context.ts";
import { textOf } from "./shown.ts";

/** A hook does not do what a hook has to. */
class HookError extends Error {
  override readonly name = "HookError";
}

type Next = () => Promise<unknown>;

/** Promise that knows whether somebody waits for it, or handles its error. */
class Watched extends Promise<unknown> {
  isHandled = false;

  static override get [Symbol.species](): PromiseConstructor {
    return Promise;
  }

  static of(inner: Promise<unknown>): Watched {
    const watched = new Watched((resolve, reject) => void inner.then(resolve, reject));
    // An error that nobody handles is that of the attempt.
    super.prototype.then.call(watched, undefined, () => {});
    return watched;
  }

  override then<A, B>(...handlers: Parameters<typeof Promise.prototype.then<A, B>>): Promise<A | B> {
    this.isHandled = true;
    return super.then(...(handlers as [any, any]));
  }
}

/** Returns a function that runs an attempt within its hooks; the first hook is the outermost. */
export function wrapped(run: Next, hooks: readonly Around<any>[], cx: Context): Next {
  return hooks.reduceRight<Next>((next, hook, index) => () => runHook(hook, nameOf(hook, index), next, cx), run);
}

async function runHook(hook: Around<any>, name: string, next: Next, cx: Context): Promise<unknown> {
  let inner: Watched | undefined;
  let isPending = true;
  const nextOnce: Next = () => {
    if (inner) {
      const hint = "hint: throw `Retry` for another attempt";
      return Promise.reject(new HookError(`${name} called \`next()\` twice, but an attempt runs once; ${hint}`));
    }
    const started = next();
    const settle = () => (isPending = false);
    started.then(settle, settle);
    inner = Watched.of(started);
    return inner;
  };
  const result = await hook(cx, nextOnce);
  if (result !== undefined) return result;
  if (!inner) {
    throw new HookError(`${name} has neither called \`next()\` nor returned a result; hint: return null for no result`);
  }
  // A hook that does not wait for the handler has not caught its error either.
  const isCaught = !isPending && inner.isHandled;
  return isCaught ? inner.catch(() => null) : inner;
}

function nameOf(hook: Around<any>, index: number): string {
  const name: unknown = hook.name;
  return name ? `the hook \`${textOf(name)}\`` : `the hook ${index + 1} of \`app.around\``;
}
