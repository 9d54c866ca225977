"""``python -m attnrepro`` is the console script ``attnrepro``."""

from attnrepro.app.main import cli

if __name__ == "__main__":
    cli()
