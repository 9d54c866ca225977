"""make dashboard SERVE=1: the dashboard of a running sweep, served on this machine."""

import sys

from attnrepro.app.serve import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
