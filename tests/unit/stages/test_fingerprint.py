"""A fingerprint moves with what bears on the output, and with nothing else; drift says what moved."""

from __future__ import annotations

import copy
import json
import math
import random
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from trainwright.stages.contract import ArtifactRef, Params, Strict, UsageError, runtime
from trainwright.stages.fingerprint import canonical, drift, fingerprint, identity, sha256_of

FINITE = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | st.integers() | FINITE | st.text(max_size=20)
JSON = st.recursive(
    SCALARS,
    lambda below: (
        st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=8), below, max_size=4)
    ),
    max_leaves=12,
)


class Kind(StrEnum):
    LINEAR = "linear"
    COSINE = "cosine"


class Bits(Enum):
    EIGHT = 8


class Schedule(Strict):
    kind: Kind = Kind.LINEAR
    warmup: int = 10
    log_every: int = runtime(5, "Steps between two lines of the log")


class Source(Strict):
    name: str
    weight: float = 1.0
    threads: int = runtime(1, "Threads that read it")


class Example(Params):
    rate: float = Field(default=0.1, description="Learning rate")
    schedule: Schedule = Schedule()
    sources: list[Source] = []
    by_name: dict[str, Source] = {}
    by_bits: dict[int, float] = {}
    bits: Bits = Bits.EIGHT
    pair: tuple[int, int] = (1, 2)
    optional: Schedule | None = None
    workers: int = runtime(2, "Worker processes")
    cache: str | None = runtime(None, "Folder of copies")


INPUTS = {"corpus": ArtifactRef(uri="s3://b/artifacts/corpus/1", digest="d1")}


def print_of(
    params: Example | None = None,
    program: str = "p",
    version: int = 1,
    inputs: dict[str, ArtifactRef] = INPUTS,
    external: dict[str, str] | None = None,
) -> str:
    return fingerprint(program, version, params or Example(), inputs, external or {})


def shuffled(value: Any, random_: random.Random) -> Any:
    if isinstance(value, dict):
        items = [(key, shuffled(item, random_)) for key, item in value.items()]
        random_.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return [shuffled(item, random_) for item in value]
    return value


@given(JSON, st.randoms())
def test_the_order_of_keys_never_counts(value: Any, random_: random.Random) -> None:
    other = shuffled(value, random_)
    assert canonical(other) == canonical(value)
    assert drift(value, other) == []


@given(JSON)
def test_a_value_survives_the_way_through_a_file(value: Any) -> None:
    assert sha256_of(json.loads(json.dumps(value))) == sha256_of(value)
    assert json.loads(canonical(value)) == value


@given(JSON, JSON)
def test_drift_is_empty_exactly_when_the_fingerprints_are_equal(old: Any, new: Any) -> None:
    assert (drift(old, new) == []) == (canonical(old) == canonical(new))


@given(st.dictionaries(st.text(max_size=8), JSON, min_size=1, max_size=6), SCALARS, st.data())
def test_drift_names_the_field_that_moved_and_no_other(
    old: dict[str, Any], value: Any, data: st.DataObject
) -> None:
    key = data.draw(st.sampled_from(sorted(old)))
    new = {**old, key: [value, "and another"]}
    moved = drift(old, new)
    assert all(line.startswith(key) for line in moved)
    assert bool(moved) == (canonical(old) != canonical(new))


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ["a.b: 1 -> 2"]),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, ["a[1].b: 2 -> 3"]),
        ({"a": [1]}, {"a": [1, 2]}, ["a[1]: (absent) -> 2"]),
        ({"a": [1, 2]}, {"a": [1]}, ["a[1]: 2 -> (absent)"]),
        ({"a": 1}, {"a": 1.0}, ["a: 1 -> 1.0"]),
        ({"a": 1}, {"a": True}, ["a: 1 -> true"]),
        ({"a": 1}, {"a": "1"}, ['a: 1 -> "1"']),
        ({"a": None}, {}, ["a: null -> (absent)"]),
        ({"a": {}}, {"a": []}, ["a: {} -> []"]),
        ({"d": "a" * 64}, {"d": "b" * 64}, [f"d: {'a' * 12} -> {'b' * 12}"]),
        (
            {"t": "x" * 100 + "old"},
            {"t": "x" * 100 + "new"},
            [f"t: ...{'x' * 20}old -> ...{'x' * 20}new"],
        ),
        (
            {"t": "x" * 100},
            {"t": "x" * 101},
            [f"t: ...{'x' * 20} -> ...{'x' * 21}"],
        ),
    ],
)
def test_drift_reads_as_it_should(old: Any, new: Any, lines: list[str]) -> None:
    assert drift(old, new) == lines


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_has_no_fingerprint(value: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical({"a": [value]})
    with pytest.raises(UsageError, match=r"parameter 'rate' is .*: give a finite number"):
        Example(rate=value).identity()
    with pytest.raises(UsageError, match=r"'sources\[1\]\.weight'"):
        Example(sources=[Source(name="a"), Source(name="b", weight=value)]).identity()


@given(st.integers(1, 64), st.text() | st.none(), st.integers(1, 9), st.integers(1, 9))
def test_runtime_fields_never_count(
    workers: int, cache: str | None, log_every: int, threads: int
) -> None:
    plain = Example(sources=[Source(name="a")], by_name={"x": Source(name="b")})
    tuned = Example(
        workers=workers,
        cache=cache,
        schedule=Schedule(log_every=log_every),
        sources=[Source(name="a", threads=threads)],
        by_name={"x": Source(name="b", threads=threads)},
    )
    assert tuned.identity() == plain.identity()
    assert print_of(tuned) == print_of(plain)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"rate": 0.2}, "params.rate: 0.1 -> 0.2"),
        ({"schedule": {"kind": "cosine"}}, "params.schedule.kind: linear -> cosine"),
        ({"schedule": {"warmup": 11}}, "params.schedule.warmup: 10 -> 11"),
        (
            {"sources": [{"name": "a"}]},
            'params.sources[0]: (absent) -> {"name": "a", "weight": 1.0}',
        ),
        ({"pair": [1, 3]}, "params.pair[1]: 2 -> 3"),
        ({"by_bits": {"8": 0.5}}, "params.by_bits.8: (absent) -> 0.5"),
        ({"optional": {}}, 'params.optional: null -> {"kind": "linear", "warmup": 10}'),
    ],
)
def test_every_other_field_counts_and_drift_names_it(change: dict[str, Any], line: str) -> None:
    changed = Example.model_validate(change)
    old = identity("p", 1, Example(), INPUTS, {})
    new = identity("p", 1, changed, INPUTS, {})
    assert drift(old, new) == [line]
    assert print_of(changed) != print_of()


def test_the_same_parameters_from_a_file_and_from_code_have_one_fingerprint() -> None:
    coded = Example(rate=1, schedule=Schedule(kind=Kind.COSINE), by_bits={8: 1})
    filed = Example.model_validate_json(coded.model_dump_json())
    assert print_of(filed) == print_of(coded)
    assert print_of(Example(rate=1)) == print_of(Example(rate=1.0))
    json.loads(canonical(coded.identity()))


def test_an_inputs_place_never_counts_and_its_digest_does() -> None:
    moved = {"corpus": ArtifactRef(uri="file:///elsewhere/artifacts/corpus/1", digest="d1")}
    assert print_of(inputs=moved) == print_of()
    assert print_of(inputs={"corpus": ArtifactRef(uri="x", digest="d2")}) != print_of()
    assert print_of(inputs={"model": INPUTS["corpus"]}) != print_of()


def test_program_version_and_what_is_read_outside_count() -> None:
    prints = [
        print_of(),
        print_of(program="q"),
        print_of(version=2),
        print_of(external={"packages": "d"}),
        print_of(external={"packages": "e"}),
    ]
    assert len(set(prints)) == len(prints)


def test_a_fingerprint_is_fixed_for_ever() -> None:
    """Raising it by accident would make every artifact be made again: the number is on purpose."""
    assert sha256_of({"b": [1, 2.5, None, True], "a": "é"}) == (
        "0c187fb652afca8017b5ef38178eeef09a9dfef844316f80ba4207cdf1995ee5"
    )


def test_what_cannot_be_fingerprinted_is_refused_with_the_way_out() -> None:
    class WithPath(Params):
        places: list[Path] = [Path("/data")]

    with pytest.raises(TypeError, match=r"'places\[0\]' of type PosixPath cannot be .*: use str"):
        WithPath().identity()


def test_two_keys_that_read_the_same_are_refused() -> None:
    class Mixed(Params):
        table: dict[Any, int] = {}

    with pytest.raises(UsageError, match="'table' has two keys that read '1'"):
        Mixed(table={1: 1, "1": 2}).identity()


def test_identity_leaves_the_parameters_alone() -> None:
    params = Example(sources=[Source(name="a")])
    before = copy.deepcopy(params)
    params.identity()["sources"].append("x")
    assert params == before
