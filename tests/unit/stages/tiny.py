"""A tiny corpus in the layout of the corpus stage, and a tiny model trained on it in seconds.

Documents are a few fixed sentences of shared words in random order: what comes next hangs on more than
one word, so a model with a context can be much better than a bigram model.
"""

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
WORDS = [
    "file",
    "path",
    "list",
    "name",
    "value",
    "übung",
    "token",
    "table",
    "表",
    "error",
    "index",
    "field",
]


def sentences(count: int = 16, seed: int = 0) -> list[str]:
    """Fixed sentences of eight words each."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=8)) + "." for _ in range(count)]


def documents(count: int, seed: int) -> list[str]:
    """Texts of four sentences each."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(sentences(), k=4)) for _ in range(count)]


def make_tokenizer(vocabulary: int = 300) -> Any:
    """A byte-level BPE tokenizer."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(sentences(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<|pad|>",
        bos_token="<|bos|>",
        eos_token="<|eos|>",
        additional_special_tokens=["<|user|>", "<|assistant|>", "<|end|>"],
    )


def save_corpus(folder: Path, vocabulary: int = 300) -> Path:
    """A corpus artifact: tokenizer, shards of both splits, corpus.json."""
    tokenizer = make_tokenizer(vocabulary)
    tokenizer.save_pretrained(folder / "tokenizer")
    splits = {
        "train": save_split(folder, "train", tokenizer, [documents(150, 1), documents(50, 2)]),
        "heldout": save_split(folder, "heldout", tokenizer, [documents(40, 3)]),
    }
    meta = {"dtype": "uint16", "vocab_size": len(tokenizer), "splits": splits}
    (folder / "corpus.json").write_text(json.dumps(meta))
    return folder


def save_split(folder: Path, split: str, tokenizer: Any, shards: list[list[str]]) -> dict[str, Any]:
    """Shards of one split, and what corpus.json says of it."""
    (folder / "shards").mkdir(parents=True, exist_ok=True)
    entries, size = [], 0
    for number, texts in enumerate(shards):
        starts, ids = [0], []
        for text in texts:
            ids += [1, *tokenizer.encode(text, add_special_tokens=False), 2]
            starts.append(len(ids))
            size += len(text.encode())
        name = f"{split}-{number:05d}"
        np.array(ids, dtype="<u2").tofile(folder / "shards" / f"{name}.bin")
        np.array(starts, dtype="<i8").tofile(folder / "shards" / f"{name}.idx")
        entries.append({"file": f"{name}.bin", "tokens": len(ids), "documents": len(texts)})
    totals = {key: sum(entry[key] for entry in entries) for key in ("tokens", "documents")}
    return {"shards": entries, **totals, "bytes": size}


def make_model(vocabulary: int, *, tied: bool = True, layers: int = 2) -> LlamaForCausalLM:
    """A small Llama; the same each time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


def train(model: LlamaForCausalLM, corpus: Path, steps: int = 150) -> LlamaForCausalLM:
    """Train on random places of the corpus."""
    from trainwright.stages.model.tokens import Split

    split = Split(corpus, "train")
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    model.train()
    for step in range(steps):
        ids = split.rows(0, step, 16, 65)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def save_model(folder: Path, model: Any, corpus: Path) -> Path:
    """A model artifact, `folder/model/`, with the corpus's tokenizer."""
    from trainwright.stages.model.folder import save_folder

    save_folder(model, corpus / "tokenizer", folder / "model")
    return folder


def make_context(
    folder: Path, program: str, params: Params, inputs: dict[str, Path], token: str = "try"
) -> StageContext:
    """A context as the runner makes it; its output is `folder/<token>`."""
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
