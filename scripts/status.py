"""make status: cells done, running, failed and open, and the verdicts of each table."""

import sys

from attnrepro.app.status import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
