"""Models by name: they fit any image that they should, and say in one sentence what does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from attnrepro.nn import presets
from attnrepro.nn.presets import build_model, seeded_model
from attnrepro.theory.image_models import PRESETS, cost


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_labels_images(name: str) -> None:
    """Of Fashion-MNIST, of CIFAR, and not square; a patch of 7 does not fit the latter two."""
    for shape in ((1, 28, 28), (3, 32, 32), (3, 16, 24)):
        if name == "vit_patch7" and shape[1] != 28:
            continue
        model = build_model(name, shape, 7)
        assert model(torch.randn(2, *shape)).shape == (2, 7)


def test_settings_take_the_place_of_the_presets() -> None:
    model = build_model("vit", (3, 32, 48), 10, patch=(8, 4), position="rotary", pooling="class", norm_first=False)
    assert model(torch.randn(2, 3, 32, 48)).shape == (2, 10)
    assert build_model("cnn", (1, 28, 28), 10, norm="group", head="flatten")(torch.randn(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("resnet", {}, "^model=resnet must be one of cnn, cnn_circular, "),
        ("cnn", {"kernel": 3}, "^kernel=3 must be a setting of model=cnn: widths, strides, norm, head, padding$"),
        ("vit_patch7", {"patch": 4}, "^patch=4 must not be given to model=vit_patch7, which names its patch$"),
        ("vit", {"patch": 5}, "^patch=5x5 must divide the image, which is 28 high and 28 wide$"),
        ("vit", {"embed_dim": 10, "num_heads": 3}, "^num_heads=3 must be 1 or more and divide embed_dim=10$"),
        ("cnn", {"norm": "layer"}, "^norm=layer must be one of"),
        ("cnn", {"strides": (1, 2)}, "^strides="),
        ("cnn_circular", {"strides": (2, 2, 2)}, "^padding=circular must have"),
    ],
)
def test_bad_input_is_one_sentence_before_any_work(
    name: str, settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Built(torch.nn.Module):
        def __init__(self, *_: Any, **__: Any) -> None:
            raise AssertionError("work was done")

    for family, model in presets.FAMILIES.items():  # the same settings, but a body that must not be reached
        signature = type(f"No{model.__name__}", (Built,), {"__signature__": presets.inspect.signature(model)})
        monkeypatch.setitem(presets.FAMILIES, family, signature)
    with pytest.raises(AssertionError, match="work was done"):
        build_model("vit", (1, 28, 28), 10)
    with pytest.raises(ValueError, match=message):
        build_model(name, (1, 28, 28), 10, **settings)
    if "kernel" not in settings:  # the same before torch is there
        with pytest.raises(ValueError, match=message):
            cost(name, (1, 28, 28), 10, **settings)


def test_the_start_of_a_seed_is_its_own() -> None:
    def start(seed: int, name: str = "vit_patch7") -> torch.Tensor:
        return torch.cat([p.detach().flatten() for p in seeded_model(seed, name, (1, 28, 28), 10).parameters()])

    torch.manual_seed(5)
    first = start(1)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), drawn)  # nobody else's stream was touched
    torch.rand(100)
    assert torch.equal(start(1), first)
    assert not torch.equal(start(2), first)
