"""Closed forms and exact quadrature: what a table should measure (numpy and scipy only)."""
