"""Data the project makes itself."""
