// Parse the parts of Prometheus' text format that this page needs: samples by name, with their labels.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
const ESCAPED = { "\\\\": "\\", '\\"': '"', "\\n": "\n" };

export function read(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const found = line.startsWith("#") ? null : line.match(SAMPLE);
    if (found === null) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(LABEL)) labels[name] = value.replace(/\\[\\"n]/g, (escape) => ESCAPED[escape]);
    if (!samples.has(found[1])) samples.set(found[1], []);
    samples.get(found[1]).push({ labels, value: Number(found[3]) });
  }
  const all = (name) => samples.get(name) ?? [];
  return {
    all,
    one: (name) => all(name)[0]?.value ?? null,
    of: (name, label, value) => all(name).find((each) => each.labels[label] === value)?.value ?? null,
    sum: (name) => all(name).reduce((sum, each) => sum + each.value, 0),
  };
}
