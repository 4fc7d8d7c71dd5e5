// A night grows old after the page was built, so the banner that says so looks at the clock of who reads it.
"use strict";

for (const banner of document.querySelectorAll("[data-stale]")) banner.hidden = Date.now() <= Date.parse(banner.dataset.stale);
