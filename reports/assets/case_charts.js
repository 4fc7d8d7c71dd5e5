// The two figures of each GPU model: the history of one case, and all cases of one night.
"use strict";

// ---- history of one case

function historyTraces(history, metric, c) {
  const traces = [];
  for (const line of metric.lines) {
    const { colour, symbol, dash } = look(c, line.name);
    const [x, y, text, dots, dotsX] = [[], [], [], [], []];
    line.points.forEach((point, index) => {
      const night = history.nights[index];
      if (night.cut) { x.push(night.utc); y.push(null); text.push(""); } // the series is cut here
      x.push(night.utc); y.push(point.median); text.push(`${night.label}<br>${line.name}: ${pointText(point, metric.unit)}`);
      for (const value of point.values ?? []) { dotsX.push(night.utc); dots.push(value); }
    });
    traces.push({ name: "single processes", x: dotsX, y: dots, mode: "markers", marker: { color: colour, size: 4, opacity: 0.45 }, hoverinfo: "skip", showlegend: false });
    traces.push({ name: line.name, x, y, text, mode: "lines+markers", connectgaps: false, line: { color: colour, width: 2, dash }, marker: { color: colour, size: 8, symbol }, hovertemplate: "%{text}<extra></extra>" });
  }
  const red = history.nights.map((night, index) => [night, metric.lines[0].points[index].median]).filter(([night, y]) => night.red && y !== null);
  traces.push({ name: "red night", x: red.map(([night]) => night.utc), y: red.map(([, y]) => y), mode: "markers", marker: { symbol: "x-thin", size: 13, line: { color: c.bad, width: 2.5 } }, hoverinfo: "skip", showlegend: red.length > 0 });
  return traces;
}

function pointText({ median, values, reason }, unit) {
  if (median === null) return reason;
  const shown = (value) => (unit === "pct" ? percent(value) : withUnit(value, unit)), [low, high] = [Math.min(...values), Math.max(...values)];
  if (values.length < 2) return `${shown(median)} (1 process)`;
  return `${shown(median)} (${low === high ? "same in every process" : `${shown(low)} to ${shown(high)}`})`;
}

function historyLayout(history, metric, c) {
  const layout = baseLayout(c);
  const cuts = history.nights.filter((night) => night.cut);
  layout.xaxis = { ...layout.xaxis, type: "date", title: { text: "night (UTC)" }, hoverformat: "%Y-%m-%d %H:%M UTC" };
  layout.yaxis = { ...layout.yaxis, title: { text: `${metric.unit === "pct" ? "%" : unitName(metric.unit)} (lower is better)` }, tickformat: "~r" };
  layout.yaxis.tickformat = metric.unit === "pct" ? "~g" : ",~g";
  layout.shapes = cuts.map((night) => ({ type: "line", xref: "x", yref: "paper", x0: night.utc, x1: night.utc, y0: 0, y1: 1, line: { color: c.quiet, width: 1, dash: "dash" } }));
  layout.annotations = cuts.map((night) => ({ x: night.utc, y: 1, yref: "paper", yanchor: "top", xanchor: "right", text: night.cut, showarrow: false, font: { size: 11, color: c.quiet }, textangle: -90 }));
  if (history.nights.length === 1) layout.xaxis = oneNight(layout.xaxis, history.nights[0].utc);
  return layout;
}

// A single date would make plotly show milliseconds: give it a day on either side.
function oneNight(axis, utc) {
  const day = 86400000, at = Date.parse(utc + "Z"), stamp = (ms) => new Date(ms).toISOString().slice(0, 19);
  return { ...axis, range: [stamp(at - 3 * day), stamp(at + 3 * day)], dtick: day };
}

function drawHistory(element, data, key) {
  const metric = data.history.metrics.find((item) => item.key === key);
  const known = metric.lines.some((line) => line.points.some((point) => point.median !== null));
  if (!known) return say(element, `No ${key.replace("_", " ")} is recorded for this case: ${metric.lines[0].points.at(-1).reason}.`);
  return plot(element, (c) => [historyTraces(data.history, metric, c), historyLayout(data.history, metric, c)]);
}

// ---- all cases of one night

function drawCases(element, night, op) {
  const indices = night.cases.map((_, index) => index).filter((index) => Object.values(night[op]).some((bars) => bars[index]));
  if (!indices.length) return say(element, `No device time of ${op} is recorded in this night.`);
  const labels = indices.map((index) => night.cases[index].slice(night.prefix.length));
  element.style.height = `${Math.max(220, 110 + 19 * indices.length)}px`;
  return plot(element, (c) => {
    const narrow = element.clientWidth < NARROW_PX;
    const traces = Object.entries(night[op]).map(([name, bars]) => {
      const { colour, symbol } = look(c, name);
      const rows = indices.map((index) => bars[index]);
      return {
        name, y: labels, x: rows.map((row) => row && row.median), text: rows.map((row) => (row ? row.text : "")),
        error_x: { type: "data", symmetric: false, array: rows.map((row) => (row ? row.high - row.median : 0)), arrayminus: rows.map((row) => (row ? row.median - row.low : 0)), color: colour, thickness: 1.5, width: 3 },
        mode: "markers", marker: { color: colour, size: 8, symbol, line: { color: colour, width: 1.5 } },
        hovertemplate: `${name}: %{text}<br>${night.prefix}%{y}<extra></extra>`,
      };
    });
    const layout = baseLayout(c);
    layout.xaxis = { ...layout.xaxis, type: "log", title: { text: narrow ? `${op}, µs, log scale` : `${op}, device time in µs, log scale (lower is better)` }, dtick: narrow ? 1 : "D2", tickformat: ",~g" };
    layout.yaxis = { ...layout.yaxis, range: [indices.length - 0.4, -0.6], dtick: 1, tickfont: { family: "ui-monospace, monospace", size: 11 } };
    return [traces, layout];
  });
}

function setUpCharts(section) {
  const history = section.querySelector("[data-chart=history]");
  if (!history) return;
  const [cases, metric, op] = ["[data-chart=cases]", "[data-history-choice]", "[data-op-choice]"].map((s) => section.querySelector(s));
  let data = null, shown = null;
  const redraw = () => { shown = metric.value; whenNear(history, () => drawHistory(history, data, metric.value)); };
  section.addEventListener("caseselected", (event) => {
    data = event.detail;
    if (!metric.options.length) metric.append(...data.history.metrics.map((item) => new Option(item.title, item.key)));
    pick(metric, chosenIn(section, pageState.get()).figure);
    redraw();
  });
  metric.addEventListener("change", () => choose(section, { figure: metric.value }));
  op.addEventListener("change", () => choose(section, { op: op.value }));
  pageState.follow(async (state) => {
    const chosen = chosenIn(section, state), night = await loadData(`${section.dataset.model}/night`);
    pick(op, chosen.op);
    whenNear(cases, () => drawCases(cases, night, op.value));
    if (!data) return; // it is drawn when they are there
    pick(metric, chosen.figure);
    if (metric.value !== shown) redraw();
  });
}

document.querySelectorAll("section[data-model]").forEach(setUpCharts);
