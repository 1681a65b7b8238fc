// @ts-check
/** Selection of tasks in a list, for an action or to copy their ids. */

import { copy } from "./copy.js";
import { all, element, main, onClick, onUpdate, selectedRows } from "./page.js";

/** Rows of other things than tasks have no id to copy. @param {Element | null} row @param {boolean} [isSelected] */
export function toggleRow(row, isSelected) {
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
  for (const box of all("[data-whole-page]", main)) {
    /** @type {HTMLInputElement} */ (box).checked = count > 0 && count === all("td.check input", main).length;
  }
}

/** Id of the task of a row, without the prefix of its list. @param {Element} row */
export const taskOf = (row) => row.id.slice(row.id.indexOf("-") + 1);

/** @param {Event} event */
function changed({ target }) {
  if (!(target instanceof HTMLInputElement)) return;
  if (target.matches("td.check input")) toggleRow(target.closest("tr"), target.checked);
  if (target.matches("[data-whole-page]")) all("table.tasks tbody tr", main).forEach((row) => toggleRow(row, target.checked));
}

export function start() {
  element("copy-ids").addEventListener("click", () => copy(selectedRows().map(taskOf).join("\n")));
  element("clear-selection").addEventListener("click", () => selectedRows().forEach((row) => toggleRow(row)));
  onClick("main tbody tr[id]", (row, { ctrlKey, metaKey, target }) => {
    if ((ctrlKey || metaKey) && !(target instanceof Element && target.closest("a, button"))) toggleRow(row);
  });
  onClick("[data-press]", (button) => element(button.dataset.press ?? "").click());
  document.addEventListener("input", changed);
  onUpdate(showSelection);
}
