"""One point of ``ci tune`` on a CUDA device: candidates are launched through the rows that they would become."""

import zlib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor

from recoverssm.launch import STATE_DTYPES, LaunchRow, Problem, device_arch, load_table, select, with_row

from .checks import first_line
from .gpu_process import IMPOSSIBLE, SAMPLING, available_bytes
from .harness.clock import CudaEventTimer
from .harness.errors import MeasurementError
from .harness.measure import measure_graph_cold
from .harness.quiet import QuietCard
from .harness.stats.summary import Summary, summarise
from .one_series import SEED, UnavailableError, best_bytes_per_us
from .providers.bare import Launched, launches_of
from .providers.base import Provider, Series
from .providers.full_state import FullStateProvider
from .providers.recoverssm import RecoverSSMProvider
from .tuning import WrongError
from .tuning_journal import Candidate, Point
from .tuning_problems import CHECKED_LAYERS, FORMS, PROBLEMS, case_of, digest
from .tuning_space import CHAINED, SPACES

_TIMED: dict[str, tuple[Provider, str]] = {
    "verify": (RecoverSSMProvider(), "verify"),
    "full_state_verify": (FullStateProvider(), "verify"),
    "commit_state": (RecoverSSMProvider(), "commit_state"),
}


def problem_of(point: Point, arch: int) -> Problem:
    """The launch that a point stands for: aligned, with Kimi-K3's bounded gate."""
    case = case_of(point)
    return Problem(
        point.op,
        arch,
        STATE_DTYPES[point.state_dtype],
        point.request_heads,
        point.spec_query_len,
        case.shape.key_dim,
        case.shape.value_dim,
        case.lower_bound,
        aligned=True,
    )


def candidates_of(point: Point, arch: int, pattern: str = "*") -> list[Candidate]:
    """What fits a point, simplest form first: its incumbent, and of all that is known what matches a glob."""
    problem, forms, kept = problem_of(point, arch), FORMS[point.op], incumbent_of(point, arch)
    known = [_with(candidate, kept.constants) for candidate in known_candidates(point.op)]
    return [
        candidate
        for candidate in known
        if forms[candidate.form].fits(problem) and (candidate.key == kept.key or fnmatchcase(str(candidate), pattern))
    ]


def _with(candidate: Candidate, constants: Mapping[str, Any]) -> Candidate:
    """The candidate with those of the constants that only chains feel."""
    chained = constants.keys() & candidate.constants.keys() & CHAINED.keys()
    return Candidate(candidate.form, candidate.constants | {name: constants[name] for name in chained})


def known_candidates(op: str) -> list[Candidate]:
    """The space of an op and what the launch table has for it, simplest form first, each once."""
    forms, space = FORMS[op], SPACES[op]
    known = [(form, constants) for form, all_constants in space.items() for constants in all_constants]
    known += [(row.form, row.constants) for row in load_table() if row.op == op]
    found: dict[str, Candidate] = {}
    for name in (*space, *(form for form in forms if form not in space)):
        for candidate in (
            _with(Candidate(form, dict(constants)), CHAINED) for form, constants in known if form == name
        ):
            found.setdefault(candidate.key, candidate)
    return list(found.values())


def incumbent_of(point: Point, arch: int) -> Candidate:
    """What the launch table has for a point."""
    row = select(problem_of(point, arch), FORMS[point.op])
    return Candidate(row.form, dict(row.constants))


class DeviceBench:
    """A point on the current CUDA device.

    Args:
        card: judges blocks of samples.
        pattern: of the candidates to try.
    Raises:
        UnavailableError: the case does not fit the card.
    """

    def __init__(self, point: Point, device: torch.device, card: QuietCard, pattern: str = "*") -> None:
        torch.cuda.empty_cache()
        self._point, self._device, self._card = point, device, card
        arch = device_arch(device)
        self.incumbent, self.candidates = incumbent_of(point, arch), candidates_of(point, arch, pattern)
        self.forms = [name for name, form in FORMS[point.op].items() if form.fits(problem_of(point, arch))]
        num_layers = CHECKED_LAYERS if point.op == "commit_state" else 1
        seed = zlib.crc32(f"{SEED}/{point.name}".encode())
        self._problem = PROBLEMS[point.op](case_of(point, num_layers=num_layers), device, seed)
        self._timer = CudaEventTimer(device)
        self._seed = seed
        self._series, self._launched = self._prepare_timing()
        self._least_us = self._series.cost.total_bytes / best_bytes_per_us(device.index)

    def _prepare_timing(self) -> tuple[Series, Sequence[Launched]]:
        """The series of the op, and the launches of its calls with their tensors."""
        (provider, op), case = _TIMED[self._point.op], case_of(self._point)
        l2_bytes = int(torch.cuda.get_device_properties(self._device).L2_cache_size)
        needed, available = provider.needed_bytes(case, l2_bytes), available_bytes(self._device)
        if needed > available:
            raise UnavailableError(f"needs {needed / 2**30:.1f} GiB of device memory, {available / 2**30:.1f} are free")
        prepared = provider.prepare(case, self._device, self._seed, l2_bytes)
        series = {one.op: one for one in prepared.series() if one.contract == "graph-cold"}
        for call in series["verify"].calls:  # commit needs records
            call()
        launched = [one for call in series[op].calls for one in launches_of(call)]
        if (restore := series[op].restore) is not None:
            restore()
        return series[op], launched

    def check(self, candidate: Candidate) -> str:
        launch, tensors = self._problem.launched
        made = with_row(launch, FORMS[self._point.op], self._row(candidate), self._device)
        self._problem.reset()
        made(tensors, tuple(map(Tensor.data_ptr, tensors)))
        torch.cuda.synchronize(self._device)
        if reason := self._problem.wrong():
            raise WrongError(reason)
        return digest(self._problem.results)

    def measure(self, candidate: Candidate) -> Summary:
        row, forms = self._row(candidate), FORMS[self._point.op]
        # One launch for each that the op made: tensors of different alignment have launches of their own.
        made = {id(launch): with_row(launch, forms, row, self._device) for launch, _ in self._launched}
        calls = [
            partial(made[id(launch)], tensors, tuple(map(Tensor.data_ptr, tensors)))
            for launch, tensors in self._launched
        ]
        samples = measure_graph_cold(
            calls,
            sampling=SAMPLING,
            timer=self._timer,
            restore=self._series.restore,
            num_kernels=self._series.num_kernels,
            card=self._card,
        )
        summary = summarise(samples.values_us)
        if summary.median < IMPOSSIBLE * self._least_us:
            raise MeasurementError(
                f"impossible: {summary.median:.2f} us, and its bytes take {self._least_us:.2f} us at the best bandwidth"
            )
        return summary

    def _row(self, candidate: Candidate) -> LaunchRow:
        point = self._point
        place = (point.op, device_arch(self._device), STATE_DTYPES[point.state_dtype])
        return LaunchRow(*place, candidate.form, 0, 1, candidate.constants, "being tuned")

    def why_lost(self) -> str | None:
        try:
            torch.cuda.synchronize(self._device)
            torch.cuda.mem_get_info(self._device)
        except Exception as error:
            return f"{type(error).__name__}: {first_line(error)}"
        return None
