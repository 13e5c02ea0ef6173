import { strictEqual } from "node:assert";

import { solidityPackedKeccak256 } from "ethers";

export const vectors = "job_id.json";

export function accept(one) {
  strictEqual(solidityPackedKeccak256(["address", "bytes32"], [one.owner, one.c]), one.job_id);
}
