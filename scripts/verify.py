"""make verify: everything that is committed fits together."""

import sys

from attnrepro.app.verify import main

if __name__ == "__main__":
    if sys.argv[1:]:
        print("verify: takes no arguments", file=sys.stderr)
        sys.exit(2)
    sys.exit(main())
