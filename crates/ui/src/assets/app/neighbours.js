// @ts-check
/** Previous and next task of the list that led to the page of a task. */

import { all, announce, main, onClick, storage } from "./page.js";

/** Name of the list in the storage of the tab. */
const LIST = "kafleet-list";
const MAX_TASKS = 500;

/** Keeps the tasks of a list when one of them is opened. @param {HTMLElement} opened */
function keepList(opened) {
  const links = all("tr[data-task] td.id a", opened.closest("tbody") ?? main).slice(0, MAX_TASKS);
  storage("sessionStorage")?.setItem(LIST, links.map((link) => /** @type {HTMLAnchorElement} */ (link).pathname).join("\n"));
}

/** Opens the task before or after this one. @param {number} step */
export function openNeighbour(step) {
  const paths = storage("sessionStorage")?.getItem(LIST)?.split("\n") ?? [];
  const [, task, page] = /^(.*\/tasks\/[^/]+)(\/(?:tree|timeline|log))?$/.exec(location.pathname) ?? [];
  const next = paths.includes(task) ? paths[paths.indexOf(task) + step] : undefined;
  if (next) location.assign(next + (page ?? ""));
  else announce(paths.includes(task) ? "no more tasks in this list" : "open a task from a list first");
}

export function start() {
  onClick("tr[data-task] a", keepList);
}
