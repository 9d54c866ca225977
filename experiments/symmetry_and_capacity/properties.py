"""What is tested of a network in one draw of its weights and input: how far a property is from holding."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnrepro.nn.conv_attention import as_tokens, convolution_layer, tap_masks
from attnrepro.nn.ring_models import TOTAL_STRIDE, PatchAttention, mixing_layer, network_of
from attnrepro.tables.symmetry_and_capacity import table


class Draw:
    """A network of one shape with weights, input and moves from one stream, all float64.

    Of images length, channels and kernel are the side, the patch and the embed_dim. ``modules`` keeps what was made
    for an earlier draw of the same shape: it gets new weights.
    """

    def __init__(
        self, network: str, shape: str, num_heads: int, stream: torch.Generator, modules: dict[Any, nn.Module]
    ) -> None:
        self.network, self.num_heads, self.stream, self.modules = network, num_heads, stream, modules
        self.device = stream.device
        self.length, self.channels, self.kernel = table.sizes(shape)
        self.start = self.pick(0, 2**62)

    def normal(self, *size: int) -> Tensor:
        """Independent N(0, 1)."""
        return torch.randn(*size, generator=self.stream, dtype=torch.float64, device=self.device)

    def tokens(self) -> Tensor:
        """``[length, channels]``."""
        return self.normal(self.length, self.channels)

    def pick(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return int(torch.randint(low, high + 1, (1,), generator=self.stream, device=self.device))

    def permutation(self) -> Tensor:
        """A random order that is not the old one."""
        old = torch.arange(self.length, device=self.device)
        while torch.equal(order := torch.randperm(self.length, generator=self.stream, device=self.device), old):
            pass
        return order

    def made(self, make: Callable[[], nn.Module], *key: Any) -> Any:
        """A module with initial weights of this draw: the same ones for modules of the same kind."""
        with torch.random.fork_rng(devices=[]):
            if key not in self.modules:
                self.modules[key] = make().to(device=self.device, dtype=torch.float64)
            module = self.modules[key]
            # torch.manual_seed also keeps a trace of its caller for GPUs, which takes longer than the network.
            torch.default_generator.manual_seed(self.start)
            for part in module.modules():
                if (reset := getattr(part, "reset_parameters", None)) is not None:
                    reset()
        return module

    def model(self, length: int | None = None) -> Any:
        """The network for this draw's length, or for another."""
        sizes = (length or self.length, self.channels, self.kernel, self.num_heads)
        return self.made(lambda: network_of(self.network, *sizes), "model", *sizes)

    def layer(self) -> Any:
        """The layer in which positions exchange anything."""
        sizes = (self.length, self.channels, self.kernel, self.num_heads)
        return self.made(lambda: mixing_layer(self.network, *sizes), "layer", *sizes)


def largest(x: Tensor) -> float:
    """Largest absolute component."""
    return float(x.abs().max())


def violation(name: str, draw: Draw) -> float:
    """By how much the property fails in this draw, in shares of the largest output (or weight, or derivative)."""
    if name in MOVES:
        return _moved(name, draw)
    return OTHERS[name](draw)


# --- shifts and permutations ---


def _shift(draw: Draw) -> Tensor:
    """Order of the tokens after a shift by an odd number, which no stride divides."""
    return _rolled(draw, 2 * draw.pick(0, draw.length // 2 - 1) + 1)


def _stride_shift(draw: Draw) -> Tensor:
    stride = TOTAL_STRIDE[draw.network]
    return _rolled(draw, stride * draw.pick(1, draw.length // stride - 1))


def _rolled(draw: Draw, by: int) -> Tensor:
    return torch.arange(draw.length, device=draw.device).roll(by)


MOVES: dict[str, Callable[[Draw], Tensor]] = {
    "shift_equivariant": _shift,
    "stride_shift_equivariant": _stride_shift,
    "inside_shift_equivariant": _shift,
    "permutation_equivariant": Draw.permutation,
    "shift_invariant": _shift,
    "stride_shift_invariant": _stride_shift,
    "permutation_invariant": Draw.permutation,
    "unpooled_shift_invariant": _shift,
}


def _moved(name: str, draw: Draw) -> float:
    order = MOVES[name](draw)
    model, x = draw.model(), draw.tokens()
    if name == "inside_shift_equivariant":
        return _moved_inside(draw, model, x)
    out, moved = model(x), model(x[order])
    scale = largest(out)
    if name == "unpooled_shift_invariant":
        return largest(moved - out) / scale
    if name.endswith("_invariant"):
        return largest(moved.mean(dim=0) - out.mean(dim=0)) / scale
    if len(out) == draw.length:
        return largest(moved - out[order]) / scale
    # Half as many outputs: they may move by as many places as fits best.
    return min(largest(moved - out.roll(places, dims=0)) for places in range(len(out))) / scale


def _moved_inside(draw: Draw, model: Any, x: Tensor) -> float:
    """One position to the right, at outputs whose neighbourhoods lie inside before and after."""
    reach = draw.kernel // 2
    out, moved = model(x), model(x.roll(1, dims=0))
    before = out[reach : draw.length - 1 - reach]
    after = moved[reach + 1 : draw.length - reach]
    return largest(after - before) / largest(out)


# --- locality, fixed mixing, parameters ---


def _gradient(run: Callable[[Tensor], Tensor], x: Tensor, cotangent: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(run(x), x, cotangent, allow_unused=True)
    return torch.zeros_like(x) if found is None else found


def _local(draw: Draw) -> float:
    """Derivative of an output by the token opposite on the ring, relative to its largest by any."""
    model, x = draw.model(), draw.tokens()
    out = model(x)
    place = draw.pick(0, len(out) - 1)
    cotangent = torch.zeros_like(out)
    cotangent[place] = draw.normal(draw.channels)
    gradient = _gradient(model, x, cotangent)
    opposite = (place * draw.length // len(out) + draw.length // 2) % draw.length
    return largest(gradient[opposite]) / largest(gradient)


def _fixed_mixing(draw: Draw) -> float:
    """How much the derivative of the mixing layer differs between two inputs."""
    layer, cotangent = draw.layer(), draw.tokens()
    here, there = (_gradient(layer, draw.tokens(), cotangent) for _ in range(2))
    return largest(here - there) / largest(here)


def parameters(module: nn.Module) -> int:
    """How many numbers are learned."""
    return sum(weight.numel() for weight in module.parameters())


def _length_free(draw: Draw) -> float:
    return parameters(draw.model(2 * draw.length)) / parameters(draw.model()) - 1


# --- attention ---


def _distance_free(draw: Draw) -> float:
    """A' = P A P^T: what two tokens are to each other does not depend on where they stand."""
    layer, x, order = draw.layer(), draw.tokens(), draw.permutation()
    before, after = layer.weights(x), layer.weights(x[order])
    return largest(after - before[:, order][:, :, order]) / largest(before)


def _repeat_invariant(draw: Draw) -> float:
    """Every token twice, each beside itself."""
    x = draw.tokens()
    once, twice = draw.model()(x), draw.model(2 * draw.length)(x.repeat_interleave(2, dim=0))
    return largest(twice.mean(dim=0) - once.mean(dim=0)) / largest(once)


def _patches(draw: Draw) -> Any:
    return draw.made(lambda: PatchAttention(draw.channels, draw.kernel, draw.num_heads), "patches")


def _zoomed(image: Tensor, factor: int) -> Tensor:
    return image.repeat_interleave(factor, dim=0).repeat_interleave(factor, dim=1)


def _changed(model: Any, before: Tensor, after: Tensor) -> float:
    # Relative to the outputs that are averaged: their mean may be close to zero.
    return largest(model(after) - model(before)) / largest(model.outputs(before))


def _zoom(draw: Draw) -> float:
    """Every pixel becomes 2 x 2: four times as many patches."""
    image = draw.normal(draw.length, draw.length)
    return _changed(_patches(draw), image, _zoomed(image, 2))


def _zoom_in_patch(draw: Draw) -> float:
    """An object of half a patch in an empty image, then of a whole patch."""
    patch = draw.channels
    small = draw.normal(patch // 2, patch // 2)
    before, after = (torch.zeros(draw.length, draw.length, dtype=small.dtype, device=small.device) for _ in range(2))
    before[: patch // 2, : patch // 2] = small
    after[:patch, :patch] = _zoomed(small, 2)
    return _changed(_patches(draw), before, after)


def _zoom_of_flat_patches(draw: Draw) -> float:
    side = draw.length // draw.channels
    image = _zoomed(draw.normal(side, side), draw.channels)
    return _changed(_patches(draw), image, _zoomed(image, 2))


# --- U-Net, and convolution as attention ---


def _several_scales(draw: Draw) -> float:
    """1 if all feature maps have the length of the input, else 0."""
    model = draw.model()
    lengths: set[int] = set()
    # A convolution inside hands channels first; its wrapper has tokens.
    watched = [part for part in model.modules() if part is not model and not isinstance(part, nn.Conv1d)]
    hooks = [part.register_forward_hook(lambda module, inputs, out: lengths.add(out.shape[-2])) for part in watched]
    model(draw.tokens())
    for hook in hooks:
        hook.remove()
    return float(len(lengths) < 2)


def _detail_bypass(draw: Draw) -> float:
    """1 if nothing of the output's derivative is left when the coarsest map is held fixed, else 0."""
    model, x = draw.model(), draw.tokens()
    hook = model.bottleneck.register_forward_hook(lambda module, inputs, out: out.detach())
    gradient = _gradient(model, x, draw.tokens())
    hook.remove()
    return float(largest(gradient) == 0)


def _taps_as_heads(draw: Draw) -> float:
    """A convolution against self-attention with a head for each tap, which masks leave one position.

    Called attention, the same layer without masks: its weights are those of the content, here all equal.
    """
    x, kernel = draw.tokens(), draw.normal(draw.channels, draw.channels, draw.kernel)
    circular = draw.network != "convolution_zeros"
    conv = nn.Conv1d(
        draw.channels,
        draw.channels,
        draw.kernel,
        padding=draw.kernel // 2,
        bias=False,
        padding_mode="circular" if circular else "zeros",
    )
    conv = conv.to(device=x.device, dtype=x.dtype)
    with torch.no_grad():
        conv.weight.copy_(kernel)
    layer = convolution_layer(kernel)
    mask = None
    if draw.network != "attention":
        mask = tap_masks(draw.length, draw.kernel, circular=circular, device=x.device)
    out = layer(as_tokens(layer, x), mask)[:, : draw.channels]
    wanted = conv(x.mT).mT
    return largest(out - wanted) / largest(wanted)


OTHERS: dict[str, Callable[[Draw], float]] = {
    "local": _local,
    "fixed_mixing": _fixed_mixing,
    "length_free": _length_free,
    "distance_free": _distance_free,
    "repeat_invariant": _repeat_invariant,
    "zoom_invariant": _zoom,
    "zoom_in_patch_invariant": _zoom_in_patch,
    "zoom_of_flat_patches_invariant": _zoom_of_flat_patches,
    "several_scales": _several_scales,
    "detail_bypass": _detail_bypass,
    "taps_as_heads": _taps_as_heads,
}


def shift_change(draw: Draw) -> float:
    """Relative change of all outputs, as a root of squares, when the input moves by one position."""
    model, x = draw.model(), draw.tokens()
    out, moved = model(x), model(x.roll(1, dims=0))
    return float((moved - out).norm() / out.norm())
