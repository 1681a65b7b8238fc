#!/usr/bin/env node
/** Command `kafleet`: replaces this process by the program, which then gets all signals, and the terminal, itself. */

import { findProgram } from "./program.ts";

/** Name of the variable with the id of a process that has become the program. */
const LAUNCHED = "KAFLEET_LAUNCHED";

try {
  if (!process.execve)
    throw new Error(`kafleet needs Node 22.18 or newer; this is ${process.version}; hint: install a newer Node`);
  const program = findProgram();
  const pid = String(process.pid);
  if (process.env[LAUNCHED] === pid) {
    throw new Error(
      "KAFLEET_BINARY names the command of the npm package; hint: name the program itself, or unset KAFLEET_BINARY",
    );
  }
  process.execve(program, ["kafleet", ...process.argv.slice(2)], { ...process.env, [LAUNCHED]: pid });
} catch (error) {
  console.error(`error: ${(error as Error).message.replace("; hint: ", "\n\nhint: ")}`);
  process.exitCode = 1;
}
