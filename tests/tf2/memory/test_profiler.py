"""A profile leaves standard error to others."""

import os

import pytest


@pytest.mark.own_process(TF_CPP_MIN_LOG_LEVEL="0")
def test_lines_about_a_profile_are_left_out_and_others_are_not(tensorflow, capfd):
    from checkmate.tf2.memory.profiler import LOGGED, observe

    def call():
        os.write(2, b"of the call\n")
        return tensorflow.constant(2.0) * 3

    observed = observe(call)
    assert observed.ran
    written = capfd.readouterr().err
    assert "of the call\n" in written
    assert not [line for line in written.splitlines() for each in LOGGED if each.decode() in line]
    tensorflow.profiler.experimental.start(os.devnull + "-")  # as TensorFlow itself says it
    tensorflow.profiler.experimental.stop(save=False)
    assert LOGGED[1].decode() in capfd.readouterr().err
