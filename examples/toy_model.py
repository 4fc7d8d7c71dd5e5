"""A toy model with KDA layers: random weights, and logits that depend on every head of every layer."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from recoverssm import GateParams

CONV_WIDTH = 4


@dataclass(frozen=True)
class ToyShape:
    """Sizes; on a GPU take 128 for ``head_dim``, as in Kimi-K3, to run the kernels that are tuned for it."""

    vocab: int = 48
    hidden: int = 32
    num_layers: int = 2
    num_heads: int = 2
    head_dim: int = 16

    @property
    def conv_channels(self) -> int:
        """Channels of the short convolution: q, k and v of every head."""
        return 3 * self.num_heads * self.head_dim


class ToyModel:
    """Weights, and what happens before and after the attention of a layer. Everything is float32."""

    def __init__(self, shape: ToyShape, device: torch.device | str, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def random(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator).to(device)

        self.shape = shape
        L, D, H, K = shape.num_layers, shape.hidden, shape.num_heads, shape.head_dim
        self.embedding, self.head = random(shape.vocab, D), random(D, shape.vocab) / D**0.5
        self.sizes = [shape.conv_channels, H * K, H]  # q, k and v before the convolution; raw gate; raw beta
        self.w_in = random(L, D, sum(self.sizes)) / D**0.5
        self.w_conv = random(L, shape.conv_channels, CONV_WIDTH) / CONV_WIDTH**0.5
        self.w_out = 0.7 * random(L, H * K, D) / (H * K) ** 0.5
        self.gate = GateParams(0.3 * random(L, H), random(L, H, K) - 5.0, lower_bound=-5.0)

    def embed(self, tokens: Tensor) -> Tensor:
        """The residual stream [M, D] of tokens [M]."""
        return self.embedding[tokens]

    def project(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Raw q, k and v [M, 3HK], raw gate [M, H, K] and raw beta [M, H] of a layer."""
        projections = rms_norm(x, x.shape[-1:]) @ self.w_in[layer]
        qkv, raw_gate, raw_beta = projections.split(self.sizes, dim=-1)
        heads = (self.shape.num_heads, self.shape.head_dim)
        return qkv, raw_gate.unflatten(-1, heads).contiguous(), raw_beta.contiguous()

    def mix(self, layer: int, x: Tensor, out: Tensor) -> Tensor:
        """Add what the heads of a layer say, [M, H, V], to the residual stream."""
        heads: Tensor = rms_norm(out, out.shape[-1:]).flatten(1) @ self.w_out[layer]
        return x + heads

    def logits(self, x: Tensor) -> Tensor:
        """[M, vocab]."""
        logits: Tensor = 4 * rms_norm(x, x.shape[-1:]) @ self.head
        return logits

    def draft(self, token: int, noise: Tensor, num_drafts: int) -> list[int]:
        """Up to ``num_drafts`` tokens that may follow: those of the model without its layers, while that is sure.

        Args:
            noise: [positions, vocab] of the tokens to come, as the request samples with.
        """
        drafts: list[int] = []
        for i in range(num_drafts):
            last = torch.tensor([drafts[-1] if drafts else token], device=self.head.device)
            best = (self.logits(self.embed(last))[0] + noise[i]).topk(2)
            if best.values[0] - best.values[1] < 0.5:
                break
            drafts.append(int(best.indices[0]))
        return drafts


def convolve(
    windows: Tensor,
    x: Tensor,
    query_start_loc: Tensor,
    slots: Tensor,
    weight: Tensor,
    max_len: int,
    first: Tensor | int = 0,
) -> tuple[Tensor, Tensor]:
    """Convolve each row's tokens after the history that its slot holds from position ``first`` on.

    Shapes depend on the number of rows and ``max_len`` alone, so that a CUDA graph may hold it.

    Args:
        windows: [P, conv_state_len, C]. x: [M, C], rows one after the other. weight: [C, width].
        query_start_loc: [N + 1]. slots: [N]. first: [N, 1], or one for all rows.
        max_len: tokens of the longest row.
    Returns:
        silu of the convolution, [M, C], zeros where no row has a token; and history and tokens of each row,
        [N, width - 1 + max_len, C].
    """
    history_len = weight.shape[1] - 1
    tokens = query_start_loc[:-1, None] + torch.arange(max_len, device=x.device)
    tokens = torch.where(tokens < query_start_loc[1:, None], tokens, x.shape[0])
    history = windows[slots[:, None], first + torch.arange(history_len, device=x.device)]
    padded = torch.cat((x, torch.zeros_like(x[:1])))
    sequence = torch.cat((history, padded[tokens]), dim=1)
    out = torch.zeros_like(padded)
    out[tokens] = silu((sequence.unfold(1, history_len + 1, 1) * weight).sum(-1))
    return out[:-1], sequence
