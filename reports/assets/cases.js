// The choice of a case on the page of cases.
"use strict";

function fillTable(table, { headings, numbers, rows, notes = [] }) {
  const line = (tag, texts) => {
    const row = document.createElement("tr");
    texts.forEach((text, column) => {
      const cell = document.createElement(tag);
      cell.textContent = text;
      cell.classList.toggle("number", numbers.includes(column));
      row.append(cell);
    });
    return row;
  };
  const [head, body] = [document.createElement("thead"), document.createElement("tbody")];
  head.append(line("th", headings));
  rows.forEach((texts, index) => {
    body.append(line("td", texts));
    if (!notes[index]) return;
    const note = Object.assign(document.createElement("td"), { className: "remark", colSpan: headings.length });
    note.append(Object.assign(document.createElement("p"), { textContent: notes[index] }));
    body.append(document.createElement("tr"));
    body.lastChild.append(note);
  });
  table.replaceChildren(head, body);
}

function fillTile(element, tile) {
  for (const name of ["value", "word", "detail", "note"]) element.querySelector(`[data-field=${name}]`).textContent = tile[name];
  element.querySelector("[data-field=word]").className = `word ${tile.tone}`;
  element.querySelector("[data-field=caption]").textContent = tile.spark ? tile.spark.caption : "no history";
  const drawing = element.querySelector("svg");
  drawing.toggleAttribute("hidden", !tile.spark || tile.spark.nights < 2); // one night is no line
  if (!tile.spark) return;
  drawing.querySelector("path").setAttribute("d", tile.spark.path);
  drawing.querySelector("circle").setAttribute("cx", tile.spark.x);
  drawing.querySelector("circle").setAttribute("cy", tile.spark.y);
}

async function selectCase(section, name) {
  const model = section.dataset.model;
  section.dataset.case = name;
  const night = await loadData(`${model}/night`);
  const data = await loadData(`${model}/${night.files[name]}`);
  if (section.dataset.case !== name) return; // another case was chosen meanwhile
  section.querySelector("[data-case-choice]").value = name;
  section.querySelector("[data-stands-for]").textContent = data.skipped || data.stands_for;
  for (const row of section.querySelectorAll("tr[data-case]")) row.classList.toggle("selected", row.dataset.case === name);
  for (const tile of data.tiles) {
    const element = section.querySelector(`[data-tile="${tile.key}"]`);
    if (element) fillTile(element, tile);
  }
  fillTable(section.querySelector("[data-series]"), data.series);
  fillTable(section.querySelector("[data-checks]"), data.checks);
  section.querySelector("[data-reproduce]").textContent = data.reproduce;
  section.dispatchEvent(new CustomEvent("caseselected", { detail: data }));
}

// The address holds the choices of one section, its model. The others stand as they are delivered.
const NO_CHOICE = { case: null, words: null, verdict: null, sort: null, figure: null, op: null };

function choose(section, changes, options) {
  const model = section.dataset.model, others = pageState.get().model === model ? {} : NO_CHOICE;
  pageState.set({ ...others, model, ...changes }, options);
}

const chosenIn = (section, state) => (state.model === section.dataset.model ? state : {});

function setUpSection(section) {
  const table = section.querySelector("table[data-cases]");
  if (!table) return;
  const [choice, words, verdict] = ["[data-case-choice]", "[data-filter]", "select[data-verdict]"].map((s) => section.querySelector(s));
  const delivered = choice.value;
  const set = (changes, options) => choose(section, changes, options);
  setUpSorting(table, (sort) => set({ sort }));
  setUpFilter(section, table);
  choice.addEventListener("change", () => set({ case: choice.value }));
  words.addEventListener("input", () => set({ words: words.value }, { replace: true }));
  verdict.addEventListener("change", () => set({ verdict: verdict.value }));
  for (const button of section.querySelectorAll("[data-select]")) {
    button.addEventListener("click", () => {
      set({ case: button.closest("tr").dataset.case });
      section.querySelector(".choice").scrollIntoView({ behavior: "smooth", block: "nearest" });
    });
  }
  const apply = (state) => {
    const chosen = chosenIn(section, state);
    sortBy(table, chosen.sort);
    if (words.value !== (chosen.words ?? "")) words.value = chosen.words ?? "";
    verdict.value = chosen.verdict ?? "";
    section.dispatchEvent(new Event("filterchanged"));
    const known = [...choice.options].some((option) => option.value === chosen.case);
    const name = known ? chosen.case : delivered;
    if (section.dataset.case !== name) selectCase(section, name);
  };
  // After case_charts.js, which is deferred too, has begun to listen.
  document.addEventListener("DOMContentLoaded", () => {
    pageState.follow(apply);
    if (pageState.get().model === section.dataset.model) section.scrollIntoView();
  });
}

document.querySelectorAll("section[data-model]").forEach(setUpSection);
