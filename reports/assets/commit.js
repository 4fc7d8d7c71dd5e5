// The commit kernel over commits: figure, what changed between them, and how it grows with the size of a step.
"use strict";

const control = Object.fromEntries(["gpu", "case", "figure", "by"].map((name) => [name, document.querySelector(`[data-choose=${name}]`)]));
const part = (name) => document.querySelector(`[data-part=${name}]`);
const SYMBOLS = { commit: "circle", plan: "triangle-up", state: "square", conv: "diamond", align: "pentagon", "commit in align mode": "hexagon", "everybody crossing": "star", "deferred commit": "square-open", flush: "triangle-down", "deferred commits": "square", "byte floor": "line-ew", control: "cross", "full state": "diamond-open", RecoverSSM: "circle" };
const DASHES = { "byte floor": "dot", control: "dash", "deferred commits": "dash", "full state": "dot" };
const HIDDEN = ["align", "commit in align mode", "everybody crossing", "deferred commit", "flush"]; // of few cases; shown where the legend is clicked
const BY = { B: ["requests", "B"], T: ["tokens a window", "T"], accepted: ["accepted on average", "accepted"] };
let turn = 0;

function hueOf(c, name) {
  return { commit: c.ours, RecoverSSM: c.ours, "deferred commits": c.ours, "full state": c.full, "byte floor": c.quiet, control: c.full, state: c.text }[name] ?? c.quiet;
}

// One line through nights, cut where the environment changed, and one through each backfill.
function lineTraces(points, name, values, c) {
  const hue = hueOf(c, name), symbol = SYMBOLS[name] ?? "circle";
  const style = (backfill) => ({ name: backfill ? `${name}, backfilled` : name, legendgroup: name, visible: HIDDEN.includes(name) ? "legendonly" : true, mode: "lines+markers", line: { color: hue, width: name === "commit" ? 2 : 1.2, dash: DASHES[name] ?? "solid" }, marker: { color: backfill ? c.surface : hue, size: 7, symbol, line: { color: hue, width: 1.5 } }, hovertemplate: "%{text}<extra></extra>" });
  const traces = [false, true].map((backfill) => {
    const trace = { ...style(backfill), x: [], y: [], text: [] };
    let before = null;
    points.forEach((point, index) => {
      if (point.backfill !== backfill || !values[index].length) return;
      if (before !== null && before !== point.environment) { trace.x.push(index); trace.y.push(null); trace.text.push(""); }
      before = point.environment;
      trace.x.push(index); trace.y.push(median(values[index]));
      trace.text.push(`${point.label}<br>${name}: ${withUnit(median(values[index]), "us")} (${reach(values[index], "us") || "1 process"})`);
    });
    return trace;
  }).filter((trace) => trace.x.length);
  const dots = { name: "single processes", legendgroup: name, showlegend: false, visible: style(false).visible, mode: "markers", hoverinfo: "skip", marker: { color: hue, size: 4, opacity: 0.4 }, x: values.flatMap((own, index) => own.map(() => index)), y: values.flat() };
  return [dots, ...traces];
}

function drawLines(element, index, data, figure) {
  const lines = figure === "step" ? data.steps : data.lines;
  if (!Object.keys(lines).length) return say(element, figure === "step" ? "No step of this case is recorded." : "No commit of this case is recorded.");
  const points = index.points;
  return plot(element, (c) => {
    const layout = baseLayout(c), narrow = element.clientWidth < NARROW_PX, every = Math.ceil(points.length / (narrow ? 3 : 14));
    const traces = Object.entries(lines).flatMap(([name, values]) => lineTraces(points, name, values, c));
    const ticks = points.map((_, place) => place).filter((place) => place % every === 0);
    layout.xaxis = { ...layout.xaxis, title: { text: narrow ? "" : "commits, oldest first" }, tickmode: "array", tickvals: ticks, ticktext: ticks.map((place) => points[place].commit.slice(0, 8)), range: [-0.5, points.length - 0.5] };
    const what = figure === "step" ? "step" : "commit";
    layout.yaxis = { ...layout.yaxis, title: { text: narrow ? "µs" : `${what}, all layers, µs (lower is better)` }, tickformat: ",~g", rangemode: "tozero" };
    layout.shapes = []; layout.annotations = [];
    index.changes.forEach((change) => {
      if (!change.entries?.length) return;
      layout.shapes.push({ type: "line", xref: "x", yref: "paper", x0: change.at - 0.5, x1: change.at - 0.5, y0: 0, y1: 1, line: { color: c.quiet, width: 1, dash: "dash" } });
      layout.annotations.push({ x: change.at - 0.5, y: 1, yref: "paper", yanchor: "top", xanchor: "left", text: narrow ? numberOf(index, change).replace(/\D/g, "") : numberOf(index, change), showarrow: false, font: { size: 11, color: c.quiet } });
    });
    if (figure !== "step") for (const [title, us, covers] of data.peers) {
      traces.push({ name: title, mode: "lines", x: [-0.5, points.length - 0.5], y: [us, us], line: { color: c.full, width: 1, dash: "longdashdot" }, hovertemplate: "%{text}<extra></extra>", text: Array(2).fill(`${title}: ${withUnit(us, "us")}, covers ${covers}`), visible: "legendonly" });
    }
    layout.legend = { orientation: "h", x: 0, y: -0.18, yanchor: "top" };
    return [traces, layout];
  });
}

// Cases that differ from the chosen one in one size alone.
function drawGrowth(element, index, chosenCase, by) {
  const others = ["B", "T", "accepted", "dtype", "heads"].filter((name) => name !== by);
  const own = index.cases.filter((one) => one.commit !== null && others.every((name) => one[name] === chosenCase[name])).sort((x, y) => x[by] - y[by]);
  if (own.length < 2) return say(element, `No other case differs from this one in ${BY[by][1]} alone.`);
  return plot(element, (c) => {
    const layout = baseLayout(c), trace = (name, read, hue, symbol, dash) => ({ name, x: own.map((one) => one[by]), y: own.map(read), text: own.map((one) => `${one.name}<br>${name}: ${withUnit(read(one), "us")}`), mode: "lines+markers", line: { color: hue, dash }, marker: { color: hue, size: 8, symbol }, hovertemplate: "%{text}<extra></extra>" });
    layout.xaxis = { ...layout.xaxis, title: { text: `${BY[by][0]}, ${BY[by][1]}` }, tickmode: "array", tickvals: own.map((one) => one[by]), type: by === "B" ? "log" : "linear" };
    layout.yaxis = { ...layout.yaxis, title: { text: "µs (lower is better)" }, tickformat: ",~g", rangemode: "tozero" };
    return [[trace("commit", (one) => one.commit, c.ours, "circle", "solid"), trace("byte floor", (one) => one.floor, c.quiet, "line-ew", "dot")], layout];
  });
}

// What stands between backquotes is code.
const withCode = (text) => text.split("`").map((piece, place) => (place % 2 ? make("code", { textContent: piece }) : piece));

// Those with entries are counted, in the figure as in the list.
const numberOf = (index, change) => (change.entries?.length ? `[${index.changes.filter((one) => one.entries?.length && one.at <= change.at).length}] ` : "");

function fillChanges(index) {
  const lines = index.changes.flatMap((change) => {
    const heading = `${numberOf(index, change)}${change.from} → ${change.to}`;
    if (change.entries === null) return [make("li", { textContent: `${heading}: the changelog of these commits is not known where this page was built.` })];
    if (!change.entries.length) return [];
    return [make("li", {}, make("strong", { textContent: heading }), make("ul", { className: "plain" }, ...change.entries.map((text) => make("li", {}, ...withCode(text)))))];
  });
  const none = index.changes.length ? "No entry between the measured commits names the commit kernel." : "One commit alone is measured so far.";
  part("changes").replaceChildren(...(lines.length ? lines : [make("li", { textContent: none })]));
}

async function show(state) {
  const mine = ++turn;
  const slug = pick(control.gpu, state.gpu), index = await loadData(`${slug}/commit`);
  const names = index.cases.map((one) => one.name);
  const name = [state.case, control.case.dataset.first].find((one) => names.includes(one)) ?? names[0];
  const facts = index.cases.find((one) => one.name === name);
  const data = await loadData(`${slug}/commit-${facts.file}`);
  if (mine !== turn) return;
  control.case.replaceChildren(...names.map((one) => new Option(one, one)));
  control.case.value = name;
  control.figure.value = state.figure === "step" ? "step" : "parts";
  control.by.value = BY[state.by] ? state.by : "B";
  part("unknown").hidden = !state.case || state.case === name;
  part("unknown").textContent = `No case ${state.case} is here.`;
  part("stands-for").textContent = data.stands_for;
  part("gaps").textContent = data.missing.length ? `Not measured for this case: ${data.missing.join(", ")}.` : "";
  part("peers").textContent = data.peers.length ? "" : "No other project's commit is recorded for this case and GPU model.";
  fillChanges(index);
  const [lines, growth] = ["lines", "growth"].map((one) => document.querySelector(`[data-chart=${one}]`));
  whenNear(lines, () => drawLines(lines, index, data, control.figure.value));
  whenNear(growth, () => drawGrowth(growth, index, facts, control.by.value));
  for (const section of document.querySelectorAll("[data-gpu]")) section.hidden = section.dataset.gpu !== slug;
  for (const row of document.querySelectorAll("[data-case]")) row.toggleAttribute("aria-current", row.dataset.case === name);
}

const chosen = () => ({ gpu: control.gpu.value, case: control.case.value, figure: control.figure.value === "parts" ? "" : "step", by: control.by.value === "B" ? "" : control.by.value });
for (const select of Object.values(control)) select.addEventListener("change", () => pageState.set(chosen()));
for (const button of document.querySelectorAll("[data-pick]")) button.addEventListener("click", () => { pageState.set({ ...chosen(), case: button.closest("tr").dataset.case }); control.case.scrollIntoView({ block: "nearest" }); });
pageState.follow(show);
