"""What the committers of a life must be: one per lane, made for its config, with records of their own or one pool."""

from collections.abc import Sequence
from itertools import combinations

from recoverssm.committer import CommitContext
from recoverssm.config import RecoverSSMConfig
from recoverssm.errors import ConfigError


def check_committers(config: RecoverSSMConfig, committers: Sequence[object]) -> None:
    """Raises ConfigError as ``RecoverSSMState`` does; a stand-in for a ``CommitContext`` is only counted."""
    if len(committers) != config.steps_in_flight:
        raise ConfigError(
            f"committers: expected {config.steps_in_flight}, one per step in flight (pipeline_parallel x "
            f"micro_batches), got {len(committers)}"
        )
    if len({id(committer) for committer in committers}) != len(committers):
        raise ConfigError("committers: expected one per lane, got one twice; a plan is its lane's own")
    contexts = [(lane, each) for lane, each in enumerate(committers) if isinstance(each, CommitContext)]
    for lane, context in contexts:
        _check_made_for(config, lane, context)
    for (lane, context), (other_lane, other) in combinations(contexts, 2):
        shares = context.shares_rows_with(other)
        if config.commit == "deferred" and not shares:
            raise ConfigError(
                "committers: expected the same records in every lane with deferred commits, as a request may go "
                f"on in another lane, got others in lanes {lane} and {other_lane}"
            )
        if config.commit == "every_step" and shares:
            raise ConfigError(
                "committers: expected records of its own for every lane, as verify writes over those that are yet "
                f"to be committed, got the same for lanes {lane} and {other_lane}; those by slot may be shared"
            )


def _check_made_for(config: RecoverSSMConfig, lane: int, context: CommitContext) -> None:
    """With another T commits clip what rows accept; with other differences steps fail, or were not warmed up."""
    shape, states = config.layer_shape, context._states.element_type
    _, num_heads, value_dim, key_dim = states.shape
    room = f"history_len={context.history_len}"
    pairs = [
        ("history_len", "T with deferred commits, else 0", config.history_len, context.history_len),
        ("T", f"draft_tokens + 1; what {room} leaves of an entry", shape.spec_query_len, context._spec_query_len),
        ("H", "num_heads / tensor_parallel", shape.num_heads, num_heads),
        ("K", "key_dim", shape.key_dim, key_dim),
        ("V", "value_dim", shape.value_dim, value_dim),
        ("states", "state_dtype", config.state_dtype, states.dtype),
        ("keys and gates", "activation_dtype", config.activation_dtype, context._key_gates.element_type.dtype),
        ("lower_bound", "gate_lower_bound", config.gate_lower_bound, context._gate.lower_bound),
        ("block_size", "of cache_mode 'align'", config.block_size, context._block_size),
        ("by_slot", "of placement 'page'", config.placement == "page", context._by_slot),
    ]
    if context._convs is not None:
        channels = context._convs.element_type.shape[2]
        pairs += [
            ("conv_width", "taps", config.conv_width, context._conv_width),
            ("conv channels", "last dimension of conv_states, 3HD", shape.conv_channels, channels),
        ]
    for name, source, expected, got in pairs:
        if got != expected:
            raise ConfigError(
                f"committers[{lane}]: expected {name}={expected} as in the config ({source}), got {got}; make "
                "states, records and context with what the life's config says"
            )
    max_num_rows = context._buffer.final_columns.numel()
    if max_num_rows < config.max_num_requests:
        raise ConfigError(
            f"committers[{lane}]: expected max_num_rows of at least config.max_num_requests="
            f"{config.max_num_requests}, got {max_num_rows}; a larger batch would be verified and not committed"
        )
