"""The fused kernel beside the project's own model in float64: on the CPU by the emulator and, marked cuda, on a GPU."""

import copy
import functools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline import params
from pipeline.kernels import fused_vit_layout
from pipeline.kernels.fused_vit import FusedVit, Layout, why_not
from pipeline.params import ModelSettings
from pipeline.training.stack import Stack, initial_model
from tests.helpers import STUDY
from tests.kernels import emulator
from tests.kernels.emulator import EmulatedVit

# Each covered value of each option occurs, and each width of a head whole and sliced; few blocks and images, because the emulator is slow.
CASES: dict[str, dict[str, Any]] = {
    "base": {},
    "deep": {"patch": 14, "dim": 16, "mlp_dim": 16, "heads": 4, "blocks": 12, "norm": "post"},
    "197-tokens": {"patch": 2, "blocks": 1, "cls_init": "zeros"},
    "heads-of-2": {"patch": 7, "heads": 16, "blocks": 2, "norm": "post", "residual": "none", "position": "none", "pool": "mean"},
    "heads-of-8": {"patch": 7, "heads": 4, "blocks": 2, "norm": "none", "position": "sincos2d", "pool": "concat", "activation": "relu"},
    "heads-of-16": {"patch": 7, "heads": 2, "blocks": 2, "residual": "normalized", "cls_insert": "none", "pool": "attention"},
    "heads-of-32": {"patch": 14, "heads": 1, "blocks": 1, "score_scale": False, "final_norm": True, "pool": "first", "memory": 3},
    "whole-2": {"patch": 14, "heads": 16, "attention": "full", "position": "none", "pool": "max", "cls_insert": "none", "memory": 2},
    "whole-4": {"attention": "full", "blocks": 1, "position": "sinusoidal", "pool": "attention", "cls_insert": "loop", "norm_eps": 1e-3},
    "whole-8": {"patch": 7, "dim": 16, "mlp_dim": 16, "heads": 2, "blocks": 6, "attention": "full", "residual": "none", "embed": "conv"},
    "whole-16": {"dim": 16, "mlp_dim": 16, "heads": 1, "blocks": 2, "attention": "full", "norm": "none", "pool": "max", "memory": 16},
    "8-pixels": {"patch": 2, "dim": 16, "mlp_dim": 16, "heads": 4, "blocks": 1, "pool": "mean"},
    "whole-32": {"patch": 14, "heads": 1, "blocks": 2, "attention": "full", "norm": "post", "cls_insert": "none", "pool": "concat"},
}
KERNELS = [
    pytest.param((EmulatedVit, "cpu"), id="emulated", marks=pytest.mark.skipif(bool(emulator.WHY_NOT), reason=str(emulator.WHY_NOT))),
    pytest.param((FusedVit, "cuda"), id="cuda", marks=pytest.mark.cuda),
]
kernels = pytest.mark.parametrize("kernel", KERNELS)
Kernel = tuple[type[EmulatedVit] | type[FusedVit], str]


@functools.cache
def catalogue() -> params.Params:
    return params.load(STUDY / "params.yaml")


def some(*short: str) -> list[Any]:
    """All cases, of which the others than these are long: each is compiled for itself."""
    return [case if case in short else pytest.param(case, marks=pytest.mark.long) for case in CASES]


def model_settings(case: str) -> ModelSettings:
    base = catalogue().resolve("base").model
    assert isinstance(base, ModelSettings)
    return (base.at_size(8) if case == "8-pixels" else base).changed(CASES[case])


class Batch:
    """Models of some seeds away from their initial weights, and a batch of each."""

    def __init__(self, settings: ModelSettings, seeds: Sequence[int], size: int) -> None:
        self.settings, self.layout = settings, Layout(settings)
        side, generator = settings.shape.size, torch.Generator().manual_seed(5)
        self.images = torch.randint(256, (6, side, side), generator=generator, dtype=torch.uint8)
        self.images[:, : side // 4] = 0  # patches without ink
        self.labels = torch.randint(settings.shape.classes, (6,), generator=generator)
        self.models = [initial_model(settings, seed) for seed in seeds]
        orders = []
        for seed, model in zip(seeds, self.models, strict=True):
            generator.manual_seed(seed)
            orders.append(torch.randperm(6, generator=generator)[:size])
            for name, weight in model.named_parameters():
                if "norm" in name or "bias" in name:  # they start as ones and zeros
                    weight.data += 0.2 * torch.randn(weight.shape, generator=generator)
        self.index = torch.stack(orders)

    @property
    def weights(self) -> Tensor:
        """(seed, size) float32, in the kernel's order."""
        return torch.cat([self.layout.pack({k: v[None] for k, v in m.state_dict().items()}, position(m)) for m in self.models])

    def by_torch(self, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
        """What the kernel computes, by autograd: gradient, loss, and of all images test_loss and predicted; each by seed."""
        results = []
        for index, model in zip(self.index, self.models, strict=True):
            exact = copy.deepcopy(model).to(dtype)
            logits = exact(self.images[:, None].to(dtype) / 255)
            losses = F.cross_entropy(logits, self.labels, reduction="none")
            names, weights = zip(*exact.named_parameters(), strict=True)
            gradients = torch.autograd.grad(losses[index].mean(), weights, materialize_grads=True)
            packed = self.layout.pack({k: v[None] for k, v in zip(names, gradients, strict=True)}, position(exact) * 0)
            results.append({"gradient": packed[0], "loss": losses[index], "test_loss": losses, "predicted": logits.argmax(1)})
        return {name: torch.stack([result[name].detach() for result in results]) for name in results[0]}

    def by_kernel(self, kernel: Kernel, weights: Tensor | None = None, *, last_first: bool = False) -> dict[str, Tensor]:
        """As `by_torch`, float32, and norm; `weights` in place of the batch's own."""
        make, device = kernel
        images, labels, index, flat = (
            tensor.to(device) for tensor in (self.images, self.labels, self.index, self.weights if weights is None else weights)
        )
        seeds, size = index.shape
        run = make(self.settings, seeds, size, torch.device(device))
        if isinstance(run, EmulatedVit):
            run.run_last_first(last_first)
        nan = functools.partial(torch.full, fill_value=math.nan, device=device)
        result = {"gradient": nan(flat.shape), "loss": nan((seeds, size)), "test_loss": nan((seeds, len(labels)))}
        result["predicted"] = torch.full((seeds, len(labels)), -1, device=device)
        run.gradient(images, labels, index, flat, result["gradient"], result["loss"])
        run.test(images, labels, flat, result["test_loss"], result["predicted"])
        result["norm"] = torch.zeros(seeds, dtype=torch.float64, device=device)
        run.norm(result["gradient"], result["norm"])
        return {name: value.cpu() for name, value in result.items()}


def position(model: torch.nn.Module) -> Tensor:
    """The fixed table of positions, where it has one."""
    return dict(model.named_buffers()).get("position", torch.zeros(0))[None]


def error(actual: Tensor, exact: Tensor) -> float:
    """The length of the difference as a share of that of `exact`."""
    return float((actual.double() - exact).norm() / exact.norm())


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor], rows_a: slice, rows_b: slice) -> bool:
    return all(a[name][rows_a].numpy().tobytes() == b[name][rows_b].numpy().tobytes() for name in a)


@kernels
@pytest.mark.parametrize("case", some("base", "heads-of-2", "whole-4", "whole-32"))
def test_loss_and_gradient_are_those_of_float64(kernel: Kernel, case: str) -> None:
    """Five images do not fill the last block where a block has two or four. Twice the same bits, whatever thread comes first."""
    batch = Batch(model_settings(case), [0, 1], 5)
    actual, exact = batch.by_kernel(kernel), batch.by_torch()
    assert torch.equal(actual["predicted"], exact["predicted"])
    for name in ("loss", "test_loss"):
        torch.testing.assert_close(actual[name].double(), exact[name], rtol=1e-6, atol=2e-6)
    torch.testing.assert_close(actual["norm"], actual["gradient"].double().norm(dim=1), rtol=1e-12, atol=0)
    for mine, theirs in zip(actual["gradient"], exact["gradient"], strict=True):
        assert error(mine, theirs) < 1e-6
        parts = batch.layout.unpack(mine[None]), batch.layout.unpack(theirs[None])
        errors = {name: error(parts[0][name], part) for name, part in parts[1].items() if part.norm() > 0}
        assert max(errors.values()) < 5e-6, errors
        assert not mine[~batch.layout.trained].any()
    alone = Batch(batch.settings, [0], 5).by_kernel(kernel, last_first=True)
    assert same_bits(alone, actual, slice(None), slice(0, 1))


@kernels
@pytest.mark.parametrize("case", ["whole-32", pytest.param("8-pixels", marks=pytest.mark.long)])
def test_a_seeds_bits_do_not_depend_on_the_stack(kernel: Kernel, case: str) -> None:
    """Stacks of 1, 2 and 7 seeds, twice, and a neighbour whose weights are not finite."""
    batch = Batch(model_settings(case), range(7), 3)
    whole = batch.by_kernel(kernel)
    assert same_bits(whole, batch.by_kernel(kernel, last_first=True), slice(None), slice(None))
    for start, stop in ((6, 7), (2, 4)):
        part = Batch(batch.settings, range(start, stop), 3)
        assert same_bits(part.by_kernel(kernel), whole, slice(None), slice(start, stop))
    weights = batch.weights.clone()
    weights[1, 5], weights[3, 7:] = math.nan, math.inf
    beside = batch.by_kernel(kernel, weights)
    assert beside["loss"][[1, 3]].isnan().all()
    assert not beside["predicted"][[1, 3]].any()  # the class 0, as torch's argmax of NaN
    for row in (0, 2, 4, 5, 6):
        assert same_bits(beside, whole, slice(row, row + 1), slice(row, row + 1))


@kernels
@pytest.mark.parametrize("case", some("base"))
def test_scores_far_below_their_bound(kernel: Kernel, case: str) -> None:
    """Queries and keys that point away from one another: exp of score minus bound is 0 in float32, so the maximum has to be exact."""
    batch = Batch(model_settings(case), [0, 1], 5)
    for model in batch.models:
        for name, bias in model.named_parameters():
            if name.endswith(("attention.bias", "qkv.bias")):
                query, key, _ = bias.data.view(3, -1).unbind()
                query[:], key[:] = 9.0, -9.0
    actual, exact, rounded = batch.by_kernel(kernel), batch.by_torch(), batch.by_torch(torch.float32)
    assert error(actual["gradient"], exact["gradient"]) < 1e-6 + 3 * error(rounded["gradient"], exact["gradient"])


@pytest.mark.parametrize("case", CASES)
def test_layout_holds_every_weight_once(case: str) -> None:
    settings = model_settings(case)
    layout, stack = Layout(settings), Stack(settings, [3, 4], torch.device("cpu"))
    flat = layout.pack(stack.state(), stack.position())
    assert flat.shape == (2, layout.size)
    assert layout.size % 4 == 0
    back = layout.unpack(flat)
    assert back.keys() == stack.state().keys()
    assert all(torch.equal(back[name], value) for name, value in stack.state().items())
    assert int(layout.trained.sum()) == sum(value[0].numel() for value in stack.state().values())


def test_an_unknown_value_or_option_is_not_covered() -> None:
    class Newer(ModelSettings):
        attention: Any
        gate: str = "none"

    known = {**model_settings("base").model_dump()}
    assert why_not(Newer(**known)) is None
    assert why_not(Newer(**known | {"attention": "uniform"})) == "attention uniform"
    assert why_not(Newer(**known, gate="sigmoid")) == "gate sigmoid"


def test_every_value_of_an_option_occurs_in_a_case() -> None:
    tried = [model_settings(case).model_dump() for case in CASES]
    for name, values in fused_vit_layout.COVERED.items():
        missing = set(values) - {settings[name] for settings in tried}
        assert not missing or name == "blocks", (name, missing)
