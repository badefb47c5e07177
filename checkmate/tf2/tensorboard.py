"""TensorBoardScalars: what a plan was made for and what it takes, as scalars next to those of
`keras.callbacks.TensorBoard`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2.fit import planned
from checkmate.tf2.keras2 import EveryKerasCallback
from checkmate.tf2.report import Report

GIB = 2**30


class TensorBoardScalars(EveryKerasCallback):
    """Writes memory and recomputations of a model under a budget to TensorBoard, once per epoch of
    `fit`.

    The tags are `checkmate/budget_GiB`, `checkmate/plain_peak_predicted_GiB`,
    `checkmate/planned_peak_predicted_GiB`, `checkmate/recomputations` (evaluations more than the
    plain step has), `checkmate/overhead_predicted` (its time by that of the plain step), and, where
    the allocator reports, `checkmate/planned_peak_measured_GiB`: the most that was in use during
    the epoch's training batches. All peaks count what the budget counts. A batch for which a plan
    was made is not measured, and neither is validation.

    Args:
      log_dir: The folder that `keras.callbacks.TensorBoard` has; its run "train" gets the scalars.
        The package tensorboard is only needed to show them.

    Examples:
      >>> scalars = checkmate.tf2.TensorBoardScalars("logs")
      >>> board = keras.callbacks.TensorBoard("logs")
      >>> model.fit(images, labels, callbacks=[board, scalars])
    """

    def __init__(self, log_dir: str | Path = "logs"):
        super().__init__()
        self._folder = str(Path(log_dir) / "train")
        self._writer: Any = None
        self._device = devices.training_device()
        self._measures = devices.allocator_reports(self._device)
        self._peak = 0
        self._kinds = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Opens the file."""
        self._writer = tf.summary.create_file_writer(self._folder, filename_suffix=".checkmate")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Counts memory from here."""
        self._peak = 0
        self._count_anew()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Reads the allocator, before validation takes its part."""
        kinds = planned(self.model).kinds
        if kinds != self._kinds:
            self._kinds = kinds
            self._count_anew()
        elif self._measures:
            self._peak = max(
                self._peak, tf.config.experimental.get_memory_info(self._device)["peak"]
            )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes."""
        found = scalars(planned(self.model).report())
        if self._peak:
            found["planned_peak_measured_GiB"] = self._peak / GIB
        with self._writer.as_default(step=epoch):
            for tag, value in found.items():
                _write(f"checkmate/{tag}", value)
        self._writer.flush()

    def on_train_end(self, logs: Any = None) -> None:
        """Closes the file."""
        self._writer.close()

    def _count_anew(self) -> None:
        if self._measures:
            tf.config.experimental.reset_memory_stats(self._device)


def scalars(report: Report) -> dict[str, float]:
    """The numbers of a report by tag."""
    plan = report.result.plan if report.result else None
    return {
        "budget_GiB": report.budget_bytes / GIB,
        "planned_peak_predicted_GiB": report.expected_peak_bytes / GIB,
        "plain_peak_predicted_GiB": report.plain_peak_bytes / GIB,
        "recomputations": float(sum(plan.recomputed.values())) if plan else 0.0,
        "overhead_predicted": report.predicted_slowdown,
    }


def _write(tag: str, value: float) -> None:
    """`tf.summary.scalar`, which newer TensorFlow has only with the package tensorboard."""
    metadata = tf.compat.v1.SummaryMetadata(
        plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
    )
    metadata.data_class = 1  # DATA_CLASS_SCALAR
    tf.summary.write(tag, tf.constant(value, tf.float32), metadata=metadata)
