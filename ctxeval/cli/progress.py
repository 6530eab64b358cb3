"""Talk and progress on stderr: quiet when asked, a bar only on a terminal."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ctxeval.engine.budget import duration
from ctxeval.session import Observer

#: Seconds between progress lines where there is no terminal to draw a bar on.
_LINE_EVERY = 60.0


class StderrObserver(Observer):
    """Shows a run's talk and its progress, measured in predicted seconds so that long contexts count as they should."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        """Write to stderr, nothing at all when `quiet`, details too when `verbose`."""
        self.verbose = verbose
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            transient=True,
            disable=quiet or not self.console.is_terminal,
        )
        self._task: TaskID | None = None
        self._total = self._done = 0.0
        self._began = self._spoke = time.monotonic()

    def __enter__(self) -> Self:
        """Start drawing."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop drawing."""
        self._bar.stop()

    def say(self, line: str) -> None:
        """Print one line."""
        self.console.print(line, soft_wrap=True, markup=False)

    def detail(self, line: str) -> None:
        """Print one line, where details were asked for."""
        if self.verbose:
            self.say(line)

    def begin(self, seconds: float) -> None:
        """Start the bar."""
        self._total = max(seconds, 1e-9)
        self._began = self._spoke = time.monotonic()
        self._task = self._bar.add_task("measuring", total=self._total)

    def advance(self, seconds: float) -> None:
        """Move the bar; without a terminal, print a line now and then."""
        self._done += seconds
        if self._task is not None:
            self._bar.update(self._task, advance=seconds)
        now = time.monotonic()
        if not self.console.is_terminal and now - self._spoke > _LINE_EVERY:
            self._spoke = now
            left = (now - self._began) * (self._total - self._done) / self._done
            self.say(f"{min(self._done / self._total, 1):.0%} measured, {duration(max(left, 0))} left")
