"""Exceptions whose messages give what was expected, what was given, and the remedy."""

from kbr_localization.progress import printable


class KbrError(Exception):
    """Base of errors that a user can fix: bad input, a bad file, a bad parameter."""

    def __str__(self) -> str:
        return printable(super().__str__())


class KernelError(KbrError, ValueError):
    """An invalid argument of a kernel, rule or filter."""


class VisionError(KbrError):
    """An image that cannot be described, or a descriptor that cannot be used."""


class MissingModuleError(VisionError):
    """A Python module that a descriptor needs is not installed."""


class DatasetError(KbrError):
    """A run folder or a bag that cannot be read."""


class MapError(KbrError):
    """A map file that cannot be read, written or used."""


class LocalizationError(KbrError):
    """A localizer that cannot be built, updated or reset as requested."""


class ConfigurationError(KbrError, ValueError):
    """An unknown parameter, or a value outside its range."""


class EvaluationError(KbrError):
    """A trajectory that cannot be compared with its reference."""


class RosError(KbrError):
    """A message that cannot be converted, or a node that cannot be set up."""


class WorkersError(KbrError):
    """Parallel work that cannot start, or whose processes were killed."""
