"""attnrepro: every table of five lectures on attention as one reproducible experiment."""

__version__ = "0.1.0"
