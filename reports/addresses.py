"""Addresses of places within the site, relative, with the state that stands after ``#``."""

from collections.abc import Sequence
from urllib.parse import urlencode

from reports import text


def series_address(gpu_model: str, case: str, series: Sequence[str], night: str = "") -> str:
    """One series on its page, with the raw samples of a night where one is named.

    Args:
        series: metric, op, provider and contract.
    """
    state = {"gpu": text.file_slug(gpu_model), "case": case, "series": "/".join(series)}
    return f"series.html#{urlencode(state | ({'night': night} if night else {}))}"
