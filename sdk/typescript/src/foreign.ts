/** Names of BullMQ and Celery, each with the form that works here. Underscores and capitals do not count in options. */

type Forms = ReadonlyMap<string, string>;

/** Returns forms by their names. Each row has names that one form replaces. */
function forms(...rows: [names: string, form: string][]): Forms {
  return new Map(rows.flatMap(([names, form]) => names.split(" ").map((name): [string, string] => [name, form])));
}

const SUBMIT = "write `task.submit(params, options)`";
const CALL = "write `task.call(params)`";
const BULK = "write `app.submitMany([task.call(params), …])`";
const SCHEDULE = 'write `app.schedule("0 3 * * *", task)`';
const TOPIC = 'each type has a topic of its own; many small tasks share one as `app.bundle("small")`';
const HANDLER = 'write `app.task("name", { … }, async (params, cx) => …)`, with the handler last';
const SPAWN = "write `cx.spawn(task, params)` in the handler of the parent";
const PROGRESS = "write `cx.progress(value)`";
const FAIL = 'write `throw new Fail("…")`';
const WAIT = 'write `throw new Wait("busy", { after: "30s" })`';
const EVENTS = "write `for await (const status of handle.watch())`";
const UNIQUE = "write `id`: a task with the id and the params of another one is not created again";
const FLEET = "the fleet has Kafka and Redis, and a client the URL of the API in KAFLEET_API or `new App({ api })`";

/** Options of jobs, queues, workers and tasks. */
const OPTIONS = forms(
  ["attempts", "write `retries: 4` for 5 attempts"],
  ["maxRetries", "write `retries: 5`"],
  ["backoff defaultRetryDelay retryBackoff", 'write `minBackoff: "1s"`, which doubles with each attempt up to `maxBackoff`'],
  ["retryBackoffMax", 'write `maxBackoff: "10m"`'],
  ["retryJitter", "remove it: up to 20 % are added to each backoff"],
  ["autoretryFor throws", "each error is retried: list those that are not, such as `failOn: [RangeError]`"],
  ["timeLimit", 'write `timeout: "60s"`'],
  ["softTimeLimit", 'write `softTimeout: "50s"` in the options of a type'],
  ["jobId taskId", 'write `id: "cover-42"`'],
  ["debounce deduplication", UNIQUE],
  ["countdown", 'write `delay: "60s"`'],
  ["eta", "write `at: new Date(…)`"],
  ["cron every pattern repeat", SCHEDULE],
  ["timezone tz", 'write `zone: "Europe/Berlin"`'],
  ["limiter", 'write `rate: { count: 10, per: "1s" }` in the options of a type'],
  ["rateLimit", 'write `rate: { count: 10, per: "1m" }` in the options of a type'],
  ["concurrency", "write `slots: 10` in `new App(…)` for the attempts of a process, or `concurrency` in the options of a type"],
  ["priority", "there are no priorities: declare a type for each, with its own `concurrency`"],
  ["lifo", "remove it: tasks start in the order of their topic; a type of its own overtakes others"],
  ["parent", `${SPAWN}, or \`parent\` in the options of \`submit\``],
  ["children", SPAWN],
  ["failParentOnFailure", "remove it: a failed child fails its parent"],
  ["ignoreDependencyOnFailure removeDependencyOnFailure", 'write `onFailure: "ignore"` for the child'],
  ["continueParentOnFailure", 'write `failFast: true` for the parent, with a continuation `on: "failed"`'],
  ["linkError", 'write `then: [task.call(params, { on: "failed" })]`'],
  ["handler process processor", HANDLER],
  ["args data kwargs", "params come before the options: `task.submit(params, options)`"],
  ["opts", "options are an argument of their own: `task.submit(params, options)`"],
  ["defaultJobOptions settings", 'write the policy in the declaration: `app.task("name", { retries: 5 }, handler)`'],
  ["exchange queue queueName routingKey", TOPIC],
  ["backend broker connection prefix redis", `remove it: ${FLEET}`],
  ["removeOnComplete removeOnFail", "remove it: `retention` of the type in kafleet.toml says how long a task is kept"],
  ["keepLogs", "remove it: the newest 1,000 lines of a task are kept"],
  ["stackTraceLimit", "remove it: the log of the task has the stack"],
  ["trackStarted", "remove it: the status has the state `running`"],
  ["ignoreResult", "remove it: the result of a handler that returns nothing is null"],
  ["compression serializer", "remove it: params and results are JSON"],
  ["base", "remove it: `app.around(…)` runs code around each attempt"],
  ["bind", "remove it: the second parameter of the handler is its context"],
  ["useWorkerThreads", "remove it: attempts run in processes of their own"],
  [
    "acksLate lockDuration maxStalledCount rejectOnWorkerLost stalledInterval visibilityTimeout",
    "remove it: a task whose worker dies runs again, and `stallTimeout` ends attempts that report nothing",
  ],
);

/** Methods of queues and tasks, for a task type. */
export const TASK_METHODS = forms(
  ["add apply_async applyAsync delay enqueue trigger", SUBMIT],
  ["addBulk", BULK],
  ["s si signature", CALL],
  ["document", "write `task.call(params)` where a call is needed"],
  ["apply", "write `trial(task, params)` of `kafleet/testing`, or `task.fn(params, cx)`"],
  ["getJob", "write `task.handle(id)`"],
  ["on", EVENTS],
  ["process", HANDLER],
  ["repeat upsertJobScheduler", SCHEDULE],
);

/** Methods of queues and apps, for an app. */
export const APP_METHODS = forms(
  ["add", SUBMIT],
  ["addBulk", BULK],
  ["process", HANDLER],
  ["queue", TOPIC],
  ["send_task sendTask", 'write `app.remote("name").submit(params)`'],
  ["upsertJobScheduler", SCHEDULE],
);

/** Methods of jobs, for a context. */
export const CONTEXT_METHODS = forms(
  ["discard", FAIL],
  ["extendLock", "write `cx.heartbeat()`"],
  ["getChildrenValues", "declare a continuation with `upstream`, or with `app.joined`, which has `cx.results`"],
  ["moveToDelayed", WAIT],
  ["retry", 'write `throw new Retry("busy", { after: "30s" })`'],
  ["update_state updateProgress", PROGRESS],
  ["updateData", `params do not change: ${PROGRESS}`],
);

/** Classes that a program may try to import. */
const CLASSES = forms(
  ["Celery", "write `new App()`"],
  ["DelayedError RateLimitError", WAIT],
  [
    "FlowProducer",
    "write `chain(…)`, `group(…)` or `chord(…)`; in a handler `cx.spawn(task, params)` and `cx.then(task, params)`",
  ],
  ["Job", "write `import type { Context }`"],
  ["Queue Worker", HANDLER],
  ["QueueEvents", "write `for await (const { ids } of app.events())`, or of one task `handle.watch()`"],
  ["UnrecoverableError", FAIL],
);

const plain = (name: string) => name.replaceAll("_", "").toLowerCase();
const options = new Map([...OPTIONS].map(([name, form]) => [plain(name), form]));

/** Returns the form that works instead of an option of BullMQ or Celery; nothing for other names. */
export function formOfOption(name: string): string | undefined {
  return options.get(plain(name.slice(0, 64)));
}

/** Returns the form that works instead of a class of BullMQ or Celery; nothing for other names. */
export function formOfClass(name: string): string | undefined {
  return CLASSES.get(name);
}

/** Gives the objects of a class methods that do not exist here. Each throws a `TypeError` with the form that works. */
export function refuseMethods(prototype: object, owner: string, methods: Forms): void {
  for (const [name, form] of methods) {
    if (name in prototype) continue;
    const value = () => {
      throw new TypeError(`\`${name}\` is not a method of ${owner}; hint: ${form}`);
    };
    Object.defineProperty(prototype, name, { value, configurable: true, writable: true });
  }
}
