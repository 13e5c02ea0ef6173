import { strictEqual } from "node:assert";

import { sha256 } from "@noble/hashes/sha2.js";

import { bigEndian, concat, hex, unhex, utf8 } from "../bytes.mjs";

export const vectors = "escrow_evidence.json";

export function accept(one) {
  if (one.kind === "report_data") {
    strictEqual(hex(sha256(concat(unhex(one.public), utf8("svc-coordinator-escrow-v1")))), one.report_data);
  } else {
    const measured = concat(utf8("svc-mock-measurement-v1"), bigEndian(one.release, 2));
    strictEqual(hex(sha256(measured)), one.measurement);
  }
}
