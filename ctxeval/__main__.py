"""`python -m ctxeval` is the `ctxeval` command."""

from ctxeval.cli.main import main

if __name__ == "__main__":
    main()
