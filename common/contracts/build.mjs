// Compiles the contracts with the pinned solc and writes one artifact per contract: its ABI, its bytecode and the
// names of its errors; and sources.json, what they were compiled from, for explorers to verify deployments by.
// `node build.mjs [folder]`: into folder/artifacts and folder/sources.json; without a folder, here, to be committed.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const CONTRACTS = ["AskRegistry", "DevToken", "IssuedToken", "IssuedTokenProxy", "JobRegistry", "ProviderRegistry"];

// The warning asks whether transient storage is cleared at the end of each call: the re-entrancy guard and the relay's
// mark, its only users, are.
const CLEARS_TRANSIENT_STORAGE = "2394";

const here = dirname(fileURLToPath(import.meta.url));
const require = createRequire(import.meta.url);
const solc = require("solc");
const { keccak256 } = createRequire(require.resolve("solc"))("js-sha3"); // the hash that solc itself runs on

// What is deployed and what forge tests are compiled alike: the settings stand in foundry.toml only.
const setting = (name) => {
  const line = readFileSync(join(here, "foundry.toml"), "utf8").match(new RegExp(`^${name} *= *(.+?) *(#.*)?$`, "m"));
  if (line === null) throw new Error(`foundry.toml does not set ${name}`);
  return JSON.parse(line[1]);
};

// The compiler sees paths inside this folder only, so that artifacts do not depend on where it lies.
const read = (path) => readFileSync(path.startsWith("@") ? join(here, "node_modules", path) : join(here, path), "utf8");

const SETTINGS = {
  optimizer: { enabled: setting("optimizer"), runs: setting("optimizer_runs") },
  viaIR: setting("via_ir"),
  evmVersion: setting("evm_version"),
  metadata: { bytecodeHash: setting("bytecode_hash"), appendCBOR: setting("cbor_metadata") },
  outputSelection: { "*": { "*": ["abi", "evm.bytecode.object", "evm.deployedBytecode.object"] } },
};

// Each from its own sources and nothing else: what an explorer is given compiles to the same bytes.
const compile = (name, sources) => {
  const input = { language: "Solidity", sources, settings: SETTINGS };
  const output = JSON.parse(solc.compile(JSON.stringify(input)));
  const complaints = (output.errors ?? [])
    .filter(({ errorCode }) => errorCode !== CLEARS_TRANSIENT_STORAGE)
    .map((error) => error.formattedMessage);
  if (complaints.length > 0) throw new Error(complaints.join("\n")); // a warning is as bad as an error
  return output.contracts[`src/${name}.sol`][name];
};

// Every source that a contract needs, by path: its own, and whatever these import.
const closure = (path, found = {}) => {
  if (path in found) return found;
  found[path] = { content: read(path) };
  for (const [, imported] of found[path].content.matchAll(/^import\s[^"]*"([^"]+)";/gm)) {
    closure(imported.startsWith(".") ? join(dirname(path), imported) : imported, found);
  }
  return found;
};

const selector = ({ name, inputs }) =>
  `0x${keccak256(`${name}(${inputs.map((input) => input.type).join(",")})`).slice(0, 8)}`;

const artifact = (contractName, { abi, evm }) => {
  const errors = abi.filter((entry) => entry.type === "error").map((entry) => [selector(entry), entry.name]);
  return {
    contractName,
    abi,
    bytecode: `0x${evm.bytecode.object}`,
    deployedBytecode: `0x${evm.deployedBytecode.object}`,
    errors: Object.fromEntries(errors.sort()),
  };
};

const folder = process.argv[2] ?? here;
mkdirSync(join(folder, "artifacts"), { recursive: true });
const write = (path, value) => writeFileSync(join(folder, path), `${JSON.stringify(value, null, 2)}\n`);

const written = { compiler: `v${solc.version().split(".Emscripten")[0]}`, settings: SETTINGS, contracts: {}, sources: {} };
for (const name of CONTRACTS) {
  const sources = closure(`src/${name}.sol`);
  write(`artifacts/${name}.json`, artifact(name, compile(name, sources)));
  written.contracts[name] = Object.keys(sources).sort();
  for (const [path, { content }] of Object.entries(sources)) written.sources[path] = content;
}
write("sources.json", written);
