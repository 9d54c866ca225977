"""Rows, published lines and verdicts: what was measured, what was printed, and how the two are judged."""
