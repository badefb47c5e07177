"""The methods that plans are compared with."""
