"""All pages, in the order of the navigation. The first is the one people open."""

from reports.pages import (
    cases,
    compare,
    regressions,
    roofline,
    series,
    today,
    trust,
)
from reports.pages.page import Page

PAGES: tuple[Page, ...] = (
    today.PAGE,
    regressions.PAGE,
    cases.PAGE,
    series.PAGE,
    compare.PAGE,
    roofline.PAGE,
    trust.PAGE,
)
