// @ts-check
/**
 * Live updates, dialogs, keys, selection, suggestions, ages, and copying. Every page reads and acts without this file; elements that
 * need it have the class `app` and are hidden until it runs.
 */

/** Properties of one update of the page. */
class Update {
  /** @param {boolean} forced The reader has asked for it: nothing is held back. */
  constructor(forced) {
    this.forced = forced;
    /** New rows that are held back. */
    this.added = 0;
    /** Any difference that is held back. */
    this.incomplete = false;
  }

  /** Whether rows of a list must stay where they are. @param {Element} list */
  holds(list) {
    const isList = list.matches("tbody, ol.log") && [...list.children].some((row) => row.id);
    return isList && !this.forced && (isReading() || list.matches(":hover"));
  }
}

const root = document.documentElement;
const base = root.dataset.base ?? "";
/** @type {(text: string) => string} */
const createHTML = (text) => text;
const policy = /** @type {any} */ (window).trustedTypes?.createPolicy("kafleet", { createHTML }) ?? { createHTML };

/** Element of the frame, which exists on every page with a session. @param {string} id */
const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
/** @param {string} id */
const dialogOf = (id) => /** @type {HTMLDialogElement} */ (document.getElementById(id));
/** @param {string} selector @param {ParentNode} [within] @returns {HTMLElement[]} */
const all = (selector, within = document) =>
  [...within.querySelectorAll(selector)].filter((found) => found instanceof HTMLElement);

/** Parses a page, and returns its `<main>`. The only function that parses HTML. @param {string} text */
function parseMain(text) {
  const main = new DOMParser().parseFromString(policy.createHTML(text), "text/html").querySelector("main");
  if (!main) throw new Error("the response is not a page");
  return main;
}

// Morph: changes the page into another version of itself. Nodes stay the same where they match.

/** @param {Node} live @param {Node} wanted @param {Update} update */
function morph(live, wanted, update) {
  if (!(live instanceof Element) || !(wanted instanceof Element)) {
    if (live.nodeValue !== wanted.nodeValue) live.nodeValue = wanted.nodeValue;
    return;
  }
  if (live.hasAttribute("data-keep") || isInUse(live)) return;
  morphAttributes(live, wanted);
  if (live instanceof HTMLTextAreaElement) live.defaultValue = wanted.textContent ?? "";
  else morphChildren(live, wanted, update);
}

/** Whether a control has the focus, or a value that the reader has entered. @param {Element} control */
function isInUse(control) {
  if (control instanceof HTMLInputElement) {
    const isChanged = control.value !== control.defaultValue || control.checked !== control.defaultChecked;
    return isChanged || control === document.activeElement;
  }
  if (control instanceof HTMLTextAreaElement) {
    return control.value !== control.defaultValue || control === document.activeElement;
  }
  if (!(control instanceof HTMLSelectElement)) return false;
  const initial = Math.max(0, [...control.options].findIndex((option) => option.defaultSelected));
  return control.selectedIndex !== initial || control === document.activeElement;
}

/** Whether an attribute belongs to the reader or to this script. @param {Element} of @param {string} name */
function isOwn(of, name) {
  if (name === "open") return of.matches("details, dialog");
  return name === "data-age" || name === "data-recent" || name === "data-selected" || (name === "title" && of.localName === "time");
}

/** @param {Element} live @param {Element} wanted */
function morphAttributes(live, wanted) {
  for (const { name } of [...live.attributes]) {
    if (!wanted.hasAttribute(name) && !isOwn(live, name)) live.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (live.getAttribute(name) !== value && !isOwn(live, name)) live.setAttribute(name, value);
  }
  if (live instanceof HTMLInputElement && live.type !== "file") {
    live.value = live.defaultValue;
    live.checked = live.defaultChecked;
  }
}

/** Elements match by id, other nodes by their place among those of their kind. @param {Node} node */
const keyOf = (node) => `${node.nodeName} ${idOf(node)}`;

/** Id of a node, or an empty string. The property `id` of a form is its control of that name. @param {Node} node */
const idOf = (node) => (node instanceof Element && node.getAttribute("id")) || "";

/** @param {Element} live @param {Element} wanted @param {Update} update */
function morphChildren(live, wanted, update) {
  const holds = update.holds(live);
  /** @type {Map<string, ChildNode[]>} */
  const unmatched = new Map();
  for (const node of live.childNodes) {
    if (isKept(node) && !idOf(node)) continue;
    const same = unmatched.get(keyOf(node));
    if (same) same.push(node);
    else unmatched.set(keyOf(node), [node]);
  }
  /** @type {Node[]} */
  const result = [];
  for (const next of wanted.childNodes) {
    const match = unmatched.get(keyOf(next))?.shift();
    if (match) morph(match, next, update);
    else if (holds) update.added += 1;
    if (match || !holds) result.push(match ?? document.importNode(next, true));
  }
  const gone = [...unmatched.values()].flat();
  if (!holds) return arrange(live, result, gone);
  const rest = [...live.childNodes].filter((node) => !gone.includes(node));
  update.incomplete ||= update.added + gone.length > 0 || rest.some((node, at) => node !== result[at]);
}

/** Whether a node stays although the new page lacks it. @param {Node} node */
const isKept = (node) => node instanceof Element && node.hasAttribute("data-keep");

/**
 * Makes these nodes the children of an element. The child with the focus never moves: its siblings move around it.
 * @param {Element} parent @param {Node[]} children @param {ChildNode[]} gone
 */
function arrange(parent, children, gone) {
  for (const node of gone) {
    if (!isKept(node) && !node.contains(focused())) node.remove();
  }
  const known = new Set(children);
  for (const node of parent.childNodes) {
    if (known.has(node)) continue;
    const before = node.previousSibling;
    children.splice(before ? children.indexOf(before) + 1 : 0, 0, node);
  }
  const fixed = children.findIndex((node) => node.contains(focused()));
  for (let at = fixed - 1; at >= 0; at -= 1) {
    if (children[at].nextSibling !== children[at + 1]) parent.insertBefore(children[at], children[at + 1]);
  }
  for (let at = fixed + 1; at < children.length; at += 1) {
    const next = at > 0 ? children[at - 1].nextSibling : parent.firstChild;
    if (next !== children[at]) parent.insertBefore(children[at], next);
  }
}

/** Element with the focus; null if there is none. */
const focused = () => (document.activeElement === document.body ? null : document.activeElement);

// Live updates: the focused tab holds a stream, a visible one polls, a hidden one waits until it is shown.

const MAX_REQUEST_MS = 60_000;
const MAX_LOG_LINES = 5_000;
const POLL_MS = 2_000;
const SUGGEST_MS = 150;
/** Another tab may log in. */
const SIGNED_OUT_POLL_MS = 30_000;

const main = /** @type {HTMLElement} */ (document.querySelector("main"));
const topic = main.dataset.topic ?? "";
let isOn = topic !== "";
/** @type {EventSource | null} */
let stream = null;
/** Version of the page that was received last. @type {{url: string, tag: string, main: HTMLElement} | null} */
let latest = null;
let isIncomplete = false;
let isRefreshing = false;
let isStale = false;
let isForced = false;
let isFollowing = false;
let failures = 0;
let pollInterval = POLL_MS;
let refreshedAt = new Date();
let timer = 0;

/** Whether new rows would disturb the reader. */
function isReading() {
  const isTyping = document.activeElement?.matches("input:not([type=checkbox]), textarea, select") ?? false;
  const isSelecting = document.getSelection()?.isCollapsed === false || selectedRows().length > 0;
  return window.scrollY > 8 || isTyping || isSelecting || document.querySelector("dialog[open]") !== null;
}

/** Requests the `<main>` of a page. @param {string} url @param {string} [tag] */
function requestMain(url, tag = "") {
  const headers = new Headers({ accept: "text/html", "kafleet-part": "main", "if-none-match": tag });
  return fetch(url, { headers, cache: "no-store", signal: AbortSignal.timeout(MAX_REQUEST_MS) });
}

/** Fetches the page again. What becomes stale meanwhile is fetched next. */
async function refresh() {
  if (isRefreshing) {
    isStale = true;
    return;
  }
  [isRefreshing, isStale] = [true, false];
  if (stream?.readyState === EventSource.CLOSED) stream = null;
  try {
    await fetchPage();
    [failures, refreshedAt] = [0, new Date()];
  } catch (error) {
    failures += 1;
    showTrouble(`not live since ${refreshedAt.toISOString().slice(11, 19)} UTC`, "", String(error));
  }
  isRefreshing = false;
  if (isStale && failures === 0) refresh();
  else schedule();
}

/** Fetches the page, and shows what has changed. */
async function fetchPage() {
  const forced = isForced;
  const lines = isFollowing ? all("ol.log > li", main) : [];
  // Lines are numbered from 1, and asked for from 0.
  const end = /** @type {HTMLLIElement | undefined} */ (lines.at(-1))?.value;
  const url = lines.length > 0 ? `${location.pathname}?from=${end}` : location.pathname + location.search;
  const response = await requestMain(url, latest?.url === url ? latest.tag : "");
  pollInterval = Number(response.headers.get("kafleet-again")) || POLL_MS;
  if (response.status === 401) {
    const next = encodeURIComponent(location.pathname + location.search);
    pollInterval = SIGNED_OUT_POLL_MS;
    return showTrouble("signed out", `${base}/login?next=${next}`, "the session has ended");
  }
  // The subject of a page that says `not found` may appear later.
  const isMissing = response.status === 404 && main.querySelector(".problem") !== null;
  if (response.status !== 304 && !response.ok && !isMissing) throw new Error(`the server answered ${response.status}`);
  const isUpdated = response.headers.get("kafleet-build") !== root.dataset.build;
  showTrouble(isUpdated ? "updated: reload" : "", location.pathname + location.search, "the server has another build");
  if (response.status === 304) return;
  const received = { url, tag: response.headers.get("etag") ?? "", main: parseMain(await response.text()) };
  // A branch may have been opened while the response was on its way.
  if (isForced !== forced) isStale = true;
  else if (lines.length > 0) appendLines(received.main);
  else apply(received.main, forced);
  latest = received;
  if (forced) isForced = false;
}

/** Shows another version of the page. @param {HTMLElement} wanted @param {boolean} forced */
function apply(wanted, forced) {
  const update = new Update(forced);
  const state = main.dataset.state;
  morph(main, wanted, update);
  showHeldBack(update);
  afterUpdate(state);
}

/** @param {Update} update */
function showHeldBack(update) {
  isIncomplete = update.incomplete;
  element("new-rows").hidden = update.added === 0;
  element("new-rows").textContent = `${update.added} new`;
}

/** @param {string | undefined} state State before the update. */
function afterUpdate(state) {
  document.title = main.dataset.title ?? document.title;
  if (main.dataset.state !== state) announce((main.dataset.state ?? "").replaceAll("_", " "));
  showAges();
  showSelection();
}

/** Appends the new lines of a log. @param {HTMLElement} wanted */
function appendLines(wanted) {
  const list = main.querySelector("ol.log");
  const head = main.querySelector("div.head");
  const wantedHead = wanted.querySelector("div.head");
  if (!list || !head || !wantedHead) return;
  const state = main.dataset.state;
  morphAttributes(main, wanted);
  morph(head, wantedHead, new Update(true));
  const isAtEnd = window.innerHeight + window.scrollY >= document.body.scrollHeight - 40;
  const lines = all("ol.log > li", wanted).filter((line) => !document.getElementById(line.id));
  list.append(...lines.map((line) => document.importNode(line, true)));
  for (const line of all("li", list).slice(0, -MAX_LOG_LINES)) line.remove();
  if (isAtEnd && lines.length > 0) window.scrollTo({ top: document.body.scrollHeight });
  // More lines may follow those of this page.
  if (lines.length > 0) isStale = true;
  afterUpdate(state);
}

/** @param {string} text */
function announce(text) {
  element("announced").textContent = text;
}

/** @param {string} text @param {string} href @param {string} detail */
function showTrouble(text, href, detail) {
  const trouble = element("trouble");
  trouble.hidden = text === "";
  trouble.textContent = text;
  trouble.title = detail;
  if (href) trouble.setAttribute("href", href);
  else trouble.removeAttribute("href");
}

/** Opens or closes the stream, and sets the time of the next refresh. */
function schedule() {
  window.clearTimeout(timer);
  const isVisible = isOn && !document.hidden;
  if (!isVisible || !document.hasFocus()) {
    stream?.close();
    stream = null;
  } else if (!stream) {
    stream = new EventSource(`${base}/ui/live?on=${encodeURIComponent(topic)}`);
    stream.addEventListener("open", refresh);
    stream.addEventListener("stale", refresh);
    stream.addEventListener("error", schedule);
  }
  // A stream names changes only: a page that could not be fetched is fetched again without one.
  if (isVisible && (failures > 0 || stream?.readyState !== EventSource.OPEN)) {
    const wait = pollInterval * 2 ** Math.min(failures, 4);
    timer = window.setTimeout(refresh, wait * (0.75 + Math.random() / 2));
  }
}

/** Continues when the page is visible or has the focus again. A focused page is refreshed once its stream is open. */
function resume() {
  if (isOn && !document.hidden && !document.hasFocus()) refresh();
  else schedule();
}

function toggleLive() {
  if (topic === "") return;
  isOn = !isOn;
  element("live").setAttribute("aria-pressed", String(isOn));
  resume();
}

/** Shows the page of another URL with the same contents otherwise. @param {string} href */
function showBranch(href) {
  history.replaceState(null, "", href);
  isForced = true;
  refresh();
}

/** @param {HTMLElement} button */
function toggleFollow(button) {
  isFollowing = !isFollowing;
  button.setAttribute("aria-pressed", String(isFollowing));
  if (isFollowing) window.scrollTo({ top: document.body.scrollHeight });
  showHeldBack(new Update(true));
  refresh();
}

function showNewRows() {
  if (!main.querySelector("ol.log")) window.scrollTo({ top: 0 });
  if (latest) apply(latest.main, true);
}

// Dialogs: forms of actions over the page. They are submitted like those of pages.

/** @param {HTMLAnchorElement} link */
async function openForm(link) {
  const response = await requestMain(link.href).catch(() => null);
  if (!response?.ok) return location.assign(link.href);
  const form = parseMain(await response.text());
  const dialog = dialogOf("action");
  dialog.replaceChildren(...[...form.childNodes].map((node) => document.importNode(node, true)));
  dialog.setAttribute("aria-label", dialog.querySelector("h1")?.textContent ?? "");
  if (!dialog.open) dialog.showModal();
}

// Keys, except in controls and dialogs. They can be switched off, as WCAG 2.1.4 asks.

/** @type {Record<string, string>} */
const PAGES = { o: "/", t: "/tasks", f: "/failures", y: "/types", w: "/workers", s: "/schedules", n: "/new" };
/** @type {Record<string, () => void>} */
const KEYS = {
  "/": () => element("search").focus(),
  "?": () => dialogOf("keys").showModal(),
  ".": toggleLive,
  j: () => focusRow(1),
  k: () => focusRow(-1),
  x: () => toggleRow(currentRow()),
};
let isGoing = false;

/** @param {KeyboardEvent} event */
function pressed(event) {
  const isControl = event.target instanceof Element && event.target.closest("input, textarea, select, dialog");
  const isModified = event.ctrlKey || event.altKey || event.metaKey || event.isComposing;
  if (isControl || isModified || !keysAreOn()) return;
  const page = isGoing ? PAGES[event.key] : undefined;
  isGoing = event.key === "g";
  if (page) location.assign(page === "/" ? base || "/" : base + page);
  else if (KEYS[event.key]) {
    event.preventDefault();
    KEYS[event.key]();
  }
}

function keysAreOn() {
  try {
    return localStorage.getItem("kafleet-keys") !== "off";
  } catch {
    // Storage is blocked.
    return true;
  }
}

const currentRow = () => document.activeElement?.closest("tbody tr[id]") ?? null;

/** Moves the focus to another row. @param {number} step */
function focusRow(step) {
  const rows = all("tbody tr[id]", main);
  const current = rows.findIndex((row) => row === currentRow());
  const next = current < 0 ? 0 : Math.min(Math.max(current + step, 0), rows.length - 1);
  rows[next]?.querySelector("a")?.focus();
}

// Selection of rows, ages of times, and copying.

const selectedRows = () => all("tr[data-selected]", main);

/** Rows of other things than tasks have no id to copy. @param {Element | null} row @param {boolean} [isSelected] */
function toggleRow(row, isSelected) {
  if (!row?.hasAttribute("data-task")) return;
  const selected = row.toggleAttribute("data-selected", isSelected);
  const box = row.querySelector("td.check input");
  if (box instanceof HTMLInputElement) box.checked = selected;
  showSelection();
}

function showSelection() {
  const count = selectedRows().length;
  element("selection").hidden = count === 0;
  element("selected").textContent = `${count} selected`;
  for (const text of all(".choice .chosen", main)) text.textContent = count ? `${count} selected` : "the selected tasks";
}

// Suggestions of searches.

let suggesting = 0;

/** @param {Event} event */
function changed({ target, type }) {
  if (!(target instanceof HTMLInputElement)) return;
  const into = target.dataset.into && document.getElementById(target.dataset.into);
  if (into instanceof HTMLTextAreaElement && type === "input") target.files?.[0]?.text().then((text) => (into.value = text));
  if (target.matches("td.check input")) toggleRow(target.closest("tr"), target.checked);
  window.clearTimeout(suggesting);
  if (target.list?.id === "suggestions") suggesting = window.setTimeout(suggest, SUGGEST_MS, target);
}

/** Completes a search. The browser shows the list. @param {HTMLInputElement} input */
async function suggest(input) {
  const { value: q } = input;
  const at = [...q.slice(0, input.selectionStart ?? undefined)].length;
  const query = new URLSearchParams({ q, at: String(at) });
  const response = await fetch(`${base}/ui/suggestions?${query}`).catch(() => null);
  /** @type {{value: string, label: string}[]} */
  const found = response?.ok ? await response.json() : [];
  // The reader may have typed on.
  if (input.value !== q) return;
  element("suggestions").replaceChildren(...found.map(({ value, label }) => new Option(label, value)));
}

/** Copies the ids of the selected rows, without the prefixes of their lists. */
const copyIds = () => copy(selectedRows().map((row) => row.id.slice(row.id.indexOf("-") + 1)).join("\n"));

/** Times in tables and lists that are less distant are shown without their date. */
const RECENT_MS = 12 * 3_600_000;

/** Adds ages, and local times as tooltips. Texts with a clock are the time since then or until then. */
function showAges() {
  for (const time of main.querySelectorAll("time")) {
    const at = Date.parse(time.dateTime);
    if (Number.isNaN(at)) continue;
    const seconds = Math.round((Date.now() - at) / 1_000);
    const span = time.dataset.clock && spanOf(Math.max(0, seconds * Number(time.dataset.clock)), 2);
    if (!span) time.dataset.age = ageOf(seconds);
    else if (time.textContent !== span) time.textContent = span;
    time.toggleAttribute("data-recent", Math.abs(Date.now() - at) < RECENT_MS);
    if (!time.title.startsWith(`${time.dateTime}\n`)) time.title = `${time.dateTime}\n${new Date(at).toLocaleString()}`;
  }
}

/** @type {[number, string][]} */
const UNITS = [[86_400, "d"], [3_600, "h"], [60, "min"], [1, "s"]];

/** @param {number} seconds */
const ageOf = (seconds) => (seconds < 0 ? `in ${spanOf(-seconds, 1)}` : `${spanOf(seconds, 1)} ago`);

/** Span in its largest units. @param {number} seconds @param {number} most */
function spanOf(seconds, most) {
  const first = UNITS.findIndex(([unit]) => seconds >= unit);
  const units = first < 0 ? UNITS.slice(-1) : UNITS.slice(first, first + most);
  return units.map(([unit, name], n) => `${Math.floor((n > 0 ? seconds % units[n - 1][0] : seconds) / unit)} ${name}`).join(" ");
}

/** Copies text, also on pages without HTTPS. @param {string} text */
async function copy(text) {
  const area = document.createElement("textarea");
  area.value = text;
  const focus = document.activeElement;
  try {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else {
      document.body.append(area);
      area.select();
      document.execCommand("copy");
    }
    announce("copied");
  } catch {
    announce("not copied: the browser refused it");
  }
  area.remove();
  if (focus instanceof HTMLElement) focus.focus();
}

/** @param {MouseEvent} event */
function clicked(event) {
  const target = event.target instanceof Element ? event.target : null;
  const link = target?.closest("a");
  const button = target?.closest("button");
  const row = target?.closest("main tbody tr[id]") ?? null;
  if (!target || event.button !== 0) return;
  if ((event.ctrlKey || event.metaKey) && !link && !button && row) return toggleRow(row);
  if (button?.hasAttribute("data-copy")) return void copy(button.previousElementSibling?.textContent ?? "");
  if (button?.hasAttribute("data-follow")) return toggleFollow(button);
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  if (link.matches("main a[data-dialog]")) openForm(link);
  else if (link.matches("main a.toggle")) showBranch(link.href);
  else if (link.matches("dialog a[data-close]")) dialogOf("action").close();
  else return;
  event.preventDefault();
}

/** Outcomes of actions stay on the page, but not in its URL. */
function cleanUrl() {
  const url = new URL(location.href);
  const names = ["after", "control", "done"].filter((name) => url.searchParams.has(name));
  for (const name of names) url.searchParams.delete(name);
  if (names.length > 0) history.replaceState(null, "", url);
  for (const notice of all(".notice.good[role=status]", main)) notice.setAttribute("data-keep", "");
}

function start() {
  root.setAttribute("data-app", "");
  cleanUrl();
  showAges();
  element("live").hidden = topic === "";
  element("live").addEventListener("click", toggleLive);
  element("new-rows").addEventListener("click", showNewRows);
  element("copy-ids").addEventListener("click", copyIds);
  element("clear-selection").addEventListener("click", () => selectedRows().forEach((row) => toggleRow(row)));
  const keys = /** @type {HTMLInputElement} */ (element("use-keys"));
  keys.checked = keysAreOn();
  keys.addEventListener("change", () => localStorage.setItem("kafleet-keys", keys.checked ? "on" : "off"));
  document.addEventListener("click", clicked);
  for (const name of ["input", "focusin"]) document.addEventListener(name, changed);
  document.addEventListener("keydown", pressed);
  document.addEventListener("visibilitychange", resume);
  for (const name of ["focus", "pageshow"]) window.addEventListener(name, resume);
  window.addEventListener("blur", schedule);
  window.addEventListener("pagehide", () => stream?.close());
  window.setInterval(() => {
    if (document.hidden) return;
    showAges();
    if (isIncomplete && latest && !isFollowing && !isReading()) apply(latest.main, false);
  }, 1_000);
  schedule();
}

if (document.getElementById("live")) start();
