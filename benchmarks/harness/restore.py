"""Memory that a measured op writes, and the launches that give it back the values it had."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .stream_kernels import _restore_kernel

if TYPE_CHECKING:
    import torch

BLOCK = 2048
NUM_WARPS = 4  # 16 elements per thread: four loads of 16 bytes


class SavedMemory:
    """A copy of all memory that some tensors lie in, in a second memory of the same size.

    What the caches hold after a restore is what they hold after an op that writes its buffers in order: the end of what
    was written, not yet on its way to DRAM. Reads of the copy are told to leave the L2 first. So a window that follows
    pays for writing back about as many bytes as it leaves behind itself (docs/measuring.md).

    Args:
        tensors: in the order in which the op reaches them; several may lie in one storage, which counts once.
    """

    def __init__(self, tensors: Iterable["torch.Tensor"]) -> None:
        storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
        self._memory = [_elements(tensor) for tensor in storages.values()]
        self._saved = [elements.clone() for elements in self._memory]

    @property
    def num_bytes(self) -> int:
        """Bytes that ``restore`` writes."""
        return sum(elements.numel() * elements.element_size() for elements in self._memory)

    def restore(self) -> None:
        """Write the copy back, on the current stream; may be captured in a CUDA graph."""
        for saved, elements in zip(self._saved, self._memory, strict=True):
            num_elements = elements.numel()
            _restore_kernel[(-(-num_elements // BLOCK),)](
                saved, elements, num_elements, BLOCK=BLOCK, num_warps=NUM_WARPS
            )


def _elements(tensor: "torch.Tensor") -> "torch.Tensor":
    """The whole storage of a tensor as a flat tensor of whole words."""
    import torch

    storage = tensor.untyped_storage()
    dtype = torch.int32 if storage.nbytes() % 4 == 0 else torch.int8
    return torch.empty(0, dtype=dtype, device=tensor.device).set_(storage)
