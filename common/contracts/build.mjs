// Compiles the contracts with the pinned solc and writes one artifact per contract: its ABI, its bytecode and the
// names of its errors. `node build.mjs [folder]`; without a folder, into artifacts/, which is committed.
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

const compile = () => {
  const input = {
    language: "Solidity",
    sources: Object.fromEntries(CONTRACTS.map((name) => [`src/${name}.sol`, { content: read(`src/${name}.sol`) }])),
    settings: {
      optimizer: { enabled: setting("optimizer"), runs: setting("optimizer_runs") },
      viaIR: setting("via_ir"),
      evmVersion: setting("evm_version"),
      metadata: { bytecodeHash: setting("bytecode_hash"), appendCBOR: setting("cbor_metadata") },
      outputSelection: { "*": { "*": ["abi", "evm.bytecode.object", "evm.deployedBytecode.object"] } },
    },
  };
  const callbacks = { import: (path) => ({ contents: read(path) }) };
  const output = JSON.parse(solc.compile(JSON.stringify(input), callbacks));
  const complaints = (output.errors ?? [])
    .filter(({ errorCode }) => errorCode !== CLEARS_TRANSIENT_STORAGE)
    .map((error) => error.formattedMessage);
  if (complaints.length > 0) throw new Error(complaints.join("\n")); // a warning is as bad as an error
  return output.contracts;
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

const folder = process.argv[2] ?? join(here, "artifacts");
const compiled = compile();
mkdirSync(folder, { recursive: true });
for (const name of CONTRACTS) {
  const text = JSON.stringify(artifact(name, compiled[`src/${name}.sol`][name]), null, 2);
  writeFileSync(join(folder, `${name}.json`), `${text}\n`);
}
