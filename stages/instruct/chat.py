"""Chats as token ids, with the mask of what the assistant said.

The template's own text may hold special tokens, the messages' content never: each is encoded apart,
so no content can end a turn, open another or speak for somebody else.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trainwright.stages.contract import DataError

_MARK = "TrainwrightContent{}Mark"


@dataclass(frozen=True)
class Rendered:
    """A chat as `ids`; `answer[i]` says that token i is the assistant's (its end token included)."""

    ids: list[int]
    answer: list[bool]


class ChatFormat:
    """The chat template of a tokenizer.

    Raises `DataError` if the tokenizer has no template, or one that does not print content as is.
    """

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise DataError(
                "the model's tokenizer has no chat template, so instruction pairs cannot be "
                "written as chats: set chat_template in its tokenizer_config.json"
            )
        self.tokenizer = tokenizer
        self._head, self._middle, self._tail = self._segments(["user", "assistant"], False)
        opening, generation = self._segments(["user"], True)
        if (opening, generation) != (self._head, self._middle):
            raise DataError(
                "the tokenizer's chat template prints another text before an answer to be "
                "generated than before a given answer: what is trained would not be what is asked"
            )
        if not self._tail:
            raise DataError(
                "the tokenizer's chat template prints nothing after an answer to end it"
            )
        self._ending = self._up_to_control(self._tail)

    def _up_to_control(self, tail: list[int]) -> list[int]:
        for place, token in enumerate(tail):
            if token in self._control_ids:
                return tail[: place + 1]
        raise DataError(
            "the tokenizer's chat template ends an answer with ordinary text, which an answer could "
            "hold as well: let it print a special token, such as the tokenizer's eos_token"
        )

    @property
    def end_id(self) -> int:
        """The special token that ends an answer."""
        return self._ending[-1]

    @cached_property
    def special_ids(self) -> list[int]:
        """Special tokens that the template prints, ascending."""
        printed = {*self._head, *self._middle, *self._tail}
        return sorted(printed & self._control_ids)

    def prompt(self, text: str) -> list[int]:
        """A user's message, up to where the answer begins."""
        return [*self._head, *self.content(text), *self._middle]

    def answer(self, text: str) -> list[int]:
        """An answer and what the template prints after it, up to the end token."""
        return [*self.content(text), *self._ending]

    def pair(self, prompt: str, response: str) -> Rendered:
        """One question and its answer, up to the end token."""
        before, after = self.prompt(prompt), self.answer(response)
        return Rendered(before + after, [False] * len(before) + [True] * len(after))

    def content(self, text: str) -> list[int]:
        """The ids of text that must not become a special token, whatever it says."""
        ids = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        if self._control_ids.isdisjoint(ids):
            return list(ids)
        return [i for piece in self._defused(text) for i in self._encode(piece)]

    def text(self, ids: list[int]) -> str:
        """An answer's ids as text, without its special tokens."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _defused(self, text: str) -> list[str]:
        # Cut after the first character of whatever looks like an added token: no piece holds a whole.
        names = [str(token) for token in self.tokenizer.added_tokens_decoder.values()]
        cuts = {
            at + 1
            for name in names
            for at in range(len(text))
            if len(name) > 1 and text.startswith(name, at)
        }
        edges = [0, *sorted(cuts), len(text)]
        return [text[a:b] for a, b in itertools.pairwise(edges) if a < b]

    @cached_property
    def _control_ids(self) -> set[int]:
        return {
            *(int(i) for i in self.tokenizer.added_tokens_decoder),
            *(int(i) for i in self.tokenizer.all_special_ids),
        }

    def _segments(self, roles: list[str], generation: bool) -> list[list[int]]:
        """The template's own text around each content, encoded."""
        messages = [{"role": r, "content": _MARK.format(i)} for i, r in enumerate(roles)]
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=generation
        )
        pieces = []
        for message in messages:
            if text.count(message["content"]) != 1:
                raise DataError(
                    "the tokenizer's chat template does not print each message's content once, "
                    "as it is: it cannot be used for tuning"
                )
            before, text = text.split(message["content"])
            pieces.append(before)
        return [self._encode(piece) for piece in [*pieces, text]]
