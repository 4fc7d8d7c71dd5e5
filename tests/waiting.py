"""A window of one layer with tokens waiting in front of it, for the ops of deferred commits."""

from dataclasses import replace

import torch

from recoverssm import CommitPlan, LayerTable, RecordRows, Records, commit_state, reference, verify
from tests.test_verify import run_verify
from tests.windows import Window, float64_records, int32


class Waiting:
    """A window, and records with twice the entries and twice the room that it needs; in front of it tokens wait."""

    def __init__(self, case, device, lens):
        self.window = window = Window(case, device)
        num_rows, T = len(case.query_lens), case.spec_query_len
        self.records = self.room_for(window, 2 * num_rows)
        before = Window(replace(case, query_lens=(T,) * num_rows, slots=tuple(range(1, num_rows + 1))), device, seed=9)
        run_verify(before)
        entries = [2 * num_rows - 1 - row for row in range(num_rows)]
        for row, (entry, length) in enumerate(zip(entries, lens, strict=True)):
            for name in ("correction", "key_gate"):
                getattr(self.records, name)[entry, :, : min(length, T)] = getattr(before.records[0], name)[
                    row, :, :length
                ]
        self.rows = RecordRows(int32(entries, device), int32(lens, device))

    @staticmethod
    def room_for(window, entries):
        """Records of nobody, NaN, with room for a window and as many tokens before it."""
        _, H, T, V = window.records[0].correction.shape
        size, device = (entries, H, 2 * T), window.device
        correction = torch.full((*size, V), torch.nan, device=device)
        dtype = window.case.activation_dtype
        key_gate = torch.full((*size, 2 * window.case.key_dim), torch.nan, device=device, dtype=dtype)
        return Records(correction, key_gate, history_len=T)

    def verify(self, run=verify, rows=None, **options):
        window = self.window
        return run(
            *window.activations,
            window.checkpoint_states[0],
            self.records,
            window.layer_gate(),
            window.query_start_loc,
            window.state_indices,
            out=window.out,
            record_rows=self.rows if rows is None else rows,
            **options,
        )

    def commit(self):
        """What waits, into the states of rows with tokens."""
        window = self.window
        tables = [
            LayerTable.of("t", [x])
            for x in (window.checkpoint_states[0], self.records.correction, self.records.key_gate)
        ]
        slots = torch.where(window.query_start_loc.diff() > 0, window.state_indices, 0)
        lens = self.rows.history_lens.clamp(max=self.records.history_len)
        commit_state(*tables, CommitPlan(lens, slots, slots), window.gate, record_rows=self.rows.written)

    def in_float64(self):
        """Records and outputs by the reference."""
        window, records = self.window, replace(float64_records(self.records), history_len=self.records.history_len)
        out = reference.verify(
            *(x.double() for x in window.activations),
            window.checkpoint_states[0].double(),
            records,
            window.layer_gate(),
            window.query_start_loc,
            window.state_indices,
            out=torch.full_like(window.out, torch.nan, dtype=torch.float64),
            record_rows=self.rows,
        )
        return records, out
