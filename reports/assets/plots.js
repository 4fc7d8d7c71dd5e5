// Figures. plotly-basic.min.js is large, so it is loaded when the first figure comes near the window.
"use strict";

const NARROW_PX = 620, PLOTLY = "assets/plotly-basic.min.js";
const drawn = new Map(); // chart element -> function that draws it again

function colours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return { text: read("--text"), quiet: read("--quiet"), line: read("--line"), ours: read("--ours"), full: read("--full"), bad: read("--bad"), surface: read("--surface") };
}

function baseLayout(c) {
  const axis = { gridcolor: c.line, zerolinecolor: c.line, linecolor: c.line, tickcolor: c.line, automargin: true };
  return {
    paper_bgcolor: c.surface, plot_bgcolor: c.surface,
    font: { family: "system-ui, sans-serif", size: 12, color: c.text },
    margin: { l: 56, r: 16, t: 8, b: 44 },
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom" },
    hoverlabel: { bgcolor: c.surface, bordercolor: c.line, font: { color: c.text } },
    hovermode: "closest",
    xaxis: { ...axis }, yaxis: { ...axis },
  };
}

const CONFIG = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "toImage"] };

// Beside plotly's own buttons: the figure as a file, for slides. Its size does not depend on the window.
function saveButtons(element) {
  const name = ["recoverssm", location.pathname.match(/([^/]*)\.html$/)?.[1], element.dataset.chart].filter(Boolean).join("-");
  return ["png", "svg"].map((format) => ({
    name: `save as ${format.toUpperCase()}`, icon: format === "png" ? window.Plotly.Icons.camera : window.Plotly.Icons.disk,
    click: () => window.Plotly.downloadImage(element, { format, filename: name, width: 1200, height: 600, scale: format === "png" ? 2 : 1 }),
  }));
}

// Colour and shape together tell the two apart.
const look = (c, name) => (name === "full state" ? { colour: c.full, symbol: "diamond-open", dash: "dot" } : { colour: c.ours, symbol: "circle", dash: "solid" });

function say(element, text) {
  drawn.delete(element);
  if (window.Plotly && element.classList.contains("js-plotly-plot")) window.Plotly.purge(element);
  element.style.height = "";
  element.replaceChildren(Object.assign(document.createElement("p"), { className: "quiet", textContent: text }));
}

function plot(element, build) {
  const draw = () => {
    const [traces, layout] = build(colours());
    if (!element.classList.contains("js-plotly-plot")) element.replaceChildren();
    return window.Plotly.react(element, traces, layout, { ...CONFIG, modeBarButtonsToAdd: saveButtons(element) });
  };
  drawn.set(element, draw);
  return draw();
}

// Calls draw once plotly is there; loads plotly only when the element comes near the window.
function whenNear(element, draw) {
  element.pending = draw;
  if (element.near) return element.near();
  element.near = () => {};
  new IntersectionObserver((entries, observer) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    loadScript(PLOTLY).then(() => {
      element.near = () => element.pending();
      element.pending();
    }, () => say(element, "This figure needs assets/plotly-basic.min.js, which did not load. The tables hold the same numbers."));
  }, { rootMargin: "300px" }).observe(element);
}

document.addEventListener("themechange", () => drawn.forEach((draw) => draw()));
