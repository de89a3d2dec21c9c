"""Neural networks, beside torch."""
