// The filter of the page of regressions; an event that the address names is opened.
"use strict";

function showEvents(filter, { show = "", gpu = "", words = "", event = "" }) {
  filter.querySelector("[name=show]").value = show;
  filter.querySelector("[name=gpu]").value = gpu;
  const box = filter.querySelector("[name=words]");
  if (box.value !== words) box.value = words;
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const events = [...document.querySelectorAll(".event")];
  for (const element of events) {
    const { state, open, gpu: model } = element.dataset;
    const text = element.textContent.toLowerCase();
    const fits = (show === "all" || (show === "" ? open === "true" : state === show)) && (gpu === "" || model === gpu) && wanted.every((word) => text.includes(word));
    const named = element.id === event;
    element.hidden = !(fits || named);
    if (named) {
      element.open = true;
      element.scrollIntoView({ block: "nearest" });
    }
  }
  const visible = events.filter((element) => !element.hidden).length;
  filter.querySelector("[data-shown]").textContent = `${visible} of ${events.length} event${events.length === 1 ? "" : "s"}`;
}

function setUpEvents(filter) {
  for (const select of filter.querySelectorAll("select")) {
    select.addEventListener("change", () => pageState.set({ [select.name]: select.value, event: null }));
  }
  filter.querySelector("input").addEventListener("input", ({ target }) => pageState.set({ words: target.value, event: null }, { replace: true }));
  for (const element of document.querySelectorAll(".event")) {
    element.querySelector("summary").addEventListener("click", () => pageState.set({ event: element.open ? null : element.id }, { replace: true }));
  }
  pageState.follow((state) => showEvents(filter, state));
}

const eventFilter = document.getElementById("filter");
if (eventFilter) setUpEvents(eventFilter);
