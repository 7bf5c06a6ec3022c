"""The localization node, its services and what it publishes."""
