// Numbers as reports/text.py writes them, for figures and tables that scripts fill.
"use strict";

const MISSING = "–", NBSP = "\u00a0", MINUS = "\u2212";

function fixed(value, digits) {
  if (value === null || value === undefined) return MISSING;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits, useGrouping: true }).replace("-", MINUS);
}

function micros(value) {
  const size = Math.abs(value ?? 0);
  return fixed(value, size < 10 ? 2 : size < 1000 ? 1 : 0);
}

function percent(value, digits = 1) {
  if (value === null || value === undefined) return MISSING;
  const zero = Number(value.toFixed(digits)) === 0;
  return `${value > 0 && !zero ? "+" : ""}${fixed(zero ? 0 : value, digits)}${NBSP}%`;
}

function bytes(value) {
  let [scaled, unit] = [value, "B"];
  for (const next of ["KiB", "MiB", "GiB"]) {
    if (Math.abs(scaled) < 1000) break;
    [scaled, unit] = [scaled / 1024, next];
  }
  return `${fixed(scaled, unit === "B" ? 0 : 2)}${NBSP}${unit}`;
}

function withUnit(value, unit) {
  if (value === null || value === undefined) return MISSING;
  if (unit === "us") return `${micros(value)}${NBSP}µs`;
  if (unit === "bytes") return bytes(value);
  if (unit === "%") return `${fixed(value, 2)}${NBSP}%`;
  return `${Number(value.toPrecision(4))}${unit ? NBSP + unit : ""}`.replace("-", MINUS);
}

const unitName = (unit) => ({ us: "µs", bytes: "B" })[unit] ?? unit;

function median(values) {
  const sorted = [...values].sort((a, b) => a - b), middle = sorted.length >> 1;
  if (!sorted.length) return null;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

// From the smallest to the largest; empty below two values.
function reach(values, unit) {
  if (values.length < 2) return "";
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return low === high ? "same in every process" : `${withUnit(low, unit)} to ${withUnit(high, unit)}`;
}

// ---- elements

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// Links to raw files: JSON first, then Parquet. None where the site is public.
const rawLinks = (addresses) => addresses.flatMap((address) => [make("a", { href: address, textContent: address.endsWith(".json") ? "JSON" : "Parquet" }), " "]);
