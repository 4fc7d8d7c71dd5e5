"""Candidates of ``ci tune``: what is tried, what is refused, and that launches are those of the row to come."""

import inspect
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from benchmarks import tuning_bench, tuning_problems
from benchmarks.harness.errors import ContextLostError
from benchmarks.harness.quiet import QuietCard
from benchmarks.harness.stopping import Sampling
from benchmarks.tuning import sweep
from benchmarks.tuning_bench import DeviceBench, candidates_of, incumbent_of, known_candidates
from benchmarks.tuning_journal import (
    Candidate,
    Checked,
    Closed,
    Point,
    Trying,
    TuningJournal,
    append,
    outcomes_of,
    read_findings,
)
from benchmarks.tuning_problems import FORMS, PROBLEMS, digest, ragged_lens
from benchmarks.tuning_space import BATCHES, OPS, SPACES, WINDOWS
from recoverssm.launch import LaunchRow, with_row
from recoverssm.types import KDAShape
from tests.harness.fake_timer import FakeTimer

CPU = torch.device("cpu")
POINT = Point("verify", "bf16", 1, 3, 2)


def small(point, *, num_layers=None):
    case = tuning_problems.case_of(point, num_layers=num_layers or 2)
    return replace(case, shape=KDAShape(point.num_heads, point.spec_query_len, key_dim=16, value_dim=16))


def launched(problem, **constants):
    """The problem's launch with another row."""
    launch, tensors = problem.launched
    row = LaunchRow(problem.op, 0, torch.float32, "recurrence", 0, 1, constants, "being tuned")
    made = with_row(launch, FORMS[problem.op], row, CPU)
    return partial(made, tensors, tuple(map(Tensor.data_ptr, tensors)))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("num_requests", [1, 3])
def test_a_right_candidate_passes_and_its_bits_do_not_depend_on_the_tile(op, num_requests):
    point = Point(op, "bf16", 1, num_requests, 2)
    problem = PROBLEMS[op](small(point, num_layers=2 if op == "commit_state" else 1), CPU, 1)
    bits = []
    for value_tile in (8, 16):
        problem.reset()
        assert problem.wrong() != ""
        launched(problem, BV=value_tile, BK=16, NUM_STAGES=1, num_warps=1)()
        assert problem.wrong() == ""
        bits.append(digest(problem.results))

    assert bits[0] == bits[1]


@pytest.mark.parametrize("op", OPS)
def test_a_result_that_is_a_little_off_or_in_the_wrong_place_is_wrong(op):
    problem = PROBLEMS[op](small(Point(op, "fp32", 1, 3, 2), num_layers=2), CPU, 1)
    launch = launched(problem, BV=16, BK=16, NUM_STAGES=1, num_warps=1)
    state = problem.results[-1]

    problem.reset()
    launch()
    if op == "verify":
        problem.results[1][1:, :, 0] *= 1 + 1e-4
        assert "verify u " in problem.wrong()
        launch()
        state[0] = 0.0  # the null row's record
        assert "key and raw gate" in problem.wrong()
    else:
        state[1:] *= 1 + 1e-4
        assert f"{op} state" in problem.wrong()
        assert "other slots" in problem.wrong()


def test_bits_tell_the_sign_of_zero_and_the_order_of_elements():
    values = torch.tensor([1.0, 0.0, 2.0])

    assert digest([values]) == digest([values.clone()])
    assert digest([values]) != digest([torch.tensor([1.0, -0.0, 2.0])])
    assert digest([values]) != digest([values.flip(0)])


def test_rows_are_ragged_where_there_are_several():
    assert ragged_lens(1, 8) == [8]
    assert ragged_lens(2, 8) == [8, 7]
    assert ragged_lens(4, 8) == [8, 1, 8, 7]


@pytest.mark.parametrize("op", OPS)
def test_every_form_of_a_space_exists_and_todays_row_is_always_tried(op):
    point = Point(op, "fp32", 12, 32, 8)

    assert SPACES[op].keys() <= FORMS[op].keys()
    assert incumbent_of(point, 90).key in {candidate.key for candidate in candidates_of(point, 90, "none of them")}
    keys = [candidate.key for candidate in known_candidates(op)]
    assert len(set(keys)) == len(keys)
    for candidate in known_candidates(op):
        assert candidate.constants.keys() >= {"BV", "num_warps"}


@pytest.mark.parametrize("op", OPS)
def test_candidates_name_every_constant_of_their_kernel_and_no_other(op):
    common = {"H", "T", "C", "K", "V", "BOUNDED", "HAS_RECORD_ROWS", "RECORDED", "ALIGNED", "PDL", "J"}
    for candidate in known_candidates(op):
        parameters = inspect.signature(FORMS[op][candidate.form].kernel.fn).parameters.values()
        constants = {parameter.name for parameter in parameters if "constexpr" in str(parameter.annotation)}
        constants = {name for name in constants if not name.startswith("stride_")}  # those come with the tensors

        assert candidate.constants.keys() - {"num_warps", "maxnreg"} == constants - common, candidate


@pytest.mark.parametrize("num_rows", [8, 32])
def test_what_chains_alone_feel_stays_as_the_table_has_it(num_rows):
    """Candidates are timed by themselves: one with another start of the next launch would be the same kernel again."""
    point = Point("verify", "fp32", 12, num_rows, 8)
    kept = incumbent_of(point, 90).constants["DEPENDENTS"]
    constants = [one.constants for one in candidates_of(point, 90) if one.form == "wgmma"]

    assert {each["DEPENDENTS"] for each in constants} == {kept}
    assert {one.constants.get("DEPENDENTS", 0) for one in known_candidates("verify")} == {0}


def test_no_candidate_asks_for_rows_that_a_program_does_not_have():
    """Such a kernel does not compile."""
    asking = [candidate.constants for candidate in known_candidates("verify") if candidate.constants.get("PREFETCH")]

    assert asking
    assert all(constants["BV"] > 64 * constants["AHEAD"] for constants in asking)


def test_places_of_the_documented_grid_cover_every_launch():
    places = [Point("verify", "fp32", 12, batch, window).place for window in WINDOWS for batch in BATCHES]

    assert len(set(places)) == len(places)
    assert (1, 0) in places
    assert Point("verify", "fp32", 12, 32, 8).place == (5, 384)
    assert Point("verify", "fp32", 12, 1, 16).place == (13, 0)


@pytest.fixture
def cpu_bench(monkeypatch):
    """``DeviceBench`` on the CPU, where a call takes 300 us."""
    changed = {
        "case_of": small,
        "CudaEventTimer": lambda device: FakeTimer(lambda _: 300.0),
        "best_bytes_per_us": lambda index: 1e6,
        "available_bytes": lambda device: 2**40,
        "SAMPLING": Sampling(min_samples=6, max_samples=6, min_sample_us=300.0, warmup_s=0.0, max_s=0.01),
    }
    for name, value in changed.items():
        monkeypatch.setattr(tuning_bench, name, value)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1, 1))
    return lambda point, pattern="none": DeviceBench(point, CPU, QuietCard(), pattern)


@pytest.mark.parametrize("op", ["verify", "commit_state"])
def test_a_point_is_swept_from_its_check_to_its_time(cpu_bench, tmp_path, op):
    point, path, said = Point(op, "fp32", 1, 1, 1), tmp_path / "journal", []
    sweep([point], cpu_bench, TuningJournal(path), 2, said.append)

    (outcome,) = outcomes_of(read_findings(path), point.name)
    assert (outcome.status, outcome.us, outcome.low_us, outcome.high_us) == ("right", 300.0, 300.0, 300.0)
    assert outcome.candidate == incumbent_of(point, 0)
    assert said == [f"[1/1] {point.name}: 1 of 1 candidates timed; best 300.00 us, {outcome.candidate}"]


def test_a_candidate_that_does_not_compile_is_told_from_a_wrong_one(cpu_bench, tmp_path):
    bench = cpu_bench(Point("verify", "fp32", 1, 1, 1))
    bench.candidates = [Candidate("recurrence", {"BV": 16, "num_warps": 1}), bench.incumbent]
    sweep([POINT], lambda point: bench, TuningJournal(tmp_path / "journal"), 1, lambda line: None)

    broken, right = outcomes_of(read_findings(tmp_path / "journal"), POINT.name)
    assert (broken.status, right.status) == ("failed", "right")
    assert "BK" in broken.reason or "NUM_STAGES" in broken.reason


def test_a_candidate_that_breaks_the_context_is_noted_and_ends_the_process(tmp_path):
    good, bad = Candidate("recurrence", {"BV": 16}), Candidate("recurrence", {"BV": 8})
    bench = SimpleNamespace(
        incumbent=good,
        candidates=[bad, good],
        forms=["recurrence"],
        check=lambda candidate: "bits",
        why_lost=lambda: "AcceleratorError: an illegal memory access was encountered",
    )
    with pytest.raises(ContextLostError, match="BV=8: AcceleratorError"):
        sweep([POINT], lambda point: bench, TuningJournal(tmp_path / "journal"), 1, lambda line: None)

    (outcome,) = outcomes_of(read_findings(tmp_path / "journal"), POINT.name)
    assert (outcome.candidate, outcome.status) == (bad, "failed")
    assert outcome.reason.startswith("lost the CUDA context: ")
    assert read_findings(tmp_path / "journal").trying is None


def test_a_line_that_is_not_whole_is_forgotten(tmp_path):
    path = tmp_path / "journal"
    journal = TuningJournal(path)
    journal.add(Trying(POINT.name, "a"))
    journal.add(Checked(POINT.name, "a", "right", bits="1"))
    with path.open("ab") as file:
        file.write(b'{"kind":"clos')

    assert read_findings(path).checked.keys() == {(POINT.name, "a")}
    append(path, Closed(POINT.name))
    assert read_findings(path).closed == {POINT.name}


@pytest.mark.gpu
def test_a_point_is_tuned_on_a_gpu(tmp_path):
    point, path, device = Point("commit_state", "bf16", 12, 1, 4), tmp_path / "journal", torch.device("cuda", 0)
    pattern = "recurrence BV=16 BK=32 NUM_STAGES=[12]*"
    sweep(
        [point], lambda one: DeviceBench(one, device, QuietCard(), pattern), TuningJournal(path), 1, lambda line: None
    )

    outcomes = outcomes_of(read_findings(path), point.name)
    assert len(outcomes) >= 2
    assert {outcome.status for outcome in outcomes} == {"right"}
    assert all(1 < outcome.low_us <= outcome.us <= outcome.high_us < 10_000 for outcome in outcomes)
