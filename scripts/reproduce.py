"""make reproduce-all, make reproduce, make plan."""

import sys

from attnrepro.app.reproduce import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
