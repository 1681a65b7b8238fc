/**
 * Text of a value with its members, as `inspect` of Node shows it, but safe for any value: `inspect` never ends for an object
 * with an endless chain of prototypes, reads all of a million members, and calls functions of the value.
 */

import { inspect, types } from "node:util";

import { attempted, classOf, isError, isLargeInteger, messageOf, nameOf, prototypesOf } from "./shown.ts";

/** Levels of objects that are shown, members of each, and values in total. */
const MAX_LEVELS = 4;
const MAX_MEMBERS = 20;
const MAX_VALUES = 200;

const MAX_TEXT_CHARS = 2000;

/** Returns a value on one line. */
export function inspected(value: unknown): string {
  return new Inspection().text(value, 0);
}

class Inspection {
  #count = 0;

  text(value: unknown, level: number): string {
    this.#count += 1;
    if (this.#count > MAX_VALUES) return "…";
    if (types.isProxy(value)) return "[Proxy]";
    if (typeof value === "function") return `[Function: ${nameOfFunction(value)}]`;
    if (typeof value !== "object" || value === null) return primitive(value);
    return attempted(() => this.#object(value, level)) ?? `(a value of type ${classOf(value)} that throws when it is read)`;
  }

  #object(value: object, level: number): string {
    const prototype = Object.getPrototypeOf(value) as object | null;
    if (prototype && !prototypesOf(value).length) return "(an object whose prototypes cannot be read)";
    if (isError(value)) return `[${nameOf(value)}: ${messageOf(value)}]`;
    if (types.isDate(value) || types.isRegExp(value)) return inspect(value);
    if (ArrayBuffer.isView(value)) return `[${classOf(value)} of ${value.byteLength} bytes]`;
    if (level === MAX_LEVELS) return `[${classOf(value)}]`;
    if (types.isMap(value)) return `Map ${this.#list(Map.prototype.entries.call(value), value.size, level)}`;
    if (types.isSet(value)) return `Set ${this.#list(Set.prototype.values.call(value), value.size, level)}`;
    if (Array.isArray(value)) return this.#list(value.slice(0, MAX_MEMBERS), value.length, level);
    const name = prefix(value, prototype);
    const members = this.#members(value, level);
    if (members) return `${name}{ ${members} }`;
    // The contents of a class without members are elsewhere.
    return name && prototype ? `[${classOf(value)}]` : `${name}{}`;
  }

  #list(items: Iterable<unknown>, length: number, level: number): string {
    const shown = Iterator.from(items)
      .take(MAX_MEMBERS)
      .map((item) => this.text(item, level + 1))
      .toArray();
    if (length > MAX_MEMBERS) shown.push(`… ${length - MAX_MEMBERS} more`);
    return shown.length ? `[ ${shown.join(", ")} ]` : "[]";
  }

  #members(value: object, level: number): string {
    const shown: string[] = [];
    const names = Reflect.ownKeys(value);
    for (const [index, name] of names.entries()) {
      if (shown.length === MAX_MEMBERS) {
        shown.push(`… ${names.length - index} more`);
        break;
      }
      const member = Object.getOwnPropertyDescriptor(value, name);
      if (!member?.enumerable) continue;
      shown.push(`${label(name)}: ${"value" in member ? this.text(member.value, level + 1) : "[Getter]"}`);
    }
    return shown.join(", ");
  }
}

function primitive(value: unknown): string {
  if (typeof value === "string") return inspect(value.slice(0, MAX_TEXT_CHARS), { breakLength: Infinity });
  return typeof value === "bigint" && isLargeInteger(value) ? "(an integer with too many digits)" : inspect(value);
}

function nameOfFunction(value: object): string {
  const name: unknown = attempted(() => (value as { name?: unknown }).name);
  return typeof name === "string" && name ? name.slice(0, 64) : "(anonymous)";
}

function label(name: string | symbol): string {
  if (typeof name === "symbol") return `[${String(name).slice(0, 64)}]`;
  return /^[A-Za-z_$][\w$]*$/.test(name) ? name.slice(0, 64) : inspect(name.slice(0, 64));
}

/** Returns the class of an object, if it has one. */
function prefix(value: object, prototype: object | null): string {
  if (prototype === null) return "[Object: null prototype] ";
  const name = classOf(value);
  return name === "Object" || name === "Array" ? "" : `${name} `;
}
