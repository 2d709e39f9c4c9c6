"""``python -m tensorstash``: the command line of :mod:`tensorstash.cli`."""

import sys

from tensorstash.cli import main

if __name__ == "__main__":
    sys.exit(main())
