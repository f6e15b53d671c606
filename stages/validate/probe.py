"""Loads a model folder as a stranger would: transformers alone, nothing of this package.

Run as a file by `stages.validate.elsewhere`. A request comes as JSON on stdin (`model`, `ids`, `prompt`,
`new_tokens`), the answer leaves as one line of JSON on stdout.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    """Load, measure the mean NLL of `ids`, continue `prompt` greedily, answer."""
    request = json.load(sys.stdin)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if request["threads"]:
        torch.set_num_threads(request["threads"])
    tokenizer = AutoTokenizer.from_pretrained(request["model"], local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(
        request["model"], local_files_only=True, dtype=torch.float32
    ).eval()
    answer = {
        "loss": loss(model, request["ids"]),
        "new_tokens": new_tokens(model, tokenizer, request["prompt"], request["new_tokens"]),
        "vocabulary": len(tokenizer),
        "trainwright": sorted(m for m in sys.modules if m.partition(".")[0] == "trainwright"),
    }
    print(json.dumps(answer))


def loss(model: Any, ids: list[list[int]]) -> float:
    """Mean NLL a token, by transformers' own loss."""
    import torch

    rows = torch.tensor(ids)
    with torch.no_grad():
        return float(model(input_ids=rows, labels=rows).loss)


def new_tokens(model: Any, tokenizer: Any, prompt: str, count: int) -> int:
    """How many tokens transformers' own `generate` adds to the prompt."""
    rows = tokenizer(prompt, return_tensors="pt", add_special_tokens=True)
    rows.pop("token_type_ids", None)
    out = model.generate(**rows, max_new_tokens=count, do_sample=False)
    return int(out.shape[1] - rows["input_ids"].shape[1])


if __name__ == "__main__":
    main()
