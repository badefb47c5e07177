"""Shows what each CPU allocator of TensorFlow counts: `python docs/allocators.py`."""

import os
import subprocess
import sys

SETTINGS = {
    "default": {},
    "without oneDNN": {"TF_ENABLE_ONEDNN_OPTS": "0"},
    "that of GPUs": {"TF_CPU_ALLOCATOR_USE_BFC": "true"},
}
SCRIPT = """
import tensorflow as tf
values = [tf.zeros([size], tf.uint8) + tf.cast(1, tf.uint8) for size in (3 * 2**20 + 1, 1000)]
try:
    for count in (2, 1):
        in_use = tf.config.experimental.get_memory_info("CPU:0")["current"]
        print("  in use with", [int(tf.size(value)) for value in values[:count]], in_use)
        del values[1:]
except ValueError as error:
    print(" ", error)
"""

if __name__ == "__main__":
    for name, setting in SETTINGS.items():
        print(name, setting, flush=True)
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **setting}
        subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, check=True, stderr=subprocess.DEVNULL
        )
