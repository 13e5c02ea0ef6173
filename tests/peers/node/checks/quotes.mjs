import { deepStrictEqual } from "node:assert";

import { Refused } from "../refused.mjs";

export const vectors = "quotes.json";

const max = (a, b) => (a > b ? a : b);
const price = (rateIn, rateOut, unitsIn, unitsOut) =>
  max(1n, (rateIn * unitsIn + rateOut * unitsOut + 999_999n) / 1_000_000n);

export function accept(one) {
  const number = (name) => BigInt(one[name]);
  const rates = [number("rate_in"), number("rate_out"), number("units_in")];
  if (number("completion_tok") > number("units_out")) throw new Refused("too_many_units");
  const cap = price(...rates, number("units_out"));
  if (cap >= 1n << 128n) throw new Refused("cap_overflow");
  const fee = (cap * number("fee_bps")) / 10_000n;
  const amount = cap + fee + number("gas_fee");
  const provider = price(...rates, number("completion_tok"));
  const treasury = (provider * number("fee_bps")) / 10_000n + number("gas_fee");
  const owner = amount - provider - treasury;
  for (const [name, value] of Object.entries({ cap, fee, amount, provider, treasury, owner })) {
    deepStrictEqual([name, value], [name, number(name)]);
  }
}
