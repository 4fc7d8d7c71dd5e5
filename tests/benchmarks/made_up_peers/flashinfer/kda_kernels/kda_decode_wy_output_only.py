"""What the adapter calls of FlashInfer's module of this name, on the reference."""

from recoverssm import reference
from recoverssm.types import GateParams, Records


def kda_recoverssm_verify(
    q, k, v, raw_g, raw_beta, A_log, dt_bias, lower_bound, state, correction, kg, query_start_loc, slots, window, out
):
    assert correction.shape[:3] == (state.shape[0], state.shape[1], window)
    activations = [x[0] for x in (q, k, v, raw_g, raw_beta)]
    records, gate = Records(correction, kg, by_slot=True), GateParams(A_log, dt_bias, lower_bound)
    reference.verify(*activations, state, records, gate, query_start_loc, slots, out=out[0])
