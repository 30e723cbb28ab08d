// The page: sections of runs, tables, theme, and new data of a live report. The data is text, and becomes text only.
"use strict";

const memory = new Map();
const onAxisChange = [];
const POLL_MILLISECONDS = 2000;

// A value that survives when the page is drawn again with new data.
function remembered(key, make) {
  if (!memory.has(key)) memory.set(key, make());
  return memory.get(key);
}

function axisChanged() { for (const changed of onAxisChange) changed(); }

function tablePanel(panel) {
  const head = element("tr", {}, ...panel.columns.map((name, i) => element("th", { scope: "col", class: panel.numeric[i] ? "number" : "" }, name)));
  const body = panel.rows.map((row) => element("tr", {}, ...row.map((cell, i) => element("td", { class: panel.numeric[i] ? "number" : "" }, cell))));
  const table = element("table", {}, panel.columns.some((name) => name) ? element("thead", {}, head) : null, element("tbody", {}, ...body));
  const content = [element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": panel.title || "table" }, table), panel.note ? element("p", { class: "note" }, panel.note) : null];
  const wide = panel.columns.length > 5 ? " wide" : "";
  if (panel.folded) return element("details", { class: `card${wide}` }, element("summary", {}, panel.title.split("\n")[0]), ...content);
  return element("figure", { class: `card${wide}` }, panel.title ? element("div", { class: "head" }, element("h3", {}, panel.title)) : null, ...content);
}

function verdictPanel(panel) {
  const kind = { deploy: "deploy", keep: "keep" }[panel.verdict] || "open";
  const list = (lines) => element("ul", {}, ...lines.map((line) => element("li", {}, line)));
  return element("figure", { class: `card wide verdict ${kind}` },
    element("div", { class: "word" }, `${{ deploy: "✓ ", keep: "✕ " }[kind] || "? "}${panel.verdict}`),
    element("p", { class: "headline" }, panel.headline), list(panel.reasons),
    panel.assumptions.length ? element("details", {}, element("summary", {}, "What this assumes"), list(panel.assumptions)) : null);
}

function notesPanel(panel) {
  if (!panel.lines.length) return null;
  return element("figure", { class: "card wide notes" }, panel.title ? element("h3", {}, panel.title) : null, element("ul", {}, ...panel.lines.map((line) => element("li", {}, line))));
}

function drawPanel(panel, key) {
  const draw = { lines: linesPanel, intervals: intervalsPanel, pairs: pairsPanel, table: tablePanel, verdict: verdictPanel, notes: notesPanel }[panel.kind];
  const card = draw ? draw(panel, key) : null;
  if (card && panel.kind === "intervals" && panel.rows.length > 3) card.classList.add("wide");
  return card;
}

function panelGrid(panels, key) {
  const cards = panels.map((panel, i) => drawPanel(panel, `${key}/${i}/${panel.title || ""}`)).filter((card) => card);
  const small = panels.filter((panel) => panel.kind === "pairs" && panel.rows.length < 8);
  if (small.length > 2) cards.forEach((card, i) => { if (small.includes(panels[i])) card.classList.add("third"); });
  fillRows(cards);
  return element("div", { class: "grid" }, ...cards);
}

// A half-width card without a neighbour gets the whole row.
function fillRows(cards) {
  let used = 0, last = null;
  for (const card of cards) {
    const span = card.classList.contains("wide") ? 12 : card.classList.contains("third") ? 4 : 6;
    if (used + span > 12) { if (last && used === 6) last.classList.add("wide"); used = 0; }
    used = (used + span) % 12;
    last = span === 6 ? card : null;
  }
  if (last && used === 6) last.classList.add("wide");
}

function aboutRun(run) {
  const rows = (pairs) => element("table", {}, element("tbody", {}, ...pairs.map(([name, value]) => element("tr", {}, element("td", {}, element("code", {}, name)), element("td", {}, value)))));
  const settings = rows(run.settings);
  const filter = element("input", { type: "search", placeholder: "Filter settings", "aria-label": "Filter settings", oninput: () => {
    const wanted = filter.value.toLowerCase();
    settings.querySelectorAll("tr").forEach((row) => { row.hidden = !row.textContent.toLowerCase().includes(wanted); });
  } });
  const copy = element("button", { type: "button", onclick: async () => {
    try { await navigator.clipboard.writeText(run.command_line); copy.textContent = "Copied"; } catch { getSelection().selectAllChildren(command); }
  } }, "Copy");
  const command = element("pre", {}, run.command_line);
  return element("details", { class: "card about" }, element("summary", {}, "Settings, versions, and how to run it again"),
    run.command_line ? element("div", {}, element("h3", {}, "Run it again"), command, copy) : null,
    element("p", { class: "note" }, `${run.path}${run.started ? `, started ${run.started}` : ""}${run.seed === null ? "" : `, seed ${run.seed}`}`),
    element("div", { class: "two" },
      element("div", {}, element("h3", {}, "Settings"), run.settings.length > 12 ? filter : null, settings),
      element("div", {}, element("h3", {}, "Versions and machine"), rows(run.versions))));
}

function runSection(run, number) {
  const badge = run.complete ? element("span", { class: "badge" }, run.command || "run") : element("span", { class: "badge open" }, `${run.command || "run"}, not complete`);
  return element("section", { class: "run", id: `run-${number}`, "aria-label": run.name },
    element("div", { class: "heading" }, element("h2", {}, run.name), badge),
    run.summary.length ? element("dl", { class: "facts" }, ...run.summary.map(([name, text]) => element("div", {}, element("dt", {}, name), element("dd", {}, text)))) : null,
    ...run.warnings.map((text) => element("p", { class: "warning", role: "note" }, text)),
    ...sectionPanels(run, number),
    aboutRun(run));
}

// The verdict, scores or learning curve first, then the viewer, then everything else.
function sectionPanels(run, number) {
  if (!run.viewer) return [panelGrid(run.panels, `run${number}`)];
  const other = run.panels.findIndex((panel) => !["verdict", "intervals"].includes(panel.kind));
  const lead = other > 0 ? other : Math.min(2, run.panels.length);
  return [panelGrid(run.panels.slice(0, lead), `lead${number}`), viewerCard(run.viewer, number), panelGrid(run.panels.slice(lead), `run${number}`)];
}

function drawPage(report) {
  onAxisChange.length = 0;
  onResize.length = 0;
  document.title = `${report.title} – rbi report`;
  document.getElementById("title").textContent = report.title;
  const sections = report.runs.map(runSection);
  const links = report.runs.map((run, i) => [`#run-${i}`, run.name]);
  const parts = [];
  if (report.comparison.length) {
    parts.push(element("section", { class: "run", id: "comparison" }, element("h2", {}, "Comparison"), panelGrid(report.comparison, "comparison")));
    links.unshift(["#comparison", "Comparison"]);
  }
  document.getElementById("main").replaceChildren(...parts, ...sections);
  const nav = document.getElementById("nav");
  nav.hidden = links.length < 2;
  nav.replaceChildren(element("ul", {}, ...links.map(([to, name]) => element("li", {}, element("a", { href: to, title: name }, name)))));
  document.getElementById("footer").textContent = `Made by rbi ${report.version} on ${report.made}. This page loads nothing from anywhere.`;
}

// Theme, printing, live data

function setTheme(theme) {
  if (theme === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = `Theme: ${theme}`;
  try { localStorage.setItem("rbi-theme", theme); } catch { /* a page from disk may have no storage */ }
}

function savedTheme() {
  try { const found = localStorage.getItem("rbi-theme"); return ["light", "dark"].includes(found) ? found : "auto"; } catch { return "auto"; }
}

async function pollServer(before) {
  const status = document.getElementById("live");
  status.hidden = false;
  status.textContent = "live";
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
    if (document.hidden) continue;
    try {
      const answer = await fetch("data.json", { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      const found = await answer.json(), made = found.made;
      const now = JSON.stringify({ ...found, made: "" });
      if (now !== before) { before = now; const at = window.scrollY; drawPage(found); window.scrollTo(0, at); }
      status.classList.remove("gone");
      status.textContent = `live, as of ${made.slice(11, 19)} UTC`;
    } catch { status.classList.add("gone"); status.textContent = "the server is gone: these are its last numbers"; }
  }
}

function start() {
  const report = JSON.parse(document.getElementById("data").textContent);
  setTheme(savedTheme());
  document.getElementById("theme").addEventListener("click", () => {
    const order = ["auto", "light", "dark"], now = document.documentElement.dataset.theme || "auto";
    setTheme(order[(order.indexOf(now) + 1) % 3]);
  });
  document.getElementById("print").addEventListener("click", () => window.print());
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details.about").forEach((each) => { each.open = true; });
    document.body.classList.add("printing"); // the width of paper
    onResize.forEach((redraw) => redraw());
  });
  window.addEventListener("afterprint", () => {
    document.body.classList.remove("printing");
    onResize.forEach((redraw) => redraw());
  });
  drawPage(report);
  if (report.live) pollServer(JSON.stringify({ ...report, made: "" }));
}
