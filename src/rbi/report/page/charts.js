// Charts as SVG: they follow the theme, print sharply, and can be read by keyboard. No data ever becomes markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "7 3", "2 2.5", "9 3 2 3", "", "5 2 1 2", "1.5 2", "12 3"];
const MAX_LINES = 8;

function element(name, attributes = {}, ...children) {
  const found = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) found.addEventListener(key.slice(2), value);
    else if (value === true) found.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) found.setAttribute(key, value);
  }
  found.append(...children.filter((child) => child !== null && child !== undefined));
  return found;
}

function shape(name, attributes = {}, text) {
  const found = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== undefined) found.setAttribute(key, value);
  if (text !== undefined) found.textContent = text;
  return found;
}

// Numbers as people write them: 12,345; 0.0123; 3.2M.
function format(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e9)) return value.toExponential(2).replace("-", "−");
  const places = size === 0 ? 0 : Math.max(0, Math.min(8, digits - 1 - Math.floor(Math.log10(size))));
  let text = value.toFixed(places);
  if (text.includes(".")) text = text.replace(/0+$/, "").replace(/\.$/, "");
  const [whole, part] = text.split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  return (part ? `${grouped}.${part}` : grouped).replace("-", "−");
}

function signed(value, digits = 4) { return value > 0 ? `+${format(value, digits)}` : format(value, digits); }

function shortNumber(value, digits) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${format(value / 1e6, digits)}M`;
  if (size >= 1e4) return `${format(value / 1e3, digits)}k`;
  return format(value, digits);
}

// With as many digits as tell the ticks of an axis apart.
function tickText(value, ticks = []) {
  let digits = 4;
  while (digits < 9 && new Set(ticks.map((t) => shortNumber(t, digits))).size < ticks.length) digits += 1;
  return shortNumber(value, digits);
}

function niceTicks(low, high, count) {
  const span = high - low;
  if (!(span > 1e-9 * Math.max(Math.abs(low), Math.abs(high))) || !Number.isFinite(span)) return [low];
  const rough = span / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough)), part = rough / power;
  const step = (part < 1.5 ? 1 : part < 3.5 ? 2 : part < 7.5 ? 5 : 10) * power;
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) found.push(Number((n * step).toPrecision(12)));
  return found;
}

function logTicks(low, high, count) {
  const found = [];
  if (!(low > 0 && high > low && Number.isFinite(high))) return [low];
  for (const steps of [[1, 2, 5], [1], null]) {
    found.length = 0;
    const every = steps === null ? Math.max(1, Math.ceil((Math.log10(high) - Math.log10(low)) / Math.max(1, count))) : 1;
    for (let n = Math.floor(Math.log10(low)); n <= Math.ceil(Math.log10(high)); n += every)
      for (const step of steps || [1]) { const at = step * 10 ** n; if (at >= low * 0.999 && at <= high * 1.001) found.push(at); }
    if (found.length <= count + 1) break;
  }
  return found;
}

const ruler = document.createElement("canvas").getContext("2d");
ruler.font = `11.5px ${getComputedStyle(document.body).fontFamily}`; // as `svg text`

function textWidth(text) { return ruler.measureText(text).width; }

// A long text without its middle: names that begin alike differ at their ends.
function shortened(text, width) {
  if (textWidth(text) <= width) return text;
  let cut = text;
  for (let most = Math.min(text.length - 1, Math.ceil(width)); most > 2 && textWidth(cut) > width; most -= 1) {
    const end = Math.floor(most / 3);
    cut = `${text.slice(0, most - end)}…${text.slice(text.length - end)}`;
  }
  return cut;
}

const onResize = []; // redraws charts whose width has changed at once: an observer is too late for printing

// Draws when the element has a width, and again when that changes.
function responsive(holder, draw) {
  let width = 0;
  const redraw = () => {
    const now = Math.floor(holder.clientWidth);
    if (now > 0 && now !== width) { width = now; draw(now); }
  };
  new ResizeObserver(redraw).observe(holder);
  onResize.push(redraw);
  return () => { width = 0; redraw(); };
}

// Lines with bands

function chooseLines(key, lines) {
  const slots = remembered(`lines:${key}`, () => lines.filter((line) => !line.thin).slice(0, MAX_LINES).map((line) => line.label));
  const color = (line) => slots.indexOf(line.thin ? line.label.split(",")[0] : line.label);
  const toggle = (label) => {
    const at = slots.indexOf(label);
    if (at >= 0) slots[at] = null;
    else {
      const free = slots.indexOf(null);
      if (free >= 0) slots[free] = label;
      else if (slots.length < MAX_LINES) slots.push(label);
      else { const replaced = remembered(`next:${key}`, () => ({ at: MAX_LINES - 1 })); slots[replaced.at] = label; replaced.at = replaced.at > 1 ? replaced.at - 1 : MAX_LINES - 1; }
    }
  };
  return { color, toggle, visible: (line) => (line.thin ? !slots.every((s) => s === null) && (color(line) >= 0 || !line.label.includes(",")) : slots.includes(line.label)) };
}

function linesPanel(panel, key) {
  const holder = element("div", { class: "plot" });
  const axisNow = () => panel.axes.find((axis) => axis.name === remembered("axis", () => ({ name: "" })).name) || panel.axes[0];
  const choice = chooseLines(key, panel.axes[0].lines);
  const legend = element("div", { class: "legend", role: "group", "aria-label": "Lines shown" });
  const head = element("div", { class: "head" }, element("h3", {}, panel.title));
  const redraw = responsive(holder, (width) => drawLines(holder, panel, axisNow(), choice, width));
  if (panel.axes.length > 1) {
    const group = element("div", { class: "axes", role: "group", "aria-label": "x-axis" });
    const mark = () => group.querySelectorAll("button").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.axis === axisNow().name)));
    for (const axis of panel.axes)
      group.append(element("button", { type: "button", "data-axis": axis.name, onclick: () => { remembered("axis", () => ({ name: "" })).name = axis.name; axisChanged(); } }, axis.name));
    head.append(group);
    mark();
    onAxisChange.push(() => { mark(); redraw(); });
  }
  const named = panel.axes[0].lines.filter((line) => !line.thin);
  if (named.length > 1) {
    for (const line of named) {
      const sample = shape("svg", { width: 22, height: 8, "aria-hidden": "true" });
      const chip = element("button", { type: "button", class: "chip", title: line.label, onclick: () => { choice.toggle(line.label); legend.dispatchEvent(new Event("redraw")); redraw(); } }, sample, element("span", {}, line.label));
      const mark = () => {
        const on = choice.visible(line), n = choice.color(line);
        chip.setAttribute("aria-pressed", String(on));
        sample.replaceChildren(shape("line", { x1: 0, x2: 22, y1: 4, y2: 4, "stroke-width": 2.4, stroke: on ? `var(--c${n})` : "var(--line)", "stroke-dasharray": on ? DASHES[n] : "" }));
      };
      legend.addEventListener("redraw", mark);
      mark();
      legend.append(chip);
    }
  }
  const all = named.length > MAX_LINES ? ` ${named.length} lines, at most ${MAX_LINES} at a time: select them above.` : "";
  return element("figure", { class: "card" }, head, holder, named.length > 1 ? legend : null, panel.note || all ? element("p", { class: "note" }, panel.note + all) : null);
}

function drawLines(holder, panel, axis, choice, width) {
  const shown = axis.lines.filter((line) => choice.visible(line));
  const named = shown.filter((line) => !line.thin);
  const points = shown.flatMap((line) => line.x.map((x, i) => [x, line.y[i]]).filter(([, y]) => y !== null));
  const height = width < 480 ? 230 : 270;
  holder.replaceChildren();
  if (!points.length) { holder.append(element("p", { class: "note" }, axis.lines.length ? "No line is selected." : "Nothing to show yet.")); return; }
  let [x0, x1] = extent(points.map((p) => p[0]));
  const bands = named.flatMap((line) => (line.low ? [...line.low, ...line.high].filter((v) => v !== null) : []));
  let [y0, y1] = panel.y_range || extent([...points.map((p) => p[1]), ...bands, ...panel.references.map((r) => r.value)]);
  if (!panel.y_range) { const room = (y1 - y0 || Math.abs(y1) || 1) * 0.06; y0 -= y0 >= 0 && y0 - room < 0 ? y0 : room; y1 += room; }
  if (x0 === x1) { const room = axis.log ? x0 * 0.5 : Math.abs(x0) || 1; x0 -= room * 0.5; x1 += room * 0.5; }
  const longest = Math.max(...named.map((line) => textWidth(line.label)), 0);
  const direct = named.length > 1 && width >= 470;
  const yTicks = niceTicks(y0, y1, 5);
  const left = Math.max(...yTicks.map((t) => textWidth(tickText(t, yTicks))), 10) + 12, right = direct ? Math.min(longest + 14, width * 0.27) : 12, top = 20, bottom = 36;
  const X = axis.log ? (v) => left + ((Math.log(v) - Math.log(x0)) / (Math.log(x1) - Math.log(x0))) * (width - left - right) : (v) => left + ((v - x0) / (x1 - x0)) * (width - left - right);
  const Y = (v) => height - bottom - ((v - y0) / (y1 - y0)) * (height - top - bottom);
  const described = named.map((line) => `${line.label}: ${format(line.y.filter((v) => v !== null).at(-1))}`).join("; ");
  const svg = shape("svg", { class: "chart lines", viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "img", "aria-label": `${panel.title}. Last values: ${described}. Arrow keys read values.` });
  const clip = `clip${(drawLines.count = (drawLines.count || 0) + 1)}`;
  const clipping = shape("clipPath", { id: clip });
  clipping.append(shape("rect", { x: left - 3, y: top - 3, width: width - left - right + 6, height: height - top - bottom + 6 }));
  svg.append(clipping);
  for (const t of yTicks) {
    svg.append(shape("line", { x1: left, x2: width - right, y1: Y(t), y2: Y(t), stroke: "var(--grid)" }));
    svg.append(shape("text", { x: left - 7, y: Y(t) + 4, "text-anchor": "end" }, tickText(t, yTicks)));
  }
  const xTicks = axis.log ? logTicks(x0, x1, width / 70) : niceTicks(x0, x1, width / 95);
  for (const t of xTicks) {
    svg.append(shape("line", { x1: X(t), x2: X(t), y1: height - bottom, y2: height - bottom + 4, stroke: "var(--muted)" }));
    svg.append(shape("text", { x: X(t), y: height - bottom + 17, "text-anchor": "middle" }, tickText(t, xTicks)));
  }
  svg.append(shape("line", { x1: left, x2: width - right, y1: height - bottom, y2: height - bottom, stroke: "var(--muted)" }));
  svg.append(shape("text", { x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" }, axis.label));
  svg.append(shape("text", { x: 0, y: 10 }, panel.y_label));
  for (const reference of panel.references) {
    if (reference.value < y0 || reference.value > y1) continue;
    svg.append(shape("line", { x1: left, x2: width - right, y1: Y(reference.value), y2: Y(reference.value), stroke: "var(--muted)", "stroke-dasharray": "2 3" }));
    if (reference.label) svg.append(shape("text", { x: width - right - 3, y: Y(reference.value) - 4, "text-anchor": "end" }, reference.label));
  }
  const inside = shape("g", { "clip-path": `url(#${clip})` });
  for (const line of named) if (line.low) {
    const edge = (values, order) => order.map((i) => `${X(line.x[i]).toFixed(1)},${Y(values[i]).toFixed(1)}`).join(" L");
    const known = line.x.map((_, i) => i).filter((i) => line.low[i] !== null && line.high[i] !== null);
    if (known.length) inside.append(shape("path", { class: "band", d: `M${edge(line.high, known)} L${edge(line.low, [...known].reverse())} Z`, fill: `var(--c${choice.color(line)})`, opacity: named.length > 4 ? 0.07 : 0.14 }));
  }
  for (const line of [...shown].reverse()) {
    const n = choice.color(line), few = line.x.length < 12 && !line.thin;
    inside.append(shape("path", { class: line.thin ? "line thin" : "line", d: pathOf(line.x.map(X), line.y.map((v) => (v === null ? null : Y(v)))), fill: "none", stroke: n < 0 ? "var(--muted)" : `var(--c${n})`, "stroke-width": line.thin ? 1.2 : n === 0 ? 2.3 : 1.8, "stroke-dasharray": line.thin ? "2 3" : DASHES[n], "stroke-linejoin": "round" }));
    if (few) line.x.forEach((x, i) => line.y[i] !== null && inside.append(shape("circle", { cx: X(x), cy: Y(line.y[i]), r: 2.6, fill: `var(--c${n})` })));
  }
  svg.append(inside);
  if (direct) {
    const labels = named.map((line) => { const i = line.y.findLastIndex((v) => v !== null); return { line, at: Math.min(height - bottom, Math.max(top, Y(line.y[i]))), from: Y(line.y[i]), x: X(line.x[i]) }; });
    spread(labels, 13, top, height - bottom);
    for (const { line, at } of labels)
      svg.append(shape("text", { class: "direct", x: width - right + 7, y: at + 4, style: null, fill: "", "data-color": choice.color(line) }, shortened(line.label, right - 8)));
    svg.querySelectorAll("text.direct").forEach((text) => { text.style.fill = `var(--c${text.dataset.color})`; });
  }
  const cursor = shape("line", { y1: top, y2: height - bottom, stroke: "var(--muted)", visibility: "hidden" });
  svg.append(cursor);
  const tip = element("div", { class: "tip", hidden: true, role: "status" });
  const xs = [...new Set(named.flatMap((line) => line.x))].sort((a, b) => a - b);
  let at = -1;
  const show = (i) => {
    at = Math.max(0, Math.min(xs.length - 1, i));
    const x = xs[at], place = X(x);
    cursor.setAttribute("x1", place); cursor.setAttribute("x2", place); cursor.setAttribute("visibility", "visible");
    tip.replaceChildren(element("div", {}, element("b", {}, `${axis.label}: ${format(x)}`)));
    for (const line of named) {
      const near = nearest(line.x, x), value = line.y[near];
      const band = line.low && line.low[near] !== null ? ` (${format(line.low[near])} to ${format(line.high[near])})` : "";
      const row = element("div", {}, `${line.label}: `, element("b", {}, format(value)), band);
      row.style.color = `var(--c${choice.color(line)})`;
      tip.append(row);
    }
    tip.hidden = false;
    const over = place > width / 2;
    tip.style.left = over ? "" : `${place + 10}px`; tip.style.right = over ? `${width - place + 10}px` : ""; tip.style.top = `${top}px`;
    tip.style.maxWidth = `${Math.max(140, (over ? place : width - place) - 14)}px`;
  };
  const hide = () => { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), place = ((event.clientX - box.left) / box.width) * width;
    let best = 0;
    xs.forEach((x, i) => { if (Math.abs(X(x) - place) < Math.abs(X(xs[best]) - place)) best = i; });
    show(best);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
    if (event.key === "Escape") hide();
    else if (event.key === "Home" || event.key === "End") { show(event.key === "Home" ? 0 : xs.length - 1); event.preventDefault(); }
    else if (step) { show(at < 0 ? xs.length - 1 : at + step); event.preventDefault(); }
  });
  holder.append(svg, tip);
}

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (Number.isFinite(v)) { if (v < low) low = v; if (v > high) high = v; }
  return low <= high ? [low, high] : [0, 1];
}

function nearest(sorted, value) {
  let best = 0;
  for (let i = 1; i < sorted.length; i++) if (Math.abs(sorted[i] - value) < Math.abs(sorted[best] - value)) best = i;
  return best;
}

function pathOf(xs, ys) {
  let path = "", pen = "M";
  xs.forEach((x, i) => { if (ys[i] === null || !Number.isFinite(ys[i])) pen = "M"; else { path += `${pen}${x.toFixed(1)},${ys[i].toFixed(1)}`; pen = "L"; } });
  return path;
}

// Moves labels apart so that they do not overlap.
function spread(labels, gap, top, bottom) {
  labels.sort((a, b) => a.at - b.at);
  for (let i = 1; i < labels.length; i++) labels[i].at = Math.max(labels[i].at, labels[i - 1].at + gap);
  const over = labels.length ? labels.at(-1).at - bottom : 0;
  if (over > 0) {
    labels.at(-1).at = bottom;
    for (let i = labels.length - 2; i >= 0; i--) labels[i].at = Math.min(labels[i].at, labels[i + 1].at - gap);
  }
}

// Estimates with intervals

function intervalsPanel(panel) {
  const holder = element("div", { class: "plot" });
  responsive(holder, (width) => drawIntervals(holder, panel, width));
  return element("figure", { class: "card" }, element("div", { class: "head" }, element("h3", {}, panel.title)), holder, panel.note ? element("p", { class: "note" }, panel.note) : null);
}

function drawIntervals(holder, panel, width) {
  const stacked = width < 560, rowHeight = stacked ? 40 : 25, top = panel.reference !== null && panel.reference_label ? 20 : 8, bottom = 36;
  const texts = panel.rows.map((row) => `${format(row.value)}  (${format(row.low)} to ${format(row.high)})${row.text ? `  ${row.text}` : ""}`);
  const left = stacked ? 6 : Math.min(Math.max(...panel.rows.map((row) => textWidth(row.label)), 40) + 14, width * 0.32);
  const right = stacked ? 10 : Math.min(Math.max(...texts.map(textWidth), 40) + 12, width * 0.36);
  const height = top + bottom + rowHeight * panel.rows.length;
  let [x0, x1] = extent([...panel.rows.flatMap((row) => [row.value, row.low, row.high]), panel.reference ?? NaN]);
  const room = (x1 - x0 || Math.abs(x1) || 1) * 0.05;
  x0 -= room; x1 += room;
  const X = (v) => left + ((Math.min(Math.max(v, x0), x1) - x0) / (x1 - x0)) * (width - left - right);
  const described = panel.rows.map((row, i) => `${row.label}: ${texts[i]}`).join("; ");
  const svg = shape("svg", { class: "chart intervals", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${panel.title}. ${described}` });
  const ticks = niceTicks(x0, x1, (width - left - right) / 80);
  for (const t of ticks) {
    svg.append(shape("line", { x1: X(t), x2: X(t), y1: top, y2: height - bottom, stroke: "var(--grid)" }));
    svg.append(shape("text", { x: X(t), y: height - bottom + 15, "text-anchor": "middle" }, tickText(t, ticks)));
  }
  svg.append(shape("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, panel.x_label));
  if (panel.reference !== null) {
    svg.append(shape("line", { class: "reference", x1: X(panel.reference), x2: X(panel.reference), y1: top - 4, y2: height - bottom, stroke: "var(--text)", "stroke-width": 1.2, "stroke-dasharray": "4 3" }));
    const far = X(panel.reference) > width - right - 60;
    if (panel.reference_label) svg.append(shape("text", { x: X(panel.reference), y: top - 8, "text-anchor": far ? "end" : X(panel.reference) < left + 60 ? "start" : "middle" }, panel.reference_label));
  }
  panel.rows.forEach((row, i) => {
    const y = top + rowHeight * i + (stacked ? 28 : rowHeight / 2);
    const color = { good: "var(--good)", bad: "var(--bad)", strong: "var(--accent)" }[row.tone] || "var(--muted)";
    const strong = row.tone !== "plain", low = Number.isFinite(row.low) ? row.low : x0, high = Number.isFinite(row.high) ? row.high : x1;
    const group = shape("g", { class: `interval ${row.tone}` });
    group.append(shape("title", {}, `${row.label}: ${texts[i]}`));
    group.append(shape("line", { x1: X(low), x2: X(high), y1: y, y2: y, stroke: color, "stroke-width": strong ? 3.4 : 2.2, opacity: strong ? 1 : 0.75 }));
    for (const [end, known] of [[low, Number.isFinite(row.low)], [high, Number.isFinite(row.high)]])
      group.append(known ? shape("line", { x1: X(end), x2: X(end), y1: y - 5, y2: y + 5, stroke: color, "stroke-width": strong ? 2.4 : 1.6 }) : shape("path", { d: end === x0 ? `M${X(end) + 7},${y - 5} L${X(end)},${y} L${X(end) + 7},${y + 5}` : `M${X(end) - 7},${y - 5} L${X(end)},${y} L${X(end) - 7},${y + 5}`, fill: "none", stroke: color, "stroke-width": 2 }));
    if (Number.isFinite(row.value)) group.append(shape("circle", { cx: X(row.value), cy: y, r: strong ? 5 : 4, fill: color }));
    svg.append(group);
    if (stacked) {
      const value = shortened(texts[i], width * 0.6);
      svg.append(shape("text", { class: "strong", x: 4, y: y - 13 }, shortened(row.label, width - textWidth(value) - 16)));
      svg.append(shape("text", { x: width - 4, y: y - 13, "text-anchor": "end" }, value));
    } else {
      svg.append(shape("text", { class: "strong", x: left - 12, y: y + 4, "text-anchor": "end" }, shortened(row.label, left - 12)));
      svg.append(shape("text", { x: width - right + 12, y: y + 4 }, shortened(texts[i], right - 12)));
    }
  });
  holder.replaceChildren(svg);
}

// beta and pi by action

function pairsPanel(panel) {
  const holder = element("div", { class: "plot" });
  responsive(holder, (width) => drawPairs(holder, panel, width));
  const key = element("div", { class: "note" }, element("span", { class: "swatch" }), "beta (behaviour)   ", element("span", { class: "swatch pi" }), "pi (improved)");
  return element("figure", { class: "card" }, element("div", { class: "head" }, element("h3", {}, panel.title), key), holder, panel.note ? element("p", { class: "note" }, panel.note) : null);
}

function drawPairs(holder, panel, width) {
  const rowHeight = 30, right = 108, most = Math.max(...panel.rows.flatMap((row) => [row.beta, row.pi]), 1e-9);
  const left = Math.min(Math.max(...panel.rows.map((row) => textWidth(row.label)), 30) + 14, width * 0.34);
  const X = (v) => (v / most) * (width - left - right);
  const described = panel.rows.map((row) => `${row.label}: ${format(100 * row.beta, 3)}% to ${format(100 * row.pi, 3)}%`).join("; ");
  const svg = shape("svg", { class: "chart pairs", viewBox: `0 0 ${width} ${rowHeight * panel.rows.length + 4}`, role: "img", "aria-label": `${panel.title}. beta to pi: ${described}` });
  panel.rows.forEach((row, i) => {
    const y = rowHeight * i + 4;
    svg.append(shape("text", { class: "strong", x: left - 12, y: y + 15, "text-anchor": "end" }, shortened(row.label, left - 12)));
    svg.append(shape("rect", { x: left, y: y + 1, width: Math.max(1, X(row.beta)), height: 9, rx: 2, fill: "var(--beta)" }));
    svg.append(shape("rect", { x: left, y: y + 12, width: Math.max(1, X(row.pi)), height: 9, rx: 2, fill: "var(--accent)" }));
    svg.append(shape("text", { x: width, y: y + 15, "text-anchor": "end" }, `${format(100 * row.beta, 3)}% → ${format(100 * row.pi, 3)}%`));
  });
  holder.replaceChildren(svg);
}
