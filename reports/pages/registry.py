"""All pages, in the order of the navigation. The first is the one people open."""

from reports.pages import (
    about,
    cases,
    commit,
    compare,
    gpus,
    league,
    numerics,
    regressions,
    roofline,
    runs,
    series,
    static,
    today,
    trust,
)
from reports.pages.page import Page

PAGES: tuple[Page, ...] = (
    today.PAGE,
    regressions.PAGE,
    cases.PAGE,
    commit.PAGE,
    league.PAGE,
    series.PAGE,
    compare.PAGE,
    gpus.PAGE,
    roofline.PAGE,
    static.PAGE,
    numerics.PAGE,
    trust.PAGE,
    runs.PAGE,
    about.PAGE,
)
