// Runs before the first paint: a stored choice of theme wins over the system's.
"use strict";
(() => {
  let stored = null;
  try { stored = localStorage.getItem("recoverssm-theme"); } catch { /* storage may be refused under file:// */ }
  if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
})();
