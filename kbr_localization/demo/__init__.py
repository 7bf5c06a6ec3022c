"""The tour: a rendered building, a map of it, and the node that finds its way by camera."""
