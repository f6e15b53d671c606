"""Tiny real inputs for the rooms after pretraining: a tokenizer, a model, a corpus, a context."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from trainwright.stages.context import StageContext
from trainwright.stages.contract import Params, StageSpec
from trainwright.stages.progress import Progress
from trainwright.stages.tracking import Tracker

SPECIAL = ["<|pad|>", "<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|end|>"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|user|>' if message['role'] == 'user' else '<|assistant|>' }}"
    "{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NOUNS = [
    "file",
    "path",
    "list",
    "name",
    "value",
    "string",
    "token",
    "table",
    "stream",
    "error",
    "index",
    "field",
    "cache",
    "record",
]
VERBS = [
    "return",
    "write",
    "read",
    "open",
    "close",
    "split",
    "join",
    "parse",
    "count",
    "sort",
    "check",
    "move",
    "copy",
    "find",
]


def sentence(rng: random.Random) -> str:
    """A sentence in the manner of documentation."""
    return f"{rng.choice(VERBS)} the {rng.choice(NOUNS)} of a {rng.choice(NOUNS)}"


def make_tokenizer(template: str | None = TEMPLATE) -> Any:
    """A byte-level BPE tokenizer of about 400 tokens."""
    rng = random.Random(0)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([sentence(rng) for _ in range(500)], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<|pad|>",
        bos_token="<|bos|>",
        eos_token="<|eos|>",
        additional_special_tokens=["<|user|>", "<|assistant|>", "<|end|>"],
        chat_template=template,
    )


def make_model(vocabulary: int, seed: int = 0, positions: int = 128) -> LlamaForCausalLM:
    """A two-layer Llama with tied embeddings."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


def save_model(folder: Path, tokenizer: Any | None = None, model: Any | None = None) -> Path:
    """A model artifact: `folder/model/`."""
    tokenizer = tokenizer or make_tokenizer()
    (model or make_model(len(tokenizer))).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder


def save_corpus(folder: Path, pairs: int = 60) -> Path:
    """A corpus artifact with shards, instruction pairs and preferences."""
    rng = random.Random(1)
    tokenizer = make_tokenizer()
    splits = {}
    for split, count in (("train", pairs), ("heldout", max(8, pairs // 4))):
        _save_jsonl(folder / "instructions" / f"{split}.jsonl", _instructions(rng, split, count))
        _save_jsonl(folder / "preferences" / f"{split}.jsonl", _preferences(rng, split, count))
        splits[split] = _save_shard(folder / "shards", split, tokenizer, rng)
    (folder / "corpus.json").write_text(
        json.dumps({"dtype": "uint16", "vocab_size": len(tokenizer), "splits": splits})
    )
    return folder


def make_context(
    folder: Path, program: str, params: Params, inputs: dict[str, Path], token: str = "try"
) -> StageContext:
    """A context as the runner makes it; `folder/work` outlives a try, `folder/<token>` is its output."""
    out = folder / token
    out.mkdir(parents=True)
    (folder / "work").mkdir(exist_ok=True)
    spec = StageSpec(
        run_id="run",
        step=program,
        program=program,
        params=params.model_dump(mode="json"),
        fingerprint="0" * 64,
        output=str(out),
        work=str(folder / "work"),
        cache=str(folder),
        outcome=str(folder / "outcome.json"),
        progress=str(folder / "progress.jsonl"),
    )
    return StageContext(
        spec=spec,
        params=params,
        out=out,
        work=folder / "work",
        inputs=inputs,
        progress=Progress(folder / "progress.jsonl"),
        tracker=Tracker(None, folder / "metrics.jsonl"),
    )


def _instructions(rng: random.Random, split: str, count: int) -> list[dict[str, str]]:
    rows = []
    for number in range(count):
        verb, noun = rng.choice(VERBS), rng.choice(NOUNS)
        rows.append(
            {
                "id": f"{split}-{number}",
                "prompt": f"What does {verb}_{noun} do?",
                "response": f"{verb} the {noun}",
                "source": "made up",
            }
        )
    return rows


def _preferences(rng: random.Random, split: str, count: int) -> list[dict[str, str]]:
    rows = []
    for number, row in enumerate(_instructions(rng, split, count)):
        words = row["response"].split()
        kind = ("other", "shuffled", "repeated", "spliced")[number % 4]
        rejected = {
            "other": sentence(rng),
            "shuffled": " ".join(reversed(words)),
            "repeated": " ".join(words[:1] * len(words)),
            "spliced": " ".join(words[:2] + sentence(rng).split()[-2:]),
        }[kind]
        rows.append(
            {
                "id": row["id"],
                "prompt": row["prompt"],
                "chosen": row["response"],
                "rejected": rejected,
                "kind": kind,
            }
        )
    return rows


def _save_jsonl(path: Path, rows: list[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _save_shard(folder: Path, split: str, tokenizer: Any, rng: random.Random) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    starts, tokens, size = [0], [], 0
    for _ in range(80):
        text = ". ".join(sentence(rng) for _ in range(4))
        tokens += [1, *tokenizer.encode(text, add_special_tokens=False), 2]
        starts.append(len(tokens))
        size += len(text.encode())
    np.array(tokens, dtype="<u2").tofile(folder / f"{split}-00000.bin")
    np.array(starts, dtype="<i8").tofile(folder / f"{split}-00000.idx")
    shard = {"file": f"{split}-00000.bin", "tokens": len(tokens), "documents": 80}
    return {"shards": [shard], "tokens": len(tokens), "documents": 80, "bytes": size}
