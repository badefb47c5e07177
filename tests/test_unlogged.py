"""unlogged(): lines that libraries write past Python."""

import os

import pytest

from checkmate.unlogged import unlogged


@pytest.mark.parametrize("descriptor", [1, 2])
def test_lines_with_the_words_are_left_out(capfd, descriptor):
    with pytest.raises(ValueError), unlogged(descriptor, (b"Noise::", b"log")):
        os.write(descriptor, b"Noise::of a library\nkept\na log\n")
        raise ValueError
    os.write(descriptor, b"Noise:: afterwards\n")
    assert capfd.readouterr()[descriptor - 1] == "kept\nNoise:: afterwards\n"
