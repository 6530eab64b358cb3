"""A gate policy: a YAML file that says what a run must show before a model ships. Pure but for reading the file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from ctxeval.errors import CtxevalError, UsageError, unknown
from ctxeval.resources import tasks_dir
from ctxeval.spec import parse_length

#: Lengths by name: the window that the checkpoint supports, and the --len that the run was made for.
Named = Literal["native", "target"]
NAMED: tuple[Named, ...] = ("native", "target")
Length = int | Named
T = TypeVar("T")


@dataclass(frozen=True)
class Span(Generic[T]):
    """Values wanted: those of `exact`, or all of a run between `low` and `high`, both included; `None` is open."""

    exact: tuple[T, ...] = ()
    low: T | None = None
    high: T | None = None


def parse_span(given: int | str | list[int | str]) -> Span[Length]:
    """Read lengths in tokens: `8k`, `[4k, 8k]`, `4k..target`, `..native`, `16k..`; an end belongs to the range.

    Raises:
        ValueError: not lengths, or a range that ends before it begins.
    """
    if not isinstance(given, str) or ".." not in given:
        exact = tuple(_length(one) for one in (given if isinstance(given, list) else [given]))
        if not exact:
            raise ValueError("no lengths in []; write 8k, [4k, 8k] or 4k..32k")
        return Span(exact)
    first, _, last = given.partition("..")
    low, high = (_length(end) if end.strip() else None for end in (first, last))
    _not_inverted(given, low, high)
    return Span((), low, high)


def parse_depth_span(given: float | str | list[float]) -> Span[float]:
    """Read depths in percent: `50`, `[0, 50, 100]`, `25..75`, `..50`.

    Raises:
        ValueError: not depths of 0 to 100 percent, or a range that ends before it begins.
    """
    if not isinstance(given, str) or ".." not in given:
        exact = tuple(_depth(one) for one in (given if isinstance(given, list) else [given]))
        if not exact:
            raise ValueError("no depths in []; write 50, [0, 100] or 25..75")
        return Span(exact)
    first, _, last = given.partition("..")
    low, high = (_depth(end) if end.strip() else None for end in (first, last))
    _not_inverted(given, low, high)
    return Span((), low, high)


def _not_inverted(given: str, low: Length | float | None, high: Length | float | None) -> None:
    # What names such as `native` stand for is only known with the run.
    if not isinstance(low, str) and not isinstance(high, str) and low is not None and high is not None and low > high:
        raise ValueError(f"range {given!r} ends before it begins")


def _length(given: int | str) -> Length:
    for name in NAMED:
        if isinstance(given, str) and given.strip() == name:
            return name
    try:
        return parse_length(str(given))
    except CtxevalError as error:
        raise ValueError(f"{error.message}; write 32k, native or target") from None


def _depth(given: float | str) -> float:
    value = float(given)  # a ValueError names the text
    if not 0 <= value <= 100:  # NaN is refused here too
        raise ValueError(f"depth {value:g} is outside 0 to 100 percent")
    return value


def _checked_length(given: int | str) -> int | str:
    _length(given)
    return given


def _checked_span(given: int | str | list[int | str]) -> int | str | list[int | str]:
    parse_span(given)
    return given


def _checked_depths(given: float | str | list[float]) -> float | str | list[float]:
    parse_depth_span(given)
    return given


Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Ratio = Annotated[float, Field(gt=0, allow_inf_nan=False)]
OneLength = Annotated[int | str, AfterValidator(_checked_length)]
Lengths = Annotated[int | str | list[int | str], AfterValidator(_checked_span)]
Depths = Annotated[float | str | list[float], AfterValidator(_checked_depths)]


class _Strict(BaseModel):
    # Strict: `yes` is no number, and "0.9" is text. Unknown keys would be checks that are silently not made.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class RecallFloor(_Strict):
    """Recall at every length (and, where given, over these depths) is at least `floor`, a share of 0 to 1."""

    lengths: Lengths
    floor: Share
    depths: Depths | None = None


class RatioCeiling(_Strict):
    """The perplexity ratio to the unpatched model at every length is at most `max_ratio`."""

    lengths: Lengths
    max_ratio: Ratio


class ShortContext(_Strict):
    """Inside the native window the scaling keeps this share of the unpatched model's recall, and this ratio."""

    min_recall_share: Share | None = None
    max_ratio: Ratio | None = None

    @model_validator(mode="after")
    def _asks_something(self) -> ShortContext:
        if self.min_recall_share is None and self.max_ratio is None:
            raise ValueError("asks for nothing; give min_recall_share, max_ratio or both")
        return self


class Regression(_Strict):
    """Against the run that --baseline names, on the same needles and tokens, at every length.

    Recall is at most `max_recall_drop` lower (a share of 0 to 1), perplexity at most `max_ratio` times the baseline's.
    """

    lengths: Lengths
    max_recall_drop: Share | None = None
    max_ratio: Ratio | None = None

    @model_validator(mode="after")
    def _asks_something(self) -> Regression:
        if self.max_recall_drop is None and self.max_ratio is None:
            raise ValueError("asks for nothing; give max_recall_drop, max_ratio or both")
        return self


class Policy(_Strict):
    """What a run must show. `confidence` holds for the whole policy, not for each check: see `analysis.gate`."""

    title: str = ""
    confidence: Annotated[float, Field(gt=0.5, lt=1, allow_inf_nan=False)] = 0.95
    min_documents: Annotated[int, Field(ge=2)] = 8
    recall: list[RecallFloor] = []
    perplexity: list[RatioCeiling] = []
    min_effective_length: OneLength | None = None
    no_blind_spot_up_to: OneLength | None = None
    short_context: ShortContext | None = None
    regression: list[Regression] = []

    @model_validator(mode="after")
    def _asks_something(self) -> Policy:
        rules = (self.min_effective_length, self.no_blind_spot_up_to, self.short_context)
        if not (self.recall or self.perplexity or self.regression) and all(rule is None for rule in rules):
            raise ValueError(f"asks for nothing, which every model would pass; give one of {', '.join(RULES)}")
        return self


RULES = ("recall", "perplexity", "min_effective_length", "no_blind_spot_up_to", "short_context", "regression")
_PARTS: dict[str, type[BaseModel]] = {
    "recall": RecallFloor,
    "perplexity": RatioCeiling,
    "short_context": ShortContext,
    "regression": Regression,
}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a policy, for editors."""
    return Policy.model_json_schema()


def load_policy(name: str) -> Policy:
    """Load a policy by its name (`ship`), or from a YAML file.

    Raises:
        UsageError: no such policy, unreadable, or not a valid one.
    """
    path = Path(name)
    if path.suffix not in {".yaml", ".yml"}:
        shipped = {one.stem: one for one in sorted((tasks_dir() / "gates").glob("*.yaml"))}
        if name not in shipped:
            raise unknown("policy", name, shipped)
        path = shipped[name]
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # a SafeLoader
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"cannot read the policy {path}: {reason}", "give a file like tasks/gates/ship.yaml") from None
    return parse_policy(data, str(path))


def parse_policy(data: Any, source: str) -> Policy:
    """Validate the content of a policy file; `source` is named in errors.

    Raises:
        UsageError: an unknown key, a value that is out of range, NaN or of another type, or nothing to check.
    """
    if not isinstance(data, dict) or not data:
        raise UsageError(f"{source} holds {type(data).__name__}, no policy", f"give one of {', '.join(RULES)}")
    try:
        return Policy.model_validate(data)
    except ValidationError as error:
        raise _refusal(error, source) from None


def _refusal(error: ValidationError, source: str) -> UsageError:
    """Turn what pydantic found first into one line; a key that is not ours goes before what its absence causes."""
    found = sorted(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
    first, more = found[0], f" ({len(found) - 1} more)" if len(found) > 1 else ""
    place = [part for part in first["loc"] if part in Policy.model_fields or isinstance(part, int)]
    if first["type"] == "extra_forbidden":
        part = _PARTS.get(str(first["loc"][0])) if len(first["loc"]) > 1 else Policy
        kind = f"key in {source}" + (f", {_where(first['loc'][:-1])}" if len(first["loc"]) > 1 else "")
        return unknown(kind, str(first["loc"][-1]), (part or Policy).model_fields)
    place = [*place, *(part for part in first["loc"][1:] if part in _fields_below(str(first["loc"][0])))]
    value = first["input"]
    shown = f" is {value!r}" if isinstance(value, (str, int, float, bool, list)) or value is None else ""
    reason = first["msg"].removeprefix("Value error, ")
    return UsageError(f"{source}: {_where(place) or 'the policy'}{shown}{more}", reason[0].lower() + reason[1:])


def _fields_below(name: str) -> set[str]:
    part = _PARTS.get(name)
    return set(part.model_fields) if part else set()


def _where(place: Any) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses a key that is given twice: the first one's checks would be lost without a word."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {name!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)
