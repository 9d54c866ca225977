"""make check: your rows against the committed reference."""

import sys

from attnrepro.app.check import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
