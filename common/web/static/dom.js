// Create elements from plain values. All text, including published text, becomes text nodes: no markup is ever parsed.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// Replace the content of a container. Keep the focus on the matching link or button, and keep expanded parts expanded, so
// that a refresh does not disturb keyboard users.
export function replaceContent(container, ...children) {
  const active = document.activeElement;
  const key = container.contains(active) && active !== container ? keyOf(active) : null;
  const open = new Set([...container.querySelectorAll("details[open][data-key]")].map((each) => each.dataset.key));
  container.replaceChildren(...children.flat(Infinity).filter(Boolean));
  for (const each of container.querySelectorAll("details[data-key]")) each.open ||= open.has(each.dataset.key);
  if (key === null) return;
  const successor = [...container.querySelectorAll("a, button, summary, input, select")].find((each) => keyOf(each) === key);
  successor?.focus({ preventScroll: true });
}

function keyOf(element) {
  return element.id || element.dataset.key || element.getAttribute("href") || element.textContent;
}

// A table of columns {label, cell, num, wide, wider}. `wide` columns are hidden on phones, `wider` also on tablets.
export function table(caption, columns, rows, empty) {
  if (rows.length === 0) return h("p", { class: "empty" }, empty);
  const kind = (column) => [column.num && "num", column.wide && "wide", column.wider && "wide wider"].filter(Boolean).join(" ") || null;
  return h("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" },
    h("table", {},
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", class: kind(column) }, column.label)))),
      h("tbody", {}, rows.map((row) =>
        h("tr", {}, columns.map((column, n) =>
          h(n === 0 ? "th" : "td", { scope: n === 0 ? "row" : null, class: kind(column) }, column.cell(row))))))));
}

// A bar that shows `value` as a part of `max`. It is an SVG, because browsers draw <meter> in different heights.
export function gauge(value, max, label) {
  const part = max > 0 ? Math.min(1, Math.max(0, value / max)) : 0;
  return svg("svg", { class: "gauge", viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": Math.max(max, value, 1), "aria-valuenow": value },
    svg("rect", { class: "bar-rest", width: 100, height: 8 }),
    svg("rect", { class: "bar-day", width: 100 * part, height: 8 }));
}

export function facts(...pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, ...value]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

// Shortened hex. The copy button and the tooltip have the whole value.
export function hex(value, { href = null, what = "value" } = {}) {
  if (!value) return h("span", { class: "faint" }, "–");
  const text = String(value);
  const short = text.length > 20 ? `${text.slice(0, 8)}…${text.slice(-6)}` : text;
  const shown = href === null ? h("code", { title: text }, short) : h("a", { href, title: text }, h("code", {}, short));
  return h("span", { class: "hex" }, shown, copyButton(text, what));
}

export function copyButton(text, what) {
  const button = h("button", { type: "button", class: "copy", "aria-label": `Copy ${what} ${text.slice(0, 10)}`, "data-key": `copy ${text}` },
    svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" },
      svg("path", { d: "M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8z" })));
  button.addEventListener("click", async () => {
    const copied = await copy(text);
    button.dataset.said = copied ? "copied" : "select it by hand";
    setTimeout(() => delete button.dataset.said, 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
