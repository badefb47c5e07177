"""`checkmate demo` and `checkmate doctor --run`: workloads on made-up batches, trained plain and
within a budget in processes of their own."""

WORKLOADS = ("mobilenet", "resnet50", "unet", "vgg16", "transformer")
"""The names of the workloads of `models.py`, which are known without TensorFlow: another name is
refused at once."""
