"""Hybrid models of KDA and attention layers: sizes of their layers, and how a cache manager groups them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from recoverssm.errors import ConfigError
from recoverssm.types import KDAShape, check_count

NEARLY_AS_MANY = 1.25
"""Below this ratio of layer counts, groups are padded to the larger one rather than cut to the smaller one."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A hybrid model of KDA and MLA layers, as one entry of a model configuration.

    Attributes:
        num_kda_layers: layers with a recurrent state; num_attention_layers: layers with a KV cache, 0 for none.
        num_heads: KDA heads before tensor parallelism.
        attention_row_elements: cache elements of one token in one attention layer (MLA latent and rope), which tensor
            parallelism does not split.
        source: where the numbers come from.
    Raises:
        ConfigError: a size is out of range.
    """

    name: str
    num_kda_layers: int
    num_attention_layers: int
    num_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    attention_row_elements: int
    source: str

    def __post_init__(self) -> None:
        least = {"conv_width": 2, "num_attention_layers": 0}
        for name in ("num_kda_layers", "num_heads", "key_dim", "value_dim", "attention_row_elements", *least):
            check_count(name, getattr(self, name), least=least.get(name, 1))

    @property
    def num_layers(self) -> int:
        """All layers of the model."""
        return self.num_kda_layers + self.num_attention_layers

    @property
    def group_layers(self) -> int:
        """Layers of a cache group, all of one kind: as many as the rarer kind has, or the other where it is close."""
        few, many = sorted((self.num_kda_layers, self.num_attention_layers))
        return many if many < NEARLY_AS_MANY * few or few == 0 else few

    @property
    def num_kda_groups(self) -> int:
        """Cache groups of KDA layers."""
        return math.ceil(self.num_kda_layers / self.group_layers)

    @property
    def num_attention_groups(self) -> int:
        """Cache groups of attention layers."""
        return math.ceil(self.num_attention_layers / self.group_layers)

    def layer_shape(self, *, tensor_parallel: int, draft_tokens: int) -> KDAShape:
        """Sizes of one KDA layer on one rank.

        Raises:
            ConfigError: the heads do not divide, or the window is out of range.
        """
        check_count("tensor_parallel", tensor_parallel, least=1)
        if self.num_heads % tensor_parallel:
            raise ConfigError(
                f"tensor_parallel: expected a divisor of the {self.num_heads} heads of {self.name}, "
                f"got {tensor_parallel}"
            )
        check_count("draft_tokens", draft_tokens, least=0)
        return KDAShape(
            num_heads=self.num_heads // tensor_parallel,
            spec_query_len=1 + draft_tokens,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            conv_width=self.conv_width,
        )


MODELS: Mapping[str, ModelShape] = MappingProxyType(
    {
        "kimi-k3": ModelShape(
            name="kimi-k3",
            num_kda_layers=69,
            num_attention_layers=24,
            num_heads=96,
            key_dim=128,
            value_dim=128,
            conv_width=4,
            attention_row_elements=512 + 64,
            source="Kimi-K3 model configuration: 93 layers, MLA at 4, 8, ..., 92 and 93",
        )
    }
)
