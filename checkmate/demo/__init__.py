"""`checkmate demo` and `checkmate doctor --run`: workloads on made-up batches, trained plain and
within a budget in processes of their own."""

WORKLOADS = (
    "mobilenet",
    "resnet50",
    "resnet50_160",
    "unet",
    "vgg16",
    "transformer",
    "tanh_transformer",
    "decoder",
    "densenet121",
    "efficientnetb0",
    "lstm",
    "mobilenet_ln",
    "encoder",
    "unet_without_norm",
    "large_unet",
    "super_resolution",
)
"""The names of the workloads of `models.py`, which are known without TensorFlow: another name is
refused at once."""
