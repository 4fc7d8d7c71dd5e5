"""Does Triton's interpreter run here? A file of its own, because Triton reads the source of its kernels.

Some pairs of Triton and numpy fail on a loop bound loaded from memory (Triton 3.6.0 with numpy 2.4.6).
"""

import os

os.environ["TRITON_INTERPRET"] = "1"  # read by @triton.jit

import torch
import triton
import triton.language as tl


@triton.jit
def _count_kernel(bound_ptr, out_ptr):  # type: ignore[no-untyped-def]
    bound = tl.load(bound_ptr)
    total = 0
    for step in range(bound):
        total += step
    tl.store(out_ptr, total)


def main() -> None:
    """Raises whatever is wrong."""
    out = torch.zeros(1, dtype=torch.int32)
    _count_kernel[(1,)](torch.tensor([4], dtype=torch.int32), out)
    if out.item() != 6:
        raise RuntimeError(f"Triton's interpreter: expected 0 + 1 + 2 + 3 = 6, got {out.item()}")


if __name__ == "__main__":
    main()
