"""Measurements on a run's weights. Nothing here knows how a run was trained."""
