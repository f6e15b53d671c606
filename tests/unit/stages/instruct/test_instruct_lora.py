import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import PeftModel

from posttrain import make_model
from trainwright.stages.instruct.lora import add_adapters, merge, save_adapter, trainable
from trainwright.stages.instruct.params import LoraParams

IDS = torch.arange(4, 60).view(4, 14)


def tuned(train_chat_tokens=True):
    """A model with adapters that are no longer zero."""
    model = add_adapters(
        make_model(64), LoraParams(rank=4, train_chat_tokens=train_chat_tokens), [1, 3, 4, 5], 0
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in trainable(model).values():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return model.eval()


@pytest.mark.parametrize("train_chat_tokens", [True, False])
def test_merged_logits_equal_the_adapters_within_float32(train_chat_tokens):
    model = tuned(train_chat_tokens)
    ids = torch.cat([IDS, torch.tensor([[1, 3, 4, 5] * 3 + [1, 5]])])
    with torch.no_grad():
        adapted = model(input_ids=ids).logits.clone()
        base = make_model(64)(input_ids=ids).logits
        merged = merge(model)(input_ids=ids).logits
    assert (adapted - base).abs().max() > 0.05
    assert (merged - adapted).abs().max() < 5e-6


def test_merged_weights_are_those_of_the_paper():
    model = tuned()
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    layer = model.get_submodule(name)
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    expected = (layer.base_layer.weight + 32.0 / 4 * (b @ a)).detach()
    merged = merge(model)
    assert torch.allclose(merged.model.layers[0].self_attn.q_proj.weight, expected, atol=1e-6)


def test_only_adapters_and_the_templates_tokens_learn():
    assert all("lora_" in name for name in trainable(tuned(train_chat_tokens=False)))
    extra = [p for name, p in trainable(tuned()).items() if "lora_" not in name]
    assert [p.shape for p in extra] == [(4, 32)]
    merged = merge(tuned()).get_input_embeddings().weight
    moved = (merged != make_model(64).get_input_embeddings().weight).any(-1)
    assert moved.nonzero().flatten().tolist() == [1, 3, 4, 5]


def test_embeddings_stay_tied_after_the_merge():
    merged = merge(tuned())
    assert merged.lm_head.weight is merged.model.embed_tokens.weight


def test_the_saved_adapter_loads_on_the_base_with_the_same_logits(tmp_path):
    model = tuned()
    save_adapter(model, tmp_path)
    loaded = PeftModel.from_pretrained(make_model(64), tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=IDS).logits, model(input_ids=IDS).logits)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] is None
    assert config["target_modules"] == sorted(config["target_modules"])


def test_adapter_bytes_do_not_change_with_the_hash_seed(tmp_path):
    program = (
        "import sys; from pathlib import Path; from posttrain import make_model;"
        "from trainwright.stages.instruct.lora import add_adapters, save_adapter;"
        "from trainwright.stages.instruct.params import LoraParams;"
        "save_adapter(add_adapters(make_model(64), LoraParams(rank=4), [1, 5], 0), Path(sys.argv[1]))"
    )
    for seed in ("1", "2"):
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / seed)],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parent), "PATH": ""},
            check=True,
        )
    names = sorted(p.name for p in (tmp_path / "1").iterdir())
    assert names == ["adapter_config.json", "adapter_model.safetensors"]
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_adapters_begin_as_the_identity_and_repeat_with_their_seed():
    base = make_model(64)
    model = add_adapters(copy.deepcopy(base), LoraParams(rank=4), [5], 3).eval()
    again = add_adapters(copy.deepcopy(base), LoraParams(rank=4), [5], 3)
    with torch.no_grad():
        assert torch.equal(model(input_ids=IDS).logits, base(input_ids=IDS).logits)
    for one, two in zip(trainable(model).values(), trainable(again).values(), strict=True):
        assert torch.equal(one, two)
