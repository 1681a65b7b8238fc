// @ts-check
/** Selection of a whole page, and buttons that press those of the frame. */

/** @param {Event} event */
function toggleWholePage(event) {
  const all = event.target;
  if (!(all instanceof HTMLInputElement) || !all.matches("[data-whole-page]")) return;
  for (const box of all.closest("table")?.querySelectorAll("td.check input") ?? []) {
    // A click also marks the row.
    if (box instanceof HTMLInputElement && box.checked !== all.checked) box.click();
  }
}

/** @param {Event} event */
function pressOther(event) {
  const button = event.target instanceof Element ? event.target.closest("[data-press]") : null;
  if (!(button instanceof HTMLElement)) return;
  document.getElementById(button.dataset.press ?? "")?.click();
  for (const all of document.querySelectorAll("[data-whole-page]")) {
    if (all instanceof HTMLInputElement && button.dataset.press === "clear-selection") all.checked = false;
  }
}

export function start() {
  document.addEventListener("change", toggleWholePage);
  document.addEventListener("click", pressOther);
}
