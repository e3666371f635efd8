"""The one exception that a user's mistake raises."""


class SweepError(Exception):
    """A mistake in the config, a path or the results, worded for the user: key, value and remedy."""
