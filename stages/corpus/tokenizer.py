"""Byte-level BPE: trained deterministically, or a given one; document text never becomes a special token."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

PAD, BOS, EOS = "<|pad|>", "<|bos|>", "<|eos|>"
USER, ASSISTANT, END = "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL_TOKENS = (PAD, BOS, EOS, USER, ASSISTANT, END)
"""Their ids are 0 to 5."""

# Text that spells a special token is broken up with a space, so that a message cannot end its turn or
# speak for somebody else, whoever renders the chat.
_CONTENT = "message['content']" + "".join(
    f" | replace('{token}', '< {token[1:]}')" for token in SPECIAL_TOKENS
)

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|user|>"
    "{% elif message['role'] == 'assistant' %}<|assistant|>"
    "{% else %}{{ raise_exception('a message has the role ' ~ message['role'] "
    "~ '; this template knows user and assistant') }}{% endif %}"
    "{{ " + _CONTENT + " }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE of at most `vocab_size` tokens (special ones and the 256 bytes included).

    The same texts give the same tokenizer, in whatever order they come: BPE counts pairs, and ties
    go to the smaller ids.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def without_specials(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer for text from outside: `<|eos|>` in it is spelled with ordinary tokens."""
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.encode_special_tokens = True
    return plain


def encode_batches(
    tokenizer: Tokenizer, texts: Iterable[str], batch: int = 1024
) -> Iterator[list[int]]:
    """The ordinary token ids of each text, in order."""
    plain = without_specials(tokenizer)
    pending: list[str] = []
    for text in texts:
        pending.append(text)
        if len(pending) == batch:
            yield from (e.ids for e in plain.encode_batch_fast(pending, add_special_tokens=False))
            pending = []
    yield from (e.ids for e in plain.encode_batch_fast(pending, add_special_tokens=False))


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` as transformers' AutoTokenizer reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False), encoding="utf-8")
    config = json.dumps(tokenizer_config(tokenizer), indent=1, sort_keys=True, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(config + "\n", encoding="utf-8")


def tokenizer_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """What transformers needs beside `tokenizer.json`: class, special tokens, chat template."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "bos_token": BOS,
        "eos_token": EOS,
        "additional_special_tokens": [USER, ASSISTANT, END],
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(token)): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for token in SPECIAL_TOKENS
        },
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000,
    }
