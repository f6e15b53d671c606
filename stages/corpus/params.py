"""Parameters of the corpus: sources, cleaning, deduplication, perplexity filter, tokenizer, shards."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainwright.stages.contract import Params, Strict, runtime

Role = Literal["corpus", "heldout", "reference"]


class PerplexityLimits(Strict):
    """Where the perplexity filter cuts. A bound that is empty does not cut."""

    min_percentile: float | None = Field(
        0.5, ge=0, le=100,
        description="Low tail: documents below this percentile of perplexity are dropped, in "
        "percent; repeated and boilerplate text lies there",
    )  # fmt: skip
    max_percentile: float | None = Field(
        90.0, ge=0, le=100,
        description="High tail: documents above this percentile of perplexity are dropped, in percent",
    )  # fmt: skip
    percentile_of: Literal["source", "reference"] = Field(
        "source",
        description="Whose distribution the percentiles are of: the document's own source, or the "
        "part of the reference kept apart; both by length of document",
    )
    min_perplexity: float | None = Field(
        None, ge=1, description="Low tail by value: perplexity a word below this is dropped"
    )
    max_perplexity: float | None = Field(
        None, ge=1, description="High tail by value: perplexity a word above this is dropped"
    )

    @model_validator(mode="after")
    def _ordered(self) -> PerplexityLimits:
        _refuse_reversed("percentile", self.min_percentile, self.max_percentile)
        _refuse_reversed("perplexity", self.min_perplexity, self.max_perplexity)
        return self


def _refuse_reversed(what: str, low: float | None, high: float | None) -> None:
    if low is not None and high is not None and low >= high:
        raise ValueError(
            f"min_{what} is {low:g} and max_{what} is {high:g}: nothing would be kept; "
            f"min_{what} must be below max_{what}"
        )


class Source(Strict):
    """Where documents come from.

    `python-docs` reads the documentation inside installed Python packages (nothing is imported),
    `files` reads local files.
    """

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$", description="Name, unique in the recipe"
    )
    kind: Literal["python-docs", "files"] = Field(description="What is read")
    role: Role = Field(
        "corpus",
        description="corpus: trained on, filtered; heldout: never trained on; reference: trains the "
        "perplexity model alone and is kept out of the corpus",
    )
    packages: list[Annotated[str, Field(min_length=1)]] = Field(
        default=[],
        description="python-docs: installed distributions by name; `stdlib` is Python's own library",
    )
    paths: list[str] = runtime(
        [],
        "files: paths or globs (** for any depth) of .jsonl, .ndjson, .parquet, .txt, .md, each also "
        ".gz or .zst; what counts is what the files hold, not where they lie",
    )
    text_field: str = Field(
        "text", description="files: field of JSON lines or Parquet with the text"
    )
    unit: Literal["document", "paragraph"] = Field(
        "document",
        description="What one document is: the whole docstring, record or file, or each paragraph of it",
    )
    licence: str = Field(
        "", description="Licence of the text; empty: as each package states, or not stated"
    )
    language: str = Field("en", description="Language of the text (ISO 639-1), as a label")
    weight: float = Field(
        1.0, gt=0, description="Sampling weight, written to corpus.json for the trainer"
    )
    heldout_share: float = Field(
        0.0, ge=0, lt=1,
        description="files: share of documents held out, by content, each with all its paragraphs "
        "(0 to 1); packages are held out whole, as a source of the role heldout",
    )  # fmt: skip
    max_bad_share: float = Field(
        0.05, ge=0, le=1,
        description="Share of unreadable records (bad JSON, wrong encoding, ...) above which the "
        "stage stops (0 to 1)",
    )  # fmt: skip
    perplexity: PerplexityLimits | None = Field(
        None, description="Limits of this source; empty for the filter's own"
    )

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Source:
        given, other = (
            ("packages", "paths") if self.kind == "python-docs" else ("paths", "packages")
        )
        if not getattr(self, given):
            raise ValueError(f"source {self.name!r} of kind {self.kind} needs {given}")
        if getattr(self, other):
            raise ValueError(f"source {self.name!r} of kind {self.kind} takes {given}, not {other}")
        if self.heldout_share and (self.kind != "files" or self.role != "corpus"):
            raise ValueError(
                f"source {self.name!r}: heldout_share is for files with the role corpus; hold "
                "packages out whole, in a source with the role heldout"
            )
        return self


class Cleaning(Strict):
    """Quality rules in the manner of Gopher (Rae et al. 2021) and C4 (Raffel et al. 2020)."""

    min_chars: int = Field(80, ge=0, description="Shortest document, in characters")
    max_chars: int = Field(20_000, ge=1, description="Longest document, in characters")
    min_words: int = Field(12, ge=0, description="Fewest words (characters in unsegmented scripts)")
    min_word_length: float = Field(3.0, ge=0, description="Least mean word length, in characters")
    max_word_length: float = Field(
        10.0, gt=0, description="Largest mean word length, in characters"
    )
    min_alphabetic_words: float = Field(
        0.75, ge=0, le=1, description="Least share of words made of letters alone (0 to 1)"
    )
    max_symbol_share: float = Field(
        0.12, ge=0, le=1, description="Largest share of characters that are symbols (0 to 1)"
    )
    max_digit_share: float = Field(
        0.15, ge=0, le=1, description="Largest share of characters that are digits (0 to 1)"
    )
    max_markup_share: float = Field(
        0.25, ge=0, le=1, description="Largest share of characters in code and markup (0 to 1)"
    )
    max_bullet_lines: float = Field(
        0.9, ge=0, le=1, description="Largest share of lines that begin with a bullet (0 to 1)"
    )
    min_stop_words: int = Field(
        2, ge=0, description="Fewest distinct English function words; for the language en alone"
    )
    max_repetition: float = Field(
        0.25, ge=0, le=1,
        description="Largest share of words inside a 4-gram that stood before in the document (0 to 1)",
    )  # fmt: skip
    max_top_bigram: float = Field(
        0.25, ge=0, le=1, description="Largest share of words in the commonest 2-gram (0 to 1)"
    )
    max_broken_share: float = Field(
        0.002, ge=0, le=1,
        description="Largest share of replacement, control or mojibake characters (0 to 1)",
    )  # fmt: skip

    @model_validator(mode="after")
    def _ordered(self) -> Cleaning:
        for low, high in (("min_chars", "max_chars"), ("min_word_length", "max_word_length")):
            if getattr(self, low) >= getattr(self, high):
                raise ValueError(
                    f"{low} is {getattr(self, low):g} and {high} is {getattr(self, high):g}: "
                    f"nothing would be kept; {low} must be below {high}"
                )
        return self


class Deduplication(Strict):
    """Exact duplicates by content id; near ones by MinHash LSH, verified (Broder 1997)."""

    exact: bool = Field(True, description="Drop documents whose content id occurred before")
    near: bool = Field(True, description="Drop documents close to one that is kept")
    num_hashes: int = Field(128, ge=16, le=1024, description="MinHash functions a document")
    bands: int = Field(16, ge=1, le=512, description="Bands; each has num_hashes/bands rows")
    shingle_words: int = Field(5, ge=1, le=20, description="Words in a shingle")
    jaccard: float = Field(
        0.7, gt=0, le=1,
        description="Least true Jaccard similarity of shingles to the survivor to be dropped (0 to 1)",
    )  # fmt: skip

    @model_validator(mode="after")
    def _divides(self) -> Deduplication:
        if self.num_hashes % self.bands:
            raise ValueError(
                f"num_hashes ({self.num_hashes}) must be a multiple of bands ({self.bands})"
            )
        if self.near and not self.exact:
            raise ValueError("near deduplication needs exact: exact duplicates are near ones too")
        return self


class Decontamination(Strict):
    """Training documents that share n-grams with held-out ones are dropped."""

    ngram_words: int = Field(8, ge=2, le=50, description="Words in an n-gram")
    max_share: float = Field(
        0.0, ge=0, lt=1,
        description="Largest share of a document's n-grams that may stand in held-out text (0 to 1)",
    )  # fmt: skip


class PerplexityFilter(Strict):
    """Filter by an n-gram model trained on the sources whose role is reference.

    Held-out documents are not filtered by it, so that losses with and without it can be compared.
    """

    enabled: bool = Field(True, description="Whether to score and filter")
    order: Literal[2, 3] = Field(3, description="Order of the Kneser-Ney model, in words")
    min_count: int = Field(
        2, ge=1, description="Words rarer than this in the reference are unknown words"
    )
    check_share: float = Field(
        0.1, gt=0, le=0.5,
        description="Share of the reference kept out of the model, to check the filter (0 to 1)",
    )  # fmt: skip
    limits: PerplexityLimits = Field(PerplexityLimits(), description="Where it cuts")


class TokenizerParams(Strict):
    """A byte-level BPE trained on the kept documents, or a given one."""

    vocab_size: int = Field(
        2048, ge=263, le=1_000_000, description="Tokens, special ones and the 256 bytes included"
    )
    folder: str | None = runtime(
        None,
        "Folder with a tokenizer.json to use instead of training one; its content counts, not its place",
    )
    sample_bytes: int = Field(
        50_000_000, ge=1000, description="Most text to train it on, in bytes; a sample by content"
    )


class Pairs(Strict):
    """Instruction and preference pairs from signatures and first sentences of python-docs sources."""

    min_answer_chars: int = Field(30, ge=1, description="Shortest answer, in characters")
    max_answer_chars: int = Field(240, ge=1, description="Longest answer, in characters")
    max_signature_chars: int = Field(
        120, ge=1, description="Longest signature in a question, in characters"
    )


class CorpusParams(Params):
    """Everything the corpus stage is told."""

    sources: list[Source] = Field(min_length=1, description="Where documents come from")
    cleaning: Cleaning = Field(Cleaning(), description="Quality rules")
    dedup: Deduplication = Field(Deduplication(), description="Removal of duplicates")
    decontamination: Decontamination = Field(
        Decontamination(), description="Removal of what stands in held-out text"
    )
    perplexity: PerplexityFilter = Field(PerplexityFilter(), description="Perplexity filter")
    tokenizer: TokenizerParams = Field(TokenizerParams(), description="Tokenizer")
    pairs: Pairs = Field(Pairs(), description="Instruction and preference pairs")
    shard_tokens: int = Field(
        1_000_000, ge=1, description="Tokens at which a shard is closed; documents are never cut"
    )
    seed: int = Field(0, ge=0, description="Seed of the order of documents in the shards")
    workers: int = runtime(2, "Processes and DuckDB threads", ge=1, le=256)
    memory_mb: int = runtime(2048, "DuckDB's memory limit, in MB", ge=128)

    def reads_outside(self) -> bool:
        """Sources lie outside the store."""
        return True

    @model_validator(mode="after")
    def _consistent(self) -> CorpusParams:
        self._refuse_repeats()
        self._refuse_missing_roles()
        return self

    def _refuse_repeats(self) -> None:
        names: set[str] = set()
        owners: dict[str, str] = {}
        for source in self.sources:
            if source.name in names:
                raise ValueError(f"two sources have the name {source.name!r}: give each its own")
            names.add(source.name)
            for package in source.packages:
                key = package.lower().replace("_", "-")
                if key in owners:
                    raise ValueError(
                        f"the package {package!r} stands in the sources {owners[key]!r} and "
                        f"{source.name!r}: a package is trained on, held out or reference, never two"
                    )
                owners[key] = source.name

    def _refuse_missing_roles(self) -> None:
        roles = {source.role for source in self.sources}
        if "corpus" not in roles:
            raise ValueError("no source has the role corpus: there is nothing to train on")
        if "heldout" not in roles and not any(s.heldout_share for s in self.sources):
            raise ValueError(
                "nothing is held out, so no loss could be trusted: give a source the role heldout, "
                "or a files source a heldout_share"
            )
        if self.perplexity.enabled and "reference" not in roles:
            raise ValueError(
                "the perplexity filter needs a reference apart from what it filters: give a source "
                "of clean text the role reference, or set perplexity.enabled to false"
            )
        if not self.perplexity.enabled and "reference" in roles:
            raise ValueError(
                "a source has the role reference but perplexity.enabled is false: it would not be "
                "used; give it the role corpus or enable the filter"
            )
