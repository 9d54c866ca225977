"""make why: one printed value, what became of it, and the command that measures it again."""

import sys

from attnrepro.app.why import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
