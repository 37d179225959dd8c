"""The other networks: their formulas written out, their size, and gradients that are exact to rounding."""

import copy

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.models import build, count_parameters
from pipeline.params import Params


def convolutional(p: list[Tensor], x: Tensor) -> Tensor:
    for layer, stride in enumerate((1, 2, 1, 2)):
        weight, bias, scale, shift = p[4 * layer : 4 * layer + 4]
        x = F.batch_norm(F.conv2d(x, weight, bias, stride=stride, padding=1).relu(), None, None, scale, shift, training=True)
    assert x.shape[2:] == (7, 7)
    return x.mean((2, 3)) @ p[16].T + p[17]


def lenet(p: list[Tensor], x: Tensor) -> Tensor:
    x = F.avg_pool2d(F.conv2d(x, p[0], p[1], padding=2).tanh(), 2)
    x = F.avg_pool2d(F.conv2d(x, p[2], p[3]).tanh(), 2).flatten(1)
    for layer in (4, 6):
        x = (x @ p[layer].T + p[layer + 1]).tanh()
    return x @ p[8].T + p[9]


def perceptron(p: list[Tensor], x: Tensor) -> Tensor:
    return (x.flatten(1) @ p[0].T + p[1]).relu() @ p[2].T + p[3]


def elman(p: list[Tensor], x: Tensor) -> Tensor:
    state = torch.zeros(len(x), len(p[1]), dtype=x.dtype)
    for row in range(28):
        state = torch.rnn_tanh_cell(x[:, 0, row], state, *p[:4])
    return state @ p[4].T + p[5]


def long_short_term(p: list[Tensor], x: Tensor) -> Tensor:
    state, cell = torch.zeros(2, len(x), p[1].shape[1], dtype=x.dtype)
    for row in range(28):
        state, cell = torch.lstm_cell(x[:, 0, row], (state, cell), *p[:4])
    return state @ p[4].T + p[5]


FORMULAS = {"cnn": convolutional, "lenet": lenet, "mlp": perceptron, "rnn": elman, "lstm": long_short_term}


@pytest.mark.parametrize("name", FORMULAS)
def test_equals_its_formula_with_as_many_parameters_as_the_transformer_within_five_percent(study: Params, name: str) -> None:
    torch.manual_seed(0)
    model = build(study.resolve(name).model).double()
    assert abs(count_parameters(model) / count_parameters(build(study.base)) - 1) <= 0.05
    images = torch.rand(4, 1, 28, 28, dtype=torch.float64)
    parameters: list[Tensor] = list(model.parameters())
    logits, expected = model(images), FORMULAS[name](parameters, images)
    assert logits.shape == (4, 10)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-11)
    gradients = [torch.autograd.grad(result.square().sum(), parameters) for result in (logits, expected)]
    for actual, reference in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, reference, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["base", "batch-norm", *FORMULAS])
def test_gradient_in_float32_is_exact_to_rounding(study: Params, name: str) -> None:
    """On a whole batch. Batch norm that sums a channel's 100,000 values one by one would be wrong by some percent here."""
    torch.manual_seed(0)
    model = build(study.resolve(name).model)
    exact = copy.deepcopy(model).double()
    images, labels = torch.rand(128, 1, 28, 28), torch.randint(10, (128,))
    for network, pictures in ((model, images), (exact, images.double())):
        F.cross_entropy(network(pictures), labels).backward()
    gradients = [torch.cat([p.grad.double().flatten() for p in network.parameters() if p.grad is not None]) for network in (model, exact)]
    assert torch.dist(*gradients) <= 1e-4 * gradients[1].norm()
