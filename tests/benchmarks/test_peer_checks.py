import pytest
import torch

from benchmarks import cpu_process
from benchmarks.cases import kimi_k3
from benchmarks.checks import INTERPRETED, Checklist
from benchmarks.cpu_process import shrunken
from benchmarks.peers import Outputs, Tolerance
from benchmarks.peers.beside import PeerProvider, least_traffic, step_ops
from benchmarks.peers.protocol import REQUIRED
from benchmarks.peers.workload import build_workload
from benchmarks.results import Results
from examples.provider import PreparedRecurrence, TorchRecurrence
from recoverssm import cost, reference
from recoverssm.types import Records

CPU = torch.device("cpu")
CASES = [shrunken(kimi_k3(8, 32, 4, 3.0, dtype)) for dtype in ("fp32", "bf16")]


def checked(peer, case=CASES[0]):
    prepared = PeerProvider(peer).prepare(case, CPU, 3, 0)
    checklist = Checklist(case.name, peer.name, INTERPRETED)
    prepared.check(checklist)
    return prepared, checklist.checks


class FullState:
    """The reference, with states in a layout of its own and place after place."""

    name, scheme, ops, tolerance = "states", "full_state", ("verify",), Tolerance()

    def prepare(self, workload):
        self.workload = workload
        self.pools = [pool.clone() for pool in workload.states]
        return self

    def launch(self, op, place):
        step, gate = self.workload.step, self.workload.gate(place)
        rows = (step.query_start_loc, self.workload.slots, step.num_sampled)
        self.out = reference.full_state_verify(*step.activations, self.pools[place], gate, *rows)

    def outputs(self, op, place):
        return Outputs(out=self.out, states=self.pools[place][self.workload.slots.long()])

    def written(self, op):
        return self.pools


class LastState(FullState):
    name, scheme = "last", "last_state"

    def launch(self, op, place):
        self.place, step, gate = place, self.workload.step, self.workload.gate(place)
        shape = self.workload.case.shape
        sizes = (len(self.workload.slots), shape.num_heads, shape.spec_query_len)
        records = Records(torch.zeros(*sizes, shape.value_dim), torch.zeros(*sizes, 2 * shape.key_dim))
        rows = (step.query_start_loc, self.workload.slots)
        self.out = reference.verify(*step.activations, self.pools[place], records, gate, *rows)

    def outputs(self, op, place):
        return Outputs(out=self.out, state=self.workload.states[place][self.workload.slots.long()])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_example_keeps_its_tolerance(case):
    prepared, checks = checked(TorchRecurrence(), case)

    assert {(check.op, check.metric) for check in checks} == {
        ("verify", "out_error"),
        ("verify", "u_error"),
        ("commit_state", "state_error"),
        ("conv", "differing"),
    }
    assert [check for check in checks if not check.passed] == []
    assert prepared.num_non_finite() == 0
    assert [series.op for series in prepared.series()] == ["verify", "commit_state", "conv", "step"]


def test_calls_of_a_series_go_on_from_the_same_states():
    prepared, _ = checked(TorchRecurrence())
    series = {one.op: one for one in prepared.series()}
    before = prepared._prepared.outputs("commit_state", 0).state

    series["step"].calls[0]()
    after = prepared._prepared.outputs("commit_state", 0).state
    series["step"].restore()

    assert not torch.equal(before, after)
    assert torch.equal(before, prepared._prepared.outputs("commit_state", 0).state)
    assert series["verify"].restore is None


@pytest.mark.parametrize("case", CASES, ids=str)
def test_full_state_is_held_to_the_state_after_every_token(case):
    prepared, checks = checked(FullState(), case)

    assert {(check.op, check.metric) for check in checks} == {("verify", "out_error"), ("verify", "state_error")}
    assert all(check.passed for check in checks)
    assert [series.op for series in prepared.series()] == ["verify", "step"]
    prepared.series()[1].calls[0]()  # more layers than places: it goes round


def test_a_last_state_that_was_not_written_fails_its_check():
    _, checks = checked(LastState())

    assert {check.metric: check.passed for check in checks} == {"out_error": True, "state_error": False}


def test_the_peers_own_tolerance_is_the_limit():
    class Coarse(TorchRecurrence):
        tolerance = Tolerance(out=1e-4, correction=0.5, reason="a limit nobody keeps, and one that anybody does")

    _, checks = checked(Coarse())

    found = {check.metric: (check.limit, check.passed) for check in checks}
    assert found["out_error"] == (1e-4, False)
    assert found["u_error"] == (0.5, True)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (lambda self, op, place: Outputs(), r"outputs\('verify', 0\): expected out"),
        (lambda self, op, place: Outputs(out=torch.zeros(3)), r"\.out: expected \[8, 2, 32\], got \[3\]"),
        (
            lambda self, op, place: Outputs(out=self._out, states=self._out),
            "states: verify of scheme recoverssm leaves none",
        ),
        (lambda self, op, place: None, r"outputs\('verify', 0\): expected Outputs, got NoneType"),
        (lambda self, op, place: Outputs(out=[1.0]), r"outputs\('verify', 0\)\.out: expected a tensor, got list"),
    ],
)
def test_outputs_that_cannot_be_compared_say_what_is_expected(monkeypatch, outputs, message):
    monkeypatch.setattr("examples.provider.PreparedRecurrence.outputs", outputs)

    with pytest.raises((TypeError, ValueError), match=message):
        checked(TorchRecurrence())


@pytest.mark.parametrize(
    ("method", "answer", "message"),
    [
        ("prepare", None, "prepare: expected an object with launch, outputs and written, got NoneType"),
        ("written", None, r"written\('verify'\): expected a sequence of tensors, got None"),
        ("written", (1,), r"written\('verify'\): expected a sequence of tensors, got \(1,\)"),
    ],
)
def test_methods_that_answer_something_else_are_told_what_is_expected(monkeypatch, method, answer, message):
    owner = "TorchRecurrence" if method == "prepare" else "PreparedRecurrence"
    monkeypatch.setattr(f"examples.provider.{owner}.{method}", lambda *_: answer)

    with pytest.raises(TypeError, match=message):
        checked(TorchRecurrence())


@pytest.mark.parametrize("answer", [False, 7, "", "half a \udcff character", "two\nlines"])
def test_a_reason_against_a_case_is_a_line_of_text(answer):
    class Somebody(TorchRecurrence):
        def unsupported(self, case, device):
            return answer

    with pytest.raises(TypeError, match="unsupported: expected None or a line of at most 500 printable characters"):
        PeerProvider(Somebody()).unsupported(CASES[0], CPU)


def test_a_peer_that_exits_has_rows_that_say_so_on_a_cpu_too():
    class Exits(TorchRecurrence):
        def prepare(self, workload):
            raise SystemExit(2)

    results = Results()
    said = cpu_process._measure_peer(PeerProvider(Exits()), CASES[0], 3, results, None)

    assert said == "failed: raised ExitedError: sys.exit(2)"
    assert [(m.op, m.status) for m in results.measurements] == [
        (op, "failed") for op in ("verify", "commit_state", "conv", "step")
    ]


def test_inputs_that_prepare_changes_are_named():
    class Normalises(TorchRecurrence):
        def prepare(self, workload):
            workload.step.k.mul_(0.5)
            workload.states[1].zero_()
            return super().prepare(workload)

    with pytest.raises(
        ValueError, match=r"prepare: expected inputs to stay as they are, changed: k, states; copy them"
    ):
        checked(Normalises())


def test_inputs_that_a_launch_changes_are_named(monkeypatch):
    launch = PreparedRecurrence.launch

    def launch_and_scale(self, op, number):
        launch(self, op, number)
        self._workload.step.raw_beta.mul_(0.5)

    monkeypatch.setattr(PreparedRecurrence, "launch", launch_and_scale)

    with pytest.raises(ValueError, match=r"launch: expected inputs to stay as they are, changed: raw_beta; copy them"):
        checked(TorchRecurrence())


@pytest.mark.parametrize("op", ["commit_state", "conv"])
def test_memory_that_a_peer_writes_and_does_not_name_is_found_by_a_second_launch(monkeypatch, op):
    written = PreparedRecurrence.written
    monkeypatch.setattr(PreparedRecurrence, "written", lambda self, one: () if one == op else written(self, one))

    with pytest.raises(ValueError, match=rf"written\('{op}'\): expected all that {op} writes and reads again"):
        checked(TorchRecurrence())


def test_a_result_that_is_wrong_at_once_is_not_blamed_on_memory(monkeypatch):
    outputs = PreparedRecurrence.outputs
    monkeypatch.setattr(PreparedRecurrence, "written", lambda self, op: ())
    monkeypatch.setattr(
        PreparedRecurrence,
        "outputs",
        lambda *asked: Outputs(**{name: -tensor for name, tensor in outputs(*asked).tensors().items()}),
    )

    _, checks = checked(TorchRecurrence())

    assert not any(check.passed for check in checks)


def test_peers_are_given_the_values_that_ours_get():
    from benchmarks.providers import RecoverSSMProvider

    case = CASES[0]
    ours = RecoverSSMProvider().prepare(case, CPU, 3, 0)
    workload = build_workload(case, "recoverssm", CPU, 3, 0)

    assert torch.equal(ours._step.q, workload.step.q)
    assert torch.equal(ours._slots, workload.slots)
    assert torch.equal(ours._sets[0].checkpoint_states[-1], workload.states[-1])
    assert torch.equal(ours._sets[0].conv_states[-1], workload.conv_states[-1])


def test_a_step_is_made_of_the_ops_that_a_peer_has():
    def ops(scheme, *names):
        return step_ops(type("Peer", (), {"scheme": scheme, "ops": names}))

    assert ops("recoverssm", "commit", "verify", "conv") == ("verify", "commit")
    assert ops("recoverssm", "verify", "commit_state", "conv") == ("verify", "commit_state", "conv")
    assert ops("recoverssm", "verify", "conv") == ()
    assert ops("recoverssm", "commit_state") == ()
    assert ops("full_state", "verify") == ("verify",)


@pytest.mark.parametrize(("scheme", "op"), REQUIRED)
def test_what_no_kernel_can_avoid_moving_is_known_of_every_op(scheme, op):
    workload = build_workload(CASES[0], scheme, CPU, 3, 0)

    assert least_traffic(workload, op).total_bytes > 0


def test_a_peer_is_not_charged_for_records_that_it_may_not_keep():
    sizes = cost.LayerSizes(num_heads=2, key_dim=128, value_dim=32)
    ours = cost.verify(sizes, num_rows=2, num_tokens=8)

    floor = least_traffic(build_workload(CASES[0], "recoverssm", CPU, 3, 0), "verify")

    assert floor.total_bytes == ours.total_bytes - 8 * sizes.record_bytes
