/** Values and errors that do unusual things when they are read, made from a seed: the same seed makes the same value. */

import { inspect } from "node:util";

import { Cancelled, Dead, Fail, Outcome, Retry, Wait } from "kafleet";

/** Pseudo-random numbers (mulberry32). */
export class Random {
  #state: number;

  constructor(seed: number) {
    this.#state = seed * 0x9e3779b9;
  }

  /** Returns a whole number below a limit. */
  below(limit: number): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(this.#state ^ (this.#state >>> 15), 1 | this.#state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) % limit;
  }

  pick<T>(items: readonly T[]): T {
    return items[this.below(items.length)]!;
  }
}

type Maker = (random: Random) => unknown;

const half = "🎉".slice(0, 1);

function fails(): never {
  throw new TypeError("a value that is not to be read");
}

/** Object with a member that throws when it is read. */
function withGetter(target: object, name: PropertyKey, enumerable = true): object {
  return Object.defineProperty(target, name, { get: fails, enumerable, configurable: true });
}

const TRAPS = ["get", "has", "ownKeys", "getPrototypeOf", "getOwnPropertyDescriptor", "set", "defineProperty"] as const;

function proxy(random: Random): object {
  const chosen = TRAPS.filter(() => random.below(2));
  return new Proxy(random.pick([{}, new Error("target"), [1], fails]), Object.fromEntries(chosen.map((name) => [name, fails])));
}

function revoked(target: object): object {
  const { proxy, revoke } = Proxy.revocable(target, {});
  revoke();
  return proxy;
}

/** Proxy that is its own prototype: `instanceof` never ends. */
function ownPrototype(): object {
  const made: object = new Proxy({}, { getPrototypeOf: () => made });
  return made;
}

/** Object of endless depth. */
function endless(): object {
  const descriptor = { enumerable: true, configurable: true, writable: true, value: 1 };
  return new Proxy(
    {},
    {
      get: (_, name) => (name === "a" ? endless() : undefined),
      ownKeys: () => ["a"],
      getOwnPropertyDescriptor: () => descriptor,
    },
  );
}

function cyclic(): object {
  const made: Record<string, unknown> = { list: [] };
  (made["list"] as unknown[]).push(made);
  return made;
}

function deep(levels: number): unknown {
  let made: unknown = 1;
  for (let level = 0; level < levels; level++) made = level % 2 ? [made] : { made };
  return made;
}

function cyclicCause(): Error {
  const error = new Error("outer");
  error.cause = new Error("inner", { cause: error });
  return error;
}

class Private {
  #secret = 1;
  get secret(): number {
    return this.#secret;
  }
}

class Loud extends Error {
  override get message(): string {
    return fails();
  }
  override get name(): string {
    return fails();
  }
}

/** Values without others in them. */
const LEAVES: Maker[] = [
  () => undefined,
  () => null,
  () => NaN,
  () => -0,
  () => 5n,
  () => 1n << 4_000_000n,
  () => "",
  () => half,
  () => "\0",
  () => "x".repeat(1_000_000),
  () => Symbol("symbol"),
  () => fails,
  () => Private,
  () => ({}),
  () => Object.create(null),
  () => ({ code: 5, details: "no such customer" }),
  () => ({ toString: fails, valueOf: fails, [Symbol.toPrimitive]: fails }),
  () => ({ toJSON: fails }),
  () => ({ toJSON: 5, [half]: 1 }),
  () => ({ [inspect.custom]: fails }),
  () => ({ [inspect.custom]: () => ({ [inspect.custom]: () => "x".repeat(1_000_000) }) }),
  () => Object.freeze(Object.assign(new Error("frozen"), { code: 1 })),
  () => new Loud(),
  () => new Private(),
  () => new DOMException("aborted", "AbortError"),
  () => new Cancelled("by nobody"),
  () => new AggregateError([1, 2], ""),
  () => Object.assign(new AggregateError([]), { errors: 5 }),
  () => Object.defineProperty(new Error("a"), "constructor", { get: fails }),
  () => Object.create(Error.prototype),
  () => Object.create(ownPrototype()),
  () => Object.create(revoked({})),
  () => ({ __proto__: Outcome.prototype, outcome: "explode" }),
  () => new Error("x".repeat(1_000_000)),
  () => new Map([[1, 2]]),
  () => new Date(NaN),
  () => new Array(1e9),
  () => [, 1],
  () => Object.assign([1], { extra: 1 }),
  () => new Uint8Array(10),
  () => new Blob(["x"]),
  () => (function* () {})(),
  () => Promise.reject(new Error("rejected")),
  () => Object.fromEntries(Array.from({ length: 20_000 }, (_, n) => [`k${n}`, n])),
  () => deep(5000),
  proxy,
  ownPrototype,
  endless,
  cyclic,
  cyclicCause,
  () => revoked({}),
  () => revoked([]),
  () => revoked(fails),
];

/** Values with another one in them. */
const NESTS: ((inner: unknown, random: Random) => unknown)[] = [
  (inner) => [inner],
  (inner) => ({ inner }),
  (inner) => ({ toJSON: () => inner }),
  (inner) => ({ [Symbol.toStringTag]: inner }),
  (inner) => ({ then: inner }),
  (inner) => ({ then: (_: unknown, reject: (error: unknown) => void) => (reject(inner), reject(1)) }),
  (inner) => ({ then: (resolve: (value: unknown) => void) => (resolve(1), resolve(inner), fails()) }),
  (inner) => new Error("outer", { cause: inner }),
  (inner) => new AggregateError([inner, inner], "several"),
  (inner, random) => Object.defineProperty(new Error("a"), random.pick(["message", "name", "stack", "cause"]), { value: inner }),
  (_, random) => withGetter(new Error("a"), random.pick(["message", "name", "stack", "cause", "constructor"])),
  (inner, random) => withGetter({ inner }, random.pick(["a", "then", "toJSON", Symbol.toStringTag, "constructor"])),
  (inner, random) => {
    const made = new (random.pick([Fail, Dead, Retry, Wait]))("on purpose", { cause: inner });
    return Object.defineProperty(made, random.pick(["kind", "outcome", "afterMs", "message", "name"]), { value: inner });
  },
  (_, random) => withGetter(new (random.pick([Fail, Retry]))("on purpose"), random.pick(["kind", "outcome", "afterMs"])),
];

/** Returns the value of a seed. */
export function hostileValue(random: Random): unknown {
  let made = random.pick(LEAVES)(random);
  for (let nests = random.below(3); nests > 0; nests--) made = random.pick(NESTS)(made, random);
  return made;
}
