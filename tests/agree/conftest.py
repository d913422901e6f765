"""The same examples in every run, and no limit that a busy machine could break."""

from hypothesis import settings

settings.register_profile("agree", deadline=None, derandomize=True)
settings.load_profile("agree")
