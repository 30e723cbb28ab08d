// The viewer of episodes, step by step, and of logged decisions.
"use strict";

const STEPS_PER_SECOND = 15; // the speed of Atari games at four frames a step
const ROWS_SHOWN = 100;
const JUMPS = 10;

function viewerCard(viewer, number) {
  const card = element("figure", { class: "card wide viewer", tabindex: 0, "aria-label": viewer.episodes.length ? "Episode viewer" : "Logged decisions" });
  if (viewer.episodes.length) episodeViewer(card, viewer, number);
  else decisionViewer(card, viewer, number);
  card.append(element("p", { class: "note" }, `${viewer.note} Rule: ${viewer.rule}.`));
  return element("div", { class: "grid" }, card, byValueCard(viewer));
}

function percent(value) { return `${(100 * value).toFixed(1)}%`; }
function ratioText(ratio) { return Number.isNaN(ratio) ? "–" : Number.isFinite(ratio) ? `×${format(ratio, 3)}` : "new"; }

// beta, pi, their ratio with its bounds, Q and advantage of every action in one state.
function actionTable(viewer) {
  const bounded = viewer.bounds ? ` in\u00a0[${format(viewer.bounds[0])},\u00a0${format(viewer.bounds[1])}]` : "";
  const names = ["action", "", "beta", "pi", `pi/beta${bounded}`, "Q", "Q − V"];
  const table = element("table", { class: "actions" }, element("thead", {}, element("tr", {}, ...names.map((name, i) => element("th", { scope: "col", class: i > 1 ? "number" : "" }, name)))));
  const body = element("tbody");
  table.append(body);
  const rows = viewer.actions.map((name) => {
    const bars = element("td", { class: "bars" }), cells = [0, 1, 2, 3, 4].map(() => element("td", { class: "number" }));
    const beta = element("i"), pi = element("i"), low = element("u", { title: "lower bound" }), high = element("u", { title: "upper bound" });
    bars.append(element("div", { class: "bar", title: "beta" }, beta), element("div", { class: "bar pi", title: "pi, between its bounds" }, pi, ...(viewer.bounds ? [low, high] : [])));
    const label = element("td", {}, name), row = element("tr", {}, label, bars, ...cells);
    body.append(row);
    return { row, cells, beta, pi, low, high, label, name };
  });
  const show = (state) => rows.forEach((row, a) => {
    const beta = state.beta[a], pi = state.pi[a], ratio = beta > 0 ? pi / beta : pi > 0 ? Infinity : NaN;
    row.row.classList.toggle("taken", a === state.taken);
    row.label.textContent = a === state.taken ? `▸ ${row.name}` : row.name;
    row.beta.style.width = `${100 * beta}%`; row.pi.style.width = `${100 * pi}%`;
    if (viewer.bounds) { row.low.style.left = `${100 * viewer.bounds[0] * beta}%`; row.high.style.left = `calc(${Math.min(100, 100 * viewer.bounds[1] * beta)}% - 2px)`; }
    [percent(beta), percent(pi), ratioText(ratio), format(state.q[a]), signed(state.q[a] - state.value, 3)].forEach((text, i) => { row.cells[i].textContent = text; });
    row.cells[2].className = `number ${ratio > 1.005 ? "up" : ratio < 0.995 ? "down" : ""}`;
  });
  return { node: element("div", { class: "scroll" }, table), show };
}

// Episodes

function episodeViewer(card, viewer, number) {
  const state = remembered(`episode:${number}`, () => ({ episode: viewer.episodes.length - 1, step: 0, speed: 1, jump: -1 }));
  const select = element("select", { "aria-label": "Episode" }, ...viewer.episodes.map((each, i) => element("option", { value: i }, `${each.name}: score ${format(each.score)}, ${format(each.steps)} steps, ${each.end}`)));
  select.value = String(state.episode);
  const jump = element("button", { type: "button", class: "jump", onclick: () => jumpToChange() }, "Where it changes most");
  const play = element("button", { type: "button", class: "play", onclick: () => toggle() }, "Play");
  const slider = element("input", { type: "range", min: 0, value: 0, "aria-label": "Step", oninput: () => go(Number(slider.value)) });
  const speed = element("select", { "aria-label": "Speed", onchange: () => { state.speed = Number(speed.value); } }, ...[0.25, 0.5, 1, 2, 4, 8].map((value) => element("option", { value }, `${value}×`)));
  speed.value = String(state.speed);
  const step = (text, by, label) => element("button", { type: "button", "aria-label": label, title: label, onclick: () => { stop(); go(state.step + by); } }, text);
  const now = element("div", { class: "now", "aria-live": "off" }), left = element("div", { class: "left" });
  const table = actionTable(viewer);
  const timeline = element("div", { class: "plot timeline" });
  let timer = null, drawNow = () => {}, moveCursor = () => {};
  const trace = () => viewer.episodes[state.episode];

  function stop() { if (timer !== null) cancelAnimationFrame(timer); timer = null; play.textContent = "Play"; }
  function toggle() {
    if (timer !== null) { stop(); return; }
    if (state.step >= trace().value.length - 1) go(0);
    play.textContent = "Pause";
    let before = performance.now(), owed = 0;
    const tick = (time) => {
      if (!card.isConnected) return;
      owed += ((time - before) / 1000) * STEPS_PER_SECOND * state.speed;
      before = time;
      if (owed >= 1) { const by = Math.floor(owed); owed -= by; go(state.step + by); }
      if (state.step >= trace().value.length - 1) { stop(); return; }
      timer = requestAnimationFrame(tick);
    };
    timer = requestAnimationFrame(tick);
  }
  function go(at) {
    const of = trace(), t = Math.max(0, Math.min(of.value.length - 1, at));
    state.step = t;
    slider.value = String(t);
    slider.setAttribute("aria-valuetext", `step ${t}`);
    table.show({ beta: of.beta[t], pi: of.pi[t], q: of.q[t], value: of.value[t], taken: of.taken[t] });
    const taken = of.taken[t] >= 0 ? viewer.actions[of.taken[t]] : "an action that is not shown";
    const facts = [["step", `${t} of ${of.steps - 1}`], ["V(s)", format(of.value[t])], ["changed", percent(of.change[t])], ["taken", taken], ["reward", format(of.reward[t])]];
    if (of.lives_lost.includes(t)) facts.push(["", "life lost"]);
    now.replaceChildren(...facts.map(([name, text]) => element("span", {}, `${name} `, element("b", {}, text))));
    drawNow(t);
    moveCursor(t);
  }
  // The largest changes that are not next to each other, the largest first.
  function jumpToChange() {
    const change = trace().change, order = change.map((_, i) => i).sort((a, b) => change[b] - change[a]), found = [];
    const apart = Math.max(1, Math.floor(change.length / 40));
    for (const i of order) { if (found.every((j) => Math.abs(i - j) >= apart)) found.push(i); if (found.length >= JUMPS) break; }
    state.jump = (state.jump + 1) % found.length;
    stop();
    go(found[state.jump]);
    jump.textContent = `Where it changes most (${state.jump + 1} of ${found.length})`;
  }
  function load() {
    stop();
    const of = trace();
    slider.max = String(of.value.length - 1);
    drawNow = of.frames ? frameCanvas(left, of.frames, () => drawNow(state.step)) : featurePlots(left, viewer.features, of, go);
    moveCursor = drawTimeline(timeline, of, go, () => moveCursor(state.step));
    go(Math.min(state.step, of.value.length - 1));
  }
  select.addEventListener("change", () => { state.episode = Number(select.value); state.step = 0; state.jump = -1; jump.textContent = "Where it changes most"; load(); });
  card.addEventListener("keydown", (event) => {
    if (event.target.matches("select, input[type=search], input[type=number]")) return;
    const onSlider = event.target === slider, onButton = event.target.matches("button");
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -50, PageDown: 50 }[event.key];
    if (event.key === " " && !onButton) toggle();
    else if (by && !onSlider) { stop(); go(state.step + by * (event.shiftKey ? 10 : 1)); }
    else if (event.key === "Home" && !onSlider) go(0);
    else if (event.key === "End" && !onSlider) go(trace().value.length - 1);
    else if (event.key === "m") jumpToChange();
    else return;
    event.preventDefault();
  });
  const controls = element("div", { class: "controls" }, play, step("◂", -1, "One step back"), step("▸", 1, "One step on"), element("label", {}, "Speed ", speed), jump);
  card.append(
    element("div", { class: "head" }, element("h3", {}, "Episodes: what the policy does differently")),
    element("div", { class: "pick" }, element("label", {}, "Episode", select)),
    element("div", { class: "stage" }, element("div", {}, left, slider, controls), element("div", {}, now, table.node)),
    timeline,
    element("p", { class: "note" }, "Keys: space plays, arrows step (with shift ten), Home and End, m jumps to where it changes most. The action taken is marked ▸. Timeline: V(s) as a line, changed probability as an area, ▲▼ rewards, ✕ lost lives; click to go there."));
  load();
}

function frameCanvas(holder, frames, loaded) {
  const canvas = element("canvas", { width: frames.width, height: frames.height, role: "img", "aria-label": "Screen" });
  canvas.style.setProperty("--aspect", `${frames.width} / ${frames.height}`);
  const context = canvas.getContext("2d");
  const strips = frames.strips.map((source) => { const image = new Image(); image.addEventListener("load", loaded); image.src = source; return image; });
  holder.replaceChildren(canvas);
  return (t) => {
    const strip = strips[Math.floor(t / frames.per_strip)];
    canvas.dataset.step = String(t);
    if (strip.complete) context.drawImage(strip, 0, (t % frames.per_strip) * frames.height, frames.width, frames.height, 0, 0, frames.width, frames.height);
  };
}

// One small plot for each feature of a vector observation.
function featurePlots(holder, names, of, go) {
  const plots = element("div", { class: "plot features-plot" });
  let cursor = null, values = [], X = () => 0;
  const rowHeight = 40;
  const show = (t) => {
    if (!cursor) return;
    cursor.setAttribute("x1", X(t)); cursor.setAttribute("x2", X(t));
    values.forEach((text, i) => { text.textContent = format(of.features[i][t]); });
  };
  let last = 0;
  responsive(plots, (width) => {
    const left = Math.min(140, Math.max(...names.map(textWidth), 30) + 10, width * 0.36), right = 64, height = rowHeight * names.length + 8;
    X = (t) => left + (t / Math.max(1, of.value.length - 1)) * (width - left - right);
    const svg = shape("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Features over time: ${names.join(", ")}` });
    values = names.map((name, i) => {
      const [low, high] = extent(of.features[i]), top = rowHeight * i + 6;
      const Y = (v) => top + 26 - ((v - low) / (high - low || 1)) * 26;
      svg.append(shape("line", { x1: left, x2: width - right, y1: top + 30, y2: top + 30, stroke: "var(--grid)" }));
      svg.append(shape("text", { x: left - 8, y: top + 18, "text-anchor": "end" }, shortened(name, left - 8)));
      svg.append(shape("path", { class: "line", d: pathOf(of.features[i].map((_, t) => X(t)), of.features[i].map(Y)), fill: "none", stroke: "var(--c0)", "stroke-width": 1.5 }));
      const text = shape("text", { class: "strong", x: width, y: top + 18, "text-anchor": "end" });
      svg.append(text);
      return text;
    });
    cursor = shape("line", { y1: 0, y2: height, stroke: "var(--c1)", "stroke-width": 1.4 });
    svg.append(cursor);
    svg.addEventListener("pointerdown", (event) => { const box = svg.getBoundingClientRect(); go(Math.round((((event.clientX - box.left) / box.width) * width - left) / Math.max(1, width - left - right) * (of.value.length - 1))); });
    plots.replaceChildren(svg);
    show(last);
  });
  holder.replaceChildren(plots);
  return (t) => { last = t; show(t); };
}

// V over time, how much changes, rewards and lost lives.
function drawTimeline(holder, of, go, drawn) {
  let cursor = null, X = () => 0;
  responsive(holder, (width) => {
    const height = 162, left = 46, right = 12, top = 26, middle = 92, bottom = 132, count = of.value.length;
    X = (t) => left + (t / Math.max(1, count - 1)) * (width - left - right);
    const svg = shape("svg", { class: "chart timeline", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Timeline: V of the state, changed probability, rewards and lost lives" });
    const [low, high] = extent(of.value), most = Math.max(...of.change, 1e-9);
    const V = (v) => middle - ((v - low) / (high - low || 1)) * (middle - top);
    for (const [value, y] of [[high, top], [low, middle]]) svg.append(shape("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, tickText(Number(value.toPrecision(3)))));
    svg.append(shape("text", { x: left, y: 11 }, "V(s)"));
    svg.append(shape("text", { x: left - 6, y: bottom - 22, "text-anchor": "end" }, `${format(100 * most, 3)}%`));
    svg.append(shape("line", { x1: left, x2: width - right, y1: bottom, y2: bottom, stroke: "var(--muted)" }));
    const area = of.change.map((c, t) => `L${X(t).toFixed(1)},${(bottom - (c / most) * 26).toFixed(1)}`).join("");
    svg.append(shape("path", { class: "change", d: `M${left},${bottom}${area}L${X(count - 1).toFixed(1)},${bottom}Z`, fill: "var(--accent)", opacity: 0.35 }));
    svg.append(shape("path", { class: "line", d: pathOf(of.value.map((_, t) => X(t)), of.value.map(V)), fill: "none", stroke: "var(--c0)", "stroke-width": 1.6 }));
    const rewarded = of.reward.map((r, t) => [r, t]).filter(([r]) => r !== 0);
    const everyStep = rewarded.length > count * 0.5;
    if (!everyStep) for (const [r, t] of rewarded) svg.append(titled(shape("path", { class: "reward", d: r > 0 ? `M${X(t)},13l4,7h-8z` : `M${X(t)},20l4,-7h-8z`, fill: r > 0 ? "var(--good)" : "var(--bad)" }), `reward ${format(r)} in step ${t}`));
    for (const t of of.lives_lost) svg.append(titled(shape("path", { class: "life", d: `M${X(t) - 4},3l8,8m0,-8l-8,8`, stroke: "var(--bad)", "stroke-width": 2, fill: "none" }), `life lost in step ${t}`));
    for (const t of niceTicks(0, count - 1, width / 110)) svg.append(shape("text", { x: X(t), y: bottom + 14, "text-anchor": "middle" }, tickText(t)));
    if (everyStep) svg.append(shape("text", { x: width - right, y: 11, "text-anchor": "end" }, "nearly every step is rewarded"));
    svg.append(shape("text", { x: (left + width - right) / 2, y: height - 1, "text-anchor": "middle" }, "step"));
    cursor = shape("line", { class: "cursor", y1: 14, y2: bottom, stroke: "var(--c1)", "stroke-width": 1.6 });
    svg.append(cursor);
    const seek = (event) => { const box = svg.getBoundingClientRect(); go(Math.round(((((event.clientX - box.left) / box.width) * width - left) / Math.max(1, width - left - right)) * (count - 1))); };
    svg.addEventListener("pointerdown", seek);
    svg.addEventListener("pointermove", (event) => { if (event.buttons) seek(event); });
    holder.replaceChildren(svg);
    drawn();
  });
  return (t) => { if (cursor) { cursor.setAttribute("x1", X(t)); cursor.setAttribute("x2", X(t)); } };
}

function titled(node, text) { node.append(shape("title", {}, text)); return node; }

// Logged decisions

function decisionViewer(card, viewer, number) {
  const state = remembered(`decisions:${number}`, () => ({ text: "", taken: "", gains: "", feature: "", low: "", high: "", sort: "change", down: true, selected: 0, rows: ROWS_SHOWN }));
  const shift = (each) => each.pi.map((p, a) => p - each.beta[a]);
  const largest = (values) => values.reduce((best, v, i) => (v > values[best] ? i : best), 0);
  const all = viewer.decisions.map((each, i) => { const change = shift(each); return { ...each, i, up: largest(change), down: largest(change.map((c) => -c)), value: each.q.reduce((sum, q, a) => sum + q * each.beta[a], 0), text: [each.name, ...each.features, viewer.actions[each.taken] || ""].join(" ").toLowerCase() }; });
  const grouped = all.some((each) => each.count > 1), reward = grouped ? "mean reward" : "reward", total = (rows) => format(rows.reduce((sum, each) => sum + each.count, 0));
  const numeric = viewer.features.map((_, f) => f).filter((f) => all.some((each) => typeof each.features[f] === "number"));
  const body = element("tbody"), count = element("span", { role: "status" }), more = element("button", { type: "button", class: "more", onclick: () => { state.rows += ROWS_SHOWN; draw(); } }, "Show more");
  const table = actionTable(viewer), facts = element("div", { class: "now" }), features = element("dl", { class: "features" });
  const choices = (name, key, options) => { const node = element("select", { "aria-label": name, onchange: () => { state[key] = node.value; draw(); } }, element("option", { value: "" }, "any"), ...options.map(([value, text]) => element("option", { value }, text))); node.value = state[key]; return element("label", {}, name, node); };
  const actions = viewer.actions.map((name, a) => [String(a), name]);
  const search = element("input", { type: "search", placeholder: "Search features, actions, lines", "aria-label": "Search decisions", value: state.text, oninput: () => { state.text = search.value; draw(); } });
  const limit = (key, text) => { const node = element("input", { type: "number", step: "any", placeholder: text, "aria-label": `${text} of the feature`, value: state[key], oninput: () => { state[key] = node.value; draw(); } }); node.style.width = "6.2rem"; return node; };
  const columns = [["", "decision"], ...viewer.features.slice(0, 6).map((name, f) => [`feature:${f}`, name]), ["taken", "taken"], ...(grouped ? [["count", "times"]] : []), ["reward", reward], ["", "what changes most"], ["change", "changed"], ["gain", "gain by Q"]];
  const heads = columns.map(([key, name]) => element("th", { scope: "col" }, key ? element("button", { type: "button", "data-sort": key, onclick: () => { state.down = state.sort === key ? !state.down : true; state.sort = key; draw(); } }, name) : name));
  const valueOf = (each, key) => (key.startsWith("feature:") ? each.features[Number(key.slice(8))] : key === "taken" ? viewer.actions[each.taken] || "" : each[key]);
  let shown = [];

  function matches(each) {
    if (state.text && !state.text.toLowerCase().split(/\s+/).every((word) => each.text.includes(word))) return false;
    if (state.taken !== "" && each.taken !== Number(state.taken)) return false;
    if (state.gains !== "" && each.up !== Number(state.gains)) return false;
    if (state.feature !== "") {
      const value = each.features[Number(state.feature)];
      if ((state.low !== "" && !(value >= Number(state.low))) || (state.high !== "" && !(value <= Number(state.high)))) return false;
    }
    return true;
  }
  function draw() {
    const order = (x, y) => (typeof x === "string" || typeof y === "string" ? String(x).localeCompare(String(y)) : x - y);
    shown = all.filter(matches).sort((a, b) => (state.down ? -1 : 1) * order(valueOf(a, state.sort), valueOf(b, state.sort)));
    count.textContent = `${total(shown)} of ${total(all)} decisions`;
    heads.forEach((head, i) => { const on = columns[i][0] === state.sort && columns[i][0]; head.setAttribute("aria-sort", on ? (state.down ? "descending" : "ascending") : "none"); const button = head.querySelector("button"); if (button) button.textContent = columns[i][1] + (on ? (state.down ? " ▾" : " ▴") : ""); });
    body.replaceChildren(...shown.slice(0, state.rows).map((each) => {
      const change = shift(each);
      const cells = [each.name, ...each.features.slice(0, 6).map((v) => (typeof v === "number" ? format(v) : v)), viewer.actions[each.taken] || "–", ...(grouped ? [format(each.count)] : []), format(each.reward, 3), `${viewer.actions[each.down]} ${signed(100 * change[each.down], 3)}% → ${viewer.actions[each.up]} ${signed(100 * change[each.up], 3)}%`, percent(each.change), signed(each.gain, 3)];
      return element("tr", { tabindex: -1, "data-decision": each.i, onclick: () => pick(each.i) }, ...cells.map((text) => element("td", {}, text)));
    }));
    more.hidden = shown.length <= state.rows;
    if (!shown.some((each) => each.i === state.selected) && shown.length) state.selected = shown[0].i;
    pick(state.selected);
  }
  function pick(i) {
    state.selected = i;
    const each = all[i];
    body.querySelectorAll("tr").forEach((row) => row.setAttribute("aria-selected", String(Number(row.dataset.decision) === i)));
    table.show({ beta: each.beta, pi: each.pi, q: each.q, value: each.value, taken: each.taken });
    facts.replaceChildren(...[["decision", each.name], ["taken", viewer.actions[each.taken] || "–"], [reward, format(each.reward, 3)], ["V(s)", format(each.value)], ["changed", percent(each.change)], ["gain by Q", signed(each.gain, 3)]].map(([name, text]) => element("span", {}, `${name} `, element("b", {}, text))));
    features.replaceChildren(...viewer.features.map((name, f) => element("div", {}, element("dt", {}, name), element("dd", {}, typeof each.features[f] === "number" ? format(each.features[f], 6) : each.features[f]))));
  }
  const list = element("div", { class: "decisions", tabindex: 0, role: "region", "aria-label": "Decisions; arrow keys select" }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body));
  list.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    const at = shown.findIndex((each) => each.i === state.selected), next = shown[Math.max(0, Math.min(Math.min(shown.length, state.rows) - 1, at + by))];
    if (next) { pick(next.i); body.querySelector(`[data-decision="${next.i}"]`).scrollIntoView({ block: "nearest" }); }
    event.preventDefault();
  });
  card.append(
    element("div", { class: "head" }, element("h3", {}, "Logged decisions that change most"), count),
    element("div", { class: "pick" }, search, choices("Taken", "taken", actions), choices("Gains most", "gains", actions), numeric.length ? choices("Feature", "feature", numeric.map((f) => [String(f), viewer.features[f]])) : null, ...(numeric.length ? [limit("low", "at least"), limit("high", "at most")] : [])),
    list, more,
    element("div", { class: "stage" }, element("div", {}, facts, features), table.node));
  draw();
}

// By state and action

function byValueCard(viewer) {
  const most = Math.max(...viewer.by_value.flatMap((row) => row.change.map(Math.abs)), 1e-9);
  const rows = viewer.by_value.map((row) => element("tr", {}, element("td", {}, `V ≈ ${format(row.value, 3)}`), element("td", { class: "number" }, format(row.states)), ...row.change.map((change) => {
    const cell = element("td", { class: "number heat" }, `${signed(100 * change, 3)}%`);
    cell.style.background = `color-mix(in srgb, ${change > 0 ? "var(--c0)" : "var(--c1)"} ${Math.round((60 * Math.abs(change)) / most)}%, transparent)`;
    return cell;
  })));
  const names = ["states, by value", "states", ...viewer.actions];
  return element("figure", { class: "card wide" }, element("div", { class: "head" }, element("h3", {}, "What changes, by state and action")),
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Change of probabilities by state and action" }, element("table", {}, element("thead", {}, element("tr", {}, ...names.map((name, i) => element("th", { scope: "col", class: i ? "number" : "" }, name)))), element("tbody", {}, ...rows))),
    element("p", { class: "note" }, "Mean change of each action's probability, pi − beta, in quarters of the states above from the lowest V(s) to the highest."));
}
