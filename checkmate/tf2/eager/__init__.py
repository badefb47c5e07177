"""Dynamic rematerialization while eager TensorFlow runs: `checkmate.tf2.dtr`."""
