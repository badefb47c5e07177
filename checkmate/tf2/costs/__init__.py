"""Seconds, workspaces and footprints of each distinct op on the device that trains."""
