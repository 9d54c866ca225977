"""Relations between places: a small network reads every pair, and the sum of what it says is added to the map."""

from torch import Tensor, nn


class RelationModule(nn.Module):
    """``y_i = x_i + f(sum_jk g(x_j, x_k))`` over all N^2 ordered pairs of places, a place with itself included.

    g: two layers of ``hidden`` components with ReLU, on the two places side by side; f: one such layer and one back to
    the channels, which starts at zero, so that a new block changes nothing. The first layer of g is applied to the
    places one by one and added up for the pairs, which is the same. Nothing is normalised: the sum grows with N^2.

    Parameters, with h = hidden: 3 C h + 2 h^2 + 3 h + C. FLOPs of a map: 4 N C h + 2 N^2 h^2 + 2 h^2 + 2 h C (two for
    each multiply-add); N^2 pairs.

    Raises:
        ValueError: a size below 1.

    Source: Santoro et al. 2017, A simple neural network module for relational reasoning, equation 1, as a block on
    maps; document 004, section 3.6, prints the mean in place of the sum, which is `relation_as_printed`.
    """

    def __init__(self, channels: int, *, hidden: int | None = None) -> None:
        super().__init__()
        hidden = max(1, channels // 4) if hidden is None else hidden
        for name, size in (("channels", channels), ("hidden", hidden)):
            if size < 1:
                raise ValueError(f"{name}={size} must be 1 or more")
        self.first, self.second = nn.Linear(channels, hidden), nn.Linear(channels, hidden, bias=False)
        self.pair = nn.Linear(hidden, hidden)
        self.f = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, channels))
        for parameter in self.f[-1].parameters():
            nn.init.zeros_(parameter)

    def relations(self, x: Tensor) -> Tensor:
        """g of every ordered pair ``[batch, places, places, hidden]``; first place: row."""
        places = x.flatten(-2).mT
        both = self.first(places)[:, :, None] + self.second(places)[:, None]
        found: Tensor = self.pair(both.relu()).relu()
        return found

    def forward(self, x: Tensor) -> Tensor:
        """The map ``[batch, channels, height, width]`` with the same vector added to each place."""
        added: Tensor = self.f(self.relations(x).sum((1, 2)))
        return x + added[..., None, None]


def relation_as_printed(block: RelationModule, x: Tensor) -> Tensor:
    """`RelationModule` with the mean over the pairs in place of the sum, as document 004 prints it.

    Returns:
        ``[batch, channels, height, width]``.

    Source: document 004, section 3.6.
    """
    added: Tensor = block.f(block.relations(x).mean((1, 2)))
    return x + added[..., None, None]
