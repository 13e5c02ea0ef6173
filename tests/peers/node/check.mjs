// Runs the check of every vector file: `node check.mjs`. Each `checks/*.mjs` exports `checks`: by the name of a file in
// tests/vectors, a function of one case, which throws an error if a case that must be accepted fails, and
// Refused(<failure class>) for bytes that it rejects.
// Vectors and checks are matched by name in both directions, so a missing check or vector is an error.

import { readdir, readFile } from "node:fs/promises";

import { Refused } from "./refused.mjs";

const VECTORS = new URL("../../vectors/", import.meta.url);
const CHECKS = new URL("./checks/", import.meta.url);

async function failureOf(accept, one) {
  try {
    await accept(one);
  } catch (error) {
    if (!(error instanceof Refused)) return error.message;
    if (error.failure === one.refused) return null;
    return `refused as ${error.failure}, expected ${one.refused ?? "acceptance"}`;
  }
  return one.refused === undefined ? null : `accepted, expected a refusal as ${one.refused}`;
}

async function namesIn(folder, ending) {
  return (await readdir(folder)).filter((name) => name.endsWith(ending)).sort();
}

let passed = 0;
const failures = [];
const unchecked = new Set(await namesIn(VECTORS, ".json"));

for (const name of await namesIn(CHECKS, ".mjs")) {
  const { checks } = await import(new URL(name, CHECKS));
  for (const [vectors, accept] of Object.entries(checks)) {
    unchecked.delete(vectors);
    const { cases } = JSON.parse(await readFile(new URL(vectors, VECTORS), "utf8"));
    if (!Array.isArray(cases) || cases.length === 0) failures.push(`${vectors}: no cases`);
    for (const one of cases ?? []) {
      const failure = await failureOf(accept, one);
      if (failure === null) passed += 1;
      else failures.push(`${vectors}: ${one.name}: ${failure}`);
    }
  }
}
for (const name of unchecked) failures.push(`${name}: no check reads it`);

for (const failure of failures) console.error(`FAILED ${failure}`);
console.log(`node ${process.versions.node}: ${passed} passed, ${failures.length} failed`);
process.exitCode = failures.length > 0 || passed === 0 ? 1 : 0;
