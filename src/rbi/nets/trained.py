"""A module that learns: its weights as one vector, and Adam that steps it."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rbi.nets.adam import Adam
from rbi.nets.beside import Beside
from rbi.nets.vectors import attach, join, to_vector


class Trained:
    """`module` with its weights in `vector`, on a device, in float32. Nothing here waits for the device."""

    def __init__(self, module: nn.Module, device: torch.device, learning_rate: float, epsilon: float = 1e-8) -> None:
        self.vector = to_vector(module).to(device)
        self.module = module.to(device).requires_grad_(True)
        attach(module, self.vector)
        self.parameters = list(module.parameters())
        self.adam = Adam(self.vector, self.vector, learning_rate, epsilon)

    def descend(
        self,
        outputs: Sequence[Tensor],
        slopes: Sequence[Tensor] | None = None,
        *,
        beside: Beside | None = None,
        penalty: float = 0.0,
    ) -> None:
        """One step down, where `slopes` are the losses' gradients at the outputs; without them the outputs are losses
        themselves. What was computed on a stream `beside` has its gradient computed there. `penalty` times the sum of
        all weights' squares is part of the loss."""
        gradients = torch.autograd.grad(outputs, self.parameters, slopes)
        if beside is not None:
            beside.join()
        join(gradients, self.module, self.adam.gradient)
        if penalty:
            self.adam.gradient.add_(self.vector, alpha=2 * penalty)
        self.adam.step()

    def state(self) -> dict[str, Tensor]:
        """All that changes, without a copy: weights, what batch norm has seen, Adam's memory."""
        seen = {f"buffer.{name}": buffer for name, buffer in self.module.named_buffers()}
        return {"vector": self.vector, **seen, **self.adam.state()}
