"""unlogged(): lines that libraries write past Python."""

import os
import threading

import pytest

from checkmate.unlogged import unlogged


@pytest.mark.parametrize("descriptor", [1, 2])
def test_lines_with_the_words_are_left_out(capfd, descriptor):
    with pytest.raises(ValueError), unlogged(descriptor, (b"Noise::", b"log")):
        os.write(descriptor, b"Noise::of a library\nkept\na log\n")
        raise ValueError
    os.write(descriptor, b"Noise:: afterwards\n")
    assert capfd.readouterr()[descriptor - 1] == "kept\nNoise:: afterwards\n"


@pytest.mark.parametrize("descriptor", [1, 2])
def test_threads_lose_no_line(capfd, descriptor):
    together = threading.Barrier(4)

    def work(name):
        for k in range(20):
            together.wait()
            with unlogged(descriptor, (b"Noise::",)):
                os.write(descriptor, f"{name} {k}\n".encode())

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.write(descriptor, b"the end\n")
    lines = capfd.readouterr()[descriptor - 1].splitlines()
    assert lines[-1] == "the end" and len({*lines}) == len(lines) == 81
