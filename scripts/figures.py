"""make figures: charts as SVG and PDF, printed values as LaTeX and Markdown, from recorded rows."""

import sys

from attnrepro.app.figures import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
