// What every page needs: data, theme, state in the address. Text and numbers arrive formatted; scripts only place them.
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

// ---- state in the address, after "#": works from file:// and under any prefix, and the back button undoes a choice

const pageState = {
  // All of it, as strings by name. An address that is no list of name=value (an anchor) is no state.
  get() {
    const text = location.hash.slice(1);
    return text.includes("=") ? Object.fromEntries(new URLSearchParams(text)) : {};
  },
  // Changes some of it; null and "" take a name away. Typing replaces the entry in the history, a choice adds one.
  set(changes, { replace = false } = {}) {
    const kept = Object.entries({ ...this.get(), ...changes }).filter(([, value]) => value !== null && value !== "");
    const next = "#" + new URLSearchParams(kept);
    if (next === location.hash || (next === "#" && !location.hash)) return;
    if (replace) location.replace(next); else location.hash = next;
  },
  // Calls apply(state) now and after every change, by a choice, the back button or an edited address.
  follow(apply) {
    addEventListener("hashchange", () => apply(this.get()));
    apply(this.get());
  },
};

// Shows what an address asks for, or the first choice where it asks for none that is there. Returns what is shown.
function pick(select, wanted) {
  select.value = [...select.options].some((option) => option.value === wanted) ? wanted : (select.options[0]?.value ?? "");
  return select.value;
}

// A table that goes on beyond its right edge fades there.
function setUpFade(box) {
  const update = () => box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  box.addEventListener("scroll", update, { passive: true });
  const seen = new ResizeObserver(update);
  seen.observe(box);
  seen.observe(box.firstElementChild);
}

// Where a page may write to the clipboard, a command has a button.
function setUpCopy(button) {
  if (!navigator.clipboard) return;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
    button.textContent = "Copied";
  });
}

setUpTheme();
document.querySelectorAll("[data-copy]").forEach(setUpCopy);
document.querySelectorAll(".scroll").forEach(setUpFade);
