import { strictEqual } from "node:assert";

import { bareHex, base64, hexOf, hexUpto, uint } from "../scalars.mjs";

export const vectors = "scalars.json";

const READERS = { uint, hex: hexOf, bare_hex: bareHex, hex_upto: hexUpto, base64 };

export function accept(one) {
  strictEqual(READERS[one.reader](Number(one.limit), one.json).toString(), one.read);
}
