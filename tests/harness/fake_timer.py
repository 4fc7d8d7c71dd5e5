"""A device whose times, clocks and throttle counters are made up."""

from collections.abc import Callable, Sequence

from benchmarks.harness.clock import CapturedGraph, Launch, Timing
from benchmarks.harness.delay import Delay


class FakeTimer:
    """A device whose time is made up: each op call takes ``call_us(run number)``."""

    resolution_us = 0.5

    def __init__(
        self,
        call_us: Callable[[int], float],
        late: Callable[[int], bool] = lambda _: False,
        sm_mhz: Callable[[int], float | None] = lambda _: None,
    ) -> None:
        self.call_us, self.late, self.sm_mhz = call_us, late, sm_mhz
        self.now_s = 0.0
        self.num_runs = 0
        self.captured: list[int] = []  # op calls in each graph

    def capture(self, launches: Sequence[Launch], rounds: int) -> Launch:
        for _ in range(rounds):
            for launch in launches:
                launch()
        self.captured.append(len(launches) * rounds)
        return lambda: None

    def elapsed_us(self, n: int, run: Launch, restore: Launch | None = None) -> list[Timing]:
        timings = []
        sm_mhz = self.sm_mhz(self.num_runs)
        for _ in range(n):
            if restore is not None:
                restore()
            run()
            elapsed_us = self.call_us(self.num_runs) * self.captured[-1]
            self.now_s += elapsed_us / 1e6
            timings.append(Timing(elapsed_us, self.now_s, self.late(self.num_runs), sm_mhz))
            self.num_runs += 1
        return timings


class ReplayingTimer(FakeTimer):
    """Replays what it captured, and counts nodes as a driver does."""

    def capture(self, launches: Sequence[Launch], rounds: int) -> CapturedGraph:
        super().capture(launches, rounds)
        return CapturedGraph(lambda: [launch() for _ in range(rounds) for launch in launches], rounds * len(launches))


class Device:
    """Its launches take device time; as a timer it replays what it captured and reads how long that was."""

    resolution_us = 0.5

    def __init__(self, launch_us: float = 2.0, mhz: float = 1980.0) -> None:
        self.now_us, self.cycles, self.launch_us, self.mhz = 0.0, 0, launch_us, mhz

    def op(self, took_us: float) -> Launch:
        def launch() -> None:
            self.now_us += took_us

        return launch

    def delay(self, pct: float) -> Delay:
        def launch() -> None:
            self.now_us += self.launch_us + self.cycles / self.mhz

        return Delay(pct, launch, lambda cycles: setattr(self, "cycles", cycles))

    def capture(self, launches: Sequence[Launch], rounds: int) -> CapturedGraph:
        captured = list(launches) * rounds
        return CapturedGraph(lambda: [launch() for launch in captured], len(captured))

    def elapsed_us(self, n: int, run: Launch, restore: Launch | None = None) -> list[Timing]:
        timings = []
        for _ in range(n):
            if restore is not None:
                restore()
            begun_us = self.now_us
            run()
            timings.append(Timing(self.now_us - begun_us, self.now_us / 1e6, sm_mhz=self.mhz))
        return timings


class Throttle:
    """A counter that grows by 1 ms until each reading that ``on`` names; reading 0 begins the first block."""

    def __init__(self, reason: str, on: Callable[[int], bool]) -> None:
        self.reason, self.on, self.num_reads, self.us = reason, on, 0, 0

    def __call__(self) -> dict[str, int]:
        self.us += 1000 * self.on(self.num_reads)
        self.num_reads += 1
        return {self.reason: self.us}
