"""time_conditioning, measured: one small network a seed and encoding of t, all trained as stacked parameters."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from attnrepro.config import Cell
from attnrepro.data.streams import generator
from attnrepro.nn.scalar_embedding import diffusion_frequencies, octave_frequencies, sinusoids
from attnrepro.results.rows import Row
from attnrepro.tables.time_conditioning import table
from attnrepro.theory.time_conditioning import HIGHEST_NOISE, LOWEST_NOISE
from attnrepro.training.ensemble import Recipe, SeedEnsemble
from attnrepro.training.measurement import Job, batches
from attnrepro.training.moments import Moments

# Components of x, and test samples at a time.
X_DIM = 2
CHUNK = 1000


def build(cell: Cell) -> Job:
    """The cell's networks and how many test samples each batch has."""
    networks = Networks(cell)
    full, rest = divmod(cell.params.n_test, CHUNK)
    sizes = [CHUNK] * full + [rest] * (rest > 0)
    return Job(networks, batches(sizes), fit=networks.loader(), max_steps=networks.recipe.steps)


def job(task: str, x: Tensor, t: Tensor) -> Tensor:
    """What t ``[...]`` asks for of x ``[..., 2]``.

    A turn is a product of complex numbers; the posterior mean comes from Bayes' rule and both densities.
    """
    turns = table.TASKS[task]
    if turns:
        angle = 2 * math.pi * turns * t
        spun = torch.view_as_complex(x.contiguous()) * torch.polar(torch.ones_like(angle), angle)
        return torch.view_as_real(spun)
    level = torch.exp(math.log(LOWEST_NOISE) + t * math.log(HIGHEST_NOISE / LOWEST_NOISE))[..., None]
    log_density = torch.stack([-((x - clean) ** 2) / (2 * level**2) for clean in (1.0, -1.0)])
    positive, negative = log_density.softmax(0)
    return positive - negative


def features(name: str, scale: float | None, t: Tensor, embed_dim: int, octaves: int) -> Tensor:
    """t ``[seeds, n]`` as the inputs of one encoding, ``[seeds, n, width]``."""
    if name == "raw":
        return t[..., None] * (scale or 1.0)
    if name == "standardised":
        return (t[..., None] - 0.5) * math.sqrt(12)
    if name == "repeated":
        return t[..., None].expand(*t.shape, embed_dim)
    if name == "octaves":
        return sinusoids(t, octave_frequencies(octaves))
    frequencies = diffusion_frequencies(embed_dim)
    if name == "zero_frequency":
        frequencies = torch.zeros_like(frequencies)
    # Another sample's t: samples are independent, so that the next one's carries nothing.
    return sinusoids(t.roll(1, dims=-1) if name == "shuffled" else t, frequencies)


class Networks(SeedEnsemble):
    """MLPs with two hidden layers of SiLU that read x and an encoding of t.

    Stacked as ``[seeds * members, ...]``; encodings that are narrower than the widest have inputs of 0 beside them,
    whose weights never move. Every member of a seed has its data, its later layers and, up to the scale that torch
    gives a layer of so many inputs (1 / sqrt(fan in)), its first weights.
    """

    def __init__(self, cell: Cell) -> None:
        p = cell.params
        super().__init__(Recipe("adam", (p.steps,), cooldown=0.5))
        self.cell = cell
        self.members = table.members(p)
        probe = torch.zeros(1, 1)
        self.widths = [X_DIM + features(*m, probe, p.embed_dim, p.octaves).shape[-1] for m in self.members]
        sizes = [(p.hidden, max(self.widths)), (p.hidden, p.hidden), (X_DIM, p.hidden)]
        weights: list[list[Tensor]] = [[] for _ in sizes]
        biases: list[list[Tensor]] = [[] for _ in sizes]
        for seed in cell.seeds:
            stream = generator(seed, table.NAME, "start")
            for layer, (out, width) in enumerate(sizes):
                drawn = torch.rand(out, width, generator=stream) * 2 - 1
                shift = torch.rand(out, generator=stream) * 2 - 1
                for own in self.widths:
                    fan_in = own if layer == 0 else width
                    kept = drawn.clone()
                    kept[:, fan_in:] = 0
                    weights[layer].append(kept / math.sqrt(fan_in))
                    biases[layer].append(shift / math.sqrt(fan_in))
        self.weights = nn.ParameterList(torch.stack(layer) for layer in weights)
        self.biases = nn.ParameterList(torch.stack(layer)[:, None] for layer in biases)
        self.streams: dict[tuple[int, str], torch.Generator] = {}
        self.squares = torch.zeros(len(self.weights[0]), dtype=torch.float64)
        self.blind = Moments(1)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """One rate for all."""
        return [{"params": list(self.parameters()), "lr": self.cell.params.learning_rate}]

    def snapshot(self) -> None:
        """The test loop reads the parameters as they are at the end."""

    def _stream(self, seed: int, use: str) -> torch.Generator:
        if (seed, use) not in self.streams:
            self.streams[seed, use] = generator(seed, table.NAME, use, device=self.device)
        return self.streams[seed, use]

    def samples(self, use: str, count: int) -> tuple[Tensor, Tensor]:
        """x ``[seeds, count, 2]``, N(0, I), and t ``[seeds, count]``, uniform."""
        streams = [self._stream(seed, use) for seed in self.cell.seeds]
        x = [torch.randn(count, X_DIM, generator=stream, device=self.device) for stream in streams]
        t = [torch.rand(count, generator=stream, device=self.device) for stream in streams]
        return torch.stack(x), torch.stack(t)

    def errors(self, x: Tensor, t: Tensor) -> Tensor:
        """Square error of every sample, mean over components: ``[seeds * members, n]``."""
        p = self.cell.params
        inputs = x.new_zeros(len(x), len(self.members), x.shape[1], max(self.widths))
        for index, (member, width) in enumerate(zip(self.members, self.widths, strict=True)):
            inputs[:, index, :, :X_DIM] = x
            inputs[:, index, :, X_DIM:width] = features(*member, t, p.embed_dim, p.octaves)
        out = inputs.flatten(0, 1)
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            out = torch.baddbmm(bias, silu(out) if index else out, weight.mT)
        wanted = job(p.task, x, t).repeat_interleave(len(self.members), dim=0)
        return (out - wanted).square().mean(-1)

    def backward_sum(self, step: int) -> Tensor:
        """Fresh samples for each seed."""
        losses = self.errors(*self.samples("train", self.cell.params.batch_size)).mean(-1)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        return losses.detach().mean()

    def test_step(self, batch: int, batch_idx: int) -> None:
        """Errors of all networks; and half the square distance of two jobs of the same x, whose mean is what is left
        to a network without t."""
        x, t = self.samples("test", batch)
        self.squares += self.errors(x, t).double().sum(-1).cpu()
        x, t = x.double(), t.double()
        other = self.samples("other", batch)[1].double()
        task = self.cell.params.task
        half = (job(task, x, t) - job(task, x, other)).square().mean(-1) / 2
        self.blind.update(half.reshape(-1, 1))

    def rows(self) -> list[Row]:
        """Each seed's error; one that diverged is a failed row."""
        p = self.cell.params
        found = (self.squares / p.n_test).unflatten(0, (len(self.cell.seeds), len(self.members)))
        result = []
        for member, (encoding, scale) in enumerate(self.members):
            axes: dict[str, object] = {"task": p.task, "encoding": encoding}
            if scale is not None:
                axes["scale_of_t"] = scale
            for index, seed in enumerate(self.cell.seeds):
                value = float(found[index, member])
                ok = math.isfinite(value)
                status = "ok" if ok else "failed: diverged"
                result.append(
                    Row("mse", value if ok else math.nan, axes, statistic="mean", seed=seed, n=1, status=status)
                )
        mean, covariance = self.blind.mean_and_covariance()
        spread = {"n": int(self.blind.n), "sd": math.sqrt(float(covariance[0, 0]))}
        first = self.cell.seeds[0]
        return [*result, Row("blind_error", float(mean[0]), {"task": p.task}, statistic="mean", seed=first, **spread)]
