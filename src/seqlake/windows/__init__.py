"""Which time steps of which columns make one training example."""
