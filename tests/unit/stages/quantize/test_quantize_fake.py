import copy

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize as peer_fake_quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp
from torch import nn
from transformers import AutoModelForCausalLM

from posttrain import make_model, make_tokenizer, save_model
from trainwright.stages.quantize.export import export
from trainwright.stages.quantize.fake import (
    ACTIVATION_RANGE,
    WEIGHT_RANGE,
    FakeQuantLinear,
    fake_quantize,
    quantize,
    scale_of,
    with_fake_quantization,
)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_activations_are_quantized_bit_for_bit_as_compressed_tensors_does():
    args = QuantizationArgs(num_bits=8, type="int", symmetric=True, strategy="token", dynamic=True)
    values = random(4, 128, 33) * torch.logspace(-6, 6, 128)[:, None]
    values[0, 0] = 0
    scale, zero = compute_dynamic_scales_and_zp(values, args, nn.Linear(33, 1))
    assert torch.equal(scale, scale_of(values, ACTIVATION_RANGE))
    expected = peer_fake_quantize(values, scale, zero, args)
    assert torch.equal(expected, fake_quantize(values, ACTIVATION_RANGE))


def test_dividing_by_the_scale_is_not_multiplying_by_its_inverse():
    values = random(512, 64)
    scale = scale_of(values, ACTIVATION_RANGE)
    inverse = torch.round(torch.clamp(values * (1 / scale), -128, 127))
    assert (quantize(values, scale) != inverse).any()


def test_weights_keep_their_extremes_and_are_off_by_half_a_step_at_most():
    weight = random(16, 40)
    scale = scale_of(weight, WEIGHT_RANGE)
    integers = quantize(weight, scale)
    assert integers.abs().amax(1).tolist() == [127.0] * 16
    error = (integers * scale - weight).abs()
    assert (error <= scale / 2 * (1 + 1e-5)).all()


def test_a_row_of_zeros_stays_zero():
    assert torch.equal(fake_quantize(torch.zeros(2, 3), WEIGHT_RANGE), torch.zeros(2, 3))


def test_the_gradient_passes_straight_through_both_operands():
    linear = nn.Linear(6, 4)
    layer = FakeQuantLinear(linear)
    inputs = random(3, 6).requires_grad_(True)
    upstream = random(3, 4, seed=1)
    layer(inputs).backward(upstream)
    with torch.no_grad():
        held = fake_quantize(linear.weight, WEIGHT_RANGE)
        seen = fake_quantize(inputs, ACTIVATION_RANGE)
    assert torch.allclose(inputs.grad, upstream @ held, atol=1e-6)
    assert torch.allclose(linear.weight.grad, upstream.T @ seen, atol=1e-6)
    assert torch.allclose(linear.bias.grad, upstream.sum(0), atol=1e-6)


def test_stored_integers_times_scale_are_the_weights_that_the_layer_computes_with():
    layer = FakeQuantLinear(nn.Linear(20, 7, bias=False))
    weight, scale = layer.stored()
    assert weight.dtype == torch.int8
    assert scale.shape == (7, 1)
    expected = fake_quantize(layer.weight, WEIGHT_RANGE)
    assert torch.equal(weight.float() * scale, expected)


def test_every_linear_layer_but_the_output_is_replaced_and_embeddings_are_frozen():
    model = make_model(64)
    names = with_fake_quantization(model)
    assert len(names) == 2 * 7
    assert not any(isinstance(m, nn.Linear) for n, m in model.named_modules() if n != "lm_head")
    embeddings = model.get_input_embeddings().weight
    assert not embeddings.requires_grad
    assert torch.equal(embeddings, embeddings.bfloat16().float())
    assert model.lm_head.weight is embeddings


def untied(vocabulary):
    model = make_model(vocabulary)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = nn.Parameter(random(vocabulary, 32))
    return model


@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_the_reloaded_export_computes_the_same_bits(tmp_path, kind):
    tokenizer = make_tokenizer()
    model = (make_model if kind == "tied" else untied)(len(tokenizer))
    source = save_model(tmp_path, tokenizer, model) / "model"
    student = copy.deepcopy(model)
    with_fake_quantization(student)
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            if parameter.requires_grad:
                noise = torch.Generator().manual_seed(len(name))
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=noise))
    export(student, source, tmp_path / "export")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    ids = torch.arange(6, 70).view(2, 32)
    with torch.no_grad():
        ours, theirs = student(input_ids=ids).logits, loaded(input_ids=ids).logits
        plain = model(input_ids=ids).logits
    assert float((ours - theirs).abs().max()) == 0.0
    assert not torch.equal(ours, plain)


def test_an_export_has_the_same_bytes_again(tmp_path):
    tokenizer = make_tokenizer()
    model = make_model(len(tokenizer))
    source = save_model(tmp_path, tokenizer, model) / "model"
    with_fake_quantization(model)
    for name in ("one", "two"):
        export(model, source, tmp_path / name)
    files = sorted(p.name for p in (tmp_path / "one").iterdir())
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(files)
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
