"""`python -m octavo …`: the command line, where the `octavo` script is not on the path."""

import sys

from octavo.entrypoints.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
