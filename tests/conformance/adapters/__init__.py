"""One module per format, each with an ``ADAPTER``; adding a module is all it takes."""
