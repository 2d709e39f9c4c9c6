"""Property tests here have no deadline: nothing is asserted about time. ``--hypothesis-profile long`` tries more."""

from hypothesis import settings

settings.register_profile("config", settings.get_profile("default"), deadline=None, max_examples=40)
settings.register_profile("long", settings.get_profile("config"), max_examples=1200)
settings.load_profile("config")
