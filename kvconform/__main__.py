"""``python -m kvconform``: the same as the command ``kvconform``."""

import sys

from kvconform.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
