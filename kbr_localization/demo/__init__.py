"""The tour: a rendered building, a map of it, and the node that finds its way by camera."""

from kbr_localization.demo.tour import run_demo

__all__ = ['run_demo']
