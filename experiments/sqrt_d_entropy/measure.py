"""sqrt_d_entropy, measured: literal queries and keys through softmax attention, under ``Trainer.test``."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from attnrepro.config import Cell
from attnrepro.data.streams import generator
from attnrepro.nn.attention import attention_logits, attention_weights, entropy
from attnrepro.results.rows import Row
from attnrepro.stats import median_interval
from attnrepro.tables.sqrt_d_entropy import table
from attnrepro.training.measurement import Job, Measurement, batches
from attnrepro.training.moments import Moments

# Normal numbers drawn at a time: 16 MiB in float32, little enough to stay near the processor.
CHUNK = 1 << 22
# Per-query values kept for medians and for samples of the published size; rows say how many there were.
KEPT = 2_000_000


def build(cell: Cell) -> Job:
    """The cell's measurement and its batches."""
    if cell.params.study == "identities":
        checks = Identities(cell)
        return Job(checks, batches([(seed, name) for seed in cell.seeds for name in checks.checks]))
    draws = Draws(cell)
    return Job(draws, batches(draws.plan()))


@dataclass
class Part:
    """Draws of one seed, one number of keys and one way of drawing keys: one independent stream."""

    seed: int
    n_keys: int
    kind: str  # own | shared | gradient (own keys, with gradients, from a stream of its own)
    clusters: int  # independent draws: queries, or key sets where keys are shared
    columns: list[tuple[str, bool | None]]
    moments: Moments
    stream: torch.Generator | None = None
    kept: list[Tensor] = field(default_factory=list)
    n_kept: int = 0


class Draws(Measurement):
    """Monte Carlo over q and k with iid N(0,1) components: float32 draws, float64 sums."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        p = cell.params
        self.scalings = table.scalings(p)
        self.parts: list[Part] = []
        for seed in cell.seeds:
            for n_keys in p.n_keys:
                for kind in [*table.key_kinds(p), "gradient"]:
                    columns = self._columns(kind)
                    self.parts.append(
                        Part(
                            seed,
                            n_keys,
                            kind,
                            table.n_clusters(p, n_keys, kind),
                            columns,
                            Moments(len(columns)),
                        )
                    )
        # Registered so that Lightning moves the sums to the device with the module.
        self.sums = torch.nn.ModuleList([part.moments for part in self.parts])

    def _columns(self, kind: str) -> list[tuple[str, bool | None]]:
        if kind == "gradient":
            names = ["grad_logits_sq"] + ["grad_query_sq"] * math.isfinite(self.cell.params.head_dim)
            return [(name, scaled) for scaled in self.scalings for name in names]
        names = [
            "logit_mean",
            "logit_sq",
            "entropy",
            "max_weight",
            "sum_sq_weights",
            "saturated",
            "gap_over_8",
        ]
        columns: list[tuple[str, bool | None]] = [(name, scaled) for scaled in self.scalings for name in names]
        return columns + [("product_variance", None)] * (kind == "own" and math.isfinite(self.cell.params.head_dim))

    def plan(self) -> list[tuple[int, int]]:
        """Batches as (part, number of clusters in it)."""
        p = self.cell.params
        items = []
        for index, part in enumerate(self.parts):
            width = 1 if math.isinf(p.head_dim) else int(p.head_dim)
            rows = part.n_keys + 1 if part.kind != "shared" else part.n_keys + p.n_queries_per_set
            if math.isinf(p.head_dim):
                rows = part.n_keys
            # Logits are held in float64 for both scalings: they bound the batch where head_dim is small.
            held = part.n_keys * (p.n_queries_per_set if part.kind == "shared" else 1) * 4
            size = max(1, CHUNK // max(rows * width, held))
            full, rest = divmod(part.clusters, size)
            items += [(index, size)] * full + [(index, rest)] * (rest > 0)
        return items

    def test_step(self, batch: tuple[int, int], batch_idx: int) -> None:
        """Draw one batch of clusters and add their statistics."""
        index, count = batch
        part = self.parts[index]
        if part.stream is None:
            p = self.cell.params
            name = (table.NAME, part.kind, repr(float(p.head_dim)), part.n_keys)
            part.stream = generator(part.seed, *name, device=self.device)
        if part.kind == "gradient":
            observed, keep = self._gradients(part, count), None
        else:
            observed, keep = self._statistics(part, count)
        part.moments.update(observed)
        if keep is None:
            keep = observed.float()
        if part.n_kept < KEPT:
            part.kept.append(keep)
            part.n_kept += keep.numel() // keep.shape[-1]

    def _normal(self, part: Part, *shape: int) -> Tensor:
        return torch.randn(shape, generator=part.stream, device=self.device)

    def _logits(self, part: Part, count: int) -> tuple[Tensor, Tensor | None]:
        """Unscaled logits [clusters, queries, n_keys] in float64, and products q_0 k_0 of one component."""
        p = self.cell.params
        if math.isinf(p.head_dim):
            return self._normal(part, count, 1, part.n_keys).double(), None
        head_dim, n_queries = int(p.head_dim), p.n_queries_per_set if part.kind == "shared" else 1
        query = self._normal(part, count, n_queries, head_dim)
        key = self._normal(part, count, part.n_keys, head_dim)
        return attention_logits(query, key, scaled=False).double(), (query[:, 0, 0] * key[:, 0, 0]).double()

    def _scale(self, logits: Tensor, scaled: bool) -> Tensor:
        head_dim = self.cell.params.head_dim
        return logits / math.sqrt(head_dim) if scaled and math.isfinite(head_dim) else logits

    def _statistics(self, part: Part, count: int) -> tuple[Tensor, Tensor]:
        """Observations [clusters, columns], and what samples of the published size are made from."""
        unscaled, products = self._logits(part, count)
        observed, sample = [], []
        for scaled in self.scalings:
            logits = self._scale(unscaled, scaled)
            weights = attention_weights(logits)
            two = logits.topk(2, dim=-1).values
            trace = 1 - weights.square().sum(-1)
            per_query = {
                "logit_mean": logits.mean(-1),
                "logit_sq": logits.square().mean(-1),
                "entropy": entropy(weights),
                "max_weight": weights.amax(-1),
                "sum_sq_weights": 1 - trace,
                "saturated": (trace < table.SATURATED).double(),
                "gap_over_8": (two[..., 0] - two[..., 1] > table.GAP).double(),
            }
            observed += [value.mean(-1) for value in per_query.values()]
            if not scaled:
                sample += [per_query["logit_mean"], per_query["logit_sq"]]
            sample += [per_query["entropy"], per_query["max_weight"], trace]
        if any(name == "product_variance" for name, _ in part.columns):
            if products is None:
                raise RuntimeError("products of components exist only for a finite head_dim")
            observed.append(products.square())
        # Shared keys keep [sets, queries, columns]; own keys have one query a cluster.
        return torch.stack(observed, dim=-1), torch.stack(sample, dim=-1).float()

    @torch.enable_grad()
    def _gradients(self, part: Part, count: int) -> Tensor:
        """Squared norms of dL/dlogits and dL/dquery for a random upstream gradient on the weights."""
        p = self.cell.params
        upstream = self._normal(part, count, 1, part.n_keys).double()
        query = key = None
        if math.isfinite(p.head_dim):
            query = self._normal(part, count, 1, int(p.head_dim)).requires_grad_()
            key = self._normal(part, count, part.n_keys, int(p.head_dim))
        else:
            unscaled = self._normal(part, count, 1, part.n_keys).double().requires_grad_()
        observed = []
        for scaled in self.scalings:
            if query is not None and key is not None:
                logits = attention_logits(query, key, scaled=scaled).double()
            else:
                logits = unscaled
            loss = (attention_weights(logits) * upstream).sum()
            wanted = [logits] if query is None else [logits, query]
            grads = torch.autograd.grad(loss, wanted)
            observed += [grad.detach().double().square().sum((-1, -2)) for grad in grads]
        return torch.stack(observed, dim=-1)

    def rows(self) -> list[Row]:
        """Measured rows of all parts."""
        return [row for part in self.parts for row in PartRows(self.cell, part).rows()]


class PartRows:
    """Rows of one part from its sums and kept values."""

    def __init__(self, cell: Cell, part: Part) -> None:
        self.cell = cell
        self.part = part
        mean, covariance = part.moments.mean_and_covariance()
        self.n = int(part.moments.n)
        self.mean = mean.cpu()
        self.covariance = covariance.cpu()
        self.at = {column: i for i, column in enumerate(part.columns)}

    def rows(self) -> list[Row]:
        """All rows of the part."""
        if self.part.kind == "gradient":
            return [*self._gradients(), self._correlation()]
        result = [row for scaled in table.scalings(self.cell.params) for row in self._means(scaled)]
        if ("product_variance", None) in self.at:
            result.append(self._mean("product_variance", None))
        if table.both(self.cell.params):
            result += [
                self._difference("max_weight_excess", "max_weight", first=False),
                self._difference("saturated_excess", "saturated", first=False),
                self._difference("jacobian_trace_gain", "sum_sq_weights", first=False),
            ]
            result += self._designs()
        return [*result, self._correlation()]

    def _row(self, quantity: str, statistic: str, value: float, *, scaled: bool | None = None, **rest: object) -> Row:
        keys = "own" if self.part.kind == "gradient" else self.part.kind
        axes = {
            "head_dim": self.cell.params.head_dim,
            "n_keys": self.part.n_keys,
            "keys": keys,
            "scaled": scaled,
        }
        axes["design"] = rest.pop("design", None)
        fields = {"n": self.n, "unit": table.UNITS.get(quantity, ""), **rest}
        return Row(quantity, value, axes, statistic=statistic, seed=self.part.seed, **fields)  # type: ignore[arg-type]

    def _sd(self, i: int) -> float:
        return math.sqrt(max(0.0, float(self.covariance[i, i])))

    def _mean(self, name: str, scaled: bool | None, statistic: str = "mean") -> Row:
        i = self.at[name, scaled]
        return self._row(name, statistic, float(self.mean[i]), scaled=scaled, sd=self._sd(i))

    def _root(self, quantity: str, name: str, scaled: bool, statistic: str) -> Row:
        """A root of a mean square; its spread by the delta method."""
        i = self.at[name, scaled]
        root = math.sqrt(float(self.mean[i]))
        return self._row(quantity, statistic, root, scaled=scaled, sd=self._sd(i) / (2 * root) if root else 0.0)

    def _median(self, quantity: str, values: Tensor, scaled: bool) -> Row:
        """A median; sd is what makes sd/sqrt(n) the half-width of its order-statistic interval."""
        array = values.double().cpu().numpy()
        median = median_interval(array)
        spread = (median.high - median.low) / (2 * 1.959963984540054) * math.sqrt(len(array))
        return self._row(quantity, "median", float(np.median(array)), scaled=scaled, n=len(array), sd=spread)

    def _means(self, scaled: bool) -> list[Row]:
        i = self.at["sum_sq_weights", scaled]
        result = [
            self._mean("logit_mean", scaled),
            self._root("logit_sd", "logit_sq", scaled, "sd"),
            self._mean("entropy", scaled),
            self._mean("max_weight", scaled),
            self._mean("sum_sq_weights", scaled),
            self._row("jacobian_trace", "mean", 1 - float(self.mean[i]), scaled=scaled, sd=self._sd(i)),
            self._mean("saturated", scaled, "share"),
        ]
        if not scaled:
            result.append(self._mean("gap_over_8", scaled, "share"))
            root = math.sqrt(self.cell.params.head_dim)
            e = self.at["entropy", scaled]
            result.append(
                self._row("entropy_sqrt_d", "mean", root * float(self.mean[e]), scaled=scaled, sd=root * self._sd(e))
            )
        if self.part.kind == "own":
            trace = torch.cat(self.part.kept)[..., self._sample_column("trace", scaled)].flatten()
            result.append(self._median("jacobian_trace", trace, scaled))
        return result

    def _sample_column(self, name: str, scaled: bool) -> int:
        columns = []
        for flag in table.scalings(self.cell.params):
            columns += [] if flag else [("logit_mean", flag), ("logit_sq", flag)]
            columns += [("entropy", flag), ("max_weight", flag), ("trace", flag)]
        return columns.index((name, scaled))

    def _difference(self, quantity: str, name: str, *, first: bool) -> Row:
        """Paired difference over the same draws: scaled minus unscaled when ``first``, else the reverse."""
        a, b = self.at[name, first], self.at[name, not first]
        c = self.covariance
        spread = math.sqrt(max(0.0, float(c[a, a] + c[b, b] - 2 * c[a, b])))
        return self._row(quantity, "paired_difference", float(self.mean[a] - self.mean[b]), sd=spread)

    def _gradients(self) -> list[Row]:
        result = []
        kept = torch.cat(self.part.kept)
        for (name, scaled), i in self.at.items():
            if scaled is None:
                continue
            quantity = name.replace("_sq", "_norm")
            result.append(self._root(quantity, name, scaled, "rms"))
            result.append(self._median(quantity, kept[:, i].sqrt(), scaled))
        if table.both(self.cell.params):
            for name in dict.fromkeys(name for name, _ in self.at):
                result.append(self._difference(f"{name}_gain", name, first=True))
        return result

    def _correlation(self) -> Row:
        """Squared Frobenius norm of the correlation matrix of the quantities that are judged against theory."""
        chosen = [
            i
            for (name, scaled), i in self.at.items()
            if table.judged(self.cell.params, self.part.n_keys, name, scaled, self.n) and self._sd(i) > 0
        ]
        c = self.covariance[chosen][:, chosen]
        d = c.diagonal().sqrt()
        return self._row(f"correlation_sq_{self.part.kind}", "value", float((c / torch.outer(d, d)).square().sum()))

    def _designs(self) -> list[Row]:
        """Samples of each size the published table may have used, with the source's own estimators."""
        kept = torch.cat(self.part.kept).double()
        result = []
        for size in self.cell.params.designs:
            if self.part.kind == "own":
                blocks = kept[: len(kept) // size * size].reshape(-1, size, kept.shape[-1])
            else:
                if size > kept.shape[1]:
                    continue
                blocks = kept[:, :size]
            if len(blocks) < 20:  # too few samples to know their covariance
                continue
            m = blocks.mean(1)
            sd = m[:, self._sample_column("logit_sq", False)] - m[:, self._sample_column("logit_mean", False)] ** 2
            numbers = torch.stack(
                [
                    sd.clamp_min(0).sqrt(),
                    m[:, self._sample_column("entropy", False)],
                    m[:, self._sample_column("max_weight", False)],
                    m[:, self._sample_column("entropy", True)],
                    m[:, self._sample_column("max_weight", True)],
                ],
                dim=1,
            ).cpu()
            result += self._design_rows(size, numbers)
        return result

    def _design_rows(self, size: int, numbers: Tensor) -> list[Row]:
        n = len(numbers)
        mean, covariance = numbers.mean(0), numbers.T.cov()
        result = []
        for i, name in enumerate(table.NUMBERS):
            spread = float(covariance[i, i].sqrt())
            result.append(self._row(f"design_{name}", "mean", float(mean[i]), design=size, n=n, sd=spread))
            for j in range(i):
                pair = f"design_cov_{name}_{table.NUMBERS[j]}"
                result.append(self._row(pair, "value", float(covariance[i, j]), design=size, n=n))
        centred = numbers - mean
        t2 = (centred @ torch.linalg.inv(covariance) * centred).sum(1)
        result.append(self._row("design_t2_variance", "value", float(t2.var()), design=size, n=n))
        return result


class Identities(Measurement):
    """Statements about softmax that need no sampling of queries: each check is one batch."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []
        self.checks: dict[str, Callable[[int], list[Row]]] = {
            "uniform": self._uniform,
            "jacobian": self._jacobian,
            "bounds": self._bounds,
            "exponential": self._exponential,
            "overflow": self._overflow,
            "init": self._init,
        }

    def test_step(self, batch: tuple[int, str], batch_idx: int) -> None:
        """Run one check."""
        seed, name = batch
        self.found += self.checks[name](seed)

    def rows(self) -> list[Row]:
        """Measured rows of all checks."""
        return self.found

    def _uniform(self, seed: int) -> list[Row]:
        result = []
        for n_keys in self.cell.params.n_keys:
            logits = torch.zeros(n_keys, dtype=torch.float64, device=self.device)
            value = float(entropy(attention_weights(logits)))
            axes = {"n_keys": n_keys}
            result.append(Row("uniform_entropy", value, axes, statistic="exact", seed=seed, unit="nats", n=1))
        return result

    def _jacobian(self, seed: int) -> list[Row]:
        """d weights / d logits by autograd against a_k (1 - a_k) on and -a_j a_k off the diagonal."""
        stream = generator(seed, table.NAME, "jacobian", device=self.device)
        diagonal, off, n = 0.0, 0.0, 0
        for n_keys in (2, 16, 197):
            for _ in range(20):
                logits = 3 * torch.randn(n_keys, generator=stream, dtype=torch.float64, device=self.device)
                jacobian = torch.autograd.functional.jacobian(attention_weights, logits)
                a = attention_weights(logits)
                eye = torch.eye(n_keys, dtype=torch.bool, device=self.device)
                diagonal = max(diagonal, float((jacobian.diagonal() - a * (1 - a)).abs().max()))
                off = max(off, float((jacobian + torch.outer(a, a))[~eye].abs().max()))
                n += 1
        return [
            Row("jacobian_diagonal_error", diagonal, seed=seed, statistic="exact", n=n),
            Row("jacobian_offdiagonal_error", off, seed=seed, statistic="exact", n=n),
        ]

    def _bounds(self, seed: int) -> list[Row]:
        """Largest derivative of a weight by its own logit, and largest gain of the Jacobian, over a scan of gaps."""
        largest, norm = 0.0, 0.0
        for gap in torch.linspace(-8, 8, 161, dtype=torch.float64, device=self.device):
            logits = torch.stack([gap, torch.zeros_like(gap)])
            jacobian = torch.autograd.functional.jacobian(attention_weights, logits)
            largest = max(largest, float(jacobian.abs().max()))
            norm = max(norm, float(torch.linalg.matrix_norm(jacobian, 2)))
        return [
            Row("weight_derivative_bound", largest, seed=seed, statistic="exact", n=161),
            Row("jacobian_norm_bound", norm, seed=seed, statistic="exact", n=161),
        ]

    def _exponential(self, seed: int) -> list[Row]:
        """How many times more weight a logit gets that leads by 8 over one other, from softmax itself."""
        weights = attention_weights(torch.tensor([table.GAP, 0.0], dtype=torch.float64, device=self.device))
        return [Row("weight_ratio_at_gap_8", float(weights[0] / weights[1]), seed=seed, statistic="exact", n=1)]

    def _overflow(self, seed: int) -> list[Row]:
        """Smallest logit whose plain exponential is infinite in each precision, by bisection."""
        result = []
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            low, high = 0.0, 1000.0
            for _ in range(80):
                middle = (low + high) / 2
                value = torch.tensor(middle, dtype=torch.float64, device=self.device).exp().to(dtype)
                low, high = (low, middle) if torch.isinf(value) else (middle, high)
            axes = {"dtype": str(dtype).removeprefix("torch.")}
            result.append(Row("exp_overflow", high, axes, seed=seed, statistic="exact", n=1))
        return result

    def _init(self, seed: int) -> list[Row]:
        """Variance of a linear map of unit-variance input under the two usual initialisers."""
        size, count = int(min(self.cell.params.head_dim, 256)), 400
        ways: Sequence[tuple[str, Callable[..., Tensor]]] = (
            ("xavier", torch.nn.init.xavier_normal_),
            ("he", torch.nn.init.kaiming_normal_),
        )
        result = []
        for name, initialise in ways:
            stream = generator(seed, table.NAME, "init", name, device=self.device)
            sums = Moments(1).to(self.device)
            for _ in range(count):
                weight = initialise(torch.empty(size, size, device=self.device), generator=stream)
                x = torch.randn(size, 64, generator=stream, device=self.device)
                sums.update((weight @ x).double().square().mean().reshape(1, 1))
            mean, covariance = sums.mean_and_covariance()
            axes = {"head_dim": size, "init": name}
            result.append(
                Row(
                    "init_output_variance",
                    float(mean[0]),
                    axes,
                    statistic="mean",
                    seed=seed,
                    n=count,
                    sd=math.sqrt(float(covariance[0, 0])),
                )
            )
        return result
