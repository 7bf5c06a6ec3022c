"""The package's errors: each says what was wrong, expected and given, and what to do about it."""

from kbr_localization.progress import printable


class KbrError(Exception):
    """Anything that a user can put right: bad input, a bad file, a bad parameter."""

    def __str__(self) -> str:
        return printable(super().__str__())


class KernelError(KbrError, ValueError):
    """An argument that the kernel mathematics cannot use."""


class VisionError(KbrError):
    """An image or a vocabulary that cannot be described."""


class MissingModuleError(VisionError):
    """A Python module that a descriptor needs and that is not installed."""


class DatasetError(KbrError):
    """A run folder or a bag that cannot be read."""


class MapError(KbrError):
    """A map file that cannot be read, written or used."""


class LocalizationError(KbrError):
    """A localizer used in a way that has no answer."""


class ConfigurationError(KbrError, ValueError):
    """An unknown parameter or a value outside of its range."""


class EvaluationError(KbrError):
    """A trajectory that cannot be compared with its reference."""


class RosError(KbrError):
    """A message that cannot be converted, or a node that cannot be set up."""


class WorkersError(KbrError):
    """Parallel work that cannot be started, or whose processes were killed."""
