"""Warped images and drops of water, compared with slower methods."""

import numpy as np
import pytest
from scipy import ndimage

from benchmarks.shift.corruptions import corrupted, digital
from benchmarks.shift.corruptions.spatter import distances, edges, equalized, water


@pytest.mark.parametrize(
    ("fold", "mode"), [(digital._mirrored, "mirror"), (digital._reflected, "reflect")]
)
def test_pictures_are_read_between_pixels_as_scipy_does(rng, fold, mode):
    images = rng.random((3, 8, 8, 2)).astype(np.float32)
    places = rng.uniform(-6, 13, (3, 2, 8, 8))
    fast = digital.sampled(images, places, fold)
    for image, place, found in zip(images, places, fast, strict=True):
        for channel in range(2):
            slow = ndimage.map_coordinates(image[..., channel], place, order=1, mode=mode)
            assert found[..., channel] == pytest.approx(slow, abs=1e-5)


def test_the_shear_takes_corners_where_it_was_told(rng):
    grid, moves = np.mgrid[:32, :32].astype(float), rng.uniform(-2, 2, (4, 3, 2))
    places = digital.sheared_grid(grid, moves)
    assert digital.sheared_grid(grid, np.zeros((1, 3, 2)))[0] == pytest.approx(grid)
    corners = np.array([[26, 26], [26, 6], [6, 6]])  # (x, y)
    for place, move in zip(places, moves, strict=True):
        for (x, y), (dx, dy) in zip(corners, move, strict=True):
            # What stands at the moved corner was read at the corner: both maps are affine, so
            # reading them between pixels is exact.
            at = [[y + dy], [x + dx]]
            read = [ndimage.map_coordinates(each, at, order=1)[0] for each in place]
            assert read == pytest.approx([y, x], abs=1e-6)


def test_elastic_keeps_a_picture_of_one_color():
    plain = np.full((2, 32, 32, 3), (40, 90, 200), np.uint8)
    for severity in range(1, 6):
        made = corrupted(plain, "elastic_transform", severity)
        assert np.abs(made.astype(int) - plain).max() <= 1


def test_the_mildest_elastic_has_no_drift():
    """At severity 1 only the shear is left, so straight edges stay straight."""
    images = np.zeros((5, 32, 32, 3), np.uint8)
    images[:, :, 16:] = 255
    bends = []
    for severity in (1, 5):
        borders = corrupted(images, "elastic_transform", severity)[:, 8:24, :, 0].sum(2) / 255
        bends.append(np.abs(np.diff(borders, 2)).max(axis=1))
    assert bends[0].max() < 0.2 < 0.5 < bends[1].min()


def test_an_edge_is_found_where_it_is():
    images = np.zeros((3, 12, 12), np.uint8)
    images[0, :, 6:], images[1, 4:, :] = 200, 200
    found = edges(images)
    assert not found[2].any()
    # One pixel wide, on one side of the step.
    assert found[0].sum(axis=1).tolist() == [1] * 12 and found[0][:, 5:7].any(axis=1).all()
    assert found[1].sum(axis=0).tolist() == [1] * 12 and found[1][3:5].any(axis=0).all()


def test_weak_edges_count_only_beside_strong_ones():
    images = np.zeros((2, 12, 12), np.uint8)
    images[:, :, 6:] = 20  # a gradient of 80: may be an edge
    assert not edges(images[:1]).any()
    images[1, :4, 6:] = 200  # strong above, weak below, connected
    assert edges(images)[1][8:, 5:7].any() and not edges(images)[0].any()


def test_distances_are_within_a_picture(rng):
    marked = rng.random((4, 9, 9)) < 0.05
    marked[2] = False
    found = distances(marked)
    assert (found[2] == 20).all()
    for mine, marks in zip(found, marked, strict=True):
        for row, column in [(0, 0), (4, 5), (8, 8)] if marks.any() else []:
            at = np.argwhere(marks) - (row, column)
            assert mine[row, column] == pytest.approx(np.hypot(*at.T).min())
    assert (distances(np.zeros((2, 5, 5), bool)) == 20).all()


def test_levels_are_spread_evenly():
    images = np.array([[[3, 3], [5, 9]], [[7, 7], [7, 7]]], np.uint8)
    assert equalized(images).tolist() == [[[0, 0], [128, 255]], [[7, 7], [7, 7]]]


def test_no_drops_make_no_water():
    shades = water(np.zeros((2, 16, 16), np.float32))
    assert (shades == 0).all()


def test_drops_shine_at_most_fully(rng):
    drops = ndimage.gaussian_filter(rng.normal(0.65, 0.3, (4, 32, 32)), (0, 1, 1))
    shades = water(np.where(drops < 0.69, 0, drops).astype(np.float32))
    assert shades.min() >= 0 and (shades.max(axis=(1, 2)) == 1).all()
    assert (shades[drops < 0.69] == 0).all()


def test_mud_covers_with_one_color(rng):
    white = np.full((4, 32, 32, 3), 255, np.uint8)
    made = corrupted(white, "spatter", 5)
    covered = (made < 255).all(axis=3)
    assert 0.02 < covered.mean() < 0.5
    assert tuple(made[covered].min(axis=0)) == pytest.approx((63, 42, 20), abs=12)
