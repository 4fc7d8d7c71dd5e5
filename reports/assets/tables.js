// Tables that can be sorted and filtered. A row is named by data-case; a cell sorts by data-sort.
"use strict";

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

// Calls choose("COLUMN-up" or "COLUMN-down") when a heading is pressed; sortBy then does it.
function setUpSorting(table, choose) {
  table.delivered = [...table.tBodies[0].rows];
  [...table.tHead.rows[1].cells].forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => choose(`${column}-${heading.getAttribute("aria-sort") === "ascending" ? "down" : "up"}`));
  });
}

// In the order that the page came in where the choice names no column.
function sortBy(table, chosen = "") {
  const [, column, way] = chosen.match(/^(\d+)-(up|down)$/) ?? [], headings = [...table.tHead.rows[1].cells];
  headings.forEach((heading, place) => heading.setAttribute("aria-sort", place !== Number(column) ? "none" : way === "up" ? "ascending" : "descending"));
  const rows = [...table.delivered];
  table.tBodies[0].append(...(headings[column] ? rows.sort(compareRows(Number(column), way === "up" ? 1 : -1)) : rows));
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
  section.addEventListener("filterchanged", apply); // by a script
}

// "b1" must not find "b16": a word that ends in a digit is not followed by another one.
function matchesWord(text, word) {
  for (let at = text.indexOf(word); at !== -1; at = text.indexOf(word, at + 1)) {
    const next = text[at + word.length] ?? "";
    if (!(/\d$/.test(word) && /[\d.]/.test(next))) return true;
  }
  return false;
}
