"""The published programs, equation by equation."""
