"""`python -m tp_teach.plan`."""

import sys

from tp_teach.plan.command import main

if __name__ == "__main__":
    sys.exit(main())
