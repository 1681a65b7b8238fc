/** Names of BullMQ and Celery, each with the form that works here. Underscores and capitals do not count in options. */

/** Place of an option: the declaration of a type, or a single task. */
export type Place = "type" | "call";

type Forms = ReadonlyMap<string, string>;

/** Returns forms by their names. Each row has names that one form replaces. */
function forms(...rows: [names: string, form: string][]): Forms {
  return new Map(rows.flatMap(([names, form]) => names.split(" ").map((name): [string, string] => [name, form])));
}

const SUBMIT = "write `task.submit(params, options)`";
const CALL = "write `task.call(params)`";
const BULK = "write `app.submitMany([task.call(params), …])`";
const SCHEDULE = 'write `app.schedule("0 3 * * *", task)`, or `app.schedules.upsert("nightly", { cron: "0 3 * * *", task })`';
const TOPIC = 'each type has a topic of its own; many small tasks share one as `app.bundle("small")`';
const HANDLER = 'write `app.task("name", { … }, async (params, cx) => …)`, with the handler last';
const SPAWN = "write `cx.spawn(task, params)` in the handler of the parent";
const PROGRESS = "write `cx.progress(value)`";
const FAIL = 'write `throw new Fail("…")`';
const WAIT = 'write `throw new Wait("busy", { after: "30s" })`';
const EVENTS = "write `for await (const status of handle.watch())`";
const UNIQUE = 'write `unique: "cover-42"`: at most one task of a key is open at a time';
const FLEET = "the fleet has Kafka and Redis, and a client the URL of the API in KAFLEET_API or `new App({ api })`";
const AGAIN = "remove it: a task whose worker dies runs again, and `stallTimeout` ends attempts that report nothing";
const ALWAYS = "remove it: kafleet always does that";
const AROUND = "remove it: `app.around(…)` runs code around each attempt";
const POLICY = 'write the policy in the declaration: `app.task("name", { retries: 5 }, handler)`';
const STATE = "write `(await handle.status()).state`";
const STATUS = "write `await handle.status()`";
const RESULT = 'write `await handle.result({ timeout: "30s" })`';
const SEARCH = 'write `for await (const status of app.tasks.search("state:failed type:mail"))`';
const COUNTS = "write `await app.types()`, which has the numbers of tasks by state";
const PAUSE = 'write `app.client.request("POST", "/v1/types/mail/pause")`, and `/resume`';
const CANCEL_ALL = 'write `app.bulk.cancel("type:mail")`';
const HANDLE = "write `task.handle(id)`";

/** Options of jobs, queues, workers and tasks. `place`: the only place that has the form; default: any. */
const OPTIONS: readonly [names: string, form: string, place?: Place][] = [
  ["attempts", "write `retries: 4` for 5 attempts"],
  ["maxRetries retryKwargs", "write `retries: 5`"],
  ["backoff defaultRetryDelay retryBackoff", 'write `minBackoff: "1s"`, which doubles with each attempt up to `maxBackoff`'],
  ["retryBackoffMax", 'write `maxBackoff: "10m"`'],
  ["retryJitter", "remove it: up to 20 % are added to each backoff"],
  [
    "autoretryFor dontAutoretryFor throws",
    "each error is retried: list those that are not, such as `failOn: [RangeError]`",
    "type",
  ],
  ["timeLimit", 'write `timeout: "60s"`'],
  ["softTimeLimit", 'write `softTimeout: "50s"`', "type"],
  ["jobId taskId", 'write `id: "cover-42"`', "call"],
  ["debounce deduplication", UNIQUE, "call"],
  ["countdown", 'write `delay: "60s"`', "call"],
  ["eta", "write `at: new Date(…)`", "call"],
  ["cron every immediately nthDayOfMonth offset pattern repeat repeatJobKey runEvery schedule", SCHEDULE],
  ["startDate endDate", "write `startAt` and `endAt` in `app.schedule(…)`"],
  ["timezone tz utc", 'write `zone: "Europe/Berlin"` in `app.schedule("0 3 * * *", task, { … })`'],
  ["limiter", 'write `rate: { count: 10, per: "1s" }`', "type"],
  ["rateLimit", 'write `rate: { count: 10, per: "1m" }`', "type"],
  ["concurrency", "write `slots: 10` in `new App(…)` for the attempts of a process, or `concurrency` in the options of a type"],
  ["priority", "there are no priorities: declare a type for each, with its own `concurrency`"],
  ["lifo", "remove it: tasks start in the order of their topic; a type of its own overtakes others"],
  ["parent", `${SPAWN}, or \`parent\` in the options of \`submit\``],
  ["parentId rootId", "write `parent`", "call"],
  ["children", SPAWN],
  ["chain", "write `chain(task.call(params), …)`"],
  ["chord", "write `chord([…], body)`"],
  ["failParentOnFailure", "remove it: a failed child fails its parent"],
  ["ignoreDependencyOnFailure removeDependencyOnFailure", 'write `onFailure: "ignore"` for the child', "call"],
  ["continueParentOnFailure", 'write `failFast: true` for the parent, with a continuation `on: "failed"`'],
  ["link", "write `then: [task.call(params)]`", "call"],
  ["linkError", 'write `then: [task.call(params, { on: "failed" })]`', "call"],
  ["groupId", 'write `tags: ["import-42"]`', "call"],
  ["shadow", "write `name`", "call"],
  ["group retention", "remove it: `[types.NAME]` of kafleet.toml has it", "type"],
  ["handler process processor", HANDLER],
  ["args data kwargs", "params come before the options: `task.submit(params, options)`"],
  ["opts", "options are an argument of their own: `task.submit(params, options)`"],
  ["abstract defaultJobOptions lazy resultreprMaxsize settings", POLICY],
  ["exchange queue queueName routeName router routingKey", TOPIC],
  ["backend broker connection prefix redis", `remove it: ${FLEET}`],
  ["removeOnComplete removeOnFail", "remove it: `retention` of the type in kafleet.toml says how long a task is kept"],
  ["storeErrorsEvenIfIgnored", "remove it: `retention` of the type in kafleet.toml says how long a task is kept"],
  ["keepLogs", "remove it: the newest 1,000 lines of a task are kept"],
  ["stackTraceLimit", "remove it: the log of the task has the stack"],
  ["trackStarted", "remove it: the status has the state `running`"],
  ["ignoreResult", "remove it: the result of a handler that returns nothing is null"],
  ["compression serializer", "remove it: params and results are JSON"],
  [
    "pydantic pydanticContext pydanticDumpKwargs pydanticStrict typing",
    "write the schema of the params: `params: z.object({ … })`",
  ],
  ["sizeLimit", "remove it: params have at most 1 MiB; pass links to larger data"],
  ["afterReturn base beforeStart onRetry onSuccess", AROUND],
  ["bind", "remove it: the second parameter of the handler is its context"],
  ["useWorkerThreads", "remove it: attempts run in processes of their own"],
  ["drainDelay metrics telemetry", "remove it: docs/metrics.md lists what the roles measure"],
  ["addToParent autorun publisher producer retry retryPolicy sendEvents shared trail", ALWAYS],
  ["argsrepr correlationId deliveryMode groupIndex kwargsrepr prevMillis stampedHeaders taskType timestamp", ALWAYS],
  ["acksLate acksOnFailureOrTimeout rejectOnWorkerLost visibilityTimeout", AGAIN],
  ["lockDuration lockRenewTime maxStalledCount maxStartedAttempts stalledInterval skipLockRenewal skipStalledCheck", AGAIN],
];

/** Methods of queues and tasks, for a task type. */
export const TASK_METHODS = forms(
  ["add apply_async delay enqueue trigger", SUBMIT],
  ["addBulk", BULK],
  ["s si signature signature_from_request subtask", CALL],
  ["document", "write `task.call(params)` where a call is needed"],
  ["apply", "write `trial(task, params)` of `kafleet/testing`, or `task.fn(params, cx)`"],
  ["AsyncResult getJob", HANDLE],
  ["on send_event", EVENTS],
  ["process", HANDLER],
  ["getJobSchedulers getRepeatableJobs", "write `await app.schedules.list()`"],
  ["repeat upsertJobScheduler", SCHEDULE],
  ["removeJobScheduler removeRepeatable", 'write `app.schedules.delete("nightly")`'],
  ["getActive getCompleted getDelayed getFailed getJobs getWaiting", SEARCH],
  ["getJobCountByTypes getJobCounts isPaused", COUNTS],
  ["pause resume", PAUSE],
  ["clean drain obliterate", CANCEL_ALL],
  ["retryJobs", 'write `app.bulk.retry("type:mail state:failed")`'],
  ["promoteJobs", 'write `app.bulk.startNow("type:mail")`'],
  ["setGlobalConcurrency", "write `maxConcurrency` in the options of the type"],
  ["waitUntilReady", "remove it: a client connects with its first request"],
  ["retry", 'write `throw new Retry("busy", { after: "30s" })`'],
  ["update_state", PROGRESS],
  ["replace", "write `cx.then(task, params)`"],
  ["after_return before_start on_failure on_retry on_success", "write `app.around(…)`"],
);

/** Properties of tasks that do not exist, for a task type. */
export const TASK_PROPERTIES = forms(
  ["acks_late autoretry_for default_retry_delay max_retries rate_limit soft_time_limit time_limit", POLICY],
  ["client", "write `app.client`"],
  ["request", "write `async (params, cx) => …`: the context is the second parameter"],
);

/** Methods of queues and apps, for an app. */
export const APP_METHODS = forms(
  ["add", SUBMIT],
  ["addBulk", BULK],
  ["process shared_task Task", HANDLER],
  ["getQueue queue", TOPIC],
  ["send_task signature", 'write `app.remote("name").submit(params)`'],
  ["add_periodic_task upsertJobScheduler", SCHEDULE],
  ["AsyncResult GroupResult getJob", "write `app.handle(id)`"],
  ["getJobCounts", COUNTS],
  ["pause resume", PAUSE],
  ["obliterate", CANCEL_ALL],
  ["autodiscover_tasks finalize", 'write `new App({ include: ["./tasks/*.ts"] })`'],
  ["config_from_envvar config_from_object set_default setup_security", "settings are in kafleet.toml"],
  ["now", "write `new Date()`"],
  ["start worker_main", "write `kafleet worker --app tasks.ts` on the command line"],
);

/** Properties of apps that do not exist, for an app. */
export const APP_PROPERTIES = forms(
  ["amqp backend conf pool", "settings are in kafleet.toml"],
  ["control", "write `task.handle(id).cancel()`, or use `kafleet` on the command line"],
  ["on_after_configure on_after_finalize", SCHEDULE],
);

/** Methods of jobs, for a context. */
export const CONTEXT_METHODS = forms(
  ["discard moveToFailed", FAIL],
  ["extendLock", "write `cx.heartbeat()`"],
  ["getChildrenValues getDependencies", "declare a continuation with `upstream`, or with `app.joined`, which has `cx.results`"],
  ["moveToCompleted", "write `return result`"],
  ["moveToDelayed", WAIT],
  ["moveToWaitingChildren", "remove it: a task waits for what it has spawned"],
  ["retry", 'write `throw new Retry("busy", { after: "30s" })`'],
  ["update_state updateProgress", PROGRESS],
  ["updateData", `params do not change: ${PROGRESS}`],
  ["addJob add_to_chord apply_async", "write `cx.spawn(task, params)`"],
  ["replace", "write `cx.then(task, params)`"],
  ["isFailed", "write `await app.handle(cx.id).status()`"],
);

/** Properties of jobs that do not exist, for a context. */
export const CONTEXT_PROPERTIES = forms(
  ["attemptsMade max_retries retries", "write `cx.number`, the number of the attempt from 1"],
  ["called_directly delivery_info is_eager token", "remove it: an attempt is the same everywhere"],
  ["data", "the params are the first parameter of the handler"],
  ["failedReason parent_id root_id", "write `await app.handle(cx.id).status()`"],
  ["opts", "write `cx.options`, `cx.headers` or `cx.tags`"],
  ["request", "write `cx.id`, `cx.number` and others of the context itself"],
);

/** Methods of jobs and results, for a handle. */
export const HANDLE_METHODS = forms(
  ["collect get maybe_throw waitUntilFinished wait", RESULT],
  ["failed getState isActive isCompleted isDelayed isFailed isWaiting isWaitingChildren ready successful", STATE],
  ["discard moveToFailed remove revoke", "write `handle.cancel()`"],
  ["build_graph getDependencies iterdeps", "write `await handle.tree()`"],
  ["changeDelay", 'write `handle.patch({ delay: "30s" })`'],
  ["changePriority", "there are no priorities: declare a type for each, with its own `concurrency`"],
  ["forget", "remove it: `retention` of the type in kafleet.toml says how long a task is kept"],
  ["getChildrenValues", "write `await handle.tree()`, or declare a continuation with `upstream`"],
  ["get_leaf", "write `await handle.finalResult()`"],
  ["logs", "write `await handle.log()`"],
  ["on", EVENTS],
  ["promote", "write `handle.startNow()`"],
  ["updateData updateProgress", "write `cx.progress(value)` in the handler"],
);

/** Properties of jobs and results that do not exist, for a handle. */
export const HANDLE_PROPERTIES = forms(
  ["attemptsMade date_done failedReason finishedOn info processedOn progress traceback", STATUS],
  ["data opts", "write `await handle.params()`"],
  ["graph", "write `await handle.tree()`"],
  ["returnvalue", RESULT],
  ["state", STATE],
  ["task_id", "write `handle.id`"],
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
const options = new Map(
  OPTIONS.flatMap(([names, form, place]) =>
    names.split(" ").map((name): [string, { form: string; place: Place | undefined }] => [plain(name), { form, place }]),
  ),
);

/**
 * Returns the form that works instead of an option of BullMQ or Celery; nothing for other names. `place`: where the option is
 * given; a form that belongs to another place says so.
 */
export function formOfOption(name: string, place?: Place): string | undefined {
  const found = options.get(plain(name.slice(0, 64)));
  if (found === undefined || found.place === undefined || found.place === place) return found?.form;
  return `it belongs to ${found.place === "type" ? "the type" : "a call"}: ${found.form}`;
}

/** Returns the form that works instead of a class of BullMQ or Celery; nothing for other names. */
export function formOfClass(name: string): string | undefined {
  return CLASSES.get(name);
}

/**
 * Gives the objects of a class methods and properties that do not exist here. Each throws a `TypeError` with the form that works: a
 * method where it is called, a property where it is read.
 */
export function refuseMembers(prototype: object, owner: string, methods: Forms, properties: Forms): void {
  const define = (given: string, make: (name: string) => PropertyDescriptor) => {
    const camel = given.replace(/(?<=.)_(.)/g, (_, letter: string) => letter.toUpperCase());
    for (const name of new Set([given, camel])) if (!(name in prototype)) Object.defineProperty(prototype, name, make(name));
  };
  const refuse = (kind: string, form: string) => (name: string) => () => {
    throw new TypeError(`\`${name}\` is not a ${kind} of ${owner}; hint: ${form}`);
  };
  for (const [given, form] of methods) {
    define(given, (name) => ({ value: refuse("method", form)(name), configurable: true, writable: true }));
  }
  for (const [given, form] of properties) {
    // With a setter, so that a program may still give an object a property of this name.
    const set = (name: string) =>
      function (this: object, value: unknown) {
        Object.defineProperty(this, name, { value, configurable: true, writable: true, enumerable: true });
      };
    define(given, (name) => ({ get: refuse("property", form)(name), set: set(name), configurable: true }));
  }
}
