// Compares any two sides, series by series: ratio B over A of geometric means over processes, with its interval.
"use strict";

const control = Object.fromEntries(["a", "b", "words", "least", "show"].map((name) => [name, document.querySelector(`[data-choose=${name}]`)]));
const part = (name) => document.querySelector(`[data-part=${name}]`);
const MARKS = { worse: "▲", better: "▼", different: "≠", alone: "∅", unsure: "?", unchanged: "=", "not shared": "–" };
const SHOWN = { changed: ["worse", "different", "alone", "better"], unsure: ["unsure"], unchanged: ["unchanged"], apart: ["not shared"], all: Object.keys(MARKS) };
const MOST_ROWS = 400;
let turn = 0;

function moments(values) {
  const logs = values.map(Math.log), mean = logs.reduce((a, b) => a + b, 0) / logs.length;
  return { n: logs.length, mean, variance: logs.length < 2 ? 0 : logs.reduce((sum, x) => sum + (x - mean) ** 2, 0) / (logs.length - 1) };
}

// Welch's interval of the difference of two means of logarithms; the ratio alone below two processes a side.
function ratioOf(before, after, t975) {
  if ([...before, ...after].some((value) => !(value > 0))) return null;
  const [a, b] = [moments(before), moments(after)], change = b.mean - a.mean;
  if (a.n < 2 || b.n < 2) return { ratio: Math.exp(change) };
  const [x, y] = [a.variance / a.n, b.variance / b.n], error = Math.sqrt(x + y);
  const freedom = error === 0 ? 1 : (x + y) ** 2 / (x ** 2 / (a.n - 1) + y ** 2 / (b.n - 1));
  const half = error * t975[Math.min(Math.floor(freedom), t975.length) - 1];
  return { ratio: Math.exp(change), low: Math.exp(change - half), high: Math.exp(change + half) };
}

// ``shared``: cases that both sides have. A series that one side lacks all the same has vanished or is new.
function judge(row, shared, least) {
  if (!row.before.length || !row.after.length) return shared.has(row.case) ? "alone" : "not shared";
  const [a, b] = [median(row.before), median(row.after)];
  if (["exact", "static"].includes(row.contract)) {
    if (a === b) return "unchanged";
    if (row.better === "equal") return "different";
    return (b < a) === (row.better === "lower") ? "better" : "worse";
  }
  const found = row.found;
  if (!found || found.low === undefined) return "unsure";
  const limit = Math.log1p(least / 100), [low, high] = [Math.log(found.low), Math.log(found.high)];
  if ((low > 0 || high < 0) && Math.abs(Math.log(found.ratio)) >= limit) return (found.ratio < 1) === (row.better !== "higher") ? "better" : "worse";
  return low > -limit && high < limit ? "unchanged" : "unsure";
}

function join(keysA, valuesA, keysB, valuesB, t975) {
  const rows = new Map();
  const add = (keys, values, side) => {
    for (const [place, ...own] of values) {
      const [metric, op, provider, name, contract, unit, better] = keys[place];
      const key = JSON.stringify([metric, op, provider, name, contract]);
      if (!rows.has(key)) rows.set(key, { metric, op, provider, case: name, contract, unit, better, before: [], after: [] });
      rows.get(key)[side] = own;
    }
  };
  add(keysA, valuesA, "before");
  add(keysB, valuesB, "after");
  for (const row of rows.values()) row.found = row.before.length && row.after.length ? ratioOf(row.before, row.after, t975) : null;
  return [...rows.values()];
}

// Strongest change first; what stands on one side alone comes after all others.
const size = (row) => (row.found ? Math.abs(Math.log(row.found.ratio)) : -1);

async function show(state) {
  const mine = ++turn;
  const { sides, stands_for: standsFor, t975 } = await loadData("compare");
  for (const name of ["a", "b"]) control[name].value = standsFor[state[name]] ? state[name] : control[name].dataset.first;
  part("unknown").textContent = ["a", "b"].filter((name) => state[name] && !standsFor[state[name]]).map((name) => `No measurement ${state[name]} is here.`).join(" ");
  part("unknown").hidden = !part("unknown").textContent;
  control.show.value = SHOWN[state.show] ? state.show : "changed";
  control.least.value = Number(state.least) > 0 ? state.least : "1";
  if (control.words.value !== (state.words ?? "")) control.words.value = state.words ?? "";
  const [a, b] = [sides[standsFor[control.a.value]], sides[standsFor[control.b.value]]];
  const [keysA, valuesA, keysB, valuesB] = await Promise.all([`${a.slug}/keys`, a.file, `${b.slug}/keys`, b.file].map(loadData));
  if (mine !== turn) return;
  fillSides(a, b);
  const least = Number(control.least.value), words = control.words.value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = join(keysA, valuesA, keysB, valuesB, t975).filter((row) => words.every((word) => matchesWord(nameOf(row).toLowerCase(), word)));
  const [before, after] = ["before", "after"].map((side) => new Set(rows.filter((row) => row[side].length).map((row) => row.case)));
  const shared = new Set([...before].filter((name) => after.has(name)));
  for (const row of rows) row.word = judge(row, shared, least);
  rows.sort((x, y) => size(y) - size(x));
  const wanted = rows.filter((row) => SHOWN[control.show.value].includes(row.word));
  part("rows").replaceChildren(...wanted.slice(0, MOST_ROWS).map((row) => line(row, a, b)));
  part("folded").textContent = folded(rows, wanted);
}

const nameOf = (row) => `${row.case} ${row.op} ${row.provider} ${row.metric} ${row.contract}`;

function folded(rows, wanted) {
  const counts = Object.keys(MARKS).map((word) => [word, rows.filter((row) => row.word === word).length]).filter(([, count]) => count);
  const cut = wanted.length > MOST_ROWS ? ` The ${MOST_ROWS} largest of ${wanted.length} are shown; more words narrow them down.` : "";
  if (!rows.length) return "No series fits.";
  return `${rows.length} series: ${counts.map(([word, count]) => `${MARKS[word]} ${count} ${word}`).join(", ")}. ${wanted.length ? "" : "None of those asked for."}${cut}`;
}

function line(row, a, b) {
  const cell = (content, className = "") => { const element = make("td", { className }); element.append(content); return element; };
  const at = (side, values) => (values.length ? link(side, row, withUnit(median(values), row.unit)) : MISSING);
  const found = row.found, number = (value) => fixed(value, 4);
  return make("tr", {},
    make("th", { scope: "row" }, make("code", { textContent: row.case })), cell(`${MARKS[row.word]} ${row.word}`, `outcome ${row.word.replace(" ", "-")}`),
    cell(found ? percent(100 * (found.ratio - 1)) : MISSING, "number"), cell(`${row.op}, ${row.provider}`), cell(`${row.metric}, ${row.contract}`),
    cell(at(a, row.before), "number"), cell(String(row.before.length), "number"), cell(at(b, row.after), "number"), cell(String(row.after.length), "number"),
    cell(found ? number(found.ratio) : MISSING, "number"), cell(found && found.low !== undefined ? `${number(found.low)} to ${number(found.high)}` : MISSING));
}

// To the series with this night's samples and raw files; a backfill is on no page of nights.
function link(side, row, text) {
  if (!side.night) return text;
  const state = new URLSearchParams({ gpu: side.slug, case: row.case, series: [row.metric, row.op, row.provider, row.contract].join("/"), night: side.night });
  return make("a", { href: `series.html#${state}`, textContent: text });
}

function fillSides(a, b) {
  const facts = [["GPU model", (s) => s.name], ["measurement", (s) => s.what], ["set", (s) => s.case_set], ["subject", (s) => s.commit], ["processes", (s) => String(s.processes)], ["cards", (s) => s.cards]];
  const names = [...new Set([...Object.keys(a.environment), ...Object.keys(b.environment)])];
  for (const name of names) if (a.environment[name] !== b.environment[name]) facts.push([name, (s) => s.environment[name] ?? "unknown"]);
  const rows = facts.map(([label, read]) => [label, read(a), read(b)]);
  part("sides").replaceChildren(...rows.map(([label, one, other]) => make("tr", {}, make("th", { scope: "row", textContent: label }), make("td", { textContent: one }), make("td", { textContent: one === other ? "the same" : other }))));
  if (a.raw.length || b.raw.length) part("sides").append(make("tr", {}, make("th", { scope: "row", textContent: "raw files" }), make("td", {}, ...rawLinks(a.raw)), make("td", {}, ...rawLinks(b.raw))));
  const differs = names.filter((name) => !["CPU", "OS kernel"].includes(name) && a.environment[name] !== b.environment[name]);
  part("differs").hidden = !differs.length;
  part("differs").textContent = `! The environment is not the same (${differs.join(", ")}), so a ratio is no change of the code alone.`;
  const nights = a.night && b.night;
  part("command").textContent = nights ? `python -m ci compare ${a.night} ${b.night}${differs.length ? " --anyway" : ""}` : `python -m ci compare ${a.hash} ${b.hash}`;
}

const chosen = () => ({ a: control.a.value, b: control.b.value, least: control.least.value === "1" ? "" : control.least.value, show: control.show.value === "changed" ? "" : control.show.value });
for (const name of ["a", "b", "least", "show"]) control[name].addEventListener("change", () => pageState.set(chosen()));
control.words.addEventListener("input", () => pageState.set({ ...chosen(), words: control.words.value }, { replace: true }));
part("swap").addEventListener("click", () => pageState.set({ ...chosen(), a: control.b.value, b: control.a.value }));
pageState.follow(show);
