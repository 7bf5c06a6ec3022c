"""Trajectories against their reference: association, metrics, files, reports."""
