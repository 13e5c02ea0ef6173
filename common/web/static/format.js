// Format amounts, times and labels. Amounts are whole numbers of base units: BigInt, never floating point.

let decimals = 6;

export function setDecimals(count) {
  decimals = count;
}

// `minDecimals`: minimum digits after the decimal point, to align the amounts of a column.
export function tokens(units, minDecimals = 2) {
  const value = BigInt(units);
  if (decimals === 0) return grouped(value.toString());
  const digits = (value < 0n ? -value : value).toString().padStart(decimals + 1, "0");
  const whole = grouped(digits.slice(0, -decimals));
  const fraction = digits.slice(-decimals).replace(/0+$/, "").padEnd(Math.min(minDecimals, decimals), "0");
  return `${value < 0n ? "−" : ""}${whole}.${fraction}`;
}

export function digitsOf(amounts) {
  return amounts.reduce((highest, amount) => Math.max(highest, tokens(amount).split(".")[1]?.length ?? 0), 2);
}

export function number(value) {
  return grouped(String(value));
}

function grouped(digits) {
  return digits.replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

// Maximum payment to a job's provider, without fees. Rates are per 10^6 units. The payment is rounded up, and at least 1.
export function maxPayment(job) {
  return payment(job, job.units_out);
}

// Payment to the provider of a settled job, without fees.
export function costOf(job) {
  return payment(job, job.completion_tok);
}

function payment(job, unitsOut) {
  const sum = BigInt(job.rate_in) * BigInt(job.units_in) + BigInt(job.rate_out) * BigInt(unitsOut);
  return sum === 0n ? 1n : (sum + 999_999n) / 1_000_000n;
}

export function clock(seconds) {
  return new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" }).format(Number(seconds) * 1000);
}

export function moment(seconds) {
  return new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" }).format(Number(seconds) * 1000);
}

export function span(seconds) {
  const all = Math.max(0, Math.round(Number(seconds)));
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => all >= size);
  if (first === -1) return "0 s";
  const [name, size] = units[first];
  const rest = units[first + 1];
  const remains = rest ? Math.floor((all % size) / rest[1]) : 0;
  return `${Math.floor(all / size)} ${name}${remains > 0 ? ` ${remains} ${rest[0]}` : ""}`;
}

export function ago(seconds, now = Date.now() / 1000) {
  const passed = now - Number(seconds);
  return passed >= 0 ? `${span(passed)} ago` : `in ${span(-passed)}`;
}

export function share(part, whole) {
  return Number(whole) === 0 ? "–" : `${Math.floor((100 * Number(part)) / Number(whole))} %`;
}

const ENDED = {
  1: ["settled", "Settled"],
  2: ["cancelled", "Cancelled"],
  3: ["failed", "Failed"],
  4: ["failed", "Refunded"],
  5: ["cancelled", "Expired"],
};

// [kind, word] of a job's state. The kind selects the colour, and the word is the label.
export function stateOf(job) {
  if (job.state === 0) return ["open", "Open"];
  if (job.state === 1) return ["claimed", "In progress"];
  return ENDED[job.ended_because] ?? ["cancelled", "Ended"];
}
