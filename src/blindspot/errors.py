"""Errors that are meant for the person at the keyboard.

Anything a user can cause is raised as a `BlindspotError`: the command line prints its message,
without a traceback, and exits with its code. Everything else is a bug and keeps its traceback.
"""


class BlindspotError(Exception):
    """A message that names the key or file at fault, its value, and what to do."""

    exit_code = 2


class UnwritableError(BlindspotError, OSError):
    """A file could not be written: no room, no permission, a folder that is not there."""


class NonFiniteError(BlindspotError):
    """A loss or gradient stopped being a number; the run ends, other runs go on."""

    exit_code = 70


class LockedError(BlindspotError):
    """Another live process already trains this run."""

    exit_code = 75


class InterruptedRunError(BlindspotError):
    """A signal asked the trainer to stop; it has saved its state and can go on from there."""

    exit_code = 85
