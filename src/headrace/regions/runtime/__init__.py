"""What connects the cores of regions to catalogs, stores and clocks."""
