// @ts-check
/** Changes the page into another version of itself. Nodes stay the same where they match. */

import { isReading } from "./page.js";

/** Properties of one update of the page. */
export class Update {
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

/** @param {Node} live @param {Node} wanted @param {Update} update */
export function morph(live, wanted, update) {
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
const isOwn = (of, name) => name === "data-selected" || (name === "open" && of.matches("details, dialog"));

/** @param {Element} live @param {Element} wanted */
export function morphAttributes(live, wanted) {
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
