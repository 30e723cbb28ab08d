"""Catches work that makes the host wait for a device, or whose shape depends on values: neither can be captured."""

from torch import Tensor
from torch import bool as torch_bool
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "unique_consecutive")


class NoWaiting(TorchDispatchMode):
    """While it holds, operations that wait are refused, except inside what was `excused`."""

    def __init__(self):
        super().__init__()
        self.excusing = False

    def excused(self, function):
        """A function that takes another path on a processor, which may wait."""

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
