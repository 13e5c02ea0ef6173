// The market: the contracts that clients sign for, who can read open orders, and the coordinator's readiness.

import { getIfAny, readiness } from "./api.js";
import { facts, h, hex, table } from "./dom.js";
import { number, span, tokens } from "./format.js";

const REASONS = {
  ready: "The index is at the chain’s head.",
  cold_start: "Nothing is indexed yet. The first read of the chain is running.",
  trailing: "The index is behind the chain and catching up.",
  reorg: "The index is being rebuilt after a deep reorg.",
  chain_unreachable: "The coordinator’s node does not answer.",
};
const CODES = {
  stopping: "This process is stopping. Another one takes over.",
  no_relayer_role: "The coordinator’s account may not post or settle. Its operator must get the relayer role granted.",
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
        h("p", {}, h("a", { href: "#/buy" }, "How to buy here"), ": lines for the command line, Python and OpenAI’s clients."),
        h("h2", {}, "Who can read what"),
        h("div", { class: "card" }, ...trust(key)),
        h("h2", {}, "Prices of the market"),
        facts(
          ["Fee", `${Number(about.fee_bps) / 100} % of what a job costs`],
          ["For relaying", `${tokens(about.gas_fee)} ${about.token_domain.name} a job`],
          ["Windows", about.windows ? about.windows.map((each) => span(each)).join(", ") : "not known while the index is not ready"],
        ),
        h("h2", {}, "Deployment"),
        facts(
          ["Chain", about.chain_id],
          ["Payment token", `${about.token_domain.name}, ${about.decimals} decimals`, " ", hex(about.contracts.paytoken, { what: "address" })],
          ["Job registry", hex(about.contracts.job_registry, { what: "address" })],
          ["Provider registry", hex(about.contracts.provider_registry, { what: "address" })],
          ["Ask registry", hex(about.contracts.ask_registry, { what: "address" })],
          ["Gateway", about.gateway_url ? h("code", {}, about.gateway_url) : "none"],
          ["Index", `block ${ready.cursor === null ? "–" : number(ready.cursor)}, ${ready.lag === null ? "distance to the head not known" : `${number(ready.lag)} behind the head`}`],
        ),
        allowlist.length > 0 && [
          h("h2", {}, "Escrow allowlist"),
          table("Escrow allowlist", [
            { label: "Measurement", cell: (row) => hex(row.key, { what: "measurement" }) },
            { label: "Says", cell: (row) => ["not listed any more", "keys may be handed to it", "withdrawn"][row.status] ?? String(row.status) },
          ], allowlist, ""),
        ],
      ];
    },
  };
}

function trust(key) {
  const always = h("p", {}, "An order for a named provider is sealed to that provider. Nobody else can read it, not even the coordinator.");
  if (key === null) return [h("p", {}, h("strong", {}, "No escrow."), " Open offers are not taken here: every order names its provider."), always];
  if ("measurement" in key) {
    return [h("p", {}, h("strong", {}, "Escrow for development."), " Open offers are sealed to keys that live in this coordinator’s memory, without hardware that proves it: whoever runs it can read them, and so can the provider that claims one."), always];
  }
  return [h("p", {}, h("strong", {}, "Escrow held by the operator."), " Open offers are sealed to a key of the operator’s: it can read them, and so can the provider that claims one. Take only open offers here whose content the operator may know."), always];
}
