"""Where bytes are: locations, stores and the bytes themselves."""
