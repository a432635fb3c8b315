"""One benchmark a file; ``tools/benchmark.py`` runs them."""
