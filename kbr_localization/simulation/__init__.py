"""Rendered runs through a building that exists only in memory."""
