// The market: the contracts that clients sign for, who can read open orders, and the coordinator's readiness.

import { getIfAny, readiness } from "./api.js";
import { facts, h, hex, table } from "./dom.js";
import { number, span, tokens } from "./format.js";

const REASONS = {
  ready: "The index is at the chain’s head.",
  cold_start: "Nothing is indexed yet. The first read of the chain is running.",
  trailing: "The index is behind the chain, and is catching up.",
  reorg: "The index is being rebuilt after a deep reorg.",
  chain_unreachable: "The coordinator’s node does not answer.",
};
const CODES = {
  stopping: "This process is stopping. Another process takes over.",
  no_relayer_role: "The coordinator’s account may not post or settle. The market’s admin must grant it the relayer role.",
};

export function market() {
  return {
    title: "Market",
    lead: "The deployment that this coordinator serves. Compare the addresses with a source that you trust before you sign for them.",
    async read() {
      const [ready, key, listed] = await Promise.all([readiness(), getIfAny("/key"), getIfAny("/evm/allowlist?limit=100")]);
      return { ready, key: key?.evidence ?? null, allowlist: listed?.entries ?? [] };
    },
    show({ ready, key, allowlist }, about) {
      return [
        h("p", { class: "headline" },
          h("span", { class: `badge ${ready.ready ? "settled" : "failed"}` }, ready.ready ? "Ready" : "Not ready"),
          h("span", {}, CODES[ready.code] ?? REASONS[ready.reason] ?? ready.reason)),
        h("p", {}, h("a", { href: "#/buy" }, "How to buy here"), ": commands, and code for Python and OpenAI’s clients."),
        h("h2", {}, "Who can read what"),
        h("div", { class: "card" }, ...trust(key)),
        h("h2", {}, "Fees and windows"),
        facts(
          ["Fee", `${Number(about.fee_bps) / 100} % of what a job costs`],
          ["Relaying fee", `${tokens(about.gas_fee)} ${about.token_domain.name} per job`],
          ["Windows", about.windows ? about.windows.map((each) => span(each)).join(", ") : "unknown while the index is not ready"],
        ),
        h("h2", {}, "Deployment"),
        facts(
          ["Chain", about.chain_id],
          ["Payment token", `${about.token_domain.name}, ${about.decimals} decimals`, " ", hex(about.contracts.paytoken, { what: "address" })],
          ["Job registry", hex(about.contracts.job_registry, { what: "address" })],
          ["Provider registry", hex(about.contracts.provider_registry, { what: "address" })],
          ["Ask registry", hex(about.contracts.ask_registry, { what: "address" })],
          ["Gateway", about.gateway_url ? h("code", {}, about.gateway_url) : "none"],
          ["Index", `block ${ready.cursor === null ? "–" : number(ready.cursor)}, ${ready.lag === null ? "distance to the head unknown" : `${number(ready.lag)} behind the head`}`],
        ),
        allowlist.length > 0 && [
          h("h2", {}, "Escrow allowlist"),
          table("Escrow allowlist", [
            { label: "Measurement", cell: (row) => hex(row.key, { what: "measurement" }) },
            { label: "Status", cell: (row) => ["no longer listed", "may receive escrow keys", "withdrawn"][row.status] ?? String(row.status) },
          ], allowlist, ""),
        ],
      ];
    },
  };
}

function trust(key) {
  const always = h("p", {}, "An order for a named provider is sealed to that provider. No one else can read it, not even the coordinator.");
  if (key === null) return [h("p", {}, h("strong", {}, "No escrow."), " This market accepts no open offers: every order names its provider."), always];
  if ("measurement" in key) {
    return [h("p", {}, h("strong", {}, "Escrow for development."), " Open offers are sealed to keys in this coordinator’s memory, without protection by hardware. The operator of the coordinator can read them, and so can the provider that claims an offer."), always];
  }
  return [h("p", {}, h("strong", {}, "Escrow held by the operator."), " Open offers are sealed to a key of the operator. The operator can read them, and so can the provider that claims an offer. Post an open offer here only if the operator may know its content."), always];
}
