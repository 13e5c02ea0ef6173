import { strictEqual } from "node:assert";

import { unhex, utf8 } from "../bytes.mjs";
import { canonical, parse } from "../strict_json.mjs";

export const vectors = "strict_json.json";

export function accept(one) {
  const value = parse(one.hex === undefined ? utf8(one.text) : unhex(one.hex));
  const spelled = canonical(value);
  strictEqual(spelled, one.canonical);
  strictEqual(canonical(parse(utf8(spelled))), spelled);
}
