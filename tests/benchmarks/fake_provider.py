"""A provider whose launches do nothing and whose checks and figures are what a test asks for."""

from benchmarks.cases import SETS
from benchmarks.harness.records import Control
from benchmarks.providers import Series
from recoverssm.cost import Cost

CASE = SETS["smoke"][0]

COPY = Control(name="copy", read_bytes=10**9, write_bytes=10**9, median_us=500.0, bytes_per_s=4e12)

COST = Cost(read_bytes=30_000_000, write_bytes=10_000_000, flops=0)  # 10 us at 4 TB/s


class FakePrepared:
    def __init__(self, provider):
        self.provider = provider

    def check(self, checklist):
        if self.provider.error is not None:
            raise self.provider.error
        checklist.count("verify", "untouched", self.provider.num_touched, "layer 0")

    def series(self):
        restore = self.provider.restore
        return [
            Series(op, contract, (self.provider.call,), COST, 1, 384, restore if contract == "graph-cold" else None)
            for op, contract in self.provider.series_names
        ]

    def num_non_finite(self):
        return self.provider.num_nan


class FakeProvider:
    name = "recoverssm"
    series_names = (("verify", "graph-cold"), ("verify", "host-dispatch"))

    def __init__(self, *, needed=1, num_touched=0, num_nan=0, error=None):
        self.needed, self.num_touched, self.num_nan, self.error = needed, num_touched, num_nan, error
        self.num_restored = 0

    def call(self):
        pass

    def restore(self):
        self.num_restored += 1

    def cache_bytes(self, case):
        return 1

    def needed_bytes(self, case, l2_bytes):
        return self.needed

    def prepare(self, case, device, seed, l2_bytes):
        return FakePrepared(self)
