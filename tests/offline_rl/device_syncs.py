"""Detects operations that synchronise with the device or have data-dependent shapes: CUDA graphs allow neither."""

from torch import Tensor
from torch import bool as torch_bool
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "unique_consecutive")


class NoDeviceSync(TorchDispatchMode):
    """Raises AssertionError for such operations, except inside functions wrapped by `excused`."""

    def __init__(self):
        super().__init__()
        self.excusing = False

    def excused(self, function):
        """Wrap a function whose CPU code path may synchronise."""

        def called(*arguments):
            self.excusing = True
            try:
                return function(*arguments)
            finally:
                self.excusing = False

        return called

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        masks = name in ("index", "index_put_") and any(
            isinstance(i, Tensor) and i.dtype == torch_bool for i in args[1]
        )
        if not self.excusing and (name in WAITING or masks):
            raise AssertionError(f"{name}: waits for the device")
        return func(*args, **(kwargs or {}))
