// Lines to copy: commands and programs, with a button that copies all of them.

import { copyButton, h } from "./dom.js";

export function lines(title, text) {
  return h("figure", { class: "lines" },
    h("figcaption", {}, title, copyButton(text, title)),
    h("pre", { tabindex: "0", role: "region", "aria-label": title }, h("code", {}, text)));
}
