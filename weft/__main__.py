"""`python -m weft` is the weft command."""

from weft.cli import main

main()
