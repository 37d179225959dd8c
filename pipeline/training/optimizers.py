"""Optimisers for one model or a stack of seeds, whose whole state lives on the device.

The learning rate of a step, and everything else that depends only on the step's number, is a row of a table that is computed
beforehand; a counter on the device selects the row. So every step has the same launches, the host never waits, and replaying a
CUDA graph of one step follows the schedule.

All arithmetic on weights is elementwise, so one update serves a whole stack; the gradient's norm, a sum over a model's weights, is
computed per seed. `torch.optim` has the same updates (tests compare them), but importing it takes longer than a demo's training.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pipeline.params import TrainSettings
from pipeline.training import schedules

Averages = Mapping[str, list[Tensor]]

BETA1, EPSILON = 0.9, 1e-8  # Kingma and Ba 2015; also torch's defaults
_TENSORS_A_LAUNCH = 36  # of torch's fused updates, with four numbers of each weight


class Optimizer(ABC):
    """Clipping, the table of coefficients and the state; a subclass adds the update.

    A seed's gradient with an L2 norm above `settings.clip_norm` is scaled down to that norm (Pascanu et al. 2013, algorithm 1).

    Args:
        parameters: leaf tensors on one device; `step` takes their gradients and clears them. One without a gradient stays as it is.
        settings: momentum, beta2, weight_decay, clip_norm.
        rates: the learning rate of each step (total_steps,), float64.
        num_seeds: number of models.
        stacked: whether parameters have a leading seed dimension; else they belong to one model.

    Attributes:
        coefficients: the numbers that the update of each step takes (total_steps, coefficient).
    """

    def __init__(self, parameters: Sequence[Tensor], settings: TrainSettings, rates: Tensor, *, num_seeds: int, stacked: bool) -> None:
        assert stacked or num_seeds == 1
        self._settings, self._num_seeds, self._stacked = settings, num_seeds, stacked
        self._parameters = list(parameters)
        self._averages = {name: [torch.zeros_like(parameter) for parameter in self._parameters] for name in self._names()}
        device = self._parameters[0].device
        # CUDA's fused updates read the learning rate as float32; on the CPU it stays exactly what the schedule gave.
        self.coefficients = self._coefficients(rates).to(device, torch.float32 if device.type == "cuda" else torch.float64)
        self._step = torch.zeros((), dtype=torch.int64, device=device)  # steps done

    @torch.no_grad()
    def step(self) -> Tensor:
        """Updates the parameters once, and sets their gradients to None.

        Returns:
            The L2 norm of each seed's gradient before clipping (seed,), float32; inf or nan if the gradient is not finite.
        """
        gradients = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        norm = self._norm([gradient for gradient in gradients if gradient is not None])
        # Rehearsing a step before its capture may count past the last row; the rehearsal is undone, but needs a row to read.
        row = self._step.clamp(max=len(self.coefficients) - 1).view(1)
        self._step += 1
        # Not `[row]`, because the host reads an index that is a single number.
        self.apply(gradients, norm, self._step.float(), self.coefficients.index_select(0, row).squeeze(0))
        return norm.float()

    @torch.no_grad()
    def apply(self, gradients: Sequence[Tensor | None], norm: Tensor, count: Tensor, coefficients: Tensor) -> None:
        """Clips the gradients and updates the parameters; does not count the step.

        Args:
            gradients: of the parameters, None of those that stay as they are; clipped in place.
            norm: of each seed's gradient (seed,), float64.
            count: the step's number () float32, counted from 1.
            coefficients: its row of the table (coefficient,).
        """
        given = [(i, gradient) for i, gradient in enumerate(gradients) if gradient is not None]
        changes = [gradient for _, gradient in given]
        if self._settings.clip_norm is not None:
            self._scale(changes, (self._settings.clip_norm / norm).clamp(max=1).float())
        parameters = [self._parameters[i] for i, _ in given]
        averages = {name: [tensors[i] for i, _ in given] for name, tensors in self._averages.items()}
        self._update(parameters, changes, averages, count, *coefficients.unbind())

    def count(self, steps: int) -> None:
        """Counts steps that `apply` took."""
        self._step += steps

    def state(self) -> dict[str, Tensor]:
        """Steps done and running averages, by name; not copies."""
        averages = {f"{name}.{i}": tensor for name, tensors in self._averages.items() for i, tensor in enumerate(tensors)}
        return {"step": self._step, **averages}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restores what `state` returned."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])

    def _names(self) -> tuple[str, ...]:
        """The names of the running averages kept for every parameter."""
        return ("mean", "square")

    def _coefficients(self, rates: Tensor) -> Tensor:
        """The coefficients that `_update` gets in each step, (total_steps, coefficient)."""
        return rates[:, None]

    @abstractmethod
    def _update(self, parameters: list[Tensor], gradients: list[Tensor], averages: Averages, count: Tensor, *coefficients: Tensor) -> None:
        """Changes parameters and averages in place. Count and coefficients are those of `apply`, each a tensor ()."""

    def _norm(self, gradients: list[Tensor]) -> Tensor:
        """(seed,), in float64 because the squares of large float32 numbers overflow float32."""
        flat = torch.cat([gradient.reshape(self._num_seeds, -1) for gradient in gradients], dim=1)  # (seed, weight)
        return torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64)

    def _scale(self, gradients: list[Tensor], factor: Tensor) -> None:
        """Multiplies each seed's gradient by its factor (seed,)."""
        if self._stacked:
            torch._foreach_mul_(gradients, [factor.view(-1, *[1] * (gradient.dim() - 1)) for gradient in gradients])
        else:
            torch._foreach_mul_(gradients, factor.squeeze(0))


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, algorithm 1) with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2): AdamW."""

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], averages: Averages, count: Tensor, *coefficients: Tensor) -> None:
        parameters, gradients, means, squares = map(_spread, (parameters, gradients, *averages.values()))
        torch._fused_adamw_(
            parameters, gradients, means, squares, [], [count] * len(gradients),
            lr=coefficients[0], beta1=BETA1, beta2=self._settings.beta2, weight_decay=self._settings.weight_decay, eps=EPSILON,
            amsgrad=False, maximize=False,
        )  # fmt: skip


class RAdam(Optimizer):
    """Rectified Adam (Liu et al. 2020, algorithm 2) with decoupled weight decay.

    In the first five steps, where the variance of the adaptive rate is hardly bounded, the update uses the mean alone. The paper
    rectifies from a length of 4 on, and at beta2 = 0.999 so does the fifth step; its authors' code, and PyTorch's, begin at 5, as here.
    """

    def _coefficients(self, rates: Tensor) -> Tensor:
        """The share of a weight that decay leaves, the rate of the adaptive update, that of the plain one; one of the two rates is 0."""
        step, beta2 = torch.arange(1, len(rates) + 1, dtype=torch.float64), self._settings.beta2
        correction1, correction2 = 1 - BETA1**step, 1 - beta2**step
        limit = 2 / (1 - beta2) - 1  # of `length`, the length of the simple moving average that approximates the running one
        length = limit - 2 * step * (1 - correction2) / correction2
        rectification = ((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length)).sqrt()
        rates_of_mean = rates / correction1
        adaptive = torch.where(length > 5, rates_of_mean * rectification * correction2.sqrt(), 0)
        plain = torch.where(length > 5, 0, rates_of_mean)
        return torch.stack([1 - rates * self._settings.weight_decay, adaptive, plain], dim=1)

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], averages: Averages, count: Tensor, *coefficients: Tensor) -> None:
        kept, adaptive, plain = coefficients
        means, squares = averages["mean"], averages["square"]
        if self._settings.weight_decay:
            torch._foreach_mul_(parameters, kept)
        torch._foreach_lerp_(means, gradients, 1 - BETA1)
        torch._foreach_mul_(squares, self._settings.beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - self._settings.beta2)
        rates = torch._foreach_sqrt(squares)
        torch._foreach_add_(rates, EPSILON)
        torch._foreach_reciprocal_(rates)
        torch._foreach_mul_(rates, adaptive)
        torch._foreach_add_(rates, plain, alpha=1)  # without alpha it takes a number, so that the host would read the tensor
        torch._foreach_addcmul_(parameters, means, rates, -1)


class SGD(Optimizer):
    """Gradient descent: velocity = momentum velocity + gradient + weight_decay weight, weight = weight - rate velocity."""

    def _names(self) -> tuple[str, ...]:
        return ("velocity",) if self._settings.momentum else ()

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], averages: Averages, count: Tensor, *coefficients: Tensor) -> None:
        torch._fused_sgd_(
            parameters, gradients, averages.get("velocity", []), weight_decay=self._settings.weight_decay,
            momentum=self._settings.momentum, lr=coefficients[0], dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
        )  # fmt: skip


def _spread(tensors: list[Tensor]) -> list[Tensor]:
    """On a GPU, a single tensor as views of its parts, as many as one launch takes.

    A block of threads of torch's fused update works on up to 65,536 numbers of one tensor: a single tensor would leave most of a GPU idle.
    """
    if len(tensors) != 1 or tensors[0].device.type != "cuda":
        return tensors
    flat = tensors[0].detach().view(-1)
    return list(flat.split(4 * math.ceil(len(flat) / (4 * _TENSORS_A_LAUNCH))))  # of whole vectors of four


def make_optimizer(settings: TrainSettings, parameters: Sequence[Tensor], *, num_seeds: int, stacked: bool, total_steps: int) -> Optimizer:
    """The optimiser that the settings name, before its first step.

    Args:
        settings: the optimiser and its options, and the schedule.
        parameters, num_seeds, stacked: as for `Optimizer`.
        total_steps: steps of the whole training, which the schedule needs.
    """
    kinds: dict[str, type[Optimizer]] = {"adam": Adam, "radam": RAdam, "sgd": SGD}
    rates = schedules.learning_rates(settings, total_steps)
    return kinds[settings.optimizer](parameters, settings, rates, num_seeds=num_seeds, stacked=stacked)
