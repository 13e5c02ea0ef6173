// Charts as inline SVG: medians over time with a band from lowest to highest, and shares. A table or text beside each chart
// shows the same numbers.

import { h, svg, table } from "./dom.js";
import { clock, moment, number, tokens } from "./format.js";

const HEIGHT = 200;
const LEFT = 52;
const BOTTOM = 24;
const TOP = 10;
const RIGHT = 10;

// points: [{since, low, median, high, jobs}], amounts as BigInt, in order of time.
export function priceChart(title, points) {
  const width = innerWidth < 740 ? 300 : 560; // equal to the drawn width, so that the text is not scaled
  const highest = points.reduce((most, point) => (point.high > most ? point.high : most), 1n);
  const x = scaleOf(points.map((point) => Number(point.since)), LEFT, width - RIGHT);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - Number((value * 10_000n) / highest) / 10_000);
  const label = `${title}: median ${tokens(points.at(-1).median)} now, between ${tokens(lowestOf(points))} and ${tokens(highest)} over ${points.length} periods.`;
  const upper = points.map((point) => `${x(Number(point.since))},${y(point.high)}`);
  const lower = points.map((point) => `${x(Number(point.since))},${y(point.low)}`).reverse();
  const middle = points.map((point) => `${x(Number(point.since))},${y(point.median)}`);
  const lines = [0n, highest / 2n, highest];
  return h("figure", { class: "chart" },
    h("figcaption", {}, title, " ", h("strong", { class: "num" }, tokens(points.at(-1).median))),
    svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label },
      lines.map((value) => svg("g", { class: "grid" },
        svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
        svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, tokens(value)))),
      points.length > 1 && svg("polygon", { class: "band", points: [...upper, ...lower].join(" ") }),
      points.length > 1 && svg("polyline", { class: "line", points: middle.join(" ") }),
      points.length <= 24 && points.map((point) =>
        svg("circle", { class: "point", cx: x(Number(point.since)), cy: y(point.median), r: 3 })),
      svg("text", { class: "tick", x: LEFT, y: HEIGHT - 6 }, moment(points[0].since)),
      points.length > 1 &&
        svg("text", { class: "tick", x: width - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, moment(points.at(-1).since))),
    h("details", { "data-key": `numbers of ${title}` }, h("summary", {}, "The numbers"),
      table(title, [
        { label: "From", cell: (point) => clock(point.since) },
        { label: "Jobs", num: true, cell: (point) => number(point.jobs) },
        { label: "Low", num: true, cell: (point) => tokens(point.low) },
        { label: "Median", num: true, cell: (point) => tokens(point.median) },
        { label: "High", num: true, cell: (point) => tokens(point.high) },
      ], points, "")));
}

// Line chart as high as a line of text. `label` describes it for screen readers.
export function sparkline(values, label) {
  const highest = values.reduce((most, value) => (value > most ? value : most), 1n);
  const x = scaleOf(values.map((_, n) => n), 2, 94);
  const points = values.map((value, n) => `${x(n)},${22 - 18 * (Number((value * 1000n) / highest) / 1000)}`);
  return svg("svg", { class: "spark", viewBox: "0 0 96 24", role: "img", "aria-label": label },
    values.length > 1 ? svg("polyline", { class: "line", points: points.join(" ") })
      : svg("circle", { class: "point", cx: 48, cy: points[0].split(",")[1], r: 2.5 }));
}

export function pointsOf(history, rate) {
  return history.prices.map((period) => ({
    since: period.since,
    jobs: period.jobs,
    low: BigInt(period[rate].low),
    median: BigInt(period[rate].median),
    high: BigInt(period[rate].high),
  }));
}

function scaleOf(values, from, to) {
  const first = values[0];
  const whole = values.at(-1) - first;
  return (value) => (whole === 0 ? (from + to) / 2 : from + ((to - from) * (value - first)) / whole);
}

function lowestOf(points) {
  return points.reduce((low, point) => (point.low < low ? point.low : low), points[0].low);
}

// Horizontal bars of named parts, the largest first: {name, value, note}, values as BigInt. The numbers are beside the bars.
export function shareBars(title, parts, unit) {
  if (parts.length === 0) return h("p", { class: "empty" }, "Nothing yet.");
  const highest = parts.reduce((most, part) => (part.value > most ? part.value : most), 1n);
  return h("ul", { class: "share-bars", "aria-label": title }, parts.map((part) =>
    h("li", {},
      h("span", { class: "name" }, part.name),
      svg("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", { class: "bar-rest", width: 100, height: 6 }),
        svg("rect", { class: "bar-day", width: Number((part.value * 1000n) / highest) / 10, height: 6 })),
      h("span", { class: "num" }, `${tokens(part.value)} ${unit}`),
      h("span", { class: "faint num" }, part.note))));
}
