// A figure as PNG, twice as large as it is shown, from the SVG that stands beside it as a file of its own.
"use strict";

const PNG_SCALE = 2;

async function savePng(button) {
  const figure = button.closest("[data-figure]");
  const drawing = figure.querySelector("svg").cloneNode(true);
  const box = drawing.viewBox.baseVal;
  drawing.setAttribute("width", box.width * PNG_SCALE);
  drawing.setAttribute("height", box.height * PNG_SCALE);
  copyStyle(figure.querySelector("svg"), drawing);
  const image = new Image();
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(new XMLSerializer().serializeToString(drawing));
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--surface");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, 0, 0);
  const link = document.createElement("a");
  link.href = canvas.toDataURL("image/png");
  link.download = `${button.dataset.png}.png`;
  link.click();
}

// What the page's style gives the figure, which a picture of it alone would lack.
function copyStyle(from, to) {
  const style = getComputedStyle(from);
  for (const name of ["fill", "stroke", "stroke-width", "font-family", "font-size"]) to.style.setProperty(name, style.getPropertyValue(name));
  [...from.children].forEach((child, index) => copyStyle(child, to.children[index]));
}

for (const button of document.querySelectorAll("[data-png]")) {
  button.hidden = false;
  button.addEventListener("click", () => savePng(button));
}
