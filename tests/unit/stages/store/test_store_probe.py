"""A store that breaks its promises is found out."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwright.stages.store import Store, StoreError
from trainwright.stages.store.file import FileStore
from trainwright.stages.store.probe import probe


class Careless(FileStore):
    """Takes conditions and ignores some, as some servers do."""

    ignores: frozenset[str] = frozenset()

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        absent = if_absent and "if_absent" not in self.ignores
        match = None if "if_match" in self.ignores else if_match
        return super().put(key, data, if_absent=absent, if_match=match)

    def delete(self, key: str, *, if_match: str | None = None) -> None:
        super().delete(key, if_match=None if "delete" in self.ignores else if_match)


def test_a_good_store_keeps_its_promises_and_nothing_stays(store: Store) -> None:
    assert probe(store) == []
    assert [*store.list("")] == []


@pytest.mark.parametrize(
    ("ignores", "says"),
    [
        ({"if_absent"}, ["must not exist"]),
        ({"if_match"}, ["overwrites an object that has changed"]),
        ({"delete"}, ["deletes an object that has changed"]),
        ({"if_absent", "if_match", "delete"}, ["must not exist", "overwrites an", "deletes an"]),
    ],
)
def test_a_store_that_ignores_conditions_is_found_out(
    tmp_path: Path, ignores: set[str], says: list[str]
) -> None:
    store = Careless(tmp_path / "store")
    store.ignores = frozenset(ignores)
    found = probe(store)
    assert len(found) == len(says)
    assert all(words in sentence for words, sentence in zip(says, found, strict=True))
    assert [*store.list("")] == []


def test_a_store_that_is_away_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> str:
        raise StoreError("away")

    store = FileStore(tmp_path)
    monkeypatch.setattr(store, "put", away)
    with pytest.raises(StoreError, match="away"):
        probe(store)
