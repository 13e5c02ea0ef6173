// A compiler that stays loaded. Reads one request per line, and writes one answer per line.
//
//     {"sources": {"src/X.sol": "…"}, "wanted": ["X"], "settings": {…}}  ->  {"X": {"creation": "…", "runtime": "…"}}
//                                                                          or {"error": "…"}
//
// Imports that the request lacks are read from the folder given as the only argument.
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";

const folder = process.argv[2];
const solc = createRequire(join(folder, "package.json"))("solc");
const kept = {};

const read = (path) => {
  const place = path.startsWith("@") ? join(folder, "node_modules", path) : join(folder, path);
  return (kept[path] ??= existsSync(place) ? readFileSync(place, "utf8") : "");
};

const closure = (path, given, found = {}) => {
  if (path in found) return found;
  found[path] = { content: given[path] ?? read(path) };
  for (const [, imported] of found[path].content.matchAll(/^import\s[^"]*"([^"]+)";/gm)) {
    closure(imported.startsWith(".") ? join(dirname(path), imported) : imported, given, found);
  }
  return found;
};

const compile = ({ sources, wanted, settings }) => {
  const answer = {};
  for (const name of wanted) {
    const path = `src/${name}.sol`;
    const outputSelection = { [path]: { [name]: ["evm.bytecode.object", "evm.deployedBytecode.object"] } };
    const input = { language: "Solidity", sources: closure(path, sources), settings: { ...settings, outputSelection } };
    const output = JSON.parse(solc.compile(JSON.stringify(input)));
    const errors = (output.errors ?? []).filter(({ severity }) => severity === "error");
    if (errors.length > 0) return { error: errors[0].formattedMessage };
    const { bytecode, deployedBytecode } = output.contracts[path][name].evm;
    answer[name] = { creation: `0x${bytecode.object}`, runtime: `0x${deployedBytecode.object}` };
  }
  return answer;
};

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(compile(JSON.parse(line)))}\n`);
}
