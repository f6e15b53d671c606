"""What a recipe is refused for, before anything starts, and in which words."""

from pathlib import Path

import pytest

from trainwright.flows.chain import UnknownNameError
from trainwright.flows.recipe import RecipeError, load_recipe, read_yaml, shipped

TINY = str(Path(__file__).parents[2] / "recipes" / "tiny.yaml")


def refused(*overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(TINY, list(overrides))
    return str(caught.value)


@pytest.mark.parametrize("name", [*shipped(), TINY])
def test_our_own_recipes_are_accepted(name: str) -> None:
    assert load_recipe(name).name


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("pretrain.sequence_length=512", "pretrain.sequence_length is 512"),
        ("validate.sequence_length=512", "validate.sequence_length is 512"),
        ("validate.sample_tokens=256", "validate.sample_tokens + 1 is 257"),
        ("instruct.row_tokens=512", "instruct.row_tokens is 512"),
        ("align.reward.max_tokens=512", "align.reward.max_tokens is 512"),
        ("quantize.row_tokens=512", "quantize.row_tokens is 512"),
        ("accept.sequence_length=512", "accept.sequence_length is 512"),
        ("accept.sample_tokens=256", "accept.sample_tokens + 1 is 257"),
    ],
)
def test_a_length_beyond_the_new_models_positions_is_refused(override: str, path: str) -> None:
    message = refused(override)
    assert path in message
    assert "initialize.architecture.max_position_embeddings is 256" in message


def test_the_positions_of_a_given_folder_are_not_guessed() -> None:
    overrides = ["initialize={from_folder: /somewhere}", "pretrain.sequence_length=4096"]
    assert load_recipe(TINY, overrides).pretrain.sequence_length == 4096


def test_every_contradiction_is_told_at_once() -> None:
    message = refused("validate.kind=export", "pretrain.sequence_length=512")
    assert "validate.kind" in message and "pretrain.sequence_length" in message


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("corpus.sources.0.weight=.inf", "corpus.sources.0.weight is inf: give a finite number"),
        ("pretrain.optimization.epsilon=.inf", "pretrain.optimization.epsilon is inf"),
        ("execution.timeout_s=.inf", "execution.timeout_s is inf"),
        ("pretrain.seed=18446744073709551616", "pretrain.seed has 65 bits"),
        ("execution.retries=yes", "execution.retries is true: give a number"),
        ("instruct.samples=off", "instruct.samples is false: give a number"),
        ("validate.max_perplexity=on", "validate.max_perplexity"),
        ("corpus.sources.0.weight=true", "corpus.sources.0.weight is true"),
        ("pretrain.steps=", "pretrain.steps: is empty"),
        ("pretrain=3", "pretrain: must be a mapping of steps, sequence_length"),
        ("pretrain.steps=[1", "not a YAML value"),
        ("corpus.sources.²=1", "is not an item of a list"),
        ("corpus.sources.0.packages=['']", "corpus.sources.0.packages.0"),
        ("corpus.tokenizer.vocab=3", "did you mean 'vocab_size'"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_with_its_path(override: str, words: str) -> None:
    assert words in refused(override)


def test_true_and_false_stay_what_they_are_where_they_are_wanted() -> None:
    assert load_recipe(TINY, ["corpus.dedup.near=off"]).corpus.dedup.near is False


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"name: x\nname: y\n", "the key 'name' is given twice (line 2, column 1)"),
        (b"pretrain:\n  steps: 1\n  seed: 2\n  steps: 3\n", "the key 'steps' is given twice"),
        (b"name: x\xe9\n", "not UTF-8 text (byte 7)"),
        ("name: x\n".encode("utf-16"), "not UTF-8 text"),
        (b"name: x\0y\n", "not YAML"),
        (b"a: " + b"[" * 5000 + b"]" * 5000, "nested too deeply"),
        (b"a: " + b"9" * 5000, "not YAML"),
        (b"? [a]\n: 1\n", "not YAML"),
        (b"- a\n", "must be a mapping"),
        (b"", "must be a mapping"),
        (b"name: !!python/object/apply:os.getpid []\n", "not YAML"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused_in_a_sentence(
    tmp_path: Path, data: bytes, words: str
) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(data)
    with pytest.raises(RecipeError) as caught:
        read_yaml(str(path))
    assert words in str(caught.value)


def test_a_key_merged_from_an_anchor_may_be_set_again(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  x: 3\nc: {<<: *a}\n")
    assert read_yaml(str(path))["b"] == {"x": 3, "y": 2}


def test_a_byte_order_mark_is_no_part_of_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x\n")
    assert read_yaml(str(path)) == {"name": "x"}


def test_a_missing_file_or_name_is_answered_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("name: x\n")
    (tmp_path / "folder.yaml").mkdir()
    for name in ("absent.yaml", "folder.yaml", "x" * 300 + ".yaml"):
        with pytest.raises(RecipeError, match="recipe file"):
            read_yaml(name)
    with pytest.raises(UnknownNameError, match=r"for the file write \./mine\.yaml"):
        read_yaml("mine")


def test_stages_that_need_pairs_are_refused_before_anything_starts_where_no_source_gives_any() -> (
    None
):
    from trainwright.flows.chain import Selection, StepName
    from trainwright.flows.recipe import refuse_unreachable

    files = "{name: mine, kind: files, paths: [a.txt], heldout_share: 0.1}"
    reference = "{name: clean, kind: files, role: reference, paths: [b.txt]}"
    recipe = load_recipe(TINY, [f"corpus.sources=[{files}, {reference}]"])
    with pytest.raises(RecipeError, match="instruct needs question and answer pairs"):
        refuse_unreachable(recipe, Selection().wanted())
    refuse_unreachable(recipe, Selection(last=StepName.VALIDATE).wanted())
    refuse_unreachable(load_recipe(TINY), Selection().wanted())
