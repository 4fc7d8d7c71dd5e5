"""What the adapter calls of SGLang's module of this name, on the reference's recurrence."""

from recoverssm.reference.recurrence import delta_step, unit_key


def commit_kda_replayssm_spec_all_layers(
    states, raw_v, raw_k, log_decay, beta, slots, accepted, max_cache_len, num_k_heads
):
    assert raw_k.shape[2:4] == (num_k_heads, max_cache_len)
    for layer in range(len(states)):
        for slot, length in zip(slots.tolist(), accepted.tolist(), strict=True):
            state = states[layer, slot].double()
            for t in range(length):
                g, k, v, b = (ring[layer, slot, :, t].double() for ring in (log_decay, raw_k, raw_v, beta))
                key = unit_key(k)
                state, _, _ = delta_step(state, g, key, key, v, b)
            states[layer, slot] = state
