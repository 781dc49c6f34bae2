"""`python -m tp_teach.train`."""

import sys

from tp_teach.train.command import main

if __name__ == "__main__":
    sys.exit(main())
