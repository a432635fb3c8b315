"""What surrounds the model while it trains: reading configs, checks with plain messages, processes, hooks."""
