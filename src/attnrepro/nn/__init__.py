"""Attention and everything built from it, one mechanism a file, clean enough to teach from."""
