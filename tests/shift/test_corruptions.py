"""Corruptions follow their definitions, for many images as for one."""

import colorsys
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from benchmarks.shift.corruptions import CLEAN, CORRUPTIONS, EXTRA, MEASURED, blur, corrupted
from benchmarks.shift.corruptions.ice import ice_crops
from benchmarks.shift.corruptions.motion import blurred_along, line_positions, line_weights
from benchmarks.shift.corruptions.plasma import plasma
from benchmarks.shift.corruptions.zoom import applied, zoom_matrix

NAMES = sorted(CORRUPTIONS)
DRAWN = {
    "elastic_transform",
    "fog",
    "frost_made",
    "gaussian_noise",
    "glass_blur",
    "impulse_noise",
    "motion_blur",
    "shot_noise",
    "snow",
    "spatter",
    "speckle_noise",
}


@pytest.fixture(scope="module")
def make_images():
    """Smooth random images with black, white, gray and saturated corners."""
    rng = np.random.default_rng(1)
    soft = ndimage.gaussian_filter(rng.normal(size=(6, 32, 32, 3)), (0, 3, 3, 0.3))
    soft = (soft - soft.min()) / (soft.max() - soft.min())
    images = (soft * 255).astype(np.uint8)
    images[:, :2, :2], images[:, :2, -2:] = 0, 255
    images[:, -2:, :2], images[:, -2:, -2:] = 128, (255, 0, 0)
    return images


def damage(images, name, severity):
    made = corrupted(images, name, severity).astype(float)
    return float(np.sqrt(np.mean((made - images) ** 2)))


def test_there_are_fifteen_to_measure_and_four_more():
    assert len(MEASURED) == 15 and len(EXTRA) == 4 and not set(MEASURED) & set(EXTRA)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("severity", [1, 3, 5])
def test_pictures_stay_pictures_and_are_no_longer_the_same(make_images, name, severity):
    before = make_images.copy()
    made = corrupted(make_images, name, severity)
    assert made.shape == make_images.shape and made.dtype == np.uint8
    assert (made != make_images).any(axis=(1, 2, 3)).all()
    assert (make_images == before).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides(make_images, name):
    made = corrupted(make_images, name, 4)
    assert (made == corrupted(make_images, name, 4)).all()
    other = corrupted(make_images, name, 4, seed=1)
    assert (made != other).any() == (name in DRAWN)


@pytest.mark.parametrize("name", NAMES)
def test_severities_differ(make_images, name):
    made = [corrupted(make_images, name, severity) for severity in range(1, 6)]
    for lesser, greater in pairwise(made):
        assert (lesser != greater).any()


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"elastic_transform", "saturate"}))
def test_the_severest_damages_most(make_images, name):
    """But for elastic (constants trade shear for drift) and saturation (less, then more)."""
    assert damage(make_images, name, 5) > damage(make_images, name, 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("severity", [2, 5])
def test_a_picture_does_not_depend_on_those_after_it(make_images, name, severity):
    one = corrupted(make_images[:1], name, severity).astype(int)
    among = corrupted(make_images, name, severity)[:1].astype(int)
    most = 1 if name == "zoom_blur" else 0  # sums of a large product, rounded in other orders
    assert np.abs(one - among).max() <= most


def test_nor_on_other_blocks(make_images, monkeypatch):
    monkeypatch.setattr("benchmarks.shift.corruptions._BLOCK", 4)
    whole = corrupted(make_images, "gaussian_noise", 5)
    assert (corrupted(make_images[:4], "gaussian_noise", 5) == whole[:4]).all()
    # Blocks draw their own noise: equal images in two blocks have different results.
    same = corrupted(np.repeat(make_images[:1], 8, axis=0), "gaussian_noise", 5)
    assert (same[0] != same[4]).any()


def test_clean_changes_nothing(make_images):
    assert corrupted(make_images, CLEAN, 0) is make_images


@pytest.mark.parametrize("wrong", [0, 6])
def test_severities_end_at_five(make_images, wrong):
    with pytest.raises(AssertionError):
        corrupted(make_images, "fog", wrong)


# ------------------------------------------------------------ noise


@pytest.mark.parametrize(
    ("name", "variance"),
    [
        ("gaussian_noise", 0.1**2),
        ("shot_noise", 0.5 / 50),
        ("speckle_noise", (0.2 * 0.5) ** 2),
        ("impulse_noise", 0.07 / 4),
    ],
)
def test_noise_has_the_variance_it_should(name, variance):
    gray = np.full((20, 32, 32, 3), 128, np.uint8)
    made = corrupted(gray, name, 5) / 255
    assert np.var(made) == pytest.approx(variance, rel=0.04)
    assert made.mean() == pytest.approx(0.5, abs=0.004)
    # Channels are disturbed separately.
    channels = made.reshape(-1, 3).T
    assert np.abs(np.corrcoef(channels)[np.triu_indices(3, 1)]).max() < 0.03


def test_impulses_are_black_and_white_in_equal_parts():
    gray = np.full((20, 32, 32, 3), 128, np.uint8)
    made = corrupted(gray, "impulse_noise", 5)
    assert set(np.unique(made)) == {0, 128, 255}
    assert [(made == end).mean() for end in (0, 255)] == pytest.approx([0.035] * 2, abs=0.003)


# ------------------------------------------------------------ blur


def test_a_disk_is_what_it_is_by_hand():
    kernel = blur.disk(1.0, 1e-3)  # no softening: the center and its four neighbors
    cross = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]]) / 5
    assert kernel[7:10, 7:10] == pytest.approx(cross) and kernel.sum() == pytest.approx(1)
    point = np.exp([-1 / (2 * 0.4**2), 0, -1 / (2 * 0.4**2)])
    assert blur.disk(0.3, 0.4)[7:10, 7:10] == pytest.approx(
        np.outer(point, point) / point.sum() ** 2
    )


def test_defocus_averages_over_the_disk(make_images):
    made, kernel = corrupted(make_images, "defocus_blur", 5), blur.disk(1.5, 0.1)
    mirrored = np.pad(make_images / 255, [(0, 0), (8, 8), (8, 8), (0, 0)], mode="reflect")
    slow = [
        (mirrored[:, row : row + 17, column : column + 17] * kernel[..., None]).sum((1, 2))
        for row in (0, 1, 16, 31)
        for column in (0, 15, 31)
    ]
    fast = [made[:, row, column] for row in (0, 1, 16, 31) for column in (0, 15, 31)]
    assert np.abs(np.stack(slow) * 255 - np.stack(fast)).max() <= 1.001


def test_pixels_wander_as_in_the_published_loop(rng):
    images = rng.integers(0, 256, (3, 7, 7, 3), dtype=np.uint8)
    offsets = rng.integers(-1, 1, (3, 7, 7, 2))
    slow = images.copy()
    for image, moves in zip(slow, offsets, strict=True):
        for row in range(6, 1, -1):
            for column in range(6, 1, -1):
                down, right = moves[row, column]
                here, there = image[row, column], image[row + down, column + right]
                here[:] = there  # an exchange through views, as published: one value is lost
    assert (blur.displace(images, offsets) == slow).all()
    assert (slow != images).any()


def test_a_true_exchange_would_be_another_corruption(rng):
    images = rng.integers(0, 256, (1, 7, 7, 3), dtype=np.uint8)
    made = blur.displace(images, rng.integers(-1, 1, (1, 7, 7, 2)))
    before, after = (sorted(map(tuple, each.reshape(-1, 3))) for each in (images, made))
    assert before != after


def test_glass_wanders_twice_at_most_severity(make_images, monkeypatch):
    rounds = []
    monkeypatch.setattr(blur, "displace", lambda images, _: rounds.append(1) or images)
    for severity in range(1, 6):
        corrupted(make_images[:1], "glass_blur", severity)
    assert len(rounds) == 1 + 1 + 1 + 2 + 2


@pytest.mark.parametrize("degrees", [-135.0, -100.3, -45.0, 0.0, 17.0, 45.0])
def test_motion_reads_along_a_line(rng, degrees):
    image = rng.random((1, 9, 9, 3)).astype(np.float32)
    weights = np.exp(-(np.arange(13) ** 2) / (2 * 2.0**2))
    slow = np.zeros((9, 9, 3))
    for i, weight in enumerate(weights / weights.sum()):
        right = int(np.ceil(i * np.cos(np.deg2rad(degrees)) - 0.5))
        down = int(np.ceil(i * np.sin(np.deg2rad(degrees)) - 0.5))
        for row in range(9):
            for column in range(9):
                at = np.clip(row + down, 0, 8), np.clip(column + right, 0, 8)
                slow[row, column] += weight * image[0][at]
    fast = blurred_along(image, 6, 2.0, np.array([degrees]))
    assert fast[0] == pytest.approx(slow, abs=1e-5)


def test_each_picture_has_its_own_direction(rng):
    images, degrees = rng.random((4, 9, 9)).astype(np.float32), np.array([0.0, 30, -30, 0])
    together = blurred_along(images, 3, 1.0, degrees)
    alone = [blurred_along(images[i : i + 1], 3, 1.0, degrees[i : i + 1]) for i in range(4)]
    assert (together == np.concatenate(alone)).all()
    assert line_positions(degrees, 5)[1, :, 0].tolist() == [0, 0, 1, 1, 2]
    assert len(line_weights(6, 1.0)) == 13


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.13, 1.26, 1.75, 2.25])
def test_a_zoom_is_scipys(rng, factor):
    image = rng.random((32, 32, 3))
    kept = int(np.ceil(32 / factor))
    top = (32 - kept) // 2
    large = ndimage.zoom(
        image[top : top + kept, top : top + kept], (factor, factor, 1), order=1
    )
    cut = (len(large) - 32) // 2
    zoom = zoom_matrix(factor, 32)
    fast = applied(np.kron(zoom, zoom), image[None])[0]
    assert fast == pytest.approx(large[cut : cut + 32, cut : cut + 32])


def test_zoom_blur_averages_the_picture_and_its_zooms(make_images):
    image = make_images[:1] / 255
    zooms = [zoom_matrix(factor, 32) for factor in np.arange(1, 1.06, 0.01)]
    slow = image + sum(applied(np.kron(zoom, zoom), image) for zoom in zooms)
    made = corrupted(make_images[:1], "zoom_blur", 1)
    assert np.abs(slow / (len(zooms) + 1) * 255 - made).max() <= 1.001


# ------------------------------------------------------------ weather and colors


def through_colorsys(image, change):
    pixels = image.reshape(-1, 3) / 255
    changed = [colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*pixel))) for pixel in pixels]
    return np.reshape(changed, image.shape) * 255


@pytest.mark.parametrize(("severity", "raised"), [(1, 0.05), (5, 0.3)])
def test_brightness_raises_the_value(make_images, severity, raised):
    slow = through_colorsys(make_images[0], lambda h, s, v: (h, s, min(v + raised, 1)))
    made = corrupted(make_images[:1], "brightness", severity)[0]
    assert np.abs(slow - made).max() <= 1.001


@pytest.mark.parametrize(("severity", "factor", "more"), [(2, 0.1, 0.0), (5, 2.5, 0.2)])
def test_saturate_changes_the_saturation(make_images, severity, factor, more):
    slow = through_colorsys(make_images[0], lambda h, s, v: (h, min(s * factor + more, 1), v))
    made = corrupted(make_images[:1], "saturate", severity)[0]
    assert np.abs(slow - made).max() <= 1.001


def test_contrast_shrinks_deviations_channel_by_channel(make_images):
    image = make_images[0] / 255
    mean = image.reshape(-1, 3).mean(axis=0)
    slow = np.clip((image - mean) * 0.15 + mean, 0, 1) * 255
    assert np.abs(slow - corrupted(make_images[:1], "contrast", 5)[0]).max() <= 1.001


def test_plasma_is_the_diamond_square_walk_on_a_torus():
    """On eight by eight pixels, every height from the four around it, one by one."""
    found, side = plasma(1, 8, 2.0, np.random.default_rng(3))[0], 8
    heights = np.zeros((side, side))

    def mean(row, column, *ways):
        near = [heights[(row + a) % side, (column + b) % side] for a, b in ways]
        return np.mean(near)

    for level, stream in enumerate(np.random.default_rng(3).spawn(3)):
        half = side // 2 ** (level + 1)
        noise = (100 / 2**level) ** 2 * stream.uniform(-1, 1, (1, 3, 2**level, 2**level))[0]
        slant = [(a, b) for a in (-half, half) for b in (-half, half)]
        straight = [(-half, 0), (half, 0), (0, -half), (0, half)]
        kinds = [((half, half), slant), ((0, half), straight), ((half, 0), straight)]
        for wobble, (start, ways) in zip(noise, kinds, strict=True):
            for (i, j), move in np.ndenumerate(wobble):
                at = start[0] + 2 * half * i, start[1] + 2 * half * j
                heights[at] = mean(*at, *ways) + move
    expected = (heights - heights.min()) / np.ptp(heights)
    assert found == pytest.approx(expected, abs=1e-5)


def test_clouds_reach_from_none_to_all_and_are_smooth_when_they_decay(rng):
    rough, smooth = plasma(20, 32, 1.3, rng), plasma(20, 32, 3.0, rng)
    for clouds in (rough, smooth):
        assert (clouds.min(axis=(1, 2)) == 0).all() and (clouds.max(axis=(1, 2)) == 1).all()
    assert np.abs(np.diff(smooth)).mean() < np.abs(np.diff(rough)).mean() / 2


def test_fog_keeps_the_brightest_value_in_reach(make_images):
    made = corrupted(make_images, "fog", 5)
    assert (made.max(axis=(1, 2, 3)) <= make_images.max(axis=(1, 2, 3))).all()
    black = np.zeros((1, 32, 32, 3), np.uint8)
    assert (corrupted(black, "fog", 5) == 0).all()  # no light, nothing to scatter


def test_frost_is_made_of_pieces_of_ice(rng):
    crops = ice_crops((50, 32, 32, 3), rng)
    assert 0 <= crops.min() and crops.max() <= 1 and crops.dtype == np.float32
    assert len(np.unique(crops.reshape(50, -1), axis=0)) == 50
    assert (crops[..., 2] >= crops[..., 0]).all()  # bluish


def test_snow_only_adds_light():
    gray = np.full((3, 32, 32, 3), 100, np.uint8)
    made = corrupted(gray, "snow", 5).astype(int)
    assert made.min() >= 99 and made.max() > 150
    # Flakes and whitening have no color, and the layer is its own half turn.
    assert (made == made[..., :1]).all()
    assert np.abs(made - made[:, ::-1, ::-1]).max() <= 1
    assert np.abs(made - made[:, ::-1]).max() > 50


# ------------------------------------------------------------ digital


def test_pixelate_is_boxes(make_images):
    made = corrupted(make_images, "pixelate", 5)
    small = Image.fromarray(make_images[2]).resize((20, 20), Image.Resampling.BOX)
    assert (np.asarray(small.resize((32, 32), Image.Resampling.BOX)) == made[2]).all()
    assert len(np.unique(made[2].reshape(-1, 3), axis=0)) <= 20 * 20


def test_jpeg_of_lower_quality_is_worse(make_images):
    errors = [damage(make_images, "jpeg_compression", severity) for severity in range(1, 6)]
    assert errors == sorted(errors)
