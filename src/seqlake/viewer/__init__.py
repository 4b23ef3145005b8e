"""A local viewer in the browser: one small server for one dataset, and the page that it serves."""
