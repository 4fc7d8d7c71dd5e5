// The page of one series: what is chosen stands in the address, figures and tables follow it.
"use strict";

const choice = Object.fromEntries(["gpu", "case", "series", "x"].map((name) => [name, document.querySelector(`[data-choose=${name}]`)]));
const part = (name) => document.querySelector(`[data-part=${name}]`);
const FIRST_ROWS = 60;
const whenIdle = window.requestIdleCallback ?? setTimeout; // Safari has none
let turn = 0; // of the newest choice; what an earlier one still loads is not shown

function fillChoice(select, options, wanted) {
  select.replaceChildren(...options.map(([value, label]) => new Option(label, value)));
  return pick(select, wanted);
}

// What the address asks for, or the nearest that there is.
async function show(state) {
  const mine = ++turn;
  loadScript(PLOTLY).catch(() => {}); // while data come; who draws says it when it did not
  const slug = pick(choice.gpu, state.gpu);
  const timeline = await loadData(`${slug}/timeline`);
  const cases = Object.keys(timeline.files);
  const preferred = [state.case, choice.case.dataset.first].find((name) => cases.includes(name)) ?? cases[0];
  const data = await loadData(`${slug}/series-${timeline.files[preferred]}`);
  if (mine !== turn) return;
  const name = fillChoice(choice.case, cases.map((one) => [one, one]), preferred);
  const key = fillChoice(choice.series, data.series.map((one) => [one.key, one.name]), state.series ?? choice.series.dataset.first);
  choice.x.value = state.x === "order" ? "order" : "date";
  const series = data.series.find((one) => one.key === key);
  const night = timeline.nights.findIndex((one) => one.id === state.night);
  tellUnknown(state, { gpu: slug, case: name, series: key, night: night === -1 ? "" : state.night });
  part("stands-for").textContent = data.stands_for;
  part("reproduce").textContent = data.reproduce;
  part("notes").replaceChildren(...notes(timeline, series).map((text) => make("li", { textContent: text })));
  const chart = document.querySelector("[data-chart=series]");
  whenNear(chart, async () => {
    await drawSeries(chart, timeline, series, { byOrder: choice.x.value === "order", selected: night });
    if (!chart.on) return;
    chart.removeAllListeners("plotly_click");
    chart.on("plotly_click", ({ points }) => pageState.set({ ...chosen(), night: timeline.nights[points[0].customdata].id }));
  });
  fillNights(mine, timeline, series, night);
  await showSamples(mine, slug, timeline, name, series, night);
}

const chosen = () => ({ gpu: choice.gpu.value, case: choice.case.value, series: choice.series.value, x: choice.x.value === "order" ? "order" : "" });

function tellUnknown(state, found) {
  const unknown = Object.entries(found).filter(([name, value]) => state[name] && state[name] !== value);
  part("unknown").hidden = !unknown.length;
  part("unknown").textContent = unknown.map(([name]) => `No ${name} ${state[name]} is here.`).join(" ");
}

function notes(timeline, series) {
  const lanes = timeline.lanes.filter((lane) => lane.missing).map((lane) => `${lane.title}: ${lane.missing}.`);
  const steps = series.changes.map(([night, change, before, after]) => `${timeline.nights[night].when}: ${percent(change)}, a lasting step (${before} nights before, ${after} after); commits ${commitBefore(timeline, series, night)} → ${timeline.nights[night].commit}.`);
  const rule = series.limit_pct === null ? [] : [series.steps_missing || `A step is a lasting change by at least ${fixed(series.limit_pct, 1)}${NBSP}% that twelve nights before and three after carry, in one environment. ${steps.length ? "" : "None was found."}`];
  return [...steps, ...rule, ...lanes];
}

function commitBefore(timeline, series, night) {
  for (let index = night - 1; index >= 0; index -= 1) if (series.medians[index] !== null && timeline.nights[index].environment === timeline.nights[night].environment) return timeline.nights[index].commit;
  return "unknown";
}

// The newest rows at once, for they are what is seen; the others when nothing else is to be done.
function fillNights(mine, timeline, series, selected) {
  const own = timeline.nights.map(() => []);
  timeline.processes.forEach((process, place) => { if (series.values[place] !== null) own[process.night].push([process, series.values[place]]); });
  const shown = timeline.nights.map((_, index) => index).filter((index) => series.medians[index] !== null || series.reasons[index]).reverse();
  const rows = (places) => places.map((index) => nightRow(timeline, series, index, own[index], index === selected));
  const first = Math.max(FIRST_ROWS, shown.indexOf(selected) + 1);
  part("nights").replaceChildren(...rows(shown.slice(0, first)));
  if (shown.length > first) whenIdle(() => { if (mine === turn) part("nights").append(...rows(shown.slice(first))); });
}

function nightRow(timeline, series, index, own, isSelected) {
  const night = timeline.nights[index];
  const pick = make("button", { type: "button", textContent: night.when });
  pick.addEventListener("click", () => { pageState.set({ ...chosen(), night: night.id }); part("samples").scrollIntoView({ block: "nearest" }); });
  const cell = (text, className = "") => make("td", { textContent: text, className });
  const row = make("tr", { className: isSelected ? "selected" : "" }, make("th", { scope: "row" }, pick),
    cell(series.medians[index] === null ? series.reasons[index] : withUnit(series.medians[index], series.unit), "number"),
    cell(reach(own.map(([, value]) => value), series.unit)), cell(String(own.length), "number"),
    cell([...new Set(own.map(([process]) => timeline.cards[process.card]))].join(", ")),
    cell(night.commit), cell(night.set), cell(series.verdicts[index] || "none", `verdict ${series.verdicts[index]}`), cell(night.cut || "as before"), make("td", {}, ...rawLinks(night.raw)));
  if (isSelected) row.setAttribute("aria-current", "true");
  return row;
}

async function showSamples(mine, slug, timeline, name, series, night) {
  const [heading, said, table, chart] = [part("samples-of"), part("samples-said"), part("processes"), document.querySelector("[data-chart=samples]")];
  chart.hidden = table.closest(".scroll").hidden = night === -1;
  heading.textContent = night === -1 ? "Raw samples" : `Raw samples of ${timeline.nights[night].when}`;
  said.textContent = "Choose a night: a point of the figure, or a line of the table.";
  if (night === -1) return;
  const own = timeline.processes.map((process, place) => ({ ...process, value: series.values[place] })).filter((process) => process.night === night);
  let data = null;
  if (timeline.nights[night].has_samples) data = await loadData(`${slug}/samples/${timeline.nights[night].id}/${timeline.files[name]}`).catch(() => null);
  if (mine !== turn) return;
  const found = data?.series[series.key] ?? {};
  const drawn = own.map((process, place) => ({ label: process.id, ...found[place] })).filter((process) => process.values?.length);
  said.textContent = saying(timeline.nights[night], data, drawn.length, own);
  chart.hidden = !drawn.length;
  if (drawn.length) whenNear(chart, () => drawSamples(chart, drawn, series));
  table.replaceChildren(...own.map((process, place) => processRow(timeline, series, process, found[place], data?.unreadable[place])));
}

function saying(night, data, num, own) {
  if (!night.has_samples) return `Samples of nights this old are not on the page${own.some((process) => process.raw.length) ? "; they are in the Parquet files below" : ""}.`;
  if (!data) return "This night has nothing of this case.";
  return num ? "Each point is one timed window of launches; a cross does not count, because the card was held back." : "This series has no samples in this night: it is computed, or was not measured.";
}

function processRow(timeline, series, process, samples, unreadable) {
  const cell = (text, className = "") => make("td", { textContent: text, className });
  const counted = samples ? samples.values.filter((_, index) => !samples.dropped.includes(index)) : [];
  return make("tr", {}, make("th", { scope: "row", textContent: process.id }), cell(timeline.cards[process.card]), cell(withUnit(process.value, series.unit), "number"),
    cell(unreadable ? `samples cannot be read: ${unreadable}` : samples ? String(counted.length) : MISSING, "number"), cell(samples ? String(samples.dropped.length) : MISSING, "number"),
    cell(reach(counted, series.unit)), make("td", {}, ...rawLinks(process.raw)));
}

for (const [name, select] of Object.entries(choice)) {
  select.addEventListener("change", () => pageState.set({ ...chosen(), ...(name === "gpu" ? { night: null } : {}) }));
}
pageState.follow(show);
