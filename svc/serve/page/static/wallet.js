// The wallet that pays: its balance, and its address as text and as a QR code.

import { endSession, get } from "./api.js";
import { copyButton, facts, h, hex, svg } from "./dom.js";
import { tokens } from "./format.js";

const QUIET_MODULES = 4; // light modules around the code, as its standard asks

export function wallet() {
  return {
    title: "Wallet",
    lead: "svc serve pays from this wallet, up to its budgets. Its key is on your machine and never in this page.",
    read: () => get("/page/wallet"),
    show({ address, chain_id, paytoken, balance, qr }, { token, base_url, key }) {
      return [
        h("div", { class: "wallet card" },
          drawQrCode(qr, address),
          h("div", {},
            h("p", { class: "faint" }, "Balance"),
            balance === null
              ? h("p", {}, h("strong", {}, "not known"), h("span", { class: "faint" }, " – start svc serve with --rpc-url to read it from the chain"))
              : h("p", { class: "balance num" }, tokens(balance), " ", h("span", { class: "faint" }, token)),
            h("p", { class: "faint" }, "Address"),
            h("p", { class: "address" }, h("code", {}, address), " ", copyButton(address, "address")),
            h("p", { class: "faint" }, `To add funds, send ${token} to this address on chain ${chain_id}.`))),
        h("h2", {}, "Connected to"),
        facts(
          ["Chain", String(chain_id)],
          ["Payment token", token, " ", hex(paytoken, { what: "address of the payment token" })],
          ["For OpenAI clients", h("code", {}, base_url), copyButton(base_url, "base_url")],
          ["This page buys as", `key ${key}`],
        ),
        h("p", { class: "actions" }, h("button", { id: "lock", type: "button", onclick: () => endSession().finally(() => location.reload()) }, "Lock this page")),
      ];
    },
  };
}

function drawQrCode({ width, rows }, address) {
  const side = width + 2 * QUIET_MODULES;
  const path = rows.flatMap((row, y) => [...row].map((module, x) => (module === "1" ? `M${x + QUIET_MODULES} ${y + QUIET_MODULES}h1v1h-1z` : ""))).join("");
  return svg("svg", { class: "qr", viewBox: `0 0 ${side} ${side}`, role: "img", "aria-label": `QR code of the address ${address}` },
    svg("rect", { width: side, height: side, class: "qr-light" }), svg("path", { d: path, class: "qr-dark" }));
}
