"""
The tour: a rendered building, a map of it, and the node that finds its way by camera.

`tour.run_demo` takes it. Nothing is imported here: who wants a DDS domain needs no renderer.
"""
