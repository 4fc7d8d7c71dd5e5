"""Exceptions of the library.

RecoverSSMError
├── ArgumentError (also ValueError)    an argument of a public op is wrong; raised before any launch
│   ├── ShapeError                     size or number of dimensions
│   ├── DtypeError                     element type
│   ├── StrideError                    memory order or alignment
│   └── DeviceError                    tensors on different devices, or on one that cannot run the op
├── ConfigError (also ValueError)      a combination of options that cannot work
├── StepError (also RuntimeError)      a step was committed twice, or not at all; the message names it
└── CaptureError (also RuntimeError)   a kernel would have been compiled while a CUDA graph is captured
"""


class RecoverSSMError(Exception):
    """Anything this library raises on purpose."""


class ArgumentError(RecoverSSMError, ValueError):
    """An argument of a public op is wrong; nothing was launched or written."""


class ShapeError(ArgumentError):
    """A size or a number of dimensions differs from what the op documents."""


class DtypeError(ArgumentError):
    """An element type differs from what the op documents."""


class StrideError(ArgumentError):
    """A tensor's memory order or alignment is one the kernels cannot address."""


class DeviceError(ArgumentError):
    """Tensors are on different devices, or on one that cannot run the op."""


class ConfigError(RecoverSSMError, ValueError):
    """A combination of options cannot work; the message says which and why."""


class StepError(RecoverSSMError, RuntimeError):
    """A step was committed twice, or another one began before it was; the message names the step."""


class CaptureError(RecoverSSMError, RuntimeError):
    """A kernel would have been compiled while a CUDA graph is captured; the message names it. Nothing was launched."""
