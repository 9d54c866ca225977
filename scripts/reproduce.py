"""make reproduce-all, make reproduce, make plan."""

import sys


def main() -> int:
    """Run the command line; Ctrl-C is quiet from the first import on."""
    try:
        from attnrepro.app.reproduce import main as reproduce

        return reproduce(sys.argv[1:])
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
