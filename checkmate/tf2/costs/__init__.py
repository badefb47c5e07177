"""Seconds, workspaces and in-place inputs of each distinct op on the device that trains."""
