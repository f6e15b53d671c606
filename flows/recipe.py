"""The recipe: every knob, one strict model, the same for the command line, YAML and Prefect's form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainwright.flows.chain import StepName, UnknownNameError, choose, nearest
from trainwright.stages.align.params import AlignParams
from trainwright.stages.contract import Params, Strict
from trainwright.stages.corpus.params import CorpusParams
from trainwright.stages.initialize.params import InitializeParams
from trainwright.stages.instruct.params import InstructParams
from trainwright.stages.pretrain.params import PretrainParams
from trainwright.stages.quantize.params import QuantizeParams
from trainwright.stages.validate.params import ValidateParams


class RecipeError(ValueError):
    """A recipe that cannot work; the message has a line for each fault, with its path."""


class Execution(Strict):
    """How steps are run. Nothing here bears on what they make."""

    launcher: Literal["process"] = Field("process", description="Where a step runs")
    retries: int = Field(
        2, ge=0, le=20, description="Further tries after a transient or node fault"
    )
    retry_delay_s: float = Field(
        5.0, ge=0, le=3600, description="Delay before the first further try, in seconds; it doubles"
    )
    timeout_s: float | None = Field(
        None, gt=0, description="A step that runs longer is ended, in seconds; empty for no limit"
    )
    lease_ttl_s: float = Field(
        20.0, ge=1, le=600, description="Seconds without heartbeat until a writer counts as dead"
    )


class Recipe(Strict):
    """Everything that a pipeline run is told."""

    # Prefect hands a run's parameters back by field name when it is retried.
    model_config = ConfigDict(extra="forbid", validate_by_name=True, validate_by_alias=True)

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$",
        description="Name of the recipe: runs, MLflow runs and the registered model carry it",
    )
    description: str = Field("", description="What this recipe is for, in a sentence")
    corpus: CorpusParams = Field(description="Sources, cleaning, deduplication, filters, shards")
    initialize: InitializeParams = Field(description="The model before training")
    pretrain: PretrainParams = Field(description="Pretraining")
    validate_: ValidateParams = Field(alias="validate", description="The gate after pretraining")
    instruct: InstructParams = Field(description="LoRA instruction tuning")
    align: AlignParams = Field(description="Reward model and PPO")
    quantize: QuantizeParams = Field(description="Quantization-aware training to int8, and export")
    accept: ValidateParams = Field(description="The gate that the exported model must pass")
    execution: Execution = Field(Execution(), description="How steps are run")

    @model_validator(mode="wrap")
    @classmethod
    def _no_truth_for_a_number(cls, values: Any, handler: Callable[[Any], Recipe]) -> Recipe:
        """Refuse `yes`, `no`, `on` and `off` where a number is wanted: pydantic takes them as 1 and 0."""
        recipe = handler(values)
        if faults := list(_turned_booleans(values, recipe)):
            raise ValueError("\n  ".join(faults))
        return recipe

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        if faults := [*_unusable_numbers(self), *contradictions(self)]:
            raise ValueError("\n  ".join(faults))
        return self

    def step(self, name: StepName) -> Params:
        """The parameters of a step."""
        value = getattr(self, "validate_" if name is StepName.VALIDATE else name.value)
        assert isinstance(value, Params)
        return value

    def dump(self) -> dict[str, Any]:
        """The recipe as JSON values, as YAML has it."""
        return self.model_dump(mode="json", by_alias=True)


def contradictions(recipe: Recipe) -> list[str]:
    """What two steps of a recipe say against each other, a sentence each."""
    faults = []
    if recipe.validate_.kind != "pretrained":
        faults.append(
            f"validate.kind is {recipe.validate_.kind!r}: the gate after pretraining needs 'pretrained'"
        )
    if recipe.accept.kind != "export":
        faults.append(
            f"accept.kind is {recipe.accept.kind!r}: the gate of the exported model needs 'export'"
        )
    if recipe.initialize.from_folder is None:
        faults += _beyond_positions(recipe)
    return faults


def _beyond_positions(recipe: Recipe) -> list[str]:
    """Lengths that a new model has no positions for. (A given folder brings its own: its stage looks.)"""
    positions = recipe.initialize.architecture.max_position_embeddings
    ppo = recipe.align.ppo
    lengths = {
        "pretrain.sequence_length": recipe.pretrain.sequence_length,
        "validate.sequence_length": recipe.validate_.sequence_length,
        "validate.sample_tokens + 1": recipe.validate_.sample_tokens + 1,
        "instruct.row_tokens": recipe.instruct.row_tokens,
        "align.reward.max_tokens": recipe.align.reward.max_tokens,
        "align.ppo.prompt_tokens + align.ppo.answer_tokens + 1": ppo.prompt_tokens
        + ppo.answer_tokens
        + 1,
        "quantize.row_tokens": recipe.quantize.row_tokens,
        "accept.sequence_length": recipe.accept.sequence_length,
        "accept.sample_tokens + 1": recipe.accept.sample_tokens + 1,
    }
    return [
        f"{path} is {length}, but initialize.architecture.max_position_embeddings is {positions}: "
        "the model has no positions for that; lower the one or raise the other"
        for path, length in lengths.items()
        if length > positions
    ]


_LARGEST = 2**63 - 1


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value inside a recipe, with its path."""
    items: Any = ()
    if isinstance(value, BaseModel):
        fields = type(value).model_fields.items()
        items = [(field.alias or name, getattr(value, name)) for name, field in fields]
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        yield path, value
    for key, item in items:
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


def _unusable_numbers(recipe: Recipe) -> Iterator[str]:
    for path, value in _leaves(recipe):
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{path} is {value}: give a finite number"
        elif isinstance(value, int) and abs(value) > _LARGEST:
            yield f"{path} has {value.bit_length()} bits: the largest number is {_LARGEST}"


def _turned_booleans(given: Any, kept: Any, path: str = "") -> Iterator[str]:
    if isinstance(given, bool) and not isinstance(kept, bool):
        yield f"{path} is {str(given).lower()}: give a number"
    elif isinstance(given, dict) and isinstance(kept, BaseModel):
        for name, field in type(kept).model_fields.items():
            for key in {name, field.alias or name} & given.keys():
                where = f"{path}.{key}" if path else key
                yield from _turned_booleans(given[key], getattr(kept, name), where)
    elif isinstance(given, list) and isinstance(kept, list):
        for index, (ours, theirs) in enumerate(zip(given, kept, strict=False)):
            yield from _turned_booleans(ours, theirs, f"{path}.{index}")


_NEED_PAIRS = (StepName.INSTRUCT, StepName.ALIGN, StepName.QUANTIZE)


def refuse_unreachable(recipe: Recipe, wanted: list[StepName]) -> None:
    """Refuse a selection of steps that this recipe's sources cannot feed, before anything starts.

    Question and answer pairs come from python-docs sources alone; without them the chain would stop
    after pretraining.
    """
    needing = [name.value for name in _NEED_PAIRS if name in wanted]
    kinds = {(source.kind, source.role) for source in recipe.corpus.sources}
    missing = [role for role in ("corpus", "heldout") if ("python-docs", role) not in kinds]
    if needing and missing:
        raise RecipeError(
            f"{needing[0]} needs question and answer pairs, which come from sources of the kind "
            f"python-docs, and corpus.sources has none with the role {' or '.join(missing)}: add one, "
            f"or end before that with --to {StepName.VALIDATE.value}"
        )


def shipped() -> dict[str, str]:
    """Names of the recipes that ship with the product, and their YAML text."""
    folder = files("trainwright.flows.recipes")
    return {
        Path(entry.name).stem: entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda e: e.name)
        if entry.name.endswith(".yaml")
    }


def load_recipe(name: str, overrides: list[str] | None = None) -> Recipe:
    """A recipe by shipped name or path of a YAML file, with `a.b=c` overrides (YAML values)."""
    values = read_yaml(name)
    for override in overrides or []:
        apply_override(values, override)
    return parse_recipe(values, name)


class _Loader(yaml.SafeLoader):
    """YAML that refuses a key given twice: the last one would win in silence."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.composer.ComposerError(
                    None, None, f"the key {key.value!r} is given twice", key.start_mark
                )
            seen.add(key.value)
        return node


def _load(text: str) -> Any:
    """The value of a YAML text; `ValueError` with the reason if it is none."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ValueError(f"{error.problem or error.context}{where}") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_yaml(name: str) -> dict[str, Any]:
    """The YAML mapping of a recipe, by shipped name or path."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        text = _read_file(name)
    else:
        text = shipped()[_choose_shipped(name)]
    try:
        values = _load(text)
    except ValueError as error:
        raise RecipeError(f"recipe {name!r} is not YAML: {error}") from None
    if not isinstance(values, dict):
        raise RecipeError(f"recipe {name!r} must be a mapping of stages to parameters")
    return values


def _choose_shipped(name: str) -> str:
    try:
        return choose("recipe", name, shipped())
    except UnknownNameError as error:
        near = [path for path in (f"./{name}", f"./{name}.yaml") if name and Path(path).is_file()]
        hint = f"; for the file write {near[0]}" if near else "; a file is given by its path"
        raise UnknownNameError(f"{error}{hint}") from None


def _read_file(name: str) -> str:
    path = Path(name)
    try:
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "does not exist"
            raise RecipeError(
                f"there is no recipe file {name!r} (it {what}); give the path of a YAML file, or the "
                f"name of a shipped recipe: {', '.join(shipped())}"
            )
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"recipe {name!r} is not UTF-8 text (byte {error.start}): save it as UTF-8"
        ) from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RecipeError(f"recipe file {name[:200]!r} cannot be read: {reason}") from None


def apply_override(values: dict[str, Any], override: str) -> None:
    """Set one `a.b=c` in place; list items by number (`corpus.sources.0.weight=2`)."""
    path, found, text = override.partition("=")
    keys = path.strip().split(".")
    if not found or not all(keys):
        raise RecipeError(f"--set {override!r}: write it as stage.parameter=value")
    try:
        value = _load(text)
    except ValueError as error:
        raise RecipeError(f"--set {override[:200]!r}: that is not a YAML value: {error}") from None
    node: Any = values
    for index, key in enumerate(keys[:-1]):
        node = _descend(node, key, ".".join(keys[: index + 1]), override)
    _assign(node, keys[-1], value, override)


def _descend(node: Any, key: str, path: str, override: str) -> Any:
    if isinstance(node, list):
        return node[_index(node, key, override)]
    if node.get(key) is None:
        node[key] = {}
    if not isinstance(node[key], dict | list):
        raise RecipeError(f"--set {override!r}: {path} is a value, it has no parameters of its own")
    return node[key]


def _assign(node: Any, key: str, value: Any, override: str) -> None:
    if isinstance(node, list):
        node[_index(node, key, override)] = value
    else:
        node[key] = value


def _index(node: list[Any], key: str, override: str) -> int:
    if not key.isdecimal() or int(key) >= len(node):
        raise RecipeError(
            f"--set {override!r}: {key!r} is not an item of a list of {len(node)} (0 is the first)"
        )
    return int(key)


def parse_recipe(values: dict[str, Any], name: str = "recipe") -> Recipe:
    """The recipe of a mapping; `RecipeError` lists every fault with its path and the way out."""
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        lines = [explain(dict(fault)) for fault in error.errors()]
        raise RecipeError("\n".join([f"recipe {name!r} cannot be used:", *lines])) from None


def explain(fault: dict[str, Any], model: type[BaseModel] = Recipe) -> str:
    """One pydantic fault as a line: path, what is wrong, and the nearest valid key."""
    path = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        keys = valid_keys(model, list(fault["loc"][:-1]))
        key = str(fault["loc"][-1])
        hint = nearest(key, keys)
        meant = f"did you mean {hint!r}? " if hint else ""
        return f"  {path}: unknown key; {meant}valid keys are {', '.join(keys)}"
    if fault["type"] == "missing":
        return f"  {path}: missing"
    message = fault["msg"].removeprefix("Value error, ")
    given = fault.get("input")
    if path and given is None:
        return f"  {path}: is empty; give a value, or leave the key out if it has a default"
    if fault["type"] == "model_type":
        keys = valid_keys(model, list(fault["loc"]))
        message = f"must be a mapping of {', '.join(keys)}"
    shown = "" if isinstance(given, dict | list) or not path else f" (given {_short(given)})"
    return f"  {path + ': ' if path else ''}{message}{shown}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def valid_keys(model: type[BaseModel], path: list[Any]) -> list[str]:
    """The keys that a nested model of `model` at `path` has."""
    current: Any = model
    for part in path:
        if isinstance(part, int):
            continue
        field = _field(current, str(part))
        if field is None:
            continue
        current = _model_in(field.annotation) or current
    return [f.alias or name for name, f in current.model_fields.items()]


def _field(model: type[BaseModel], key: str) -> Any:
    for name, field in model.model_fields.items():
        if key in (name, field.alias):
            return field
    return None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in getattr(annotation, "__args__", ()):
        if (found := _model_in(part)) is not None:
            return found
    return None
