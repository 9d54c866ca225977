"""make smoke: every table from configuration to dashboard, in a folder that is thrown away."""

import sys

from attnrepro.app.smoke import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
