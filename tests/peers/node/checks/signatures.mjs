import { strictEqual } from "node:assert";

import { dataLength, dataSlice, recoverAddress, toBigInt } from "ethers";

import { Refused } from "../refused.mjs";

export const vectors = "signatures.json";

const ORDER = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n;

export function accept(one) {
  if (dataLength(one.signature) !== 65) throw new Refused("bad_length");
  const r = toBigInt(dataSlice(one.signature, 0, 32));
  const s = toBigInt(dataSlice(one.signature, 32, 64));
  const v = toBigInt(dataSlice(one.signature, 64));
  if (v !== 27n && v !== 28n) throw new Refused("bad_v");
  if (r === 0n) throw new Refused("r_zero");
  if (r >= ORDER) throw new Refused("r_not_below_n");
  if (s === 0n) throw new Refused("s_zero");
  if (s > ORDER / 2n) throw new Refused("high_s");
  let signer;
  try {
    signer = recoverAddress(one.digest, one.signature);
  } catch {
    throw new Refused("no_point");
  }
  strictEqual(signer.toLowerCase(), one.signer);
}
