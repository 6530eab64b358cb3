"""The `ctxeval` command: from argv to an exit code. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ctxeval.cli import commands, signals
from ctxeval.errors import CtxevalError, ExitCode

EXIT_CODES = (
    "Exit codes: 0 ran, or gate passed · 1 gate failed · 2 usage, configuration or unreadable input · "
    "3 run failed · 4 gate inconclusive · 75 pre-empted, resumable · 130 interrupted."
)

app = typer.Typer(
    name="ctxeval",
    help="Does this context extension really work? Perplexity and needle retrieval over length and depth.",
    epilog=EXIT_CODES,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        from ctxeval.manifest import package_versions

        typer.echo(" ".join(f"{name} {version}" for name, version in package_versions().items()))
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", "-V", is_eager=True, callback=_version, help="Print versions and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)


commands.register(app)


def main() -> NoReturn:
    """Run the command line and exit with the documented code."""
    # Python leaves a stream that was closed by the caller as None, on which every print fails.
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    signals.install()
    sys.exit(run_command())


def run_command(argv: Sequence[str] | None = None) -> int:
    """Run one command line (`sys.argv[1:]` by default) and return its exit code; an error is one line on stderr.

    An unexpected exception is a failed run (3): 1 is a failed gate and nothing else.
    """
    try:
        # What typer.Exit carried comes back as the result.
        result = app(args=argv, prog_name="ctxeval", standalone_mode=False)
        sys.stdout.flush()
        return int(result) if isinstance(result, int) else ExitCode.OK
    except CtxevalError as error:
        return _fail(error, str(error), error.exit_code)
    except typer.TyperException as error:
        return _fail(error, _usage(error), ExitCode.USAGE)
    except signals.Stopped as error:
        signals.ignore()
        return _fail(error, str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort) as error:
        return _fail(error, "interrupted", ExitCode.INTERRUPTED)
    except (BrokenPipeError, SystemExit) as error:
        # typer exits 1 when the reader of stdout has gone; python would exit 120 after failing to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _fail(error, "stdout was closed before all was written", ExitCode.RUN_FAILED)
    except Exception as error:
        if os.environ.get("CTXEVAL_DEBUG"):
            traceback.print_exc()
        message = f"unexpected {type(error).__name__}: {error}. Set CTXEVAL_DEBUG=1 for the traceback"
        return _fail(error, message, ExitCode.RUN_FAILED)


def _usage(error: typer.TyperException) -> str:
    """Write what typer found wrong with the command line, and where help is."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "ctxeval"
    return f"{error.format_message().rstrip('.')}. See `{command} --help`"


def _fail(error: BaseException, message: str, code: ExitCode) -> int:
    """Print the message and the notes that were added on the way as one line."""
    notes = getattr(error, "__notes__", [])
    line = ". ".join(part.rstrip(".") for part in (message, *notes))
    try:
        typer.echo(f"Error: {' '.join(line.split())}", err=True)
        sys.stderr.flush()
    except OSError:
        # Nobody reads stderr: the exit code alone must still be the right one, and python's last flush must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    return code
