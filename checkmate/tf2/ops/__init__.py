"""The table of TensorFlow op types, and its rules by kind of op."""
