"""The captioning models against torch's own layers, formulas written out, and each other."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from pipeline.captioning.captioner import DecoderAttention, Mesh, image_attention
from pipeline.captioning.cnn_lstm import CnnLstm
from pipeline.captioning.decoding import greedy
from pipeline.captioning.grammar import BOS, EOS, MAX_WORDS, PAD
from pipeline.captioning.model import Stem
from pipeline.models import attention, build, count_flops
from pipeline.params import AnyModelSettings, BaselineSettings, CaptionerSettings, Shape
from tests.helpers import captioner
from tests.models.test_flops import plain

CAPTIONERS = [
    captioner(),
    captioner(memory=8, meshed=True, dropout=0.1),
    captioner(norm="post", position="sinusoidal", meshed=True, memory=4),
]
LSTM = BaselineSettings(architecture="cnn_lstm", widths=(64, 112))
ALL: list[AnyModelSettings] = [*CAPTIONERS, LSTM]


def make(settings: AnyModelSettings) -> Any:
    torch.manual_seed(0)
    return build(settings)


def scenes(count: int = 4, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(count, 1, 56, 56, dtype=dtype, generator=torch.Generator().manual_seed(1))


def captions(count: int = 4, places: int = MAX_WORDS + 1) -> Tensor:
    """BOS, words, EOS, PAD: one caption fills all places, the others are shorter."""
    words = torch.randint(3, 35, (count, places), generator=torch.Generator().manual_seed(2))
    words[:, 0] = BOS
    for i in range(1, count):
        words[i, 3 + 2 * i] = EOS
        words[i, 4 + 2 * i :] = PAD
    return words


@pytest.mark.parametrize(("size", "tokens"), [(8, 1), (33, 25)])
def test_any_size_of_scene(size: int, tokens: int) -> None:
    settings = captioner(shape := Shape(size=size, channels=3, words=9))
    assert settings.num_tokens == tokens
    images, words = torch.rand(2, 3, 2 * size, 2 * size), torch.tensor([[BOS, 5], [BOS, 8]])
    assert Stem(3, 48)(images).flatten(2).shape == (2, 48, tokens)
    for model in (make(settings), make(BaselineSettings.model_validate(LSTM.model_dump(), context={"shape": shape}))):
        assert model(images, words).shape == (2, 2, 9)


def torch_layer(block: Any, kind: type[nn.Module], settings: CaptionerSettings) -> nn.Module:
    """Torch's own encoder or decoder layer with a block's weights."""
    layer: Any = kind(
        settings.dim, settings.heads, settings.mlp_dim, dropout=0.0, batch_first=True, norm_first=settings.norm == "pre"
    ).double()
    attentions = {"self_attn": block.attention} | ({"multihead_attn": block.cross} if hasattr(block, "cross") else {})
    sources = {f"{name}.in_proj_": module.qkv for name, module in attentions.items()}
    sources |= {f"{name}.out_proj.": module.out for name, module in attentions.items()}
    sources |= {"linear1.": block.mlp[0], "linear2.": block.mlp[-1]}
    sources |= {f"{name}.": module for name, module in block.named_children() if name.startswith("norm")}
    layer.load_state_dict({f"{name}{part}": getattr(source, part) for name, source in sources.items() for part in ("weight", "bias")})
    return layer


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("changes", [{"norm": "pre"}, {"norm": "post", "position": "sinusoidal"}])
def test_plain_equals_torch_s_transformer(changes: dict[str, Any]) -> None:
    """Values at every place that is not padding, and all gradients of the decoder's first block and of the images."""
    settings = captioner(**changes)
    model = make(settings).double()
    for parameter in model.parameters():
        if parameter.dim() == 1:  # biases and norms, which start as zeros and ones
            nn.init.normal_(parameter, mean=0.5)
    images, words = scenes().requires_grad_(), captions()
    tokens = model.stem(images).flatten(2).transpose(1, 2) + model.image_position
    for block in model.encoder:
        tokens = torch_layer(block, nn.TransformerEncoderLayer, settings)(tokens)
    tokens = model.level_norms[0](tokens)
    written = F.embedding(words, model.embedding.weight) + model.word_position
    mask = nn.Transformer.generate_square_subsequent_mask(18, dtype=torch.float64)
    padding = torch.zeros(words.shape, dtype=torch.float64).masked_fill(words == PAD, -torch.inf)
    layers = [torch_layer(block, nn.TransformerDecoderLayer, settings) for block in model.decoder]
    for layer in layers:
        written = layer(written, tokens, tgt_mask=mask, tgt_key_padding_mask=padding)
    expected = model.head(model.norm(written))
    model.stem.requires_grad_(False)
    logits, read = model(images, words), words != PAD
    torch.testing.assert_close(logits[read], expected[read], rtol=0, atol=1e-11)
    first: Any = layers[0]
    theirs = torch.autograd.grad(
        expected[read].square().sum(), [images, first.self_attn.in_proj_weight, first.multihead_attn.in_proj_weight]
    )
    ours = torch.autograd.grad(
        logits[read].square().sum(), [images, model.decoder[0].attention.qkv.weight, model.decoder[0].cross.qkv.weight]
    )
    for actual, wanted in zip(ours, theirs, strict=True):
        assert wanted.abs().max() > 1e-6
        torch.testing.assert_close(actual, wanted, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("levels", [1, 3])
def test_mesh_is_its_formula(levels: int) -> None:
    torch.manual_seed(0)
    mesh = Mesh(6, levels).double()
    words, found = torch.randn(2, 4, 6, dtype=torch.float64), torch.randn(levels, 2, 4, 6, dtype=torch.float64)
    expected = torch.zeros_like(words)
    for gate, level in zip(mesh.gates, found, strict=True):
        both = words @ gate.weight[:, :6].T + level @ gate.weight[:, 6:].T + gate.bias
        expected += level / (1 + (-both).exp()) / levels**0.5
    torch.testing.assert_close(mesh(words, found), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("settings", ALL, ids=str)
def test_every_parameter_has_a_gradient_and_word_by_word_equals_all_at_once(settings: AnyModelSettings) -> None:
    """So no word sees a later one. Several captions of an image are read at once."""
    model, images, words = make(settings), scenes(2)[[0, 0, 1, 1]], captions()
    logits = model(scenes(dtype=torch.float32), words[:, :-1])
    F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten(), ignore_index=PAD).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()] == []
    model.double().eval()
    torch.testing.assert_close(model(scenes(2), words), model(images, words), rtol=0, atol=1e-12)
    words[words == PAD] = 9  # a state has no padding
    state, steps = model.start(images), []
    for place in range(18):
        logits, state = model.step(words[:, place], state)
        steps.append(logits)
    torch.testing.assert_close(torch.stack(steps, 1), model(images, words), rtol=0, atol=1e-12)


@pytest.mark.parametrize("settings", CAPTIONERS, ids=str)
def test_image_attention_is_what_the_decoder_uses(settings: CaptionerSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(settings).train()
    images, words = scenes(dtype=torch.float32), captions()
    maps = image_attention(model, images, words)
    assert model.training
    levels = 3 if model.settings.meshed else 1
    assert maps.shape == (2, levels, 4, 18, 16)
    torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:-1]))
    seen, weights = {}, DecoderAttention.weights

    def watched(self: DecoderAttention, *args: Any, **kwargs: Any) -> Tensor:
        seen[self] = weights(self, *args, **kwargs)
        return seen[self]

    monkeypatch.setattr(DecoderAttention, "weights", watched)
    model.eval()(images, words)
    assert torch.equal(torch.stack([seen[block.cross].mean(2) for block in model.decoder]), maps)


def test_lstm_equals_its_formula() -> None:
    model = make(LSTM).double()
    assert isinstance(model, CnnLstm)
    images, words = scenes(), captions()
    logits = model(images, words)
    vector = model.stem(images).flatten(1) @ model.vector.weight.T + model.vector.bias
    state = vector @ model.hidden.weight.T + model.hidden.bias, vector @ model.cell.weight.T + model.cell.bias
    expected = []
    for place in range(18):
        state = torch.lstm_cell(model.embedding.weight[words[:, place]], state, *model.lstm.parameters())
        expected.append(state[0] @ model.head.weight.T + model.head.bias)
    torch.testing.assert_close(logits, torch.stack(expected, 1), rtol=0, atol=1e-11)


@pytest.mark.parametrize("settings", CAPTIONERS, ids=str)
def test_multiply_adds_are_those_torch_counts(settings: CaptionerSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "attention", plain)
    with FlopCounterMode(display=False) as counter:
        make(settings).eval()(scenes(1, torch.float32), captions(1))
    slots = settings.memory  # their queries only give the kernel the shape it wants
    padding = 2 * settings.encoder_blocks * 2 * slots * (16 + slots) * settings.dim
    assert count_flops(settings) == counter.get_total_flops() - padding
    stem = 9 * (16 * 28**2 + 16 * 32 * 14**2 + 32 * 48 * 7**2 + 48 * 48 * 4**2)
    start = 768 * 64 + 2 * 64 * 112
    assert count_flops(LSTM) == 2 * (stem + start + 18 * (4 * (48 + 112) * 112 + 112 * 35))


@pytest.mark.cuda
@pytest.mark.parametrize("settings", [captioner(memory=8, meshed=True), LSTM], ids=str)
def test_runs_with_deterministic_algorithms_on_cuda(settings: AnyModelSettings) -> None:
    from pipeline.training.engine import set_reproducible

    deterministic = torch.are_deterministic_algorithms_enabled()
    set_reproducible(torch.device("cuda"))
    try:
        model, images, words = make(settings).cuda(), scenes(dtype=torch.float32).cuda(), captions().cuda()
        gradients = []
        for _ in range(2):
            loss = model(images, words).square().sum()
            gradients.append(torch.autograd.grad(loss, list(model.parameters())))
        assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
        expected = greedy(model.double(), images.double())
        assert torch.equal(expected.cpu(), greedy(model.cpu(), images.double().cpu()))
    finally:
        torch.use_deterministic_algorithms(deterministic)
