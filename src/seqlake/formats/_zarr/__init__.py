"""Arrays of zarr, format 2 and 3: what the formats that are kept in them share; read and written without zarr."""
