import { strictEqual } from "node:assert";

import nacl from "tweetnacl";

import { hex, unhex } from "../bytes.mjs";
import { Refused } from "../refused.mjs";
import { openSealed, publicKey } from "../sealed_box.mjs";

export const vectors = "sealed_box_keys.json";

export function accept(one) {
  if (one.sealed !== undefined) {
    const plaintext = openSealed(unhex(one.secret), unhex(one.sealed));
    if (plaintext === null) throw new Refused("does_not_open");
    strictEqual(hex(plaintext), one.plaintext);
    return;
  }
  const key = publicKey(unhex(one.public));
  strictEqual(hex(nacl.scalarMult.base(unhex(one.secret))), hex(key));
}
