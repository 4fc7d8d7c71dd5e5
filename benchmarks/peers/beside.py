"""A peer as a provider: checked against float64 with its own tolerance, then timed by the same rig as ours."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from recoverssm import cost

from ..cases import BenchCase
from ..checks import COMPILED, Checklist, failure_reason, num_non_finite
from ..harness.records import Contract
from ..harness.restore import SavedMemory
from ..inputs import NUM_UNOWNED_SLOTS
from ..providers.base import Call, Series, activation_bytes, layer_sizes
from .protocol import OPS, REQUIRED, Op, Outputs, Peer, PreparedPeer, Tolerance, require_line
from .reference import expected_outputs
from .workload import Workload, build_workload, sizes

METRICS = {"out": "out_error", "correction": "u_error", "states": "state_error", "state": "state_error"}


class PeerProvider:
    """What measuring processes need of a provider, for one peer."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    @property
    def name(self) -> str:
        return self.peer.name

    @property
    def series_names(self) -> tuple[tuple[str, Contract], ...]:
        """Its ops, and a step where they make one."""
        step = ("step",) if step_ops(self.peer) else ()
        return tuple((op, "graph-cold") for op in (*_ordered(self.peer.ops), *step))

    def unsupported(self, case: BenchCase, device: torch.device) -> str | None:
        """As of the peer; raises TypeError for an answer that is no line of text."""
        reason = self.peer.unsupported(case, device)
        return None if reason is None else require_line(reason, "unsupported", also="None or ")

    def needed_bytes(self, case: BenchCase, l2_bytes: int) -> int:
        """States and windows three times over (a peer may keep its own, and one to restore from), records, checks."""
        num_places, num_owned = sizes(case, self.peer.scheme, l2_bytes)
        layer, window = layer_sizes(case), case.shape.spec_query_len
        num_slots, num_tokens = num_owned + NUM_UNOWNED_SLOTS, case.num_requests * window
        windows = case.shape.conv_state_len * case.shape.conv_channels * layer.activation_itemsize
        place = num_slots * (layer.state_bytes + windows) + num_tokens * 2 * layer.record_bytes
        float64_pool = 8 * num_slots * layer.state_bytes // layer.state_itemsize
        return 3 * num_places * place + activation_bytes(case) + 10 * float64_pool

    def prepare(self, case: BenchCase, device: torch.device, seed: int, l2_bytes: int) -> "PreparedBeside":
        """Raises TypeError or ValueError that says what the peer's ``prepare`` does otherwise than it should."""
        workload = build_workload(case, self.peer.scheme, device, seed, l2_bytes)
        given = workload.sums()
        prepared = self.peer.prepare(workload)
        if not all(callable(getattr(prepared, method, None)) for method in ("launch", "outputs", "written")):
            raise TypeError(
                f"prepare: expected an object with launch, outputs and written, got {type(prepared).__name__}"
            )
        _require_same("prepare", given, workload.sums())
        return PreparedBeside(self.peer, workload, prepared)


class PreparedBeside:
    """One peer's memory and calls for one case."""

    def __init__(self, peer: Peer, workload: Workload, prepared: PreparedPeer) -> None:
        self._peer, self._workload, self._prepared = peer, workload, prepared
        self._ops = _ordered(peer.ops)
        self._saved: dict[int, SavedMemory] = {}

    def check(self, checklist: Checklist) -> None:
        """First and last layer of the first set, op after op, each from the first values; every place is verified.

        What is right is launched once more after restoring, as each timed window is.
        """
        given = self._workload.sums()
        for op in self._ops:
            restore = self._restore_of(op)
            expected = {place: expected_outputs(self._workload, op, place) for place in self._ends}
            self._check(checklist, op, expected, range(len(self._workload.states)))
            if restore is not None:
                restore()
            if all(check.passed for check in checklist.checks if check.op == op):
                self._check_again(op, expected)
                if restore is not None:
                    restore()
        _require_same("launch", given, self._workload.sums())

    @property
    def _ends(self) -> list[int]:
        """The places of the first and the last layer."""
        return sorted({0, min(self._workload.num_layers, len(self._workload.states)) - 1})

    def _check(
        self, checklist: Checklist, op: Op, expected: Mapping[int, dict[str, Tensor]], places: Sequence[int]
    ) -> None:
        for number in places if op == "verify" else (0,):
            self._prepared.launch(op, number)
            if op == "verify" and number in expected:
                self._compare(checklist, op, number, expected[number])
        for place in expected if op != "verify" else ():
            self._compare(checklist, op, place, expected[place])

    def _check_again(self, op: Op, expected: Mapping[int, dict[str, Tensor]]) -> None:
        checklist = Checklist(self._workload.case.name, self._peer.name, COMPILED)
        self._check(checklist, op, expected, self._ends)
        if reason := failure_reason(checklist.checks):
            raise ValueError(
                f"written({op!r}): expected all that {op} writes and reads again, for a second launch from restored "
                f"memory leaves something else: {reason}"
            )

    def _compare(self, checklist: Checklist, op: Op, place: int, expected: dict[str, Tensor]) -> None:
        shown = self._outputs(op, place)
        lacking = [name for name in REQUIRED[self._peer.scheme, op] if name not in shown]
        if lacking:
            raise ValueError(f"outputs({op!r}, {place}): expected {', '.join(lacking)} (peers/protocol.py, Outputs)")
        where = f"layer {self._workload.layer(place)}"
        for name, tensor in shown.items():
            if name not in expected:
                raise ValueError(f"outputs({op!r}, {place}).{name}: {op} of scheme {self._peer.scheme} leaves none")
            if tensor.shape != expected[name].shape:
                raise ValueError(
                    f"outputs({op!r}, {place}).{name}: expected {list(expected[name].shape)}, got {list(tensor.shape)}"
                )
            if name == "conv":
                checklist.equal(op, "differing", tensor, expected[name], f"{where}, conv histories")
            else:
                limit = limit_of(self._peer.tolerance, name, self._workload.case.state_dtype)
                checklist.error(op, METRICS[name], tensor, expected[name], limit, where)

    def _outputs(self, op: Op, place: int) -> dict[str, Tensor]:
        shown: object = self._prepared.outputs(op, place)
        if not isinstance(shown, Outputs):
            raise TypeError(f"outputs({op!r}, {place}): expected Outputs, got {type(shown).__name__}")
        named: dict[str, object] = {**shown.tensors()}
        for name, tensor in named.items():
            if not isinstance(tensor, Tensor):
                raise TypeError(f"outputs({op!r}, {place}).{name}: expected a tensor, got {type(tensor).__name__}")
        return shown.tensors()

    def series(self) -> list[Series]:
        """Its ops, and the step that they make."""
        places, sets = range(len(self._workload.states)), range(self._workload.num_sets)
        found = []
        for op in self._ops:
            calls = tuple(partial(self._prepared.launch, op, number) for number in (places if op == "verify" else sets))
            floor = least_traffic(self._workload, op)
            found.append(Series(op, "graph-cold", calls, floor, None, None, self._restore_of(op)))
        if ops := step_ops(self._peer):
            floor = sum((least_traffic(self._workload, op) for op in ops[1:]), self._verifies())
            steps = tuple(partial(self._step, ops[1:], first) for first in self._first_places())
            found.append(Series("step", "graph-cold", steps, floor, None, None, self._restore_of(*ops)))
        return found

    def _verifies(self) -> cost.Cost:
        return least_traffic(self._workload, "verify").times(self._workload.num_layers)

    def _first_places(self) -> Sequence[int]:
        num_layers = self._workload.num_layers
        return range(0, max(len(self._workload.states), num_layers), num_layers)

    def _step(self, commits: Sequence[Op], first_place: int) -> None:
        for layer in range(self._workload.num_layers):
            self._prepared.launch("verify", (first_place + layer) % len(self._workload.states))
        for op in commits:
            self._prepared.launch(op, first_place // self._workload.num_layers)

    def _restore_of(self, *ops: Op) -> Call | None:
        """What gives the memory that these ops write the values that it had when it was first asked for."""
        written = [tensor for op in ops for tensor in self._written(op)]
        storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in written}
        for address, tensor in storages.items():
            if address not in self._saved:
                self._saved[address] = SavedMemory([tensor])
        return partial(_restore, [self._saved[address] for address in storages]) if storages else None

    def _written(self, op: Op) -> Sequence[Tensor]:
        named: object = self._prepared.written(op)
        if not isinstance(named, Sequence) or not all(isinstance(tensor, Tensor) for tensor in named):
            raise TypeError(f"written({op!r}): expected a sequence of tensors, got {named!r}")
        return named

    def num_non_finite(self) -> int:
        """Of what its ops show of the first place."""
        return num_non_finite(tensor for op in self._ops for tensor in self._outputs(op, 0).values())


def _require_same(what: str, given: Mapping[str, list[int]], now: Mapping[str, list[int]]) -> None:
    """Raises ValueError that names the inputs whose sums have changed; states and windows are a launch's to write."""
    own = ("states", "conv_states") if what == "launch" else ()
    changed = [name for name, sums in given.items() if now[name] != sums and name not in own]
    if changed:
        raise ValueError(
            f"{what}: expected inputs to stay as they are, changed: {', '.join(changed)}; copy them before writing"
        )


def step_ops(peer: Peer) -> tuple[Op, ...]:
    """The ops of a step, verify first; none where the peer has no whole one."""
    ops = set(peer.ops)
    if peer.scheme != "recoverssm":
        return ("verify",)
    if "verify" in ops and "commit" in ops:
        return ("verify", "commit")
    return (
        ("verify", "commit_state", *(("conv",) if "conv" in ops else ())) if {"verify", "commit_state"} <= ops else ()
    )


def limit_of(tolerance: Tolerance, name: str, state_dtype: str) -> float:
    """The tolerance of an output, by its name in ``Outputs``."""
    if name in ("state", "states"):
        return tolerance.state_fp32 if state_dtype == "fp32" else tolerance.state_bf16
    return tolerance.out if name == "out" else tolerance.correction


def least_traffic(workload: Workload, op: Op) -> cost.Cost:
    """What no kernel of the scheme can avoid moving in one call of ``op``: states, inputs and outputs, no records."""
    case, accepted = workload.case, workload.step.accepted
    layer, num_layers = layer_sizes(case), case.num_layers
    num_rows, num_tokens = case.num_requests, case.num_requests * case.shape.spec_query_len
    states = num_rows * layer.state_bytes
    if op == "verify" and workload.scheme == "full_state":
        return cost.full_state_verify(layer, num_rows=num_rows, num_tokens=num_tokens)
    if op == "verify":
        written = states if workload.scheme == "last_state" else 0
        flops = num_tokens * layer.recurrence_flops
        return cost.Cost(states + num_tokens * layer.input_bytes, written + num_tokens * layer.output_bytes, flops)
    folds = cost.Cost(states, states, sum(accepted) * layer.fold_flops).times(num_layers)
    conv = cost.compact_conv(layer, accepted).times(num_layers)
    return {"commit_state": folds, "conv": conv, "commit": folds + conv}[op]


def _ordered(ops: Iterable[Op]) -> tuple[Op, ...]:
    wanted = set(ops)
    return tuple(op for op in OPS if op in wanted)


def _restore(saved: Sequence[SavedMemory]) -> None:
    for memory in saved:
        memory.restore()
