// @ts-check
/** Live updates: the focused tab holds a stream, a visible one polls, a hidden one waits until it is shown. */

import { Update, morph, morphAttributes } from "./morph.js";
import { all, announce, base, element, isReading, main, onClick, onLink, parseMain, requestMain, root } from "./page.js";

const MAX_LOG_LINES = 5_000;
const POLL_MS = 2_000;
/** Another tab may log in. */
const SIGNED_OUT_POLL_MS = 30_000;

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
/** Time of day of the last response, in the zone of the page. */
let refreshedAt = root.dataset.time ?? "";
let timer = 0;

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
    failures = 0;
  } catch (error) {
    failures += 1;
    showTrouble(`not live since ${refreshedAt}`, "", String(error));
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
  refreshedAt = response.headers.get("kafleet-time") ?? refreshedAt;
  const icon = response.headers.get("kafleet-icon");
  if (icon) document.querySelector("link[rel=icon]")?.setAttribute("href", icon);
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
  document.dispatchEvent(new Event("kafleet-updated"));
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

export function toggleLive() {
  if (topic === "") return;
  isOn = !isOn;
  element("live").setAttribute("aria-pressed", String(isOn));
  resume();
}

/** Shows the page of another URL with the same contents otherwise. Back returns to this one. @param {HTMLAnchorElement} link */
function showBranch({ href }) {
  history.pushState(null, "", href);
  showUrl();
}

/** Shows the page of the URL in place, which is that of another branch, or the part of this page that it names. */
function showUrl() {
  if (topic === "" || latest?.url === location.pathname + location.search) return;
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

/** Shows what was held back when the reader has finished. */
function catchUp() {
  if (!document.hidden && isIncomplete && latest && !isFollowing && !isReading()) apply(latest.main, false);
}

export function start() {
  element("live").hidden = topic === "";
  element("live").addEventListener("click", toggleLive);
  element("new-rows").addEventListener("click", showNewRows);
  onLink("main a.toggle", showBranch);
  onClick("button[data-follow]", toggleFollow);
  document.addEventListener("visibilitychange", resume);
  for (const name of ["focus", "pageshow"]) window.addEventListener(name, resume);
  window.addEventListener("blur", schedule);
  window.addEventListener("popstate", showUrl);
  window.addEventListener("pagehide", () => stream?.close());
  window.setInterval(catchUp, 1_000);
  schedule();
}
