"""make tables, make dashboard: everything generated, from recorded rows."""

import sys

from attnrepro.app.report import main

if __name__ == "__main__":
    if sys.argv[1:]:
        print("tables: takes no arguments; ATTNREPRO_RESULTS says where results are", file=sys.stderr)
        sys.exit(2)
    sys.exit(main())
