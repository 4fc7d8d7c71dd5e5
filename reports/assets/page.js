// Sorting, filtering and the choice of a case. Text and numbers arrive formatted; this file only places them.
"use strict";
window.recoverssm_data = window.recoverssm_data || {};

const scripts = new Map();

// Loads a classic script once. Pages opened from file:// cannot fetch, but they can add scripts.
function loadScript(source) {
  if (!scripts.has(source)) {
    scripts.set(source, new Promise((resolve, reject) => {
      const element = document.createElement("script");
      element.src = source;
      element.onload = resolve;
      element.onerror = () => reject(new Error(`${source} did not load`));
      document.head.append(element);
    }));
  }
  return scripts.get(source);
}

async function loadData(key) {
  await loadScript("data/" + key.split("/").map(encodeURIComponent).join("/") + ".js");
  return window.recoverssm_data[key];
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function setUpTheme() {
  const button = document.getElementById("theme");
  const label = () => { button.textContent = isDark() ? "Light theme" : "Dark theme"; };
  const changed = () => { label(); document.dispatchEvent(new Event("themechange")); };
  button.hidden = false;
  label();
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try { localStorage.setItem("recoverssm-theme", theme); } catch { /* the choice then lasts for this page only */ }
    changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
}

// ---- table of cases

function sortValue(row, column) {
  // A skipped case has one wide cell, so columns are counted by width; what lies inside the wide one has no value.
  const cell = cellAt(row, column);
  if (!cell || cell.dataset.sort === undefined || cell.dataset.sort === "") return NaN;
  return Number(cell.dataset.sort);
}

function cellAt(row, column) {
  let left = column;
  for (const cell of row.cells) {
    if (left < cell.colSpan) return cell;
    left -= cell.colSpan;
  }
  return null;
}

function compareRows(column, direction) {
  const names = new Intl.Collator("en", { numeric: true });
  return (a, b) => {
    const byName = names.compare(a.dataset.case, b.dataset.case);
    if (column === 0) return direction * byName;
    const [x, y] = [sortValue(a, column), sortValue(b, column)];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || byName; // missing stays last
    return direction * (x - y) || byName;
  };
}

function setUpSorting(table) {
  const headings = [...table.tHead.rows[1].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const direction = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      headings.forEach((other) => other.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compareRows(column, direction)));
    });
  });
}

function setUpFilter(section, table) {
  const [words, verdict, shown] = ["[data-filter]", "select[data-verdict]", "[data-shown]"].map((s) => section.querySelector(s));
  const apply = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...table.tBodies[0].rows];
    for (const row of rows) {
      const text = row.dataset.case.toLowerCase();
      row.hidden = !wanted.every((word) => matchesWord(text, word)) || (verdict.value !== "" && row.dataset.verdict !== verdict.value);
    }
    const visible = rows.filter((row) => !row.hidden).length;
    shown.textContent = visible === rows.length ? `${rows.length} cases` : `${visible} of ${rows.length} cases`;
  };
  words.addEventListener("input", apply);
  verdict.addEventListener("change", apply);
}

// "b1" must not find "b16": a word that ends in a digit is not followed by another one.
function matchesWord(text, word) {
  for (let at = text.indexOf(word); at !== -1; at = text.indexOf(word, at + 1)) {
    const next = text[at + word.length] ?? "";
    if (!(/\d$/.test(word) && /[\d.]/.test(next))) return true;
  }
  return false;
}

// ---- the selected case

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

function setUpSection(section) {
  const table = section.querySelector("table[data-cases]");
  if (!table) return;
  setUpSorting(table);
  setUpFilter(section, table);
  const choice = section.querySelector("[data-case-choice]");
  choice.addEventListener("change", () => selectCase(section, choice.value));
  for (const button of section.querySelectorAll("[data-select]")) {
    button.addEventListener("click", () => {
      selectCase(section, button.closest("tr").dataset.case);
      section.querySelector(".choice").scrollIntoView({ behavior: "smooth", block: "nearest" });
    });
  }
  // After charts.js, which is deferred too, has begun to listen.
  document.addEventListener("DOMContentLoaded", () => selectCase(section, choice.value));
}

// A table that goes on beyond its right edge fades there.
function setUpFade(box) {
  const update = () => box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  box.addEventListener("scroll", update, { passive: true });
  const seen = new ResizeObserver(update);
  seen.observe(box);
  seen.observe(box.firstElementChild);
}

setUpTheme();
document.querySelectorAll(".scroll").forEach(setUpFade);
document.querySelectorAll("section[data-model]").forEach(setUpSection);
