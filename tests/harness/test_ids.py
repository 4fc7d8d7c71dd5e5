"""Names of records and nights."""

import re
from datetime import datetime

from benchmarks.harness import ids


def test_ids_of_one_commit_stand_in_the_order_of_time_within_a_second_too(monkeypatch):
    class Clock(datetime):
        microseconds = iter((0, 1, 499_999, 500_000, 999_999, 999_999))

        @classmethod
        def now(cls, tz):
            return cls(2026, 1, 2, 3, 4, 5, next(cls.microseconds), tz)

    monkeypatch.setattr(ids, "datetime", Clock)
    found = [ids.new_id("0123456789abcdef") for _ in range(6)]

    assert found[:5] == sorted(found[:5])
    assert found[4] != found[5]  # 24 bits drawn at random tell hosts apart that end within one microsecond
    assert re.fullmatch("20260102T030405Z-[0-9a-f]+-f423f[0-9a-f]{6}", found[5])
