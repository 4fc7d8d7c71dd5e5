"""NVML behind one seam: every question may fail, and then the answer is None with the reason kept."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")


class UnknownError(RuntimeError):
    """A fact that this machine does not tell; its text alone is the reason that is recorded."""


@dataclass(frozen=True, slots=True)
class NvmlDevice:
    """One device of an initialised NVML.

    Attributes:
        nvml: the ``pynvml`` module, or a stand-in for it.
        handle: NVML's handle of the device.
    """

    nvml: Any
    handle: Any

    def close(self) -> None:
        """Give NVML back; it counts its users."""
        self.nvml.nvmlShutdown()


def ask(missing: dict[str, str], field: str, question: Callable[[], T]) -> T | None:
    """The answer, or None with the reason under ``field`` in ``missing``.

    NVML says "not supported" for single calls on some parts (memory on those with coherent memory), raises a class of
    its own per error code, and lacks functions in older drivers; none of these may end a run.
    """
    try:
        return question()
    except UnknownError as error:
        missing[field] = str(error)
        return None
    except Exception as error:
        missing[field] = f"{type(error).__name__}: {error}"
        return None


def open_device(uuid: str | None, nvml: Any = None) -> NvmlDevice:
    """The device with this UUID, with or without NVML's prefix; None means the first.

    Raises:
        Exception: whatever the import or NVML raises; call it through ``ask``.
    """
    if nvml is None:
        nvml = import_module("pynvml")
    nvml.nvmlInit()
    try:
        if uuid is None:
            return NvmlDevice(nvml, nvml.nvmlDeviceGetHandleByIndex(0))
        return NvmlDevice(nvml, _by_uuid(nvml, uuid))
    except BaseException:
        nvml.nvmlShutdown()
        raise


def _by_uuid(nvml: Any, uuid: str) -> Any:
    if uuid.startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except Exception as error:
        with suppress(Exception):  # torch names no kind: it may be a part of a GPU
            return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
        raise error


def text(value: str | bytes) -> str:
    """Strings of NVML, which older bindings return as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
