"""The kinds of bytes of a budget, and what is predicted and measured of them."""
