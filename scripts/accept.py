"""make accept: finished cells become the committed reference."""

import sys

from attnrepro.app.accept import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
