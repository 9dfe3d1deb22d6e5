"""Property tests of the cores: a slow machine is not a failure."""

from hypothesis import settings

settings.register_profile("cores", deadline=None)
settings.load_profile("cores")
