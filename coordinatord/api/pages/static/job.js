// One job: a timeline with its transactions, and its remaining time.

import { get, getIfAny, models } from "./api.js";
import { blockAt, blockTimes } from "./blocks.js";
import { facts, h, hex } from "./dom.js";
import { clock, maxPayment, number, span, stateOf, tokens } from "./format.js";
import { badge, modelLink, providerLink, rates, windowOf } from "./parts.js";
import { countdown, elapsedBar, when } from "./times.js";

const ENDS = {
  1: ["Settled", "The provider delivered the result and was paid for the used units. The rest was refunded."],
  2: ["Cancelled", "The owner cancelled the job while it was open."],
  3: ["Failed", "The provider failed the job. The payment was refunded."],
  4: ["Refunded", "The provider missed the window. The payment was refunded."],
  5: ["Expired", "No provider claimed the job in time. Nothing was charged."],
};

export function job([id]) {
  return {
    title: `Job ${id.slice(0, 10)}…`,
    heading: h("span", {}, "Job ", hex(id, { what: "job id" })),
    back: ["#/book", "Book"],
    async read() {
      const [row, detail, sent, catalogue] = await Promise.all([
        get(`/evm/jobs/${id}`),
        getIfAny(`/v1/jobs/${id}`),
        getIfAny(`/evm/jobs/${id}/transactions`),
        models(),
      ]);
      const why = row.state === 0 ? await getIfAny(`/v1/jobs/${id}/why`) : null;
      delete row.as_of_block;
      if (why) delete why.as_of_block;
      const transactions = sent?.transactions ?? [];
      const times = await blockTimes([row.posted_block, ...transactions.map((each) => each.block_number)]);
      return { row, detail, sent: transactions, times, why, catalogue };
    },
    show({ row, detail, sent, times, why, catalogue }, about) {
      const ends = deadline(row, detail);
      return [
        h("p", { class: "headline" }, badge(row), " ", sentence(row, ends)),
        row.state === 1 && elapsedBar(row.claimed_at, ends),
        why && waiting(why),
        h("h2", {}, "Timeline"),
        h("ol", { class: "timeline" }, ...steps(row, detail, sent, times, ends)),
        h("h2", {}, "The order"),
        facts(
          ["Model", modelLink(row.model_id, catalogue)],
          ["Owner", hex(row.owner, { what: "owner" })],
          ...(detail?.svc.cost ? paid(detail.svc, about.token_domain.name)
            : [["At most", tokens(detail?.svc.amount ?? maxPayment(row)), h("span", { class: "faint" },
              ` ${about.token_domain.name}${detail?.svc.amount ? ", with all fees" : ", plus the market’s fees"}`)]]),
          ["Rates", rates(row), h("span", { class: "faint" }, " per million units in / out")],
          ["Units", `${number(row.units_in)} in, up to ${number(row.units_out)} out`],
          ["Window", windowOf(row.sla_secs)],
          ["Open to", row.designated === "0" ? "any provider (sealed to the coordinator’s escrow)" : providerLink(row.designated)],
          ["Claimable until", clock(row.expires_at)],
          ["Sealed payload", hex(row.task_cid, { what: "content id", href: link(about, row.task_cid) })],
          row.result_cid && ["Sealed result", hex(row.result_cid, { what: "content id", href: link(about, row.result_cid) })],
          ["Commitment", hex(row.c, { what: "commitment" })],
        ),
      ];
    },
  };
}

// Total cost of a settled job with its parts, and the refunded part of the amount that its claim collected.
function paid({ cost, cost_parts: parts, amount }, token) {
  const faint = (words) => h("span", { class: "faint" }, words);
  return [
    ["Total cost", tokens(cost), faint(` ${token}`),
      parts && h("span", { class: "said" }, `provider ${tokens(parts.provider)}, market’s fee ${tokens(parts.fee)}, relaying fee ${tokens(parts.gas_fee)}`)],
    amount && ["Refunded", tokens(BigInt(amount) - BigInt(cost)), faint(` ${token}`), h("span", { class: "said" }, `of ${tokens(amount)} paid at the claim`)],
  ];
}

// The coordinator's explanation of why no provider claims an open job, and possible remedies.
function waiting(why) {
  const known = Object.keys(HELP);
  const helps = why.would_help.filter((each) => known.includes(each.change));
  return h("section", { class: "card", "aria-labelledby": "waiting" },
    h("h2", { id: "waiting" }, "Why no provider has claimed it"),
    h("p", {}, sentenceOf(why.said)),
    helps.length > 0 && h("ul", {}, helps.map((each) =>
      h("li", {}, HELP[each.change](each.value), h("span", { class: "faint" }, ` – ${number(each.providers)} ${String(each.providers) === "1" ? "provider" : "providers"} could then take it`)))),
    why.providers.length > 0 && h("details", { "data-key": "each provider" }, h("summary", {}, "Each provider"),
      h("ul", {}, why.providers.map((each) => h("li", {}, providerLink(each.provider_id), ": ",
        each.takes ? "would take it" : each.reasons.map((reason) => reason.said).join("; "))))));
}

const HELP = {
  rates: (value) => `Order again at ${tokens(value.rate_in)} in and ${tokens(value.rate_out)} out per million units`,
  window: (value) => `Order again with a window of ${span(value.sla_secs)}`,
  designated: () => "Order again for any provider, or for another provider",
  funds: (value) => `Raise the owner’s balance to ${tokens(value.balance)} or more`,
};

function sentenceOf(words) {
  return words === "" ? "" : `${words[0].toUpperCase()}${words.slice(1)}.`;
}

function estimate(detail) {
  const block = detail?.svc?.reclaimable_block;
  return block ? ` (estimate: from block ${number(block)} on)` : "";
}

function deadline(row, detail) {
  if (row.state !== 1) return null;
  return Number(detail?.reclaimable_at ?? row.reclaimable_at ?? BigInt(row.claimed_at) + BigInt(row.sla_secs));
}

function sentence(row, ends) {
  if (row.state === 0) return h("span", {}, "Waits for a provider. If unclaimed, the job expires in ", countdown(row.expires_at, "a moment"), ", and nothing is charged.");
  if (row.state === 1) return h("span", {}, providerLink(row.provider_id), " works on it. If the job is not settled in ", countdown(ends, "a moment"), ", the payment goes back to its owner.");
  return h("span", {}, (ENDS[row.ended_because] ?? ["", "The job has ended."])[1]);
}

function steps(row, detail, sent, times, ends) {
  const of = (...kinds) => sent.filter((each) => kinds.includes(each.kind));
  const post = of("post");
  const list = [step("done", "Posted", post.length > 0 && times.has(row.posted_block) ? [when(times.get(row.posted_block))] : blockAt(row.posted_block, times), post, times)];
  if (row.claimed_at !== "0") {
    list.push(step("done", "Claimed", [when(row.claimed_at), " by ", providerLink(row.provider_id), "; the payment moved into the contract"], of("claim"), times));
  }
  if (row.state === 0) {
    list.push(step("next", "Claim", [`possible until ${clock(row.expires_at)}`], []));
  } else if (row.state === 1) {
    list.push(step("next", "Settle", [`due by ${clock(ends)}; from then on the payment can be reclaimed for the owner${estimate(detail)}`], []));
  } else {
    const at = detail?.ended_at ?? row.ended_at;
    const used = row.state === 2 ? `${number(row.completion_tok)} units of output. ` : "";
    const [kind] = stateOf(row);
    list.push(step(kind, (ENDS[row.ended_because] ?? ["Ended"])[0], [at ? when(at) : "", at ? ". " : "", used], of("settle", "fail", "cancel", "reclaim", "end"), times));
  }
  return list;
}

function step(kind, name, said, transactions, times = new Map()) {
  return h("li", { class: kind }, h("strong", {}, name), said.length > 0 && h("span", { class: "said" }, said),
    transactions.map((each) => h("span", { class: "said" }, each.block_number ? `Block ${number(each.block_number)}${at(each, times)}, transaction ` : "Transaction ", hex(each.tx_hash, { what: "transaction" }))));
}

function at(transaction, times) {
  const time = times.get(transaction.block_number);
  return time === undefined ? "" : ` (${clock(time)})`;
}

// The gateway is an unverified setting of the operator, so only http(s) URLs become links.
function link(about, cid) {
  if (!about.gateway_url || !/^[a-zA-Z0-9]+$/.test(cid ?? "")) return null;
  try {
    const to = new URL(`${about.gateway_url.replace(/\/$/, "")}/ipfs/${cid}`);
    return ["https:", "http:"].includes(to.protocol) ? to.href : null;
  } catch {
    return null;
  }
}
