"""A module like ``cuda.bench`` 0.3: one run per process, a file of times per state, samples under throttle dropped."""

import struct
from contextlib import contextmanager
from pathlib import Path


class FakeBench:
    """
    call_us: time of the n-th kept sample of a state.
    throttled: numbers of the launches after warm-up that are dropped.
    budget: launches after warm-up until the time-out strikes.
    """

    __version__ = "0.3.0"

    def __init__(self, call_us=lambda n: 10.0, throttled=(), budget=10_000, broken=None, writes=True):
        self.call_us, self.throttled, self.budget, self.broken = call_us, set(throttled), budget, broken
        self.writes = writes
        self.benchmarks = []
        self.argv, self.settings = None, None  # command line of the run; settings of the state measured last
        self.log = []  # what happened in which order

    def register(self, fn):
        if self.argv is not None:
            raise RuntimeError("Can not register more benchmarks after benchmark was run")
        self.benchmarks.append(FakeBenchmark(fn))
        return self.benchmarks[-1]

    def run_all_benchmarks(self, argv):
        if self.argv is not None:
            raise RuntimeError("Benchmarks were already executed")
        self.argv = argv
        if self.broken:
            raise self.broken
        path = Path(argv[argv.index("--jsonbin") + 1])
        for benchmark in self.benchmarks:
            for index in benchmark.values:
                benchmark.fn(FakeState(self, index, path))
        path.write_text("{}")


class FakeBenchmark:
    def __init__(self, fn):
        self.fn, self.values, self.settings = fn, [], {}

    def add_int64_axis(self, name, values):
        self.values = values
        return self

    def set_stopping_criterion(self, name):
        self.settings["criterion"] = name
        return self

    def set_criterion_param_int64(self, name, value):
        self.settings[name] = value
        return self


class FakeState:
    def __init__(self, bench, index, path):
        self.bench, self.index, self.path = bench, index, path
        self.settings = {}

    def get_stream(self):
        return FakeStream()

    def set_min_samples(self, count):
        self.settings["samples"] = count

    def set_timeout(self, seconds):
        self.settings["timeout"] = seconds

    def set_cold_warmup_runs(self, count):
        self.settings["warm_up"] = count

    def set_blocking_kernel_timeout(self, seconds):
        self.settings["blocked"] = seconds

    def skip(self, reason):
        self.bench.log.append(f"skip: {reason}")

    def exec(self, fn, *, timer):
        assert timer
        bench, times = self.bench, []
        bench.settings = self.settings
        for _ in range(self.settings["warm_up"]):
            fn(FakeLaunch(), FakeTimer(bench.log))
        for number in range(bench.budget):
            fn(FakeLaunch(), FakeTimer(bench.log))
            if number not in bench.throttled:
                times.append(bench.call_us(len(times)) / 1e6)
            if len(times) == self.settings["samples"]:
                break
        if bench.writes:
            self._write("-bin", times)
            self._write("-freqs-bin", [1.98e9] * len(times))

    def _write(self, suffix, values):
        folder = self.path.with_name(self.path.name + suffix)
        folder.mkdir(exist_ok=True)
        (folder / f"{self.index}.bin").write_bytes(struct.pack(f"<{len(values)}f", *values))


class FakeStream:
    def addressof(self):
        return 4096


class FakeLaunch:
    def get_stream(self):
        return FakeStream()


class FakeTimer:
    def __init__(self, log):
        self.log = log

    def start(self):
        self.log += ["flush", "start"]  # as NVBench: the flush is part of it, and the stream is blocked afterwards

    def stop(self):
        self.log.append("stop")


@contextmanager
def on_stream(address):
    assert address == 4096
    yield lambda: None
