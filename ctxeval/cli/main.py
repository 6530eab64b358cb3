"""The `ctxeval` command: from argv to an exit code. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from types import FrameType
from typing import Annotated, NoReturn

import click
import typer

from ctxeval.cli import commands
from ctxeval.errors import CtxevalError, ExitCode

EXIT_CODES = (
    "Exit codes: 0 ran, or gate passed · 1 gate failed · 2 usage, configuration or unreadable input · "
    "3 run failed · 4 gate inconclusive · 75 pre-empted, resumable · 130 interrupted."
)

app = typer.Typer(
    name="ctxeval",
    help="Does this context extension really work? Perplexity and needle retrieval over length and depth.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Preempted(BaseException):
    """SIGTERM arrived."""


def _version(value: bool) -> None:
    if value:
        from ctxeval.manifest import package_versions

        typer.echo(" ".join(f"{name} {version}" for name, version in package_versions().items()))
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", "-V", is_eager=True, callback=_version, help="Print versions and exit.")
    ] = False,
) -> None:
    pass


commands.register(app)


def main() -> NoReturn:
    """Run the command line and exit with the documented code; an unexpected exception is never a failed gate."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    sys.exit(_run())


def _run() -> int:
    try:
        result = app(standalone_mode=False)
        return int(result) if isinstance(result, int) else ExitCode.OK
    except CtxevalError as error:
        return _fail(str(error), error.exit_code)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return ExitCode.USAGE
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", ExitCode.INTERRUPTED)
    except Preempted:
        return _fail("pre-empted by SIGTERM", ExitCode.PREEMPTED)
    except Exception as error:
        if os.environ.get("CTXEVAL_DEBUG"):
            traceback.print_exc()
        return _fail(
            f"unexpected {type(error).__name__}: {' '.join(str(error).split())}. Set CTXEVAL_DEBUG=1 for the traceback",
            ExitCode.RUN_FAILED,
        )


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    raise Preempted


def _fail(message: str, code: ExitCode) -> int:
    typer.echo(f"Error: {message}", err=True)
    return code
