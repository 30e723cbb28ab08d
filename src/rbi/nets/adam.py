"""Adam on one vector of weights, with the copy that networks compute with kept up to date."""

import torch
from torch import Tensor

from rbi import kernels

BETAS = (0.9, 0.999)
NUMBERS_A_BLOCK = 1024


class Adam:
    """Adam's moments for a float32 vector. `computing` is the vector itself, or its copy in a shorter precision.

    The learning rate falls in a straight line over `span` steps, by the share `fall`, and then stays. The steps that
    were taken are counted on the device, so a captured step goes on falling, and so does a restored one.
    """

    def __init__(
        self, vector: Tensor, computing: Tensor, learning_rate: float, epsilon: float, fall: float = 0.0, span: int = 1
    ) -> None:
        self.vector, self.computing = vector, computing
        own = kernels.usable(vector)  # our kernel takes gradients as networks give them, PyTorch's as the vector is
        self.gradient = torch.zeros_like(computing if own else vector)
        self.learning_rate, self.epsilon, self.fall, self.span = learning_rate, epsilon, fall, span
        self.mean, self.square = torch.zeros_like(vector), torch.zeros_like(vector)
        self.count = torch.zeros((), device=vector.device)

    def step(self) -> None:
        """One step along `gradient`. On a GPU one kernel reads and writes each number once."""
        if kernels.usable(self.vector):
            from rbi.nets.adam_kernel import adam_kernel

            self.count += 1
            blocks = -(-len(self.vector) // NUMBERS_A_BLOCK)
            kernels.launch(
                adam_kernel, (blocks,), self.vector,
                self.vector, self.computing, self.gradient, self.mean, self.square, self.count, len(self.vector),
                self.learning_rate, self.fall / self.span, self.fall, *BETAS, self.epsilon, NUMBERS_A_BLOCK,
            )  # fmt: skip
            return
        torch._fused_adam_(
            [self.vector], [self.gradient], [self.mean], [self.square], [], [self.count + 1],
            lr=self.rate(), beta1=BETAS[0], beta2=BETAS[1], weight_decay=0.0, eps=self.epsilon,
            amsgrad=False, maximize=False,
        )  # fmt: skip
        self.count += 1
        if self.computing is not self.vector:
            self.computing.copy_(self.vector)

    def rate(self) -> float | Tensor:
        """The learning rate of the coming step."""
        if not self.fall:
            return self.learning_rate
        falling = self.learning_rate * (1 - (self.count * (self.fall / self.span)).clamp(max=self.fall))
        return falling if self.vector.is_cuda else float(falling)

    def state(self) -> dict[str, Tensor]:
        return {"adam_mean": self.mean, "adam_square": self.square, "adam_count": self.count}
