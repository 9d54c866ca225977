"""Chains and paths in autograd's graph: what waits for what, and through how many marked operations."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

# A node of autograd's graph. Nodes are compared by identity, which holds while a reference to each is kept.
Node = Any


class Marks:
    """Operations that count; `mark` returns a tensor whose making is one of them."""

    def __init__(self) -> None:
        self.nodes: set[Node] = set()

    def __call__(self, tensor: Tensor) -> Tensor:
        """The same values, made by an operation of their own, which counts."""
        marked = tensor.clone()
        self.nodes.add(marked.grad_fn)
        return marked


def _before(node: Node) -> Iterator[Node]:
    return (earlier for earlier, _ in node.next_functions if earlier is not None)


def longest_chain(output: Tensor, counts: Callable[[Node], bool]) -> int:
    """Most nodes that count on any way from ``output`` back to a leaf: they have to happen one after the other.

    Raises:
        ValueError: an output that nothing was computed for.
    """
    if output.grad_fn is None:
        raise ValueError("output must have a graph")
    longest: dict[Node, int] = {}
    stack: list[tuple[Node, bool]] = [(output.grad_fn, False)]
    while stack:
        node, ready = stack.pop()
        if node in longest:
            continue
        if ready:
            longest[node] = int(counts(node)) + max((longest[earlier] for earlier in _before(node)), default=0)
        else:
            stack.append((node, True))
            stack += ((earlier, False) for earlier in _before(node) if earlier not in longest)
    return longest[output.grad_fn]


def fewest_marks(output: Tensor, leaves: Sequence[Tensor], counts: Callable[[Node], bool]) -> list[int | None]:
    """Fewest nodes that count on any way from ``output`` back to each leaf; None where there is no way."""
    fewest: dict[Node, int] = {}
    queue: deque[tuple[Node, int]] = deque([(output.grad_fn, int(counts(output.grad_fn)))])
    while queue:
        node, marks = queue.popleft()
        if node in fewest:
            continue
        fewest[node] = marks
        for earlier in _before(node):
            if counts(earlier):
                queue.append((earlier, marks + 1))
            else:
                queue.appendleft((earlier, marks))
    at = {id(node.variable): marks for node, marks in fewest.items() if hasattr(node, "variable")}
    return [at.get(id(leaf)) for leaf in leaves]
