/** Test app whose tasks do what their params say: for trees that run both in a test and on a fleet. */

import { App, type Call, type CallOptions, Dead, Fail, Joined, Retry, Unsuccessful } from "kafleet";

/** What a task does. */
export interface Plan {
  /** Outcomes of its attempts; later attempts succeed. */
  outcomes?: string[];
  output?: unknown;
  children?: Planned[];
  /** Children that are published at once, also by attempts that fail. */
  now?: Planned[];
  then?: Planned[];
}

/** A task that another one creates. */
export interface Planned {
  plan: Plan;
  type?: "node" | "skips" | "joins";
  options?: CallOptions;
  /** Continuations that its creator gives it. */
  after?: Planned[];
}

export const app = new App();

async function act(plan: Plan, cx: any): Promise<unknown> {
  await cx.spawnNow((plan.now ?? []).map(callOf));
  for (const child of plan.children ?? []) await cx.spawn(callOf(child));
  for (const next of plan.then ?? []) cx.then(callOf(next));
  console.log("attempt", cx.number);
  const outcome = plan.outcomes?.[cx.number - 1];
  if (outcome === "fail") throw new Fail("it fails", { kind: "bad" });
  if (outcome === "unsuccessful") throw new Unsuccessful("it is unsuccessful");
  if (outcome === "dead") throw new Dead("it is dead");
  if (outcome === "retry") throw new Retry("busy", { kind: "busy", after: 1 });
  if (outcome === "range") throw new RangeError("out of range");
  if (outcome === "type") throw new TypeError("no type");
  if (!(cx instanceof Joined)) return plan.output ?? null;
  const { task, results } = cx;
  return [task, ...results].map(({ id, state, output, error }) => [id, state, output ?? null, error?.kind ?? null]);
}

const policy = { retries: 2, minBackoff: "1ms", maxBackoff: "2ms", failOn: [RangeError], retryOn: ["bad"] } as const;

export const node = app.task("node", { ...policy, joined: "optional" }, (plan: Plan, cx) => act(plan, cx));

export const skips = app.task("skips", { ...policy, onError: "skip", failOn: ["*"], joined: "optional" }, (plan: Plan, cx) => {
  return act(plan, cx);
});

export const joins = app.joined("joins", (plan: Plan, cx: Joined) => act(plan, cx));

const types = { node, skips, joins };

export function callOf({ type = "node", plan, options, after }: Planned): Call {
  return types[type].call(plan, { ...options, ...(after && { then: after.map(callOf) }) });
}
