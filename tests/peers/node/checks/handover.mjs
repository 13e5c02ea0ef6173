import { deepStrictEqual, strictEqual } from "node:assert";

import { hex, unhex } from "../bytes.mjs";
import { Refused } from "../refused.mjs";

export const vectors = "handover.json";

function parse(message) {
  const view = new DataView(message.buffer, message.byteOffset, message.byteLength);
  const end = message.length - 65;
  if (end < 5 || view.getUint8(0) !== 1) throw new Refused("bad_handover");
  const count = view.getUint16(3);
  if (count === 0 || end !== 5 + 40 * count) throw new Refused("bad_handover");
  const keys = [];
  for (let at = 5; at < end; at += 40) {
    keys.push({ secret: hex(message.subarray(at, at + 32)), announced_from: Number(view.getBigUint64(at + 32)) });
  }
  return { release: view.getUint16(1), keys };
}

export function accept(one) {
  const { release, keys } = parse(unhex(one.message));
  strictEqual(release, one.release);
  deepStrictEqual(keys, one.keys);
}
