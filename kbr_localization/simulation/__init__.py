"""Runs rendered in generated buildings."""
