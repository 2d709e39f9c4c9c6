"""Property tests here have no deadline: nothing is asserted about time."""

from hypothesis import settings

settings.register_profile("config", settings.get_profile(settings.get_current_profile_name()), deadline=None)
settings.load_profile("config")
