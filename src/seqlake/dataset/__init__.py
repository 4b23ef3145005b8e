"""What you hold in your hand: a table opened for you."""
