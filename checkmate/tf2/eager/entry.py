"""The one context that is open in this process, and what is checked before it opens."""

from __future__ import annotations

import tensorflow as tf

from checkmate.errors import EvictionError, UnsupportedError
from checkmate.tf2 import device as devices
from checkmate.tf2.eager import private_api, selftest
from checkmate.tf2.eager.interception import Interception
from checkmate.tf2.eager.runtime import EagerRuntime
from checkmate.tf2.memory.available import free_bytes
from checkmate.units import format_bytes

_open: tuple[object, Interception] | None = None


def enter(context: object, runtime: EagerRuntime) -> None:
    """Opens a context: ops go through the runtime from here."""
    global _open
    interception = Interception(runtime)
    interception.__enter__()
    _open = context, interception


def leave(context: object) -> None:
    """Closes the context that is open."""
    global _open
    if _open is None or _open[0] is not context:
        raise UnsupportedError("This context is not open.")
    (_, interception), _open = _open, None
    interception.__exit__()


def checked_device(budget_bytes: int | None) -> str:
    """Returns the device whose memory counts, or refuses."""
    if not tf.executing_eagerly():
        raise UnsupportedError(
            "dtr() was entered while a graph is traced (inside of tf.function, or of fit() without"
            " run_eagerly=True). It works on eager ops: enter it outside and run eagerly, or plan"
            " the traced step with checkmate.tf2.compile."
        )
    if _open is not None:
        raise UnsupportedError(
            "dtr() was entered while another dtr() or record() is open. There is one budget at a"
            " time: leave the other first."
        )
    if tf.distribute.has_strategy():
        strategy = type(tf.distribute.get_strategy()).__name__
        raise UnsupportedError(
            f"dtr() was entered under {strategy}, which trains in several threads. Use one device,"
            " without a strategy."
        )
    if not private_api.tape_is_empty() and private_api.is_accumulating():
        raise UnsupportedError(
            "dtr() was entered under a tf.autodiff.ForwardAccumulator, which would miss all ops."
            " Use GradientTape.gradient."
        )
    device = devices.training_device()
    if budget_bytes is not None:
        _check_budget(device, budget_bytes)
    selftest.check(device)
    return device


def _check_budget(device: str, budget_bytes: int) -> None:
    if not devices.allocator_reports(device):
        raise UnsupportedError(
            f"A budget needs an allocator that counts, and that of {device} does not. Set"
            " TF_CPU_ALLOCATOR_USE_BFC=true in the environment before TensorFlow is imported."
        )
    in_use = devices.bytes_in_use(device)
    if in_use > budget_bytes:
        raise EvictionError(
            f"The budget of {format_bytes(budget_bytes)} is used up before dtr() begins:"
            f" variables, data and other tensors take {format_bytes(in_use)},"
            f" {format_bytes(in_use - budget_bytes)} more. Raise the budget, or delete what is"
            " not needed.",
            budget_bytes=budget_bytes,
            needed_bytes=in_use,
        )


def reserve(device: str, budget_bytes: int) -> None:
    """Has the allocator take the rest of the budget in one piece, where it can: pieces of many
    sizes waste up to half of themselves."""
    if devices.may_fetch(device) and budget_bytes <= free_bytes(device):
        devices.fetch_region(device, budget_bytes - devices.bytes_in_use(device))
    tf.config.experimental.reset_memory_stats(device)
