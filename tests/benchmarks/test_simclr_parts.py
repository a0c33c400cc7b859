"""The parts of SimCLR: network, loss and views."""

import math

import pytest
import torch
from pictures import STILL, generator, pictures
from torch.nn import functional as F

from benchmarks.simclr import (
    ResNet18,
    ViewConfig,
    nt_xent,
    random_views,
)
from benchmarks.simclr.augment import LUMA, crop_and_flip, hue_rotation, recolour

# --- the network -----------------------------------------------------------------------------------------------------


def test_resnet18_is_the_one_of_the_literature():
    network = ResNet18()
    assert network.feature_dim == 512
    # 11,173,962 parameters are those of the CIFAR ResNet-18 with a ten-class layer of 5,130.
    assert sum(p.numel() for p in network.parameters()) == 11_173_962 - 5_130
    assert sum(isinstance(m, torch.nn.Conv2d) and m.kernel_size == (3, 3) for m in network.modules()) == 17


def test_resolution_falls_by_eight_and_features_are_the_mean_over_positions():
    network = ResNet18(width=4).eval()
    x = pictures(2, 32).float()
    maps = network.blocks(F.relu(network.norm(network.stem(x))))
    assert maps.shape == (2, 32, 4, 4)
    torch.testing.assert_close(network(x), maps.flatten(2).mean(2))


def test_width_must_be_positive():
    with pytest.raises(ValueError, match="width must be at least 1"):
        ResNet18(width=0)


# --- the loss --------------------------------------------------------------------------------------------------------


def test_nt_xent_is_its_equation():
    z = torch.randn(10, 3, generator=generator(), dtype=torch.float64)
    unit = z / z.norm(dim=1, keepdim=True)
    expected = 0.0
    for i in range(10):
        scores = [math.exp(float(unit[i] @ unit[j]) / 0.3) if j != i else 0.0 for j in range(10)]
        expected -= math.log(scores[(i + 5) % 10] / sum(scores)) / 10
    assert float(nt_xent(z, temperature=0.3)) == pytest.approx(expected, rel=1e-5)


def test_nt_xent_does_not_change_with_the_length_of_projections():
    z = torch.randn(8, 4, generator=generator())
    torch.testing.assert_close(nt_xent(z), nt_xent(z * torch.linspace(0.1, 9, 8)[:, None]))


@pytest.mark.parametrize("rows", [3, 2])
def test_nt_xent_needs_two_views_of_two_images(rows):
    with pytest.raises(ValueError, match="two views of at least two images"):
        nt_xent(torch.zeros(rows, 4))


# --- views -----------------------------------------------------------------------------------------------------------


def test_a_view_without_change_is_the_image():
    images = pictures()
    torch.testing.assert_close(random_views(images, STILL, generator=generator()), images)


def test_views_depend_on_the_generator_alone():
    images = pictures().float()
    first = random_views(images, ViewConfig(), generator=generator(3))
    torch.manual_seed(99)
    torch.testing.assert_close(first, random_views(images, ViewConfig(), generator=generator(3)), rtol=0, atol=0)
    assert (first - random_views(images, ViewConfig(), generator=generator(4))).abs().max() > 0.1
    assert first.min() >= 0
    assert first.max() <= 1


def test_images_of_a_batch_get_views_of_their_own():
    views = random_views(pictures(1).expand(6, -1, -1, -1), ViewConfig(), generator=generator())
    assert torch.cdist(views.flatten(1), views.flatten(1)).add(torch.eye(6)).min() > 0.1


def test_flip_mirrors_left_and_right():
    images = pictures()
    config = ViewConfig(scale=(1, 1), aspect=(1, 1), flip=1, jitter=0, grayscale=0)
    torch.testing.assert_close(crop_and_flip(images, config, generator=generator()), images.flip(3))


def test_a_crop_reads_its_rectangle():
    """On images whose red is the column and whose green is the row, a crop shows where it was taken from."""
    side = 32
    line = (torch.arange(side, dtype=torch.float64) + 0.5) / side
    ramp = torch.stack([line.expand(side, side), line[:, None].expand(side, side), torch.zeros(side, side)])
    config = ViewConfig(scale=(0.25, 0.25), aspect=(1, 1), flip=0)
    views = crop_and_flip(ramp.expand(200, -1, -1, -1), config, generator=generator())
    # A quarter of the area is half a side: neighbouring pixels of the view are half a pixel of the image apart.
    inner = views[:, :, 4:-4, 4:-4]  # the outermost may lie beyond the last pixel's centre, where the border repeats
    torch.testing.assert_close(inner[:, 0].diff(dim=2), torch.full_like(inner[:, 0, :, 1:], 0.5 / side))
    torch.testing.assert_close(inner[:, 1].diff(dim=1), torch.full_like(inner[:, 1, 1:], 0.5 / side))
    centre = views[:, :2, side // 2 - 1 : side // 2 + 1, side // 2 - 1 : side // 2 + 1].mean(dim=(2, 3))
    assert 0.25 <= centre.min() < 0.3  # centres fill all that leaves the crop inside
    assert 0.7 < centre.max() <= 0.75


def test_colour_jitter_is_its_four_steps():
    """The one affine map against brightness, contrast, saturation and hue made one after the other."""
    images = 0.3 + 0.2 * pictures(5)
    config = ViewConfig(brightness=0.2, contrast=0.3, saturation=0.4, hue=0.05, jitter=1, grayscale=0)
    got = recolour(images, config, generator=generator(7))
    source = generator(7)

    def draw(extent):
        return extent * (2 * torch.rand(5, generator=source, dtype=torch.float64) - 1).view(5, 1, 1, 1)

    torch.rand(5, generator=source, dtype=torch.float64)  # whether there is jitter at all
    b, c, s, turn = 1 + draw(0.2), 1 + draw(0.3), 1 + draw(0.4), 2 * math.pi * draw(0.05)
    luma = torch.tensor(LUMA, dtype=torch.float64).view(1, 3, 1, 1)
    x = b * images
    x = c * x + (1 - c) * (luma * x).sum(1, keepdim=True).mean(dim=(2, 3), keepdim=True)
    x = s * x + (1 - s) * (luma * x).sum(1, keepdim=True)
    x = torch.einsum("bij,bjhw->bihw", hue_rotation(turn.flatten()), x)
    assert 0 < x.min() < x.max() < 1  # nothing cut, so that the comparison is of the whole map
    torch.testing.assert_close(got, x)


def test_hue_rotation_turns_red_to_green_and_leaves_grey():
    third = hue_rotation(torch.tensor([2 * math.pi / 3, 0.7], dtype=torch.float64))
    red, green, grey = (
        torch.eye(3, dtype=torch.float64)[0],
        torch.eye(3, dtype=torch.float64)[1],
        torch.ones(3).double(),
    )
    torch.testing.assert_close(third[0] @ red, green)
    torch.testing.assert_close(third @ grey, grey.expand(2, 3))
    torch.testing.assert_close(third @ third.mT, torch.eye(3, dtype=torch.float64).expand(2, 3, 3))


def test_grayscale_gives_three_equal_channels():
    images = pictures()
    views = recolour(images, ViewConfig(jitter=0, grayscale=1), generator=generator())
    torch.testing.assert_close(views, views[:, :1].expand_as(views))
    torch.testing.assert_close(views[:, 0], torch.einsum("c,bchw->bhw", torch.tensor(LUMA).double(), images))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"scale": (0.0, 1.0)}, "scale must be an area range"),
        ({"scale": (0.5, 1.1)}, "scale must be an area range"),
        ({"aspect": (2.0, 1.0)}, "aspect must be a range"),
        ({"hue": 0.6}, r"hue must lie in \[0, 0.5\]"),
        ({"flip": 1.5}, "flip is a probability"),
    ],
)
def test_invalid_view_options_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        ViewConfig(**options)
