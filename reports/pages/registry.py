"""All pages, in the order of the navigation. The first is the one people open."""

from reports.pages import cases, series, today
from reports.pages.page import Page

PAGES: tuple[Page, ...] = (
    today.PAGE,
    cases.PAGE,
    series.PAGE,
)
