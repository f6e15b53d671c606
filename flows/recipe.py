"""The recipe: every knob, one strict model, the same for the command line, YAML and Prefect's form."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainwright.flows.chain import STEPS, StepName, choose, nearest
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

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        for fault in contradictions(self):
            raise ValueError(fault)
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
    return faults


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


def read_yaml(name: str) -> dict[str, Any]:
    """The YAML mapping of a recipe, by shipped name or path."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        path = Path(name)
        if not path.is_file():
            raise RecipeError(f"there is no recipe file {name!r}")
        text = path.read_text(encoding="utf-8")
    else:
        text = shipped()[choose("recipe", name, shipped())]
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"recipe {name!r} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise RecipeError(f"recipe {name!r} must be a mapping of stages to parameters")
    return values


def apply_override(values: dict[str, Any], override: str) -> None:
    """Set one `a.b=c` in place; list items by number (`corpus.sources.0.weight=2`)."""
    path, found, text = override.partition("=")
    keys = path.strip().split(".")
    if not found or not all(keys):
        raise RecipeError(f"--set {override!r}: write it as stage.parameter=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise RecipeError(f"--set {override!r}: {text!r} is not a YAML value") from None
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
    if not key.isdigit() or int(key) >= len(node):
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
    shown = "" if isinstance(given, dict | list) or not path else f" (given {given!r})"
    return f"  {path + ': ' if path else ''}{message}{shown}"


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


def step_params(recipe: Recipe) -> dict[StepName, Params]:
    """Parameters by step."""
    return {name: recipe.step(name) for name in STEPS}
