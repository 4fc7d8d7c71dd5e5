"""Somebody's kernel in one file, measured beside ours: docs/peers.md. Here it is plain torch, so it is slow.

    python -m ci nightly --set smoke --provider examples/provider.py:TorchRecurrence

It is then on the page *League* of the night's site.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from benchmarks.cases import BenchCase
from benchmarks.peers import Op, Outputs, Scheme, Tolerance, Workload


class TorchRecurrence:
    """The recurrence, token by token, in fp32 torch ops; the commit replays the accepted tokens."""

    name = "torch_recurrence"
    title = "torch, token by token"
    licence = "Apache-2.0"
    source = "examples/provider.py"
    scheme: Scheme = "recoverssm"
    ops: tuple[Op, ...] = ("verify", "commit_state", "conv")
    covers = "many small launches; the commit is of states and conv windows, without a plan"
    tolerance = Tolerance(reason="the recurrence in fp32, as ours; outputs are rounded to bf16 once")

    def __init__(self) -> None:
        self.version = torch.__version__

    def unsupported(self, case: BenchCase, device: torch.device) -> str | None:
        return None if case.num_requests <= 32 else "more than 32 requests: this example keeps its temporaries small"

    def prepare(self, workload: Workload) -> "PreparedRecurrence":
        return PreparedRecurrence(workload)


class PreparedRecurrence:
    """Uses the harness's states and conv windows in place; records are its own, one per place."""

    def __init__(self, workload: Workload) -> None:
        case, step, self._workload = workload.case, workload.step, workload
        rows = (case.num_requests, case.shape.spec_query_len)
        self._slots = workload.slots.long()
        self._q, self._k, self._v, self._raw_gate, self._raw_beta = (
            x.view(*rows, *x.shape[1:]).float() for x in step.activations
        )
        self._out = torch.full_like(step.v, torch.nan)
        self._corrections = [torch.full_like(self._v, torch.nan) for _ in workload.states]
        tokens = torch.arange(case.shape.spec_query_len, device=workload.device)
        self._accepted = tokens < step.num_sampled[:, None]  # [N, T]
        self._front = torch.arange(case.shape.conv_width - 1, device=workload.device)
        self._behind = step.num_sampled[:, None].long() - 1 + self._front  # [N, width - 1]

    def launch(self, op: Op, number: int) -> None:
        if op == "verify":
            self._verify(number)
            return
        for place in self._workload.places(number):
            self._commit_state(place) if op == "commit_state" else self._conv(place)

    def outputs(self, op: Op, place: int) -> Outputs:
        workload = self._workload
        if op == "verify":
            return Outputs(out=self._out, correction=self._corrections[place].transpose(1, 2))
        if op == "commit_state":
            return Outputs(state=workload.states[place][self._slots])
        return Outputs(conv=workload.conv_states[place][self._slots[:, None], self._front])

    def written(self, op: Op) -> Sequence[Tensor]:
        return {"verify": (), "commit_state": self._workload.states, "conv": self._workload.conv_states}[op]

    def _verify(self, place: int) -> None:
        state = self._workload.states[place][self._slots].float()  # [N, H, V, K]
        decay, out = self._decay(place), self._out.view(self._v.shape)
        for t in range(self._v.shape[1]):
            key, query = _unit(self._k[:, t]), _unit(self._q[:, t]) * self._q.shape[-1] ** -0.5
            state = state * decay[:, t, :, None]
            seen = (state * key[:, :, None]).sum(-1)
            correction = torch.sigmoid(self._raw_beta[:, t, :, None]) * (self._v[:, t] - seen)
            state = state + correction[..., None] * key[:, :, None]
            self._corrections[place][:, t] = correction
            out[:, t] = (state * query[:, :, None]).sum(-1)

    def _commit_state(self, place: int) -> None:
        pool = self._workload.states[place]
        state, decay = pool[self._slots].float(), self._decay(place)
        for t in range(self._v.shape[1]):
            update = self._corrections[place][:, t, :, :, None] * _unit(self._k[:, t])[:, :, None]
            folded = state * decay[:, t, :, None] + update
            state = torch.where(self._accepted[:, t, None, None, None], folded, state)
        pool[self._slots] = state.to(pool.dtype)

    def _conv(self, place: int) -> None:
        windows, rows = self._workload.conv_states[place], self._slots[:, None]
        windows[rows, self._front] = windows[rows, self._behind]

    def _decay(self, place: int) -> Tensor:
        gate = self._workload.gate(place)
        raw, scale = self._raw_gate + gate.dt_bias, gate.A_log.exp()[:, None]
        if gate.lower_bound is None:
            return torch.exp(-scale * softplus(raw))
        return torch.exp(gate.lower_bound * torch.sigmoid(scale * raw))


def _unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
