"""Capsules: vectors whose lengths say how likely something is there, and routing of the lower ones to the upper ones.

A lower capsule (child) i votes for what each upper capsule (parent) j should be, ``u_ij = W_ij u_i``, and hands itself
out among the parents in shares ``c_ij``, which grow where its vote agrees with what the others make of that parent.

Complexity, 2 FLOPs a multiply-add, N children of d components, P parents of e, r iterations: votes ``2 N P d e``,
routing ``(2 r - 1) 2 N P e`` (a weighted sum each time, an agreement each time but the last). Parameters: ``N P d e``,
or ``P d e`` where all children share a parent's matrix. ``attnrepro.theory.capsules`` has the closed forms.

Source: Sabour, Frosst and Hinton 2017, Dynamic Routing Between Capsules, sections 2 to 4.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

# Votes [batch, children, parents, parent_dim] and iterations to parents [batch, parents, parent_dim] and coupling
# [batch, children, parents].
Routing = Callable[[Tensor, int], tuple[Tensor, Tensor]]


def squash(s: Tensor) -> Tensor:
    """Vectors ``[..., d]`` of the same direction whose length n became n^2 / (1 + n^2), below 1; 0 stays 0.

    The gradient at 0 is 0. Source: equation 1.
    """
    length = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
    squashed: Tensor = s * (length / (1 + length.square()))
    return squashed


def weighted_sum(coupling: Tensor, votes: Tensor) -> Tensor:
    """For each parent the votes for it by their weights: ``[batch, parents, parent_dim]``."""
    return torch.einsum("bnp,bnpd->bpd", coupling, votes)


def agreement(votes: Tensor, parents: Tensor) -> Tensor:
    """Dot product of each vote with the parent that it is for: ``[batch, children, parents]``."""
    return torch.einsum("bnpd,bpd->bnp", votes, parents)


def dynamic_routing(votes: Tensor, iterations: int = 3) -> tuple[Tensor, Tensor]:
    """Routing by agreement: the softmax goes over the parents, so every child hands out exactly itself.

    The first iteration couples every child alike to all parents, 1 / parents; each further one adds the agreement of
    the votes with the squashed parents to the logits. Gradients go through all iterations.

    Args:
        votes: ``[batch, children, parents, parent_dim]``.
        iterations: 1 or more.

    Returns:
        Parents ``[batch, parents, parent_dim]``, of length below 1, and the coupling ``[batch, children, parents]``
        they were made with, whose sums over the parents are 1.

    Raises:
        ValueError: votes that are no four-dimensional tensor, or fewer than one iteration.

    Source: procedure 1.
    """
    _check(votes, iterations)
    logits = votes.new_zeros(votes.shape[:3])
    for left in reversed(range(iterations)):
        coupling = logits.softmax(dim=2)
        parents = squash(weighted_sum(coupling, votes))
        if left:
            logits = logits + agreement(votes, parents)
    return parents, coupling


def routing_as_printed(votes: Tensor, iterations: int = 3) -> tuple[Tensor, Tensor]:
    """Document 004's formula: the softmax goes over the children, and nothing is squashed. It is no routing.

    Every parent takes a mean of the votes for it, whatever other parents there are: attention of a parent to its
    children, with the votes as keys and values and the sum of its earlier outputs as query. What a child hands out
    adds up to anything between 0 and the number of parents, and a parent is as long as its votes are.

    Args:
        votes: ``[batch, children, parents, parent_dim]``.
        iterations: 1 or more.

    Returns:
        Parents ``[batch, parents, parent_dim]`` and weights ``[batch, children, parents]``, whose sums over the
        children are 1.

    Raises:
        ValueError: as `dynamic_routing`.

    Source: document 004, section 4.2, with its child index j and parent index i.
    """
    _check(votes, iterations)
    logits = votes.new_zeros(votes.shape[:3])
    for left in reversed(range(iterations)):
        weights = logits.softmax(dim=1)
        parents = weighted_sum(weights, votes)
        if left:
            logits = logits + agreement(votes, parents)
    return parents, weights


def _check(votes: Tensor, iterations: int) -> None:
    if votes.ndim != 4:
        raise ValueError(f"votes={tuple(votes.shape)} must be [batch, children, parents, parent_dim]")
    if iterations < 1:
        raise ValueError(f"iterations={iterations} must be 1 or more")


def margin_loss(
    lengths: Tensor, labels: Tensor, *, present: float = 0.9, absent: float = 0.1, down: float = 0.5
) -> Tensor:
    """Loss ``[batch]``: the capsule of the label is to be longer than ``present``, all others shorter than ``absent``.

    Args:
        lengths: of the class capsules, ``[batch, classes]``.
        labels: ``[batch]``, whole numbers.
        down: weight of the classes that are not there, so that the first updates do not shrink every capsule.

    Source: equation 4.
    """
    there = nn.functional.one_hot(labels, lengths.shape[1]).to(lengths.dtype)
    short = (present - lengths).relu().square()
    long = (lengths - absent).relu().square()
    return (there * short + down * (1 - there) * long).sum(1)


class CapsuleLayer(nn.Module):
    """From capsules ``[batch, children, child_dim]`` to capsules ``[batch, num_parents, parent_dim]``.

    With shared matrices (``num_children`` None) it takes any number of children, in any order: parents are invariant
    to permutations of the children, the coupling moves with them. With a matrix for each pair (as in the paper, where
    a child's place has a matrix of its own) they are not. Permuting the parents' matrices permutes the parents.

    Args:
        num_parents: upper capsules.
        child_dim: components of a child.
        parent_dim: components of a parent.
        num_children: a matrix for each of so many children and each parent; None for one matrix a parent.
        iterations: of the routing.
        routing: `dynamic_routing`, or `routing_as_printed` to see what that does.

    Raises:
        ValueError: a number below 1, or (when called) children that do not fit.

    Source: sections 2 and 4; shared matrices: Gu and Tresp 2020, Improving the Robustness of Capsule Networks to Image
    Affine Transformations (arXiv 1911.07968).
    """

    def __init__(
        self,
        num_parents: int,
        child_dim: int,
        parent_dim: int,
        *,
        num_children: int | None = None,
        iterations: int = 3,
        routing: Routing = dynamic_routing,
    ) -> None:
        super().__init__()
        sizes = {"num_parents": num_parents, "child_dim": child_dim, "parent_dim": parent_dim, "iterations": iterations}
        for name, size in (sizes | ({} if num_children is None else {"num_children": num_children})).items():
            if size < 1:
                raise ValueError(f"{name}={size} must be 1 or more")
        self.num_children, self.iterations, self.routing = num_children, iterations, routing
        own = () if num_children is None else (num_children,)
        # Every component of a vote is then about as large as a child is long, over the root of child_dim.
        self.weight = nn.Parameter(torch.randn(*own, num_parents, child_dim, parent_dim) / child_dim**0.5)

    def votes(self, children: Tensor) -> Tensor:
        """What each child takes each parent for, ``[batch, children, parents, parent_dim]``."""
        shared = self.num_children is None
        child_dim = self.weight.shape[-2]
        if (
            children.ndim != 3
            or children.shape[2] != child_dim
            or not (shared or children.shape[1] == self.num_children)
        ):
            wanted = f"[batch, {'children' if shared else self.num_children}, {child_dim}]"
            raise ValueError(f"children={tuple(children.shape)} must be {wanted}")
        return torch.einsum("bnc,pcd->bnpd" if shared else "bnc,npcd->bnpd", children, self.weight)

    def route(self, children: Tensor, iterations: int | None = None) -> tuple[Tensor, Tensor]:
        """Parents and coupling ``[batch, children, parents]``, after the layer's iterations or as many as are given."""
        return self.routing(self.votes(children), self.iterations if iterations is None else iterations)

    def forward(self, children: Tensor) -> Tensor:
        """Parents ``[batch, num_parents, parent_dim]``."""
        return self.route(children)[0]
