"""Colours that a colour-blind reader can tell apart, by a model of what such a reader sees."""

from itertools import combinations

import numpy as np
import pytest

from checkmate.plot.picture import COLOURS, LABELS, MARKERS, SERIES

TOLD_APART = 12.0
"""Distance in CIELAB; 2.3 is the least that people notice side by side."""

# Machado, Oliveira, Fernandes (2009), severity 1.0: linear RGB as it is seen.
SIGHT = {
    "trichromat": np.eye(3),
    "protanope": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranope": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanope": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])


def seen(colour: str, sight: str) -> np.ndarray:
    """A colour in CIELAB as it is seen."""
    share = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    relative = TO_XYZ @ np.clip(np.array(SIGHT[sight]) @ linear, 0, 1) / WHITE
    f = np.where(relative > 0.008856, np.cbrt(relative), 7.787 * relative + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_the_model_knows_what_is_hard_to_tell():
    red, green = "#b35900", "#738000"
    assert np.linalg.norm(seen(red, "deuteranope") - seen(green, "deuteranope")) < TOLD_APART
    assert np.linalg.norm(seen(red, "trichromat") - seen(green, "trichromat")) > 3 * TOLD_APART
    np.testing.assert_allclose(seen("#ffffff", "trichromat"), [100, 0, 0], atol=0.1)


@pytest.mark.parametrize("sight", SIGHT)
def test_colours_of_a_picture_are_told_apart(sight):
    for together in ([COLOURS[part] for part in LABELS], SERIES):
        for a, b in combinations(together, 2):
            assert np.linalg.norm(seen(a, sight) - seen(b, sight)) > TOLD_APART, (a, b)
    assert len(set(MARKERS)) == len(SERIES), "and solvers have a marker each"
