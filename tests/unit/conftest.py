"""Property tests use the same examples in every run, on machines of any speed."""

from hypothesis import settings

settings.register_profile("unit", deadline=None, derandomize=True, database=None)
settings.load_profile("unit")
