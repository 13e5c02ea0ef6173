// Charts of numbers over time: bars by day, stacked by series, and lines. A table below each chart shows the same numbers.

import { h, svg, table } from "./dom.js";
import { clock, moment } from "./format.js";

const HEIGHT = 200;
const LEFT = 64;
const BOTTOM = 24;
const TOP = 12;
const RIGHT = 10;
const COLOURS = 5; // classes s0 to s4; further series share s4, and a series with `bad` is s-bad

// days: ["2026-11-26"], without gaps. series: [{name, values, bad}] with a BigInt for each day. `format` returns a value as text.
export function dayBars(title, days, series, format, { now = null, empty }) {
  const sums = days.map((_, n) => series.reduce((sum, one) => sum + one.values[n], 0n));
  const highest = sums.reduce((most, value) => (value > most ? value : most), 0n);
  if (highest === 0n) return figure(title, now, h("p", { class: "empty" }, empty));
  const shown = series.filter((one) => one.values.some((value) => value > 0n));
  const width = drawnWidth();
  const step = (width - LEFT - RIGHT) / days.length;
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - Number((value * 10_000n) / highest) / 10_000);
  const total = sums.reduce((sum, value) => sum + value, 0n);
  const label = `${title}: ${format(total)} in ${days.length} days, at most ${format(highest)} in one day.`;
  const bars = days.map((day, n) => {
    let below = 0n;
    return shown.map((one, k) => {
      const from = below;
      below += one.values[n];
      if (one.values[n] === 0n) return null;
      return svg("rect", { class: `bar-of ${colour(one, k)}`, x: LEFT + n * step + step * 0.12, width: step * 0.76, y: y(below), height: Math.max(1, y(from) - y(below)) },
        svg("title", {}, `${day}, ${one.name}: ${format(one.values[n])}`));
    });
  });
  return figure(title, now,
    svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label },
      grid([0n, highest / 2n, highest], y, format, width), bars,
      svg("text", { class: "tick", x: LEFT, y: HEIGHT - 6 }, days[0]),
      svg("text", { class: "tick", x: width - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, days.at(-1))),
    shown.length > 1 && h("ul", { class: "legend" }, shown.map((one, k) =>
      h("li", {}, h("span", { class: `key ${colour(one, k)}`, "aria-hidden": "true" }), one.name))),
    numbers(title, [
      { label: "Day", cell: (n) => days[n] },
      ...shown.map((one) => ({ label: one.name, num: true, cell: (n) => format(one.values[n]) })),
    ], days.map((_, n) => n).filter((n) => sums[n] > 0n).reverse()));
}

// points: [{at, value}] in order of time, `at` in Unix seconds and `value` a number, or null if unknown. With `steps`, a
// value holds until the next one. `from` and `to` are the ends of the axis.
export function timeLine(title, points, format, { now = null, empty, steps = false, from = null, to = null }) {
  const known = points.filter((one) => one.value !== null);
  if (known.length === 0) return figure(title, now, h("p", { class: "empty" }, empty));
  const width = drawnWidth();
  const highest = Math.max(...known.map((one) => one.value)) || 1;
  const [first, last] = [from ?? points[0].at, to ?? points.at(-1).at];
  const x = (at) => LEFT + (width - LEFT - RIGHT) * (last === first ? 0.5 : (Math.max(at, first) - first) / (last - first));
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / highest);
  const lines = [];
  let run = [];
  for (const [n, { at, value }] of points.entries()) {
    if (value === null) {
      if (run.length > 0) lines.push(run);
      run = [];
      continue;
    }
    run.push(`${x(at)},${y(value)}`);
    if (steps) run.push(`${x(points[n + 1]?.at ?? last)},${y(value)}`);
  }
  if (run.length > 0) lines.push(run);
  const lowest = Math.min(...known.map((one) => one.value));
  const label = `${title}: ${format(known.at(-1).value)} now, between ${format(lowest)} and ${format(Math.max(...known.map((one) => one.value)))} since ${clock(first)}.`;
  return figure(title, now ?? format(known.at(-1).value),
    svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label },
      grid([0, highest / 2, highest], y, format, width),
      lines.map((line) => (line.length > 1 ? svg("polyline", { class: "line", points: line.join(" ") })
        : svg("circle", { class: "point", cx: line[0].split(",")[0], cy: line[0].split(",")[1], r: 3 }))),
      svg("text", { class: "tick", x: LEFT, y: HEIGHT - 6 }, moment(first)),
      last > first && svg("text", { class: "tick", x: width - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, moment(last))),
    numbers(title, [
      { label: "Time", cell: (point) => clock(point.at) },
      { label: title, num: true, cell: (point) => format(point.value) },
    ], [...known].reverse()));
}

function colour(series, n) {
  return series.bad ? "s-bad" : `s${Math.min(n, COLOURS - 1)}`;
}

function figure(title, now, ...children) {
  return h("figure", { class: "chart" }, h("figcaption", {}, title, " ", now !== null && h("strong", { class: "num" }, now)), children);
}

function grid(values, y, format, width) {
  return values.map((value) => svg("g", { class: "grid" },
    svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
    svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, format(value))));
}

function numbers(title, columns, rows) {
  return h("details", { "data-key": `numbers of ${title}` }, h("summary", {}, "The numbers"), table(title, columns, rows, ""));
}

// Width in CSS pixels, so that the text is not scaled.
function drawnWidth() {
  if (innerWidth < 740) return 300;
  return innerWidth < 920 ? 660 : 500; // one chart in a row, or two
}
