"""The methods that the filter is compared with, behind the same interface."""
