import { readFileSync } from "node:fs";
import { createConfig } from "ponder";

const artifact = new URL("../../../common/contracts/artifacts/JobRegistry.json", import.meta.url);

const given = (name: string): string => {
  const value = process.env[name];
  if (!value) throw new Error(`missing: ${name}`);
  return value;
};

export default createConfig({
  database: { kind: "postgres", connectionString: given("DATABASE_URL") },
  chains: {
    local: {
      id: Number(given("CHAIN_ID")),
      rpc: given("RPC_URL"),
      pollingInterval: 100, // the shortest: the blocks that are not final to it are found by polling
    },
  },
  contracts: {
    JobRegistry: {
      chain: "local",
      abi: JSON.parse(readFileSync(artifact, "utf8")).abi,
      address: given("JOB_REGISTRY") as `0x${string}`,
      startBlock: 1,
      endBlock: Number(given("LAST_BLOCK")),
    },
  },
});
